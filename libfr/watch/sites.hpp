// sites.hpp - the call sites of this process: which row of the region an operation's has, and how
// often it was visited. Reads the ring on the watchdog's thread; recording threads pay nothing.
#pragma once

#include "format/view.hpp"

namespace fr {

struct Recorder;

class Sites {
 public:
  explicit Sites(Recorder& recorder) noexcept : recorder_(recorder) {}
  bool init() noexcept;
  SiteRow& of(const RecordCopy& record) noexcept;
  // Once per tick: counts operations that have ended since. A site counts once a second at most:
  // the many operations of one iteration are one visit. Records lost meanwhile are not counted.
  void count_visits(u64 now_ns) noexcept;

 private:
  static constexpr u32 kOpen = 1024;    // tickets in flight that are looked at again
  static constexpr u32 kCached = 1024;  // power of two
  struct Cached {
    u64 created_ticks;  // of the group: rows of groups are used again
    u32 group, op, stack;
    u32 site;
  };
  void take(const RecordCopy& record, u64 now_ns) noexcept;

  Recorder& recorder_;
  SiteRow* rows_ = nullptr;
  u64 next_ = 0;  // ticket
  u32 n_open_ = 0;
  u64 open_[kOpen];
  Cached cached_[kCached];
  u64 visited_ns_[kSites];
};

}  // namespace fr
