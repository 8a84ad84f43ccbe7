// collect.hpp - `frtrace collect`, and `frtrace dump`.
#pragma once

#include <optional>

#include "commands/arguments.hpp"

namespace frtrace {

// An exit status, or none: `then` has what is to be judged.
std::optional<int> collect_command(int argc, char** argv, Arguments& then);
int dump_command(int argc, char** argv);

}  // namespace frtrace
