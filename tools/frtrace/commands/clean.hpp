// clean.hpp - `frtrace --clean`.
#pragma once

#include <string>

namespace frtrace {

// Removes what dead jobs of this user left in the ring directory of this node, and says what.
// Returns an exit status.
int clean_rings(const std::string& shm_dir);

}  // namespace frtrace
