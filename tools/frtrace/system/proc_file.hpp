// proc_file.hpp - files of /proc, /sys and /dev, whose process may end while they are read.
#pragma once

#include <map>
#include <optional>
#include <string>

namespace frtrace {

// At most 1 MiB; nullopt: not there, not for this user, or its process is gone. `records`: of
// /dev/kmsg, which loses some while it is read; at most 64 MiB.
std::optional<std::string> whole_file(const std::string& path, bool records = false);
// The variables in an environ file; of one that is there twice the first, as getenv() has it.
std::map<std::string, std::string> environment_in(const std::string& environ);

}  // namespace frtrace
