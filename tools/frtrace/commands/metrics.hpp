// metrics.hpp - `frtrace metrics`: this node's jobs in Prometheus' text format.
#pragma once

namespace frtrace {

// argv[0] is "metrics". Exit status: 0 ended by a signal or after one look, 2 wrong usage, 3 the
// file or the address could not be had.
int metrics_command(int argc, char** argv);

}  // namespace frtrace
