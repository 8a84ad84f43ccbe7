// proc_file.hpp - files of /proc, /sys and /dev; their process may end while they are read.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace frtrace {

// At most 1 MiB; nullopt: missing, not readable, or its process is gone. `records`: for /dev/kmsg,
// which may drop records while it is read; at most 64 MiB.
std::optional<std::string> whole_file(const std::string& path, bool records = false);
// The variables in an environ file; of duplicates the first wins, as in getenv().
std::map<std::string, std::string> environment_in(const std::string& environ);

}  // namespace frtrace
