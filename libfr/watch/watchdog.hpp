// watchdog.hpp - the one thread of libfr. Looks for lack of progress, writes every dump, salvages
// peers, keeps the clock anchors. Takes no lock, no GIL, makes no device call; allocates nothing
// after start.
#pragma once

#include <pthread.h>

#include <climits>

#include "format/encode.hpp"
#include "fr/fr.h"
#include "nccl/ras.hpp"
#include "sample/files.hpp"
#include "sample/thread_sampler.hpp"

namespace fr {

struct Recorder;

enum class Trigger : u32 {
  kTimeout,
  kManual,
  kPeer,
  kFailure,
  kSignal,
  kPipe,
  kException,
  kExit,
  kCrash,
  kEndSignal
};
const char* trigger_name(Trigger trigger) noexcept;

class Watchdog {
 public:
  // Allocates what dumps need and starts the thread. False when the thread cannot be had.
  bool start(Recorder& recorder) noexcept;

  // Any thread: has a dump written and waits for it, at most limit_ns. False when none was written.
  bool request_dump(const char* reason, Trigger trigger, u64 limit_ns, char* path,
                    std::size_t path_bytes) noexcept;
  // Async-signal-safe: look at once (an operation failed, a signal came).
  void wake() noexcept;
  // Any thread, before the process ends: until every peer has answered the open incident or been
  // salvaged, so that none is left to a rank that is no more.
  void await_peers() noexcept;
  // Until the user's writer has had what is queued for it, `most_ms` at most.
  void await_writer(int most_ms) const noexcept;
  // Async-signal-safe: FR_SIGNAL came.
  void note_signal(int signal) noexcept;

  void set_writer(fr_writer writer, void* user) noexcept;
  void set_sink(fr_sink sink, void* user) noexcept;

  // Any thread: NCCL is in use, so its RAS service may be asked from now on. Cold.
  void use_ras() noexcept;

  u64 incident() const noexcept { return incident_.load(); }
  // Operations that had failed when the last dump that was written was taken.
  u64 failures_dumped() const noexcept { return failures_dumped_.load(); }
  const char* last_path() const noexcept { return last_path_; }

 private:
  struct Request {
    enum : u32 { kFree, kClaimed, kPosted, kRunning, kDone, kAbandoned };
    std::atomic<u32> state{kFree};
    Trigger trigger;
    bool ok;
    char reason[256];
    char path[PATH_MAX];
  };
  struct Stall {
    u64 progress = 0;  // sum of the counters that only progress moves
    u64 since_ns = 0;  // monotonic: last progress, or when something came in flight
    u64 dump_after_ns = 0;
    bool warned = false;
  };
  struct Written {
    u64 incident;
    char reason[256];
    char path[PATH_MAX];
  };

  static void* thread_main(void* self) noexcept;
  static void* writer_main(void* self) noexcept;
  static void* follower_main(void* self) noexcept;
  void run() noexcept;
  void serve_requests() noexcept;
  void check_failures() noexcept;
  void check_stalls(u64 now_ns) noexcept;
  void check_peers(u64 now_ns) noexcept;
  void open_pipe() noexcept;
  void ask_ras() noexcept;
  bool dump(const char* reason, Trigger trigger) noexcept;
  bool dump_incident(u64 incident, const char* reason, Trigger trigger) noexcept;
  bool store(const char* name, const DumpEncoder::Bytes& bytes,
             Existing existing = Existing::kReplace) noexcept;
  bool is_awaited(const PeerRow& row, u64 incident) const noexcept;
  void salvage(PeerRow& row, const char* why) noexcept;
  bool salvage_file(const char* ring, u64 incident, const char* why, bool has_dumped) noexcept;
  void take_leftovers() noexcept;
  void prune() noexcept;

  Recorder* recorder_ = nullptr;
  bool running_ = false;
  DumpEncoder encoder_;
  ThreadStacks threads_;
  nccl::Ras ras_;
  i64 oom_kills_ = -1;  // at the start
  int event_fd_ = -1;
  int pipe_fd_ = -1;
  char pipe_path_[PATH_MAX] = {};
  std::atomic<int> signal_{0};
  std::atomic<u64> incident_{0};
  u64 failures_seen_ = 0;
  std::atomic<u64> failures_dumped_{0};
  u64 failure_dump_ns_ = 0;  // monotonic time of the last dump for a failure
  u64 peers_checked_incident_ = 0;
  u64 incident_seen_ns_ = 0;  // monotonic
  std::atomic<bool> salvaging_{false};
  bool unwritable_said_ = false;
  char last_path_[PATH_MAX] = {};
  Stall* stalls_ = nullptr;
  Request requests_[8];
  // writer thread
  std::atomic<fr_writer> writer_{nullptr};
  std::atomic<void*> writer_user_{nullptr};
  std::atomic<fr_sink> sink_{nullptr};
  std::atomic<void*> sink_user_{nullptr};
  bool writer_started_ = false;
  int writer_fd_ = -1;
  Written* queue_ = nullptr;  // ring of kQueue
  std::atomic<u64> queued_{0};
  std::atomic<u64> delivered_{0};
};

}  // namespace fr
