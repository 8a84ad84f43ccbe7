// late_rank.hpp - says once, while the job runs, for which rank of this node the others wait again
// and again. Nothing is recorded for that: the watchdog of a rank that waited long looks into the
// rings of its peers, which have the time of each arrival. No allocation, no lock.
#pragma once

#include "format/view.hpp"

namespace fr {

struct Recorder;

class LateRank {
 public:
  explicit LateRank(Recorder& recorder) noexcept : recorder_(recorder) {}
  void look(u64 now_ns) noexcept;  // every tick

 private:
  static constexpr u32 kOf = 10;  // operations of one call site, the last ones
  struct Waited {
    u64 seq;
    u64 begun_ns, ended_ns;  // unix, of this rank
    u64 last_ns, before_ns;  // the last arrival and the one before it
    const PeerRow* last;     // nullptr: this rank's
  };
  bool find_waits(u64 now_unix_ns) noexcept;
  void add_arrivals(const PeerRow& peer) noexcept;
  void tell() noexcept;

  Recorder& recorder_;
  u64 looked_ns_ = 0;
  u32 group_ = 0;
  u32 op_ = 0;
  u32 stack_ = 0;
  u32 n_ = 0;
  Waited waited_[kOf] = {};
};

}  // namespace fr
