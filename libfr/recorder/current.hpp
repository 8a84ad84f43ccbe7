// current.hpp - the recorder of this process, for code that only needs to find it or the time.
#pragma once

#include <atomic>

#include "record/record.hpp"

namespace fr {

struct Recorder;

// The recorder of this process; nullptr before the start, in a forked child, with recording off.
extern std::atomic<Recorder*> g_recorder;
inline Recorder* recorder() noexcept {
  // acquire: pairs with the release in start(), so that a reader sees a whole Recorder
  return g_recorder.load(std::memory_order_acquire);
}

// 0 while nothing is recorded.
inline u64 now_ticks() noexcept {
  const Hot* h = hot();
  return h != nullptr ? ticks_now(h->clock) : 0;
}

}  // namespace fr
