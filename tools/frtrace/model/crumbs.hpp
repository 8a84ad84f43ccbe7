// crumbs.hpp - lines about one rank out of what its own program left: notes, and the exception that
// ended it.
#pragma once

#include <string>
#include <vector>

#include "model/case.hpp"

namespace frtrace {

// Steps, spans, traced calls, exceptions that were handled: `last note "building extension", step 20
// (the others at step 21)`.
std::vector<std::string> crumb_lines(const Case&, const RankEvidence&);
// "its thread prefetch died of KeyError: 'a', at train.py:20 in load", of threads that an exception
// has ended while the process went on.
std::vector<std::string> died_lines(const RankEvidence&);
// An exception ended that thread, and the process went on.
bool has_died(const RankEvidence&, std::uint32_t tid);
// "raised RuntimeError: no batch", where, and what it came from. `exit`: type and message.
std::vector<std::string> raised_lines(const RankEvidence&, const std::string& exit);

}  // namespace frtrace
