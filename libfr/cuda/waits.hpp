// waits.hpp - the end of NCCL's operations where NCCL does not tell it: by the events that the
// program records and asks for itself, and by its synchronisations. No call of ours is made for it.
//
//   NCCL's call is back   -> reserve, publish      the stream's list of open operations
//   cudaEventRecord       -> tie                   event -> newest operation of its stream
//   cudaEventQuery        -> polled                reached: all up to it have ended
//   cudaStreamSynchronize -> begin_wait, end_wait
//
// An operation is in flight while somebody waits for it: a thread is in a call that comes back at
// its end, or has asked for it lately. What nobody asks for is never in flight.
//
// Hot: no allocation, no lock, fixed tables. While no operation is followed a hooked call costs one
// load.
#pragma once

#include "cuda/abi.hpp"
#include "cuda/operations.hpp"

namespace fr::cuda {

inline constexpr u32 kWaitStreams = 32;

// Operations that are followed now.
extern std::atomic<u32> g_followed;
inline bool follows_any() noexcept {
  return g_followed.load(std::memory_order_relaxed) != 0;
}

// A communicator was made with this thread's current context. Cold.
void learn_context() noexcept;

// A place in the list of what is open on a stream.
struct Place {
  u32 row;           // of the stream + 1; 0: nothing there is followed
  u32 tie, version;  // where it comes from
  u64 seq;
};

// The library put an operation into the stream. row 0: it cannot be followed.
Place reserve(Stream stream) noexcept;
// The reserved place is its.
void publish(const Place& at, Operation op) noexcept;

// What a call asks for.
struct Places {
  u32 n = 0;
  Place place[kWaitStreams];
};
void find_stream(Stream stream, Places& out) noexcept;  // what it was given so far
void find_event(Event event, Places& out) noexcept;
void find_all(Places& out) noexcept;  // of the current context

// An event is recorded: untie before the call, since who asks meanwhile would ask for the new one.
void untie(Event event) noexcept;
void tie(Event event, const Places& at) noexcept;

// The answer to an event's or a stream's query; event: nullptr of a stream.
void polled(const Places& asked, Event event, int result) noexcept;
// Around a call that comes back when they have ended.
void begin_wait(const Places& asked) noexcept;
void end_wait(const Places& asked, Event event, int result) noexcept;

// The stream, nullptr: all of them, is gone: nobody will ask.
void abandon_stream(Stream stream) noexcept;
void abandon_all() noexcept;

// Who asked last before this has stopped asking. What ended otherwise gives its place. Cold.
void look(u64 before_ticks) noexcept;

}  // namespace fr::cuda
