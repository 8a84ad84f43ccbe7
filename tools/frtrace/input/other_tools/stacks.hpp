// stacks.hpp - stacks of a process's threads as other tools print them: `py-spy dump --json` (with or
// without --native and --locals) and Python's faulthandler. They name no rank and no job: these are
// in the file's name, or follow from the process id, see settle.hpp.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "model/rank_data.hpp"

namespace frtrace {

// nullptr, and why: it is none.
std::unique_ptr<RankEvidence> load_py_spy(std::span<const unsigned char> json, std::string& why);

// The last complete dump of a text, which may be a whole log.
bool has_faulthandler(std::span<const unsigned char> text);
std::unique_ptr<RankEvidence> load_faulthandler(std::span<const unsigned char> text);

}  // namespace frtrace
