// file_locks.hpp - ranks that hold file locks that other ranks wait for.
#pragma once

#include <vector>

#include "facts/exits.hpp"
#include "model/case.hpp"

namespace frtrace {

// Per evidence: evidence of the rank on its machine that holds the file lock that its main thread
// waits for; -1: it waits for none, or no live rank is known to hold it.
std::vector<int> lock_holders(const Case&, const std::vector<Exit>&);

}  // namespace frtrace
