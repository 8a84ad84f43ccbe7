// calls.hpp - what a hooked call of NCCL does beside the call itself: its record, its place in the
// thread's group of calls, the communicator that it makes or ends.
//
// A call inside ncclGroupStart and ncclGroupEnd is pending until the group ends; one on a
// non-blocking communicator may go on in the background after it returned.
#pragma once

#include <cstdio>

#include "cuda/events.hpp"
#include "interpose/got.hpp"
#include "nccl/abi.hpp"
#include "nccl/tracker/tracker.hpp"
#include "nccl/wrappers.hpp"
#include "recorder/recorder.hpp"

namespace fr::nccl {

using Comm = void*;
using Stream = void*;

// Functions of the library that fr calls itself.
struct Library {
  std::atomic<int (*)(Comm, int*)> count;
  std::atomic<int (*)(Comm, int*)> user_rank;
  std::atomic<int (*)(Comm, int*)> device;
  std::atomic<const char* (*)(int)> error_text;
  std::atomic<const char* (*)(Comm)> last_error;
};
extern Library g_library;

// ---------------------------------------------------------------- one thread's groups of calls

inline constexpr u32 kPending = 128;
inline constexpr u32 kCallThreads = 256;
inline constexpr u32 kStreams = 8;  // that one group of calls gives work to

struct Pending {
  Handle op;         // 0: a communicator is being made
  const char* name;  // of the call that makes it
  fr_ticket ticket;
  u32 comm;
  i32 n_ranks, rank;
  Comm* out;
  u64 since_ticks;
};

// Counted also while nothing is recorded: the recorder may start within a group.
extern thread_local u32 t_depth __attribute__((tls_model("initial-exec")));

struct CallThread {
  u32 tid = 0;
  u32 n_pending = 0;
  u32 lost = 0;
  Pending pending[kPending];
  u32 n_timed = 0;
  struct {
    Stream stream;
    u64 events;  // around the group's work on it
  } timed[kStreams];
};

// State of the calling thread; nullptr where there are too many threads.
CallThread* call_thread() noexcept;
void push(CallThread& t, const Pending& p) noexcept;
// Settles the calls of the group, or fails them with it. launches: it was not a simulation.
void finish_group(CallThread& t, int result, const char* name, bool launches) noexcept;

inline bool accepted(int result) noexcept {
  return result == kSuccess || result == kInProgress;
}

// "ncclAllReduce: unhandled cuda error (1): ..."
struct ErrorText {
  char text[400];
  ErrorText(const char* call, int code, Comm comm) noexcept;
};

// ---------------------------------------------------------------- communicators

// The record of a call that makes, changes or ends a communicator.
struct Lifecycle {
  fr_ticket ticket{};
  Lifecycle(const char* name, u32 comm) noexcept;
  void end(int result, const char* call, Comm comm) const noexcept;
};

// The tracker's row of a communicator, also of one that was made before its calls were hooked.
u32 comm_row(Comm comm) noexcept;
// The call's work goes on in the background. False when that cannot be observed.
bool goes_on(const fr_ticket& ticket, Comm comm, const Pending* made) noexcept;
// Ends the background work of this communicator. True when that was its making, and it failed.
bool background_over(Comm comm, fr_result how, const char* text = nullptr) noexcept;
// It was made, alone or within a group. framework: a framework's records cover all its work.
void comm_made(u32 row, Comm comm, i32 n_ranks, i32 rank, u64 since, bool framework) noexcept;
// The call that makes a communicator came back, by itself or with its group.
void made(const char* name, const Pending& p, int result) noexcept;

// While a communicator may be in the making: what the plugin then tells of is one of these.
struct Making {
  Making() noexcept { making(1); }
  ~Making() { making(-1); }
};

// Below: the call is passed on with these arguments.
template <CallName kCall, class... A>
int make_comm(u64 hash, i32 n_ranks, i32 rank, Comm* out, A... arguments) noexcept {
  const char* const name = kCall.text;
  if (ready()) {
    hook_calls();  // whatever was loaded since: without the plugin nobody else looks
  }
  const Making now;
  const u64 since = now_ticks();
  const u32 row = open_comm(hash, n_ranks, rank, nullptr);
  const Lifecycle record(name, row);
  const int result = pass_on<kCall>(arguments...);
  const Pending pending{0, name, record.ticket, row, n_ranks, rank, out, since};
  CallThread* t = hot() != nullptr ? call_thread() : nullptr;
  if (t != nullptr && t_depth > 0 && accepted(result)) {
    cuda::prepare();    // the device is current now, perhaps not later
    push(*t, pending);  // made by ncclGroupEnd
  } else {
    made(name, pending, result);
  }
  return result;
}

// ncclCommSplit, Shrink, Grow of an existing communicator. salt: what tells the children of one
// call apart, alike on the members of each.
template <CallName kCall, class... A>
int derive_comm(Comm parent, u64 salt, Comm* out, A... arguments) noexcept {
  const char* const name = kCall.text;
  const u32 parent_row = ready() ? comm_row(parent) : kNoComm;
  const Making now;
  const u64 since = now_ticks();
  const u64 hash = child_hash(parent_row, salt);
  const Lifecycle record(name, parent_row);
  const int result = pass_on<kCall>(arguments...);
  CallThread* t = hot() != nullptr ? call_thread() : nullptr;
  const bool grouped = t != nullptr && t_depth > 0 && accepted(result);
  if (!grouped && (!accepted(result) || out == nullptr || *out == nullptr)) {
    record.end(result, name, parent);  // failed, or this rank has no part in it
    return result;
  }
  const u32 row = open_comm(hash, 0, -1, nullptr);
  const Pending pending{0, name, record.ticket, row, 0, -1, out, since};
  if (grouped) {
    push(*t, pending);
  } else {
    made(name, pending, result);
  }
  return result;
}

// kFails: operations that the communicator still has fail by it, else they are waited for.
template <CallName kCall, bool kCloses, bool kFails, class... A>
int end_comm(Comm comm, A... more) noexcept {
  char why[64];
  std::snprintf(why, sizeof why, "ended by %s", kCall.text);
  const bool unmade =
      background_over(comm, kFails ? FR_FAILED : FR_RELEASED, kFails ? why : nullptr);
  const u32 row = !unmade && ready() ? comm_row(comm) : kNoComm;
  const Lifecycle record(kCall.text, row);
  if (kFails) {
    fail_operations(row, why);
  }
  const int result = pass_on<kCall>(comm, more...);
  if (result != kInProgress || kCloses || !goes_on(record.ticket, comm, nullptr)) {
    record.end(result, kCall.text, nullptr);
  }
  if (kCloses && accepted(result)) {
    if (!kFails) {
      cuda::settle();  // what it waited for has ended
    }
    close_comm(row, nullptr);
  }
  return result;
}

// ---------------------------------------------------------------- operations

// FR_TIMING=events: a pair of CUDA events around this call, or around the group's calls on its
// stream.
void begin_events(CallThread* t, Comm comm, Call& what) noexcept;
// done: the work is in the stream now. Else it comes later from a thread of NCCL's, or never.
void end_events(u64 events, bool done) noexcept;
void end_group_events(CallThread& t, bool done) noexcept;

template <CallName kCall, class... A>
int operation(Comm comm, Call what, A... arguments) noexcept {
  background_over(comm, FR_OK);  // one that is not ready may not be used
  const u32 row = hot() != nullptr ? comm_row(comm) : kNoComm;
  if (row == kNoComm) {
    const int result = pass_on<kCall>(arguments...);
    forget_link();
    return result;
  }
  CallThread* t = call_thread();
  const bool alone = t == nullptr || t_depth == 0;
  if (cuda::events_on()) [[unlikely]] {
    begin_events(t, comm, what);
  }
  const Handle op = open(row, what);
  if (alone) {
    launching(op);
  }
  const int result = pass_on<kCall>(arguments...);
  if (!accepted(result)) [[unlikely]] {
    closed(op, false, ErrorText(kCall.text, result, comm).text);
    if (alone && what.events != 0) {
      end_events(what.events, false);
    }
    return result;
  }
  if (alone && what.events != 0) {
    end_events(what.events, result == kSuccess);
  }
  closed(op, true, nullptr);
  if (!alone) {
    push(*t, {op, kCall.text, {}, row, 0, 0, nullptr, 0});
  } else if (result == kSuccess) {
    launched(op);
    settle(op);
  } else {
    launched_later(op);
  }
  return result;
}

}  // namespace fr::nccl
