// alter.hpp - the same case told otherwise: what must not change an analyzer's answer.
#pragma once

#include <cstdint>

#include "case.hpp"

namespace hangsim {

// Ranks, hosts and groups get each other's names.
void rename_all(Case&, std::uint64_t seed);
// The clocks of one node, and so the times of its files.
void shift_clock(Case&, int node, Ns by);
// No ring keeps more.
void cut_rings(Case&, int records);

}  // namespace hangsim
