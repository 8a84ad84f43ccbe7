// clock.hpp - raw ticks for the record path; recorder/clock_anchor.* keeps the anchors that date them.
#pragma once

#include "format/ticks.hpp"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace fr {

// The kind is chosen once at start (recorder/clock_anchor.cpp): the counter where the kernel trusts it.
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
