// clean.hpp - `frtrace --clean`.
#pragma once

#include <string>

namespace frtrace {

// Removes the files of this user's dead jobs from the ring directory of this node, and prints them.
// Returns an exit status.
int clean_rings(const std::string& shm_dir);

}  // namespace frtrace
