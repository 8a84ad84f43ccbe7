// absent.hpp - who has come to an operation that stands still, and what those do who have not: by
// the rings of this node's ranks, and by what /proc says of their processes. No allocation, no lock.
#pragma once

#include "format/view.hpp"
#include "watch/deadlines.hpp"

namespace fr {

struct Recorder;

class AbsentRanks {
 public:
  explicit AbsentRanks(Recorder& recorder) noexcept : recorder_(recorder) {}
  struct Seen {
    Others others = Others::kUnseen;
    u64 came_unix_ns = 0;  // kCame: when the last member came
    i32 absent = -1;       // a rank that has not come, or has ended
    i32 busy = -1;         // kBusy: a rank that computes
  };
  Seen look(const RecordCopy& operation, u64 now_ns) noexcept;

 private:
  struct Work {
    i32 pid;
    bool is_busy;
    u64 cpu_ns;
    u64 looked_ns;
  };
  struct Came {
    bool has_come;
    bool is_waiting;  // in an operation of its own
    u64 unix_ns;
  };
  Came look_into(const PeerRow& peer, const RecordCopy& operation) noexcept;
  bool is_busy(u32 row, i32 pid, u64 now_ns) noexcept;

  Recorder& recorder_;
  Work work_[kPeers] = {};
};

}  // namespace fr
