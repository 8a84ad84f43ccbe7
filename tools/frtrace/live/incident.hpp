// incident.hpp - raises an incident from outside: in the control page of a job, where its ranks'
// watchdogs look ten times a second. No rank is interrupted.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "live/rings.hpp"

namespace frtrace {

struct RaisedIncident {
  std::string job;
  std::uint64_t incident = 0;
  std::vector<int> dumped, silent;  // ranks
};

// Raises an incident in each control page that has a living rank among these rings. Joins an
// incident opened a moment ago: the same command may have been faster on another node. Waits until
// all ranks have dumped, at most `limit`.
std::vector<RaisedIncident> raise_incidents(const std::vector<FoundRing>& rings,
                                            std::chrono::milliseconds limit);

}  // namespace frtrace
