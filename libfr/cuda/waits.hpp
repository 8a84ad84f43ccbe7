// waits.hpp - completion of NCCL's operations where NCCL does not report it: by the events that the
// program itself records and polls, and by its synchronisations. fr makes no device call for it.
//
//   NCCL's call is back   -> reserve, publish      the stream's list of open operations
//   cudaEventRecord       -> associate                   event -> newest operation of its stream
//   cudaEventQuery        -> polled                reached: all up to it have ended
//   cudaStreamSynchronize -> begin_wait, end_wait
//
// An operation is in flight while the program waits for it: a thread is in a call that returns at
// its end, or has polled it recently. An operation that no thread polls is never in flight.
//
// Hot: no allocation, no lock, fixed tables. While no operation is wait-tracked a hooked call costs
// one load.
#pragma once

#include "cuda/abi.hpp"
#include "cuda/operations.hpp"

namespace fr::cuda {

inline constexpr u32 kWaitStreams = 32;

// Wait-tracked operations in flight.
extern std::atomic<u32> g_wait_tracked;
inline bool tracks_any() noexcept {
  return g_wait_tracked.load(std::memory_order_relaxed) != 0;
}

// Are the program's calls of CUDA hooked?
bool sees_waits() noexcept;

// A communicator was made with this thread's current context. Cold.
void learn_context() noexcept;

// A place in the list of what is open on a stream.
struct StreamPosition {
  u32 row;                 // of the stream + 1; 0: nothing there is wait-tracked
  u32 associate, version;  // where it comes from
  u64 seq;
};

// The library put an operation into the stream. row 0: its end cannot be observed.
StreamPosition reserve(Stream stream) noexcept;
// The reserved place is its.
void publish(const StreamPosition& at, Operation op) noexcept;

// The stream positions that a call waits for or polls.
struct StreamPositions {
  u32 n = 0;
  StreamPosition place[kWaitStreams];
};
void find_stream(Stream stream, StreamPositions& out) noexcept;  // what it was given so far
void find_event(Event event, StreamPositions& out) noexcept;
void find_all(StreamPositions& out) noexcept;  // of the current context

// An event is recorded: dissociate before the call, since a poll meanwhile would concern
// the new one.
void dissociate(Event event) noexcept;
void associate(Event event, const StreamPositions& at) noexcept;

// The answer to an event's or a stream's query; event: nullptr of a stream.
void polled(const StreamPositions& positions, Event event, int result) noexcept;
// Around a call that returns when they have ended.
void begin_wait(const StreamPositions& positions) noexcept;
void end_wait(const StreamPositions& positions, Event event, int result) noexcept;

// The stream is gone (nullptr: all of them): nothing will poll it.
void abandon_stream(Stream stream) noexcept;
void abandon_all() noexcept;

// Polls older than before_ticks no longer count; operations that ended otherwise free
// their row. Cold.
void look(u64 before_ticks) noexcept;

}  // namespace fr::cuda
