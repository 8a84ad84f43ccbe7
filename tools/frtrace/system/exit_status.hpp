// exit_status.hpp - the exit statuses of frtrace, also those that a node reports to the collector.
#pragma once

namespace frtrace {

enum Status { kNoFault = 0, kFault = 1, kUsage = 2, kNothing = 3, kNotDecided = 4 };

}  // namespace frtrace
