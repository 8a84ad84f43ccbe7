// sim.hpp - runs a job: hosts that issue, devices that execute, until nothing moves any more.
#pragma once

#include <string>
#include <vector>

#include "job.hpp"

namespace hangsim {

inline constexpr Ns kNever = -1;

// One operation that a host issued, as a recorder sees it.
struct Issued {
  const Op* op = nullptr;  // for a batch: one of its parts, or the batch itself
  const Op* batch = nullptr;
  Ns created = 0;
  Ns launched = kNever;
  Ns started = kNever, done = kNever;
  bool failed = false;
  std::uint64_t seq = 0;  // collectives of the group, from 1; of P2P: in its lane
  std::uint64_t collectives = 0, p2p = 0, ops = 0;  // PyTorch's counters of the group
};

struct RankRun {
  std::vector<Issued> issued;
  bool ended = false;
  Ns ended_at = 0;
  ExitHow how = ExitHow::kClean;
  bool terminated = false;  // by the launcher
  std::string error;        // type: message
  bool own_fault = false;   // it ended by its planted fault
  int step = 0;
  const Op* hung_in = nullptr;  // operation in which its host hangs
  Ns device_stuck = kNever;     // start of its kernel that never ends
};

struct Run {
  std::vector<RankRun> ranks;
  Ns last_event = 0;      // last event of a communicating operation
  bool finished = false;  // all programs ran to their end
};

Run simulate(const Job& job, std::uint64_t seed);

}  // namespace hangsim
