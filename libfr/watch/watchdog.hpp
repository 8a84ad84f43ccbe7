// watchdog.hpp - the thread that looks for lack of progress, decides when a dump is due, and writes
// it. It takes no lock and no GIL, makes no device call, and allocates nothing after its start.
#pragma once

#include <climits>

#include "format/encode.hpp"
#include "sample/thread_sampler.hpp"
#include "watch/deadlines_file.hpp"
#include "watch/dump_store.hpp"
#include "watch/late_rank.hpp"
#include "watch/patience.hpp"
#include "watch/requests.hpp"
#include "watch/ring_copier.hpp"
#include "watch/salvage.hpp"
#include "watch/silence.hpp"
#include "watch/slow_exit.hpp"
#include "watch/slower_steps.hpp"
#include "watch/verdict.hpp"
#include "watch/writer_thread.hpp"

namespace fr {

struct Recorder;

class Watchdog {
 public:
  explicit Watchdog(Recorder& recorder) noexcept;

  // Allocates what dumps need and starts the threads. False when they cannot be had.
  bool start() noexcept;

  // Async-signal-safe; see requests.hpp.
  bool request_dump(const char* reason, Trigger trigger, u64 limit_ns, char* path,
                    std::size_t path_bytes) noexcept {
    return requests_.request(reason, trigger, limit_ns, path, path_bytes);
  }
  void wake() noexcept { requests_.wake(); }
  void note_signal(int signal) noexcept { requests_.note_signal(signal); }
  void note_stacks_request() noexcept {
    stacks_wanted_.store(true);
    wake();
  }
  // Async-signal-safe: the process lived on after a crash that was dumped.
  void note_survived() noexcept {
    survived_.store(true);
    wake();
  }

  // Any thread, before the process exits: until every peer has answered the open incident or been
  // salvaged, so that none is left to a rank that is gone.
  void await_peers() noexcept;

  WriterThread& writer() noexcept { return writer_; }
  RingCopier& copier() noexcept { return copier_; }
  VerdictThread& verdict() noexcept { return verdict_; }
  DumpStore& store() noexcept { return store_; }
  void set_floors(const Floors& floors) noexcept;
  SlowExit& slow_exit() noexcept { return slow_exit_; }
  DeadlinesFile& deadlines() noexcept { return deadlines_; }

  u64 incident() const noexcept { return incident_.load(); }
  // The incident in which this rank hung and still does, as of the last tick; 0 none.
  u64 hung() const noexcept { return hung_.load(); }
  // Operations that had failed when the last dump that was written was taken.
  u64 failures_dumped() const noexcept { return failures_dumped_.load(); }
  // The next ticket when this rank last dumped by itself; ~0: it has not.
  u64 dumped_head() const noexcept { return dumped_head_.load(); }
  void last_path(DumpStore::Path& out) const noexcept { store_.last_path(out); }

 private:
  // State of one group.
  struct Stall {
    u64 progress = 0;       // sum of the counters that only progress moves
    u64 since_ns = 0;       // monotonic: last progress, or when something came in flight
    u64 put_off_ns = 0;     // until when the next dump is, after one; 0: as Patience says
    u64 dump_after_ns = 0;  // as it was last said
    bool warned = false;
    u64 incident = 0;       // that it was dumped in; 0: progress since
    u64 hung_since_ns = 0;  // monotonic, of that stall
    Standing wait;
  };

  static void* thread_main(void* self) noexcept;
  void run() noexcept;
  void close_survived() noexcept;
  bool is_left_behind(u32 group) const noexcept;
  void check_failures() noexcept;
  void check_stalls(u64 now_ns) noexcept;
  void check_stall(u32 group, u64 in_flight, u64 now_ns) noexcept;
  void check_silence(u64 now_ns) noexcept;
  void queue_warning(const char* text, u64 now_ns) noexcept;
  void note_progress(Stall& stall, u64 progress, u64 now_ns) noexcept;
  void warn(u64 now_ns) noexcept;
  void back_off(u64 now_ns) noexcept;
  void mark_hung(u64 incident, bool is_silent, u64 now_ns) noexcept;
  void check_went_on(u64 now_ns) noexcept;
  void check_losses() noexcept;
  void answer_stacks() noexcept;
  void set_hung(u64 incident) noexcept;
  void open_pipe() noexcept;
  bool dump(const char* reason, Trigger trigger) noexcept;
  bool dump_incident(u64 incident, const char* reason, Trigger trigger) noexcept;

  Recorder& recorder_;
  DumpRequests requests_;
  DumpEncoder encoder_;
  ThreadStacks threads_;
  DumpStore store_;
  WriterThread writer_;
  RingCopier copier_;
  VerdictThread verdict_;
  Salvage salvage_;
  LateRank late_rank_;
  SlowerSteps slower_steps_;
  SlowExit slow_exit_;
  Patience patience_;
  Silence silence_;
  DeadlinesFile deadlines_;
  int pipe_fd_ = -1;
  char pipe_path_[PATH_MAX] = {};
  std::atomic<u64> incident_{0};
  std::atomic<bool> survived_{false};
  std::atomic<bool> stacks_wanted_{false};
  bool loss_said_[3] = {};
  char warning_[512] = {};  // to be said at warning_due_ns_, monotonic; 0 none
  u64 warning_due_ns_ = 0;
  u64 own_dump_ = 0;          // last incident that this rank dumped by itself
  std::atomic<u64> hung_{0};  // incident of the stall that lasts; 0 none
  u64 hung_failures_ = 0;     // operations that had failed when it was dumped
  bool is_alarm_ = false;     // it was dumped because of its stall
  bool is_doubled_ = false;   // a call site's deadlines are, since it went on
  u64 failures_seen_ = 0;
  std::atomic<u64> failures_dumped_{0};
  std::atomic<u64> dumped_head_{~0ull};
  u64 dumped_ns_ = 0;        // monotonic time of the last dump of a fault
  u64 failure_dump_ns_ = 0;  // monotonic time of the last dump for a failure
  Stall* stalls_ = nullptr;  // by group
};

// fr_set_tick: what another library records on the watchdog's thread; nullptr: nothing.
void set_tick(void (*tick)()) noexcept;
void call_tick() noexcept;

}  // namespace fr
