// live.hpp - `frtrace live`: a running job on a screen.
#pragma once

namespace frtrace {

// argv[0] is "live". Exit status: that of the last verdict; 2 wrong usage, 3 no such job here.
int live_command(int argc, char** argv);

}  // namespace frtrace
