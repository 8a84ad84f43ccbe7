// requests.hpp - how any thread, or a signal handler, requests a dump and waits for it.
//
//   any thread                              watchdog
//   free -> claimed -> posted  --wake-->    running -> done
//   path is copied, slot is free again <--
//
// A thread that stops waiting abandons its slot; the watchdog frees it. Async-signal-safe.
#pragma once

#include <atomic>
#include <climits>
#include <cstddef>

#include "format/layout.hpp"

namespace fr {

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
  kEndSignal,
  kWentOn  // the hang that the incident was opened for is over
};
const char* trigger_name(Trigger trigger) noexcept;

class DumpRequests {
 public:
  // False without a descriptor.
  bool open() noexcept;
  // From now on, requests that are posted will be served.
  void serve_begins() noexcept { served_.store(true); }
  bool is_served() const noexcept { return served_.load(); }

  // Has a dump written and waits for it, at most limit_ns. False when none was written. path
  // may be nullptr.
  bool request(const char* reason, Trigger trigger, u64 limit_ns, char* path,
               std::size_t path_bytes) noexcept;
  // Have the watchdog check at once (an operation failed, a signal came).
  void wake() noexcept;
  // FR_SIGNAL, or the signal of a tool, came.
  void note_signal(int signal) noexcept;

  // The watchdog's: poll() this descriptor, then drain(); take_signal() is 0 where none came.
  int event_fd() const noexcept { return event_fd_; }
  void drain() noexcept;
  int take_signal() noexcept { return signal_.exchange(0); }
  // Calls write_dump(context, reason, trigger) for each posted request: the path, nullptr failed.
  void serve(const char* (*write_dump)(void* context, const char* reason, Trigger trigger),
             void* context) noexcept;

 private:
  struct Request {
    enum : u32 { kFree, kClaimed, kPosted, kRunning, kDone, kAbandoned };
    std::atomic<u32> state{kFree};
    Trigger trigger;
    bool ok;
    char reason[256];
    char path[PATH_MAX];
  };

  std::atomic<bool> served_{false};
  int event_fd_ = -1;
  std::atomic<int> signal_{0};
  Request requests_[8];
};

}  // namespace fr
