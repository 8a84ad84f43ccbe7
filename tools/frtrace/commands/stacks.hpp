// stacks.hpp - `frtrace stacks <pid | job>`: where the threads of running processes are now.
#pragma once

namespace frtrace {

// argv[0] is "stacks". Exit status as of frtrace: 0 shown, 2 wrong usage, 3 nothing could be had.
int stacks_command(int argc, char** argv);

}  // namespace frtrace
