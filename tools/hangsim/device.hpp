// device.hpp - NCCL's data about the devices of a case at the moment when a rank is observed.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "case.hpp"
#include "wires.hpp"

namespace hangsim {

// An NCCL communicator: of a group or, for single sends and receives, of two of its members.
struct Comm {
  int group = 0, low = -1, high = -1;
  bool is_pair() const { return low >= 0; }
  auto operator<=>(const Comm&) const = default;
};

// One transfer over the network, or one kernel channel.
struct PhaseRow {
  const char* kind = "";
  int channel = 0;
  int peer = -1;  // rank of the communicator
  const char* waits_for = "";
  int step = 0, n_steps = 0;
  Ns time = kNever;
};

struct OperationRow {
  const Issued* issued = nullptr;
  std::uint64_t ticket = 0;
  Comm comm;
  const char* state = "";
  Ns launching = kNever, launched = kNever, started = kNever;
  int channels = 0, channels_started = 0;
  std::vector<PhaseRow> phases;
};

// A transfer that this process carries for another rank of its node (PXN).
struct CarriedRow {
  int rank = 0;              // owner of the transfer
  std::uint64_t ticket = 0;  // of the owner's operation
  PhaseRow phase;
};

class DeviceView {
 public:
  explicit DeviceView(const Case&);

  // Operations of the rank that have not ended, and earlier ones with transfers that still move.
  std::vector<OperationRow> operations(int rank, Ns at) const;
  std::vector<CarriedRow> carried(int rank, Ns at) const;
  // NCCL reports neither the start nor the end of the operation on that rank.
  bool is_unseen(int rank, const Op&) const;
  // Whether the operation has started, as far as a recorder can tell.
  bool is_started(int rank, const Issued&, Ns at) const;
  std::size_t nodes_of(const Comm&) const;

 private:
  struct Key {
    int group;
    int from, to;  // of sends and receives, else -1
    std::uint64_t seq;
    auto operator<=>(const Key&) const = default;
  };
  Key key_of(int rank, const Issued&) const;
  const Issued* find(int rank, const Key&) const;
  Stage stage(int rank, const Key&, Ns at) const;
  // Flow of the operation over all its members, as the observed rank sees it.
  const Flow& flow_of(const Issued&, const Key&, Ns at) const;
  // Time of the last launch or start of the operation on any member.
  Ns last_change(const Key&, Ns at) const;
  const Group& group(int g) const { return c_.job.groups[static_cast<std::size_t>(g)]; }
  void transfers(int rank, const Issued&, const Key&, Ns at, std::vector<PhaseRow>& own,
                 std::map<int, std::vector<PhaseRow>>* carried) const;

  const Case& c_;
  std::vector<std::map<Key, const Issued*>> issued_;  // per rank
  std::set<Key> troubled_;                            // by any member
  // Cached, since every member asks for them and each answer looks at all members of the group.
  mutable std::map<std::pair<Key, Ns>, std::unique_ptr<Flow>> flows_;
  mutable std::map<std::pair<Key, Ns>, Ns> last_changes_;
  mutable std::map<Comm, std::size_t> nodes_;
};

}  // namespace hangsim
