// patience.hpp - of each group that stands still: what it waits for, when that is worth a warning
// and a dump, and what was learned when it went on. The watchdog asks; deadlines.hpp has the rules.
#pragma once

#include "watch/absent.hpp"
#include "watch/deadlines.hpp"
#include "watch/sites.hpp"

namespace fr {

struct Recorder;

// One standstill of one group; all zero: none that is worth a look yet.
struct Standing {
  SiteRow* site = nullptr;
  u64 ticket = 0;          // of the oldest operation in flight
  u64 began_unix_ns = 0;   // its issue
  u64 limit_ns = 0;        // see Standstill
  u64 looked_ns = 0;       // monotonic
  u64 state_since_ns = 0;  // monotonic: when `seen.others` became so
  u64 asleep_ns = 0;       // the longest time in Others::kAsleep
  u64 failed = 0;          // operations of this process that had failed before
  AbsentRanks::Seen seen;
};

class Patience {
 public:
  explicit Patience(Recorder& recorder) noexcept
      : recorder_(recorder), sites_(recorder), absent_(recorder) {}
  void set_floors(const Floors& floors) noexcept { floors_ = floors; }
  bool init() noexcept { return sites_.init(); }
  void every_tick(u64 now_ns) noexcept;

  // Deadline of a group without progress since `since_ns`, in nanoseconds after it.
  Deadline deadline(Standing& wait, u32 group, u64 since_ns, u64 now_ns) noexcept;
  // It went on: learns from it. False: it did not, an operation failed.
  bool went_on(Standing& wait, u64 since_ns, u64 now_ns) noexcept;
  // The same where it was dumped; true: the deadlines of its site are doubled now.
  bool note_false_dump(const Standing& wait, u64 now_ns) noexcept;
  // "; rank 3 has not come, it computes; 12.0 s at most here so far", "" nothing is known.
  void describe(const Standing& wait, char* out, std::size_t bytes) const noexcept;

 private:
  void look(Standing& wait, u32 group, u64 since_ns, u64 now_ns) noexcept;

  Recorder& recorder_;
  Sites sites_;
  AbsentRanks absent_;
  Floors floors_{};
};

}  // namespace fr
