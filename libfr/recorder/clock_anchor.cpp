// clock_anchor.cpp - pairs of ticks and Unix time, by which ticks get their dates.
#include "recorder/clock_anchor.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "record/clock.hpp"

namespace fr {

ClockKind choose_clock() noexcept {
#if defined(__x86_64__)
  // The kernel drops tsc as its clock source where it is not constant or not in step between cores.
  char text[16] = {};
  const int fd = open("/sys/devices/system/clocksource/clocksource0/current_clocksource",
                      O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    const ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n >= 3 && std::memcmp(text, "tsc", 3) == 0) {
      return ClockKind::kTsc;
    }
  }
#elif defined(__aarch64__)
  return ClockKind::kCntvct;  // architecturally constant
#endif
  return ClockKind::kMonotonic;
}

void take_anchor(Anchor& anchor, ClockKind kind) noexcept {
  // The tightest of a few readings: a preemption in between would skew the pair.
  u64 best = ~0ull;
  u64 ticks = 0;
  u64 unix_ns = 0;
  u64 mono = 0;
  for (int i = 0; i < 5; ++i) {
    const u64 before = ticks_now(kind);
    const u64 m = monotonic_ns();
    const u64 u = unix_now_ns();
    const u64 after = ticks_now(kind);
    if (after - before < best) {
      best = after - before;
      ticks = before + best / 2;
      unix_ns = u;
      mono = m;
    }
  }
  const u64 seq = anchor.seq.load(std::memory_order_relaxed);
  anchor.seq.store(seq + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  anchor.ticks.store(ticks, std::memory_order_relaxed);
  anchor.unix_ns.store(unix_ns, std::memory_order_relaxed);
  anchor.monotonic_ns.store(mono, std::memory_order_relaxed);
  anchor.seq.store(seq + 2, std::memory_order_release);
}

}  // namespace fr
