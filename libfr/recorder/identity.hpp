// identity.hpp - what a process is called: host, boot, command line, start time.
#pragma once

#include <string>

#include "format/layout.hpp"

namespace fr {

std::string host_name();
std::string boot_id();
std::string command_line();  // arguments joined by spaces
std::string working_directory();
u64 pid_namespace();  // pids mean something only within one

}  // namespace fr
