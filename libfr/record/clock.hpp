// clock.hpp - raw ticks for the record path; cold/clock_sync.* keeps the anchors that date them.
#pragma once

#include <ctime>

#include "format/layout.hpp"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace fr {

inline u64 monotonic_ns() noexcept {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);  // vDSO, no system call
  return static_cast<u64>(ts.tv_sec) * 1'000'000'000ull + static_cast<u64>(ts.tv_nsec);
}

// The kind is chosen once at start (clock_sync.cpp): the counter where the kernel trusts it.
inline u64 ticks_now(ClockKind kind) noexcept {
#if defined(__x86_64__)
  if (kind == ClockKind::kTsc) [[likely]] {
    return __rdtsc();
  }
#elif defined(__aarch64__)
  if (kind == ClockKind::kCntvct) [[likely]] {
    u64 value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
  }
#endif
  (void)kind;
  return monotonic_ns();
}

}  // namespace fr
