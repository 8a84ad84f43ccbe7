// stacks.hpp - thread stacks as other tools print them: `py-spy dump --json` (with or without
// --native and --locals) and Python's faulthandler. They name no rank and no job: these are in the
// file's name, or follow from the process id, see settle.hpp.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "model/rank_data.hpp"

namespace frtrace {

// nullptr, and `why`: not such a file.
std::unique_ptr<RankEvidence> load_py_spy(std::span<const unsigned char> json, std::string& why);

// The last complete dump in a text, which may be a whole log.
bool has_faulthandler(std::span<const unsigned char> text);
std::unique_ptr<RankEvidence> load_faulthandler(std::span<const unsigned char> text);

}  // namespace frtrace
