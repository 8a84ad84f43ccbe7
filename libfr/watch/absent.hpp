// absent.hpp - members that have come to a stalled operation, and the activity of those that have
// not: from the rings of this node's ranks, and from /proc. No allocation, no lock.
#pragma once

#include "format/view.hpp"
#include "sample/map_file.hpp"
#include "watch/attendance.hpp"

namespace fr {

struct Recorder;

class AbsentRanks final : public Eyes {
 public:
  explicit AbsentRanks(Recorder& recorder) noexcept : recorder_(recorder) {}
  struct Seen {
    Others others = Others::kUnseen;
    u64 came_ago_ns = 0;  // kCame: when the last member came
    i32 absent = -1;      // a rank that has not come, or has ended
    u32 more_absent = 0;  // besides that one, where all members are on this node
    i32 busy = -1;        // kBusy: a rank that computes
    u64 key = 0;          // of the group, where it has members on other nodes; 0: it has none
    u64 seq = kNoSeq;
  };
  // An operation of this process.
  Seen look(const RecordCopy& operation, u64 now_ns) noexcept;
  // All living ranks of this node.
  struct Node {
    u64 progress = 0;  // grows with every operation
    bool is_in_flight = false;
    i32 busy = -1;          // a rank that computes
    bool is_first = false;  // see Here
  };
  Node look_at_node(u64 now_ns) noexcept;
  // An operation of any group that this node's ranks know.
  bool look(u64 key, u64 seq, u64 now_ns, Here& to) noexcept override;

 private:
  struct Work {
    i32 pid;
    bool is_busy;
    bool is_first;  // and it was not looked at before
    bool is_runnable;
    u64 cpu_ns;
    u64 looked_ns;
  };
  struct Came {
    bool has_come;
    bool is_waiting;  // in an operation of its own
    u64 unix_ns;      // 0: long ago, it went on to later ones
  };
  View view_of(const PeerRow& peer, Mapping& mapping) const noexcept;
  Came look_into(const PeerRow& peer, u64 key, u64 seq) const noexcept;
  Here look_here(std::span<const u32> ranks, u64 key, u64 seq, u64 now_ns,
                 const PeerRow* asker) noexcept;
  bool is_busy(u32 row, i32 pid, u64 now_ns, bool& is_first) noexcept;

  Recorder& recorder_;
  Mapping kept_;  // what Here::ranks of the last look points into
  Work work_[kPeers] = {};
};

}  // namespace fr
