// proc_file.hpp - files of /proc, whose process may end while they are read.
#pragma once

#include <string>

namespace frtrace {

// All of it; "" where the process is gone or another user's.
std::string proc_file(const std::string& path);

}  // namespace frtrace
