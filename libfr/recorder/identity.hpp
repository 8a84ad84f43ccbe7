// identity.hpp - what a process is called: host, boot, program, launcher, command line.
#pragma once

#include <string>

#include "format/layout.hpp"

namespace fr {

std::string host_name();
std::string boot_id();
std::string command_line();  // arguments joined by spaces
std::string program_name();  // base name of the first argument
std::string launcher_pid();  // the process that started this one and its sisters
std::string working_directory();

}  // namespace fr
