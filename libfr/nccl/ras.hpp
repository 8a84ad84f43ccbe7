// ras.hpp - queries NCCL's RAS service (2.24 and newer) for the job's communicators: one more
// witness when something hangs.
//
// The query runs on a thread of its own, since a resolver, a socket or the service may hang. A dump
// takes the answer that is there by then, and waits no longer than its limit.
#pragma once

#include <atomic>

#include "format/ras_answer.hpp"

namespace fr {
struct Recorder;
}

namespace fr::nccl {

class Ras {
 public:
  // Starts the thread, once. address: "host:port", "[IPv6]:port" or "host". False without it.
  bool start(const char* address) noexcept;
  bool is_started() const noexcept { return event_fd_.load() >= 0; }

  // The three below: one thread at a time, the watchdog's. No lock, no allocation.

  // Starts a query, unless one is under way or was made within max_age_ns.
  void query(bool as_json, u64 max_age_ns) noexcept;
  // The answer to the last query, or that there is none after limit_ns. nullptr: no query was made.
  const RasAnswer* take(u64 limit_ns) noexcept;

  static constexpr u64 kLimit_ns = 2'500'000'000;  // for one question and its answer

 private:
  enum : u32 { kIdle, kAsked, kAnswered };

  static void* thread_main(void* self) noexcept;
  void run() noexcept;
  const char* converse(u64 deadline_ns) noexcept;  // what went wrong, nullptr nothing

  std::atomic<int> event_fd_{-1};
  std::atomic<u32> state_{kIdle};
  bool as_json_ = false;
  u64 asked_ns_ = 0;  // monotonic; 0 never
  u64 asked_unix_ns_ = 0;
  RasAnswer answer_;   // the thread's while kAsked, else the watchdog's
  RasAnswer pending_;  // says that there is no answer yet
  char error_[160];
  char text_[kRasBytes];
};

// Any thread, when a communicator was made: queries are possible from now on. Starts the thread
// in the first rank of each node, unless FR_RAS=0.
void use_ras() noexcept;
// For the watchdog: starts a query, unless other nodes do or the last one is recent.
void query_ras(Recorder& r) noexcept;
const RasAnswer* ras_answer(u64 limit_ns) noexcept;
// A new recorder starts, also in a forked child, where the parent's thread is missing.
void renew_ras(Recorder& r);

}  // namespace fr::nccl
