// operations.hpp - what CUDA's calls report about operations that nccl/ keeps. cuda/ names them by
// number only; nccl/tracker defines the table.
#pragma once

#include "format/layout.hpp"

namespace fr::cuda {

using Operation = u64;  // 0: none

// The report of a pair of events around one call, or around a group of calls.
struct EventsSeen {
  enum What : u32 { kStarted, kEnded, kLost };
  u64 events;
  What what;
  u64 start_ns, end_ns;        // CLOCK_MONOTONIC; 0 unknown
  u64 start_ticks, end_ticks;  // the same
};

// Any thread; no lock, no allocation. Operations that are over already are ignored.
struct Operations {
  // fr-cuda: these pairs of events were reached, or will never be.
  void (*events_seen)(const EventsSeen* seen, u32 n) noexcept;
  // The program's own waits (waits.hpp).
  void (*wait_began)(Operation op) noexcept;  // a thread waits for it: it is in flight
  void (*wait_ended)(Operation op) noexcept;  // no thread does any more
  void (*reached)(Operation op) noexcept;     // it has ended
  void (*untrack)(Operation op) noexcept;     // its end will not be seen
  bool (*is_over)(Operation op) noexcept;
  // The oldest in flight of all communicators, 0 none; `ticket` of its record + 1.
  Operation (*oldest_in_flight)(u64& ticket) noexcept;
  void (*fail)(Operation op, const char* why) noexcept;
  // A graph capture began or ended: is_capturing() may have changed.
  void (*capture_changed)() noexcept;
};
extern const Operations kOperations;

// Graph captures in progress in this process, as the hooks see them.
bool is_capturing() noexcept;

}  // namespace fr::cuda
