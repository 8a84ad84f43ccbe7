// alter.hpp - changes of a case that must not change an analyzer's answer.
#pragma once

#include <cstdint>

#include "case.hpp"

namespace hangsim {

// Exchanges the names of ranks, of hosts and of groups.
void rename_all(Case&, std::uint64_t seed);
// Shifts the clock of one node, and so the times of its files.
void shift_clock(Case&, int node, Ns by);
// Limits each ring to so many records.
void cut_rings(Case&, int records);

}  // namespace hangsim
