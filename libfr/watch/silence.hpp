// silence.hpp - a job that stands still with no operation in flight: the ranks of this node issue
// nothing, and none waits in an operation. They may all wait for a file, a lock, a data server. How
// long they are silent now and then is learned as for a call site. No allocation, no lock.
#pragma once

#include "watch/absent.hpp"
#include "watch/deadlines.hpp"

namespace fr {

struct Recorder;
struct ThreadReport;
class ThreadStacks;

class Silence {
 public:
  explicit Silence(Recorder& recorder) noexcept : recorder_(recorder), absent_(recorder) {}
  void set_floors(const Floors& floors) noexcept { floors_ = floors; }
  void init() noexcept;

  struct Due {
    bool warn = false;
    bool dump = false;
    bool is_over = false;  // the ranks issue operations again, after a dump
  };
  Due look(u64 now_ns) noexcept;  // every tick
  // "no operation issued for 17.0 s (usually every 11 ms); rank 0 is in next_shard() at data.py:13,
  // asleep in read of pipe:[4711]". False: a server that awaits requests, or a prompt; no dump is
  // due for it.
  bool describe(ThreadStacks& threads, u64 now_ns, char* out, std::size_t bytes) noexcept;

  void note_warned() noexcept { now_.is_warned = true; }
  void back_off(u64 now_ns) noexcept;  // it has its dump
  void put_off(u64 ns) noexcept;       // the watchdog did not run for so long
  void mark_hung(u64 incident, u64 now_ns) noexcept;
  // The incident that this silence was dumped in; 0: none, or it is over.
  u64 incident() const noexcept { return incident_; }
  // Monotonic: when the silence of the last incident began; 0 none. Forgets it.
  u64 take_hung_since() noexcept;
  // The silence that was dumped is over: the deadline is doubled from now on if that is true.
  bool note_false_dump(u64 now_ns) noexcept;

 private:
  struct State {
    u64 since_ns = 0;  // monotonic: last operation of the node
    u64 looked_ns = 0;
    u64 node_progress = 0;
    u64 asleep_from_ns = 0;  // monotonic: since when no process computes
    u64 longest_asleep_ns = 0;
    u64 put_off_ns = 0;
    u64 dump_after_ns = 0;
    bool is_busy = true;
    bool is_warned = false;
  };
  bool may_be_silent() const noexcept;
  bool note_progress(u64 now_ns) noexcept;
  bool look_at_node(u64 now_ns) noexcept;
  u64 usual_gap_ns() const noexcept;

  Recorder& recorder_;
  AbsentRanks absent_;
  Floors floors_{};
  SiteRow* site_ = nullptr;
  State now_;
  u64 head_ = 0;
  u64 visited_ns_ = 0;
  u64 incident_ = 0;
  u64 hung_since_ns_ = 0;
  Others dumped_as_ = Others::kAsleep;
};

}  // namespace fr
