// wide.hpp - cases of widely drawn jobs: the planted faults, and how far the evidence shows them.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "faults.hpp"

namespace hangsim {

// The fault of one rank.
struct Guilt {
  enum How {
    kStopped,      // its host never comes back
    kGone,         // its process ended
    kFrozen,       // its process is stopped
    kSkipped,      // it leaves out a collective
    kAdded,        // it issues one more
    kChanged,      // another operation, size or dtype in the slot
    kOddSplit,     // its all_to_all sends more than is expected
    kReordered,    // two groups in the other order
    kNoSend,       // a send left out
    kNoRecv,       // a receive left out
    kOtherSize,    // its send is larger than the receive
    kOtherPeer,    // it exchanges with another peer
    kLoneSend,     // a send without a receive
    kCircle,       // it sends before it receives, as all of its group do
    kBroken,       // no rank is guilty: all start an operation that never ends
    kStuckDevice,  // a kernel of its own never ends
    kLags          // its device never finishes an operation that all others finish
  };
  How how = kStopped;
  int rank = 0, group = 0;
  int other_group = -1;   // second group of kReordered
  int peer = -1;          // rank at the other end of a send or receive
  std::uint64_t seq = 0;  // slot of the collective, from 1
  int mark = 0;           // of the operation that was changed
  std::string text;
  std::string_view name;  // of the operation
};

struct WideRecipe {
  Class cls;
  // Empty: not possible in this job.
  std::vector<Guilt> (*plant)(Context&);
  Outcome outcome = Outcome::kHang;
};
const std::vector<WideRecipe>& wide_recipes();

std::string_view kind_of(Guilt::How);  // of the verdict
bool is_of_order(Guilt::How);          // the fault is in the sequence of operations

// A rank's evidence, and its true state.
struct RankView {
  bool file = false;
  std::vector<Seen> ops;             // batches after their members
  std::size_t first_kept = 0;        // in ops
  std::vector<std::size_t> pending;  // in ops: collectives, single sends and receives, batches
  std::map<int, std::uint64_t> collectives;
  std::map<std::tuple<int, int, What>, std::uint64_t> lanes;
};

// The planted faults; visible[i]: the outcome changes in a run without guilts[i].
struct WideFault {
  std::vector<Guilt> guilts;
  std::vector<bool> visible;
};
Truth wide_truth(const Case&, const WideFault&, bool torch);
// For a job that no fault stops.
Truth running_truth(const Case&, const WideFault&);

}  // namespace hangsim
