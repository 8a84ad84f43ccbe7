// check.hpp - `frtrace check`: connectivity and bad devices of a cluster.
#pragma once

namespace frtrace {

// argv[0] is "check". Becomes `python -m fr.check` with the same arguments; returns only where no
// Python can be started.
int check_command(int argc, char** argv);

}  // namespace frtrace
