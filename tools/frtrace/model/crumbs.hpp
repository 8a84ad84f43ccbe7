// crumbs.hpp - lines about one rank from traces of its own program: notes, and the exception that
// ended it.
#pragma once

#include <string>
#include <vector>

#include "model/case.hpp"

namespace frtrace {

// Steps, spans, traced calls, handled exceptions: `last note "building extension", step 20 (the
// others at step 21)`.
std::vector<std::string> crumb_lines(const Case&, const RankEvidence&);
// "its thread prefetch died of KeyError: 'a', at train.py:20 in load", for each thread that an
// exception ended while the process went on.
std::vector<std::string> died_lines(const RankEvidence&);
// An exception ended that thread, and the process went on.
bool has_died(const RankEvidence&, std::uint32_t tid);
// "raised RuntimeError: no batch", the place, and the cause. `exit`: type and message.
std::vector<std::string> raised_lines(const RankEvidence&, const std::string& exit);

}  // namespace frtrace
