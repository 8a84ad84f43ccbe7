// wires.hpp - the data that NCCL moves between the members of one operation: rings, trees and pairs
// of buffers, filled and taken step by step until nothing moves any more.
#pragma once

#include <functional>
#include <vector>

#include "job.hpp"

namespace hangsim {

// Progress of a member: its network thread works from the launch on, its kernel from the start on.
enum class Stage : std::uint8_t { kAway, kLaunched, kRuns };

// A connection between two members, on one channel. Counts are in steps; members are positions in
// the group.
struct Wire {
  int channel = 0, from = 0, to = 0;
  int carrier = 0;   // its process sends to the network: `from`, or (PXN) a rank of its node
  bool net = false;  // false: the kernels reach each other directly
  int steps = 0;
  int filled = 0;      // by the kernel of `from`
  int given = 0;       // to the network
  int gone = 0;        // arrived, as the network reports to the sender
  int arrived = 0;     // arrived, as seen by the network thread of `to`
  int taken = 0;       // by the kernel of `to`
  int room = 0;        // buffers of `to` that `carrier` knows of
  bool sends = false;  // `carrier`'s network thread has begun with it
  bool receives = false;
  bool flushing = false;
  bool sent() const { return gone >= steps; }
  bool received() const { return taken >= steps; }
};

struct Flow {
  std::vector<Wire> wires;
  std::vector<int> channels;            // per member: how many of its kernel's channels run
  std::vector<bool> done;               // per member: its kernel has ended
  const Wire* same(const Wire&) const;  // the same wire in this flow; nullptr: none
};

// The wires of an operation in their initial state. For a send or receive: from -> to.
std::vector<Wire> wires_of(const Job&, const Op&, int from = -1, int to = -1);

struct Setting {
  std::vector<Stage> stages;      // per member
  std::vector<Trouble> troubles;  // of all members
  const Flow* before =
      nullptr;          // of the operation before: a wire serves one operation after the other
  bool frozen = false;  // the members disagree: nothing moves
};
Flow flow(const Job&, const Op&, const Setting&, int from = -1, int to = -1);

}  // namespace hangsim
