// output.hpp - results of a command: its exit status, and files that are written atomically.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "words/report.hpp"

namespace frtrace {

// Exit status of the reports: a fault takes precedence over an undecided report.
int status_of(const std::vector<Report>&);

// Writes a temporary file and renames it. Returns the error without the path, or nullopt.
std::optional<std::string> write_whole(const std::string& path, const std::string& bytes);

}  // namespace frtrace
