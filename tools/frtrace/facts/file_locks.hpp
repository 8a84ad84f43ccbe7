// file_locks.hpp - which rank holds the file lock that another rank waits for.
#pragma once

#include <vector>

#include "facts/exits.hpp"
#include "model/case.hpp"

namespace frtrace {

// Per evidence: evidence of the rank of its machine that holds the lock of a file which the main
// thread of this one waits for; -1: it waits for none, or no rank that lives is known to hold it.
std::vector<int> lock_holders(const Case&, const std::vector<Exit>&);

}  // namespace frtrace
