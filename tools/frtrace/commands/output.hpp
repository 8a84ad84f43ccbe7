// output.hpp - what a command leaves behind: its exit status, and files that nobody reads half of.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "words/report.hpp"

namespace frtrace {

// Of the verdicts: a fault counts for more than what could not be decided.
int status_of(const std::vector<Report>&);

// Writes beside the file and renames. Why it could not be written, without the path.
std::optional<std::string> write_whole(const std::string& path, const std::string& bytes);

}  // namespace frtrace
