// ticks.hpp - the two clocks of the operating system that records and dumps
// refer to. Async-signal-safe.
#pragma once

#include <ctime>

#include "format/layout.hpp"

namespace fr {

inline u64 clock_now_ns(clockid_t clock) noexcept {
  timespec ts;
  clock_gettime(clock, &ts);  // vDSO, no system call
  return static_cast<u64>(ts.tv_sec) * 1'000'000'000ull + static_cast<u64>(ts.tv_nsec);
}

inline u64 unix_now_ns() noexcept {
  return clock_now_ns(CLOCK_REALTIME);
}

inline u64 monotonic_ns() noexcept {
  return clock_now_ns(CLOCK_MONOTONIC);
}

}  // namespace fr
