#include "commands/check.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "commands/arguments.hpp"

namespace frtrace {

// The check is a program of torch.distributed. fr is installed for the Python beside frtrace.
int check_command(int argc, char** argv) {
  std::error_code none;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", none);
  const std::string beside = self.parent_path() / "python3";
  std::string python = ::access(beside.c_str(), X_OK) == 0 ? beside : "python3";
  std::string minus_m = "-m", module = "fr.check";
  std::vector<char*> arguments = {python.data(), minus_m.data(), module.data()};
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  arguments.push_back(nullptr);
  ::setenv("PYTHONSAFEPATH", "1", 1);  // not an fr of the current directory
  ::execvp(python.c_str(), arguments.data());
  std::cerr << "frtrace: " << python << ": " << std::strerror(errno) << "\n";
  return kNothing;
}

}  // namespace frtrace
