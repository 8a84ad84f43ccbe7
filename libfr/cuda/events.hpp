// events.hpp - CUDA: device times by events (FR_TIMING=events), and the first asynchronous error.
//
// fr makes no device call otherwise. With events, a thread of its own, fr-cuda, makes every call
// that may wait for the device: it creates the events, polls them, reads their times. The one
// exception: begin() and end() have CUDA record an event into the caller's stream right before and
// after NCCL's call, because only there is the stream position right. A call that never returns
// holds fr-cuda and nothing else; the region says since when.
//
//   nccl/wrappers -- begin, end --> ring of submitted pairs --> fr-cuda -- events_seen --> tracker
//
// Errors are seen without any call of ours: libfr passes through functions that frameworks check
// anyway. Their results also observe operations that NCCL does not report as ended; waits.hpp.
#pragma once

#include "interpose/got.hpp"

namespace fr::cuda {

// Hooks on the CUDA runtime and driver, for redirect_calls().
RedirectTable& calls() noexcept;
// Finds the originals of places that were never called through.
void find_originals() noexcept;

// Is FR_TIMING=events at work? Hot.
bool events_on() noexcept;
// The calling thread has made a communicator on its current device: its context gets events, made
// ahead. Waits for them a moment. Cold.
void prepare() noexcept;

// A pair of events, {0}: none to be had, which is counted.
struct Begun {
  u64 events;
  bool captured;  // the stream is being captured: the operation does not run now
};
// Before the call. device: of the communicator, -1 unknown; only used for default streams.
Begun begin(void* stream, i32 device) noexcept;
// After it. False when its end will not be known: the pair is given back.
bool end(u64 events) noexcept;
// Nothing was put into the stream.
void drop(u64 events) noexcept;

// Waits a moment for what has just ended to be seen. Cold.
void settle() noexcept;
// The device was reset: its contexts' events are gone with it.
void lose_contexts() noexcept;
// The process exits: no device call from now on, unless one is stuck.
void stop() noexcept;

}  // namespace fr::cuda
