// ask_stacks.hpp - has running processes write where their threads are, by the signal that their
// rings name, to a file beside the ring.
#pragma once

#include <string>
#include <vector>

#include "live/rings.hpp"

namespace frtrace {

// Returns the files of the processes that answered; the caller reads and removes them.
std::vector<std::string> ask_stacks(const std::vector<FoundRing>& rings);

bool is_stopped_process(int pid);

}  // namespace frtrace
