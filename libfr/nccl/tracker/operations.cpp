// operations.cpp - operations: launch, start, completion, and the source that reports it.
#include <algorithm>

#include "cuda/waits.hpp"
#include "nccl/tracker/state.hpp"
#include "watch/watchdog.hpp"

namespace fr::nccl {
namespace {

u64 ranks_of(const Tracker& s, u32 comm) noexcept {
  const i32 n = s.comms[comm].n_ranks.load(kRelaxed);
  return n > 0 ? static_cast<u64>(n) : 1;
}

// No second rank takes part, and no kernel is reported.
bool is_one_sided(Func func) noexcept {
  return func == Func::kPutSignal || func == Func::kSignal || func == Func::kWaitSignal;
}

// Its events will report nothing: it is as if it had none.
void lose_events(Tracker& s, u32 slot, u32 generation) noexcept {
  s.ops[slot].flags.fetch_and(~u32{kDevTimed}, kRelaxed);
  s.op[slot].last_events.store(0, kRelaxed);
  if (has(s.op[slot], kUnseenOtherwise)) {
    finish(s, slot, generation, State::kReleased, 0, 0);
  }
}

}  // namespace

// Claims a row; kDeviceOps when none is free. Nobody ends what is in it before publish_op().
u32 claim_op(Tracker& s, u32 comm, const Call& call, u32 flags) noexcept {
  const u32 slot = claim_row(s.ops, kDeviceOps, 0, s.op_cursor);
  if (slot == kDeviceOps) {
    count(s.device->ops_lost);
    return slot;
  }
  DeviceOp& op = s.ops[slot];
  OpPrivate& p = s.op[slot];
  p.word.store(u64{generation_at(s, slot)} << 32, kRelease);
  op.flags.store(flags | (loses_kernels(s, comm) ? u32{kDevNoKernels} : 0), kRelaxed);
  op.stream.store(reinterpret_cast<u64>(call.stream), kRelaxed);
  op.comm.store(comm, kRelaxed);
  clear(op.ticket, op.launching_ticks, op.launched_ticks, op.started_ticks, op.ended_ticks,
        op.device_start_ns, op.device_end_ns, op.channels, op.channels_started, op.channels_ended,
        op.transfers_started, op.transfers_ended, op.algorithm, op.protocol, op.parts,
        op.parts_launched);
  p.send.store(call.send, kRelaxed);
  p.recv.store(call.recv, kRelaxed);
  p.func.store(static_cast<u32>(call.func), kRelaxed);
  p.peer.store(call.peer, kRelaxed);
  p.first_events.store(call.events, kRelaxed);
  p.last_events.store(call.events, kRelaxed);
  clear(p.group, p.next, p.last_end_ticks, p.last_transfer_ticks, p.events_done, p.self_parts,
        p.directions);
  return slot;
}

void publish_op(Tracker& s, u32 slot, u32 bits) noexcept {
  s.ops[slot].parts.store(1, kRelaxed);
  s.op[slot].word.store(u64{generation_at(s, slot)} << 32 | kPublished | bits, kRelease);
}

// A record for one call. untracked: its end will not be seen.
fr_ticket begin_record(Tracker& s, u32 comm, const Call& call, bool untracked) noexcept {
  fr_op o;
  std::memset(&o, 0, sizeof o);
  const u64 n = ranks_of(s, comm);
  o.struct_bytes = sizeof o;
  o.group = group_of(comm);
  o.op = s.op_name[static_cast<u32>(call.func)];
  o.kind = call.func == Func::kSend || is_one_sided(call.func) ? FR_SEND
           : call.func == Func::kRecv                          ? FR_RECV
                                                               : FR_COLLECTIVE;
  o.flags = static_cast<u16>(FR_ASYNC | (untracked ? FR_UNTRACKED : 0) |
                             (call.captured ? FR_CAPTURED : 0));
  o.peer = call.peer;
  o.in_dtype = o.out_dtype = call.dtype;
  o.reduce_op = call.reduce_op;
  const bool in_all = call.func == Func::kReduceScatter || call.func == Func::kAllToAll ||
                      call.func == Func::kScatter;
  const bool out_all =
      call.func == Func::kAllGather || call.func == Func::kAllToAll || call.func == Func::kGather;
  o.in_numel = call.func == Func::kRecv ? 0 : in_all ? call.count * n : call.count;
  o.out_numel = call.func == Func::kSend ? 0 : out_all ? call.count * n : call.count;
  o.stack = FR_STACK_CAPTURE;
  fr_ticket t;
  fr_begin(&o, &t);
  return t;
}

// Row and record of a call. scope: the framework's record it belongs to, or {0}.
Handle begin_op(Tracker& s, u32 comm, const Call& call, const fr_ticket& scope, u32 bits) noexcept {
  if (call.captured || cuda::is_capturing()) {
    issued_in_capture(s);
  }
  const bool unseen_otherwise = !sees_end(s, comm) || call.captured || call.count == 0 ||
                                is_one_sided(call.func) || is_alone(s, comm);
  const bool unseen = unseen_otherwise && call.events == 0;
  const u32 flags = (is_p2p(call) ? u32{kDevP2p} : 0) | (scope.ticket != 0 ? u32{kDevAdopted} : 0) |
                    (unseen ? u32{kDevUnseen} : 0) | (call.events != 0 ? u32{kDevTimed} : 0);
  const u32 slot = claim_op(s, comm, call, flags);
  const bool lost = slot == kDeviceOps;
  const fr_ticket t = scope.ticket != 0 ? scope : begin_record(s, comm, call, unseen || lost);
  if (scope.ticket != 0) {
    s.comms[comm].pg_group.store(scope.group, kRelaxed);
  }
  if (lost) {
    return 0;
  }
  if (call.captured) {
    mark_captured(s, slot);
  }
  keep_ticket(s.op[slot], t);
  s.ops[slot].ticket.store(t.ticket != kNoTicket ? t.ticket : 0, kRelaxed);
  publish_op(s, slot, bits | (unseen_otherwise ? u32{kUnseenOtherwise} : 0));
  return make(s, kApiHandle, slot, generation_at(s, slot));
}

// The current call of this thread, if the event can be its.
DeviceOp* current_op(Tracker& s, Thread* t, u32 comm, const Call& call, u32& slot) noexcept {
  if (t == nullptr || t->current == 0) {
    return nullptr;
  }
  slot = slot_of(t->current);
  DeviceOp& op = s.ops[slot];
  if (!is_current(op.claim.load(kAcquire), t->current)) {
    return nullptr;
  }
  const u32 func = s.op[slot].func.load(kRelaxed);
  // ncclAlltoAll, Gather and Scatter are reported as sends and receives
  const bool same =
      func == static_cast<u32>(call.func) || (op.flags.load(kRelaxed) & kDevAdopted) ||
      func == static_cast<u32>(Func::kAllToAll) || func == static_cast<u32>(Func::kGather) ||
      func == static_cast<u32>(Func::kScatter);
  if (!same) {
    return nullptr;
  }
  if (const u32 wrapped = op.comm.load(kRelaxed); wrapped != comm) {
    if (s.comm[comm].linked.load(kRelaxed) != 0 || s.comms[wrapped].is_profiled.load() != 0) {
      return nullptr;  // of another communicator
    }
    merge(s, wrapped, comm);
    op.comm.store(comm, kRelaxed);
  }
  return &op;
}

// The operation's kernel runs. device_ns 0: by what is seen of it, no clock says when.
void mark_started(Tracker& s, u32 slot, u32 generation, u64 device_ns) noexcept {
  OpPrivate& p = s.op[slot];
  const u32 before = change(p, generation, kStart);
  if (before == 0) {
    return;
  }
  s.ops[slot].started_ticks.store(ticks_now(s.hot->clock), kRelaxed);
  s.ops[slot].device_start_ns.store(device_ns, kRelaxed);
  const fr_ticket t = ticket_of(p);
  if (is_counted(t) && (before & kDone) == 0) {
    started(*s.hot, t);
  }
}

namespace {

// The library does not report its end, the program's own waits may. False: nothing does.
bool follow(Tracker& s, u32 slot, u32 generation) noexcept {
  DeviceOp& op = s.ops[slot];
  OpPrivate& p = s.op[slot];
  if ((op.flags.load(kRelaxed) & kDevCaptured) != 0 || cuda::is_capturing() ||
      op.launched_ticks.load(kRelaxed) == 0 || !cuda::sees_waits()) {
    return false;
  }
  const u64 stream = op.stream.load(kRelaxed);
  const cuda::StreamPosition at = cuda::reserve(reinterpret_cast<void*>(stream));
  if (at.row == 0) {
    return false;
  }
  // A framework's record was begun before it was known that nothing would report its end.
  fr_ticket t = ticket_of(p);
  if (is_counted(t) && (t.flags & FR_UNTRACKED) == 0) {
    s.hot->groups[t.group].untracked.fetch_add(1, kRelaxed);
    t.flags |= FR_UNTRACKED;
    keep_ticket(p, t);
    if (Thread* own = own_thread(s);
        own != nullptr && own->n_scopes > 0 && own->n_scopes <= kScopes) {
      auto& scope = own->scope[own->n_scopes - 1];
      if (scope.ticket.ticket == t.ticket) {
        scope.ticket.flags = t.flags;  // it may have more calls to come
      }
    }
    p.word.fetch_or(kShown);
    set_state(*s.hot, t, State::kIdle, ticks_now(s.hot->clock), 0);
  }
  op.flags.fetch_or(kDevWaitTracked, kRelaxed);
  p.word.fetch_or(kFollowed);
  cuda::publish(at, make(s, kApiHandle, slot, generation));
  return true;
}

}  // namespace

// The call has returned and its work is in the stream. A launch that NCCL has not reported by now
// it reports late (behind a running graph) or never (a broadcast from NCCL 2.29 on, symmetric
// memory, copy engines): the program's own waits report it, see task_late().
void settle_slot(Tracker& s, u32 slot, u32 generation) noexcept {
  DeviceOp& op = s.ops[slot];
  if ((op.claim.load(kAcquire) >> 1 & kGenerationMask) != generation) {
    return;
  }
  const u32 flags = op.flags.load(kRelaxed);
  if ((flags & kDevTimed) != 0 && (flags & kDevCaptured) == 0) {
    return;  // the events will report it
  }
  const u32 parts = op.parts.load(kRelaxed);
  if ((flags & kDevUnseen) == 0 && op.parts_launched.load(kAcquire) >= parts &&
      s.op[slot].self_parts.load(kRelaxed) < parts) {
    // Transfers end before the kernel that they are for does: the program's waits are better.
    if (!sees_kernels(s, op) && !has(s.op[slot], kFollowed)) {
      follow(s, slot, generation);
    }
    return;
  }
  op.flags.fetch_or(kDevUnseen, kRelaxed);
  if (!has(s.op[slot], kFollowed) && !follow(s, slot, generation)) {
    finish(s, slot, generation, State::kReleased, 0, 0);
  }
}

// The launch is reported after the call returned: from now on the operation's kernels report it. A
// released operation is in flight again, unless its row is another's (nullptr).
DeviceOp* task_late(Tracker& s, u32 slot, u32 generation) noexcept {
  DeviceOp& op = s.ops[slot];
  OpPrivate& p = s.op[slot];
  u32 claim = op.claim.load(kAcquire);
  if ((claim & 1) == 0) {
    if ((claim >> 1 & kGenerationMask) != generation || !has(p, kDone) ||
        (op.flags.load(kRelaxed) & kDevFailed) != 0 || op.ended_ticks.load(kRelaxed) != 0 ||
        !op.claim.compare_exchange_strong(claim, claim | 1, kAcquire, kRelaxed)) {
      return nullptr;
    }
    const fr_ticket t = ticket_of(p);
    if (is_counted(t) && (t.flags & FR_UNTRACKED) == 0) {
      reopen(*s.hot, t);
    }
    change(p, generation, kReopen);
  }
  op.flags.fetch_and(~u32{kDevUnseen}, kRelaxed);
  return &op;
}

// quiet: no more channels will come.
void try_complete(Tracker& s, u32 slot, u32 generation, bool quiet) noexcept {
  DeviceOp& op = s.ops[slot];
  OpPrivate& p = s.op[slot];
  const u32 started = op.channels_started.load(kAcquire);
  const u32 ended = op.channels_ended.load(kAcquire);
  // Events end it where NCCL reports nothing, or, when the watchdog sees no change, not all.
  const u64 done = p.events_done.load(kAcquire);
  if (done != 0 && done == p.last_events.load(kRelaxed) && has(p, kClosed) &&
      (started == 0 || quiet)) {
    finish(s, slot, generation, State::kCompleted, 0, p.last_end_ticks.load(kRelaxed));
    return;
  }
  if (!has(p, kClosed) || ended == 0 || ended != started ||
      op.parts_launched.load(kRelaxed) < op.parts.load(kRelaxed)) {
    return;
  }
  // The number of channels announced for sends and receives is a bound, in version 3 always: not
  // all of them need to come. Then a while without another one decides.
  const u32 channels = op.channels.load(kRelaxed);
  if (!quiet && (ended < channels || channels == 0)) {
    return;
  }
  // A kernel's end is told by its first warp, which in a tree only sums up: the result may not be
  // back yet (seen with 2.28.9). For a send or receive, the report may be for the other one of a
  // pair, and a missing channel has transfers that wait for it. So all transfers must have ended.
  if (op.transfers_started.load(kRelaxed) != op.transfers_ended.load(kAcquire)) {
    return;
  }
  finish(s, slot, generation, State::kCompleted, 0,
         std::max(p.last_end_ticks.load(kRelaxed), p.last_transfer_ticks.load(kRelaxed)));
}

// Ends the operation, once. at: 0 = now.
void finish(Tracker& s, u32 slot, u32 generation, State as, u32 error, u64 at) noexcept {
  OpPrivate& p = s.op[slot];
  DeviceOp& op = s.ops[slot];
  const fr_ticket t = ticket_of(p);
  const u32 before = change(p, generation, kEnd);
  if (before == 0) {
    return;
  }
  if (as == State::kFailed) {
    op.flags.fetch_or(kDevFailed, kRelaxed);
  }
  if (as == State::kCompleted) {
    std::atomic<u64>& newest = s.comm[op.comm.load(kRelaxed) % kComms].last_completed;
    if (newest.load(kRelaxed) < op.ticket.load(kRelaxed)) {
      newest.store(op.ticket.load(kRelaxed), kRelaxed);
    }
  }
  if (as != State::kReleased) {
    op.ended_ticks.store(at != 0 ? at : ticks_now(s.hot->clock), kRelaxed);
    op.flags.fetch_and(~u32{kDevUnseen}, kRelaxed);
  } else {
    op.flags.fetch_or(kDevUnseen, kRelaxed);
  }
  release_row(op, generation);
  if (is_counted(t) &&
      ((t.flags & FR_UNTRACKED) == 0 || as != State::kReleased || (before & kShown) != 0)) {
    end(*s.hot, t, as, error, at);
  }
  if ((before & kWaited) != 0) {
    wait_end(*s.hot, t);
  }
}

// ---------------------------------------------------------------- the program's own waits

namespace {

// Calls act(state, slot, generation) where the operation goes on.
template <class Act>
void if_open(Handle handle, Act act) noexcept {
  Tracker* s = tracker_in_force();
  const u32 slot = slot_of(handle);
  if (s == nullptr || handle == 0 || !is_own(*s, handle) || slot >= kDeviceOps) {
    return;
  }
  const u32 claim = s->ops[slot].claim.load(kAcquire);
  if ((claim & 1) != 0 && is_current(claim, handle)) {
    act(*s, slot, generation_of(handle));
  }
}

}  // namespace

void wait_began(Handle handle) noexcept {
  if_open(handle, [](Tracker& s, u32 slot, u32 generation) {
    const fr_ticket t = ticket_of(s.op[slot]);
    if (is_counted(t) && change(s.op[slot], generation, kBeginWait) != 0) {
      wait_begin(*s.hot, t);
    }
  });
}

void wait_ended(Handle handle) noexcept {
  if_open(handle, [](Tracker& s, u32 slot, u32 generation) {
    if (change(s.op[slot], generation, kEndWait) != 0) {
      wait_end(*s.hot, ticket_of(s.op[slot]));
    }
  });
}

void reached(Handle handle) noexcept {
  if_open(handle, [](Tracker& s, u32 slot, u32 generation) {
    finish(s, slot, generation, State::kCompleted, 0, 0);
  });
}

bool is_over(Handle handle) noexcept {
  bool over = true;
  if_open(handle, [&over](Tracker&, u32, u32) { over = false; });
  return over;
}

void untrack(Handle handle) noexcept {
  if_open(handle, [](Tracker& s, u32 slot, u32 generation) {
    finish(s, slot, generation, State::kReleased, 0, 0);
  });
}

// ---------------------------------------------------------------- wrappers

Handle open(u32 comm, const Call& call) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr || comm == kNoComm) {
    return 0;
  }
  Thread* t = own_thread(*s);
  if (t == nullptr) {
    return begin_op(*s, comm, call, fr_ticket{}, kWrapped);
  }
  t->current_parts = 0;
  if (t->n_scopes == 0 || t->n_scopes > kScopes) {
    return t->current = begin_op(*s, comm, call, fr_ticket{}, kWrapped);
  }
  auto& scope = t->scope[t->n_scopes - 1];
  u32 slot = 0;
  if (DeviceOp* op = find_op(*s, scope.op, slot); op != nullptr) {
    op->parts.fetch_add(1, kRelaxed);
    if ((op->flags.load(kRelaxed) & kDevTimed) != 0) {
      if (call.events != 0) {
        s->op[slot].last_events.store(call.events, kRelaxed);
      } else {
        lose_events(*s, slot, generation_of(scope.op));
      }
    }
  } else {
    scope.op = begin_op(*s, comm, call, scope.ticket, kWrapped);
  }
  return t->current = scope.op;
}

void closed(Handle handle, bool ok, const char* error) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr) {
    return;
  }
  if (t_own.thread != nullptr && t_own.tid == own_tid()) {
    t_own.thread->current = 0;
  }
  u32 slot = 0;
  DeviceOp* op = handle != 0 ? find_op(*s, handle, slot) : nullptr;
  if (op == nullptr) {
    return;
  }
  if (!ok) {
    finish(*s, slot, generation_of(handle), State::kFailed,
           error != nullptr ? fr_intern(error, std::strlen(error)) : 0, 0);
    if (Recorder* r = recorder()) {
      r->watchdog->wake();
    }
    return;
  }
  if ((op->flags.load(kRelaxed) & kDevAdopted) == 0) {
    change(s->op[slot], generation_of(handle), kClose);
    try_complete(*s, slot, generation_of(handle), false);
  }
}

namespace {

// Calls act(tracker, slot, operation) where the handle still names one.
template <class Act>
void on_op(Handle handle, Act act) noexcept {
  Tracker* s = tracker_in_force();
  u32 slot = 0;
  if (DeviceOp* op = s != nullptr ? find_op(*s, handle, slot) : nullptr) {
    act(*s, slot, *op);
  }
}

}  // namespace

void launching(Handle handle) noexcept {
  on_op(handle, [](Tracker& s, u32 slot, DeviceOp&) { mark_launching(s, slot); });
}

void launched(Handle handle) noexcept {
  on_op(handle, [](Tracker& s, u32 slot, DeviceOp&) { mark_launched(s, slot); });
}

void settle(Handle handle) noexcept {
  on_op(handle,
        [handle](Tracker& s, u32 slot, DeviceOp&) { settle_slot(s, slot, generation_of(handle)); });
}

void launched_later(Handle handle) noexcept {
  on_op(handle, [handle](Tracker& s, u32 slot, DeviceOp& op) {
    if ((op.flags.load(kRelaxed) & kDevUnseen) != 0) {
      finish(s, slot, generation_of(handle), State::kReleased, 0, 0);
      return;
    }
    change(s.op[slot], generation_of(handle), kLaunchLater);
    s.comm[op.comm.load(kRelaxed) % kComms].later.store(1, kRelease);
    g_later.store(true, kRelease);
  });
}

void settle_later(const void* nccl_comm) noexcept {
  Tracker* s = g_later.load(kRelaxed) ? tracker_in_force() : nullptr;
  const u32 comm = s != nullptr ? find_comm(nccl_comm) : kNoComm;
  if (comm == kNoComm || s->comm[comm].later.load(kRelaxed) == 0 ||
      s->comm[comm].later.exchange(0) == 0) {
    return;
  }
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const u32 claim = s->ops[slot].claim.load(kAcquire);
    if ((claim & 1) != 0 && s->ops[slot].comm.load(kRelaxed) == comm &&
        change(s->op[slot], claim >> 1 & kGenerationMask, kLaunchNow) != 0) {
      mark_launched(*s, slot);
      settle_slot(*s, slot, claim >> 1 & kGenerationMask);
    }
  }
}

namespace {

// Nothing was reported for so long: nothing more will come. The watchdog looks every 100 ms, exit()
// waits for 200.
constexpr i64 kQuiet_ns = 50'000'000;

// Without kernels: the last transfer of a send or receive ends it. A collective's ranks may have
// work beyond their transfers, and one without any is not reported at all: how it ended is not seen.
template <class IsQuiet>
void settle_transfers(Tracker& s, u32 slot, u32 generation, const IsQuiet& is_quiet) noexcept {
  const DeviceOp& op = s.ops[slot];
  const u32 ended = op.transfers_ended.load(kAcquire);
  const u64 since =
      ended != 0 ? s.op[slot].last_transfer_ticks.load(kRelaxed) : op.launched_ticks.load(kRelaxed);
  if (since == 0 || op.transfers_started.load(kRelaxed) != ended ||
      op.parts_launched.load(kRelaxed) < op.parts.load(kRelaxed) || !is_quiet(since)) {
    return;
  }
  const u32 flags = op.flags.load(kRelaxed);
  const bool seen = ended != 0 && (flags & kDevP2p) != 0 && (flags & kDevTransfersLost) == 0;
  finish(s, slot, generation, seen ? State::kCompleted : State::kReleased, 0, seen ? since : 0);
}

}  // namespace

namespace {

// A thread that waits by polling polls again and again. A single poll, such as a caching
// allocator's, which polls next at its next allocation, does not count as waiting: it lapses well
// before a lack of progress is reported.
void lapse_polls(const Tracker& s, const TickClock& clock, u64 now) noexcept {
  constexpr u64 kLongest_ns = 5'000'000'000;
  constexpr u64 kSpan = 1'000'000;
  const Recorder* r = recorder();
  const u64 span_ns = clock.unix_ns(now) - clock.unix_ns(now - kSpan);
  if (!cuda::tracks_any() || r == nullptr || &r->hot != s.hot || span_ns == 0 ||
      span_ns > 1'000'000'000) {
    return;
  }
  u64 longest = kLongest_ns;
  for (const u64 limit : {r->options.warn_ns, r->options.timeout_ns}) {
    longest = limit != 0 && limit / 2 < longest ? limit / 2 : longest;
  }
  cuda::look(now - longest / span_ns * kSpan);
}

}  // namespace

void settle_all() noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr) {
    return;
  }
  const TickClock clock(*s->hot->header);
  const u64 now = ticks_now(s->hot->clock);
  const i64 now_ns = static_cast<i64>(clock.unix_ns(now));
  lapse_polls(*s, clock, now);
  const auto is_quiet = [&](u64 since_ticks) {
    return now_ns - static_cast<i64>(clock.unix_ns(since_ticks)) >= kQuiet_ns;
  };
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const DeviceOp& op = s->ops[slot];
    const u32 claim = op.claim.load(kAcquire);
    if ((claim & 1) == 0) {
      continue;
    }
    const u32 generation = claim >> 1 & kGenerationMask;
    const bool timed = (op.flags.load(kRelaxed) & kDevTimed) != 0;
    if (timed || op.channels_ended.load(kRelaxed) != 0) {
      try_complete(*s, slot, generation, is_quiet(s->op[slot].last_end_ticks.load(kRelaxed)));
      if (timed) {
        continue;
      }
    } else if ((op.flags.load(kRelaxed) & kDevWaitTracked) == 0 && !sees_kernels(*s, op)) {
      settle_transfers(*s, slot, generation, is_quiet);
    }
    // A communicator runs its operations in their order: what a later one has overtaken has ended,
    // and its end was not reported.
    const u64 newest = s->comm[op.comm.load(kRelaxed) % kComms].last_completed.load(kRelaxed);
    if (op.launched_ticks.load(kRelaxed) != 0 && op.ticket.load(kRelaxed) < newest) {
      if (has(s->op[slot], 2 * kOvertaken)) {
        finish(*s, slot, generation, State::kReleased, 0, 0);
      } else {
        s->op[slot].word.fetch_add(kOvertaken);
      }
    }
  }
}

// ---------------------------------------------------------------- CUDA's events

namespace {

void apply(Tracker& s, u32 slot, u32 generation, const cuda::EventsSeen& seen) noexcept {
  DeviceOp& op = s.ops[slot];
  OpPrivate& p = s.op[slot];
  const bool first = p.first_events.load(kRelaxed) == seen.events;
  const bool last = p.last_events.load(kRelaxed) == seen.events;
  if (seen.what == cuda::EventsSeen::kLost) {
    if (last) {
      lose_events(s, slot, generation);
    }
    return;
  }
  // NCCL's own stamps, channel by channel, are better where there are some.
  const bool nccl_reports = op.channels_started.load(kAcquire) != 0;
  const u32 before = first && !nccl_reports ? change(p, generation, kStart) : 0;
  if (before != 0) {
    u64 at = seen.start_ticks != 0 ? seen.start_ticks : ticks_now(s.hot->clock);
    // The two clocks are tied to some microseconds only; nothing starts before its launch.
    const u64 launching = op.launching_ticks.load(kRelaxed);
    at = at > launching ? at : launching;
    op.started_ticks.store(at, kRelaxed);
    const fr_ticket t = ticket_of(p);
    if (is_counted(t) && (before & kDone) == 0) {
      started(*s.hot, t, at);
    }
  }
  if (seen.what != cuda::EventsSeen::kEnded) {
    return;
  }
  if (!nccl_reports && seen.end_ns != 0) {
    op.flags.fetch_or(kDevHostTimes, kRelaxed);
    if (first) {
      op.device_start_ns.store(seen.start_ns, kRelaxed);
    }
    op.device_end_ns.store(seen.end_ns, kRelaxed);
  }
  if (last) {
    const u64 began = op.started_ticks.load(kRelaxed);
    const u64 at = seen.end_ticks != 0 ? seen.end_ticks : ticks_now(s.hot->clock);
    p.last_end_ticks.store(at > began ? at : began, kRelaxed);
    p.events_done.store(seen.events, kRelease);
    try_complete(s, slot, generation, false);
  }
}

}  // namespace

void events_seen(const cuda::EventsSeen* seen, u32 n) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr) {
    return;
  }
  // One pair may stand for a whole group of operations: the rows say which.
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const OpPrivate& p = s->op[slot];
    const u64 last = p.last_events.load(kRelaxed);
    if (last == 0) {
      continue;
    }
    const u64 first = p.first_events.load(kRelaxed);
    const u32 claim = s->ops[slot].claim.load(kAcquire);
    for (u32 i = 0; i < n && (claim & 1) != 0; ++i) {
      if (seen[i].events == first || seen[i].events == last) {
        apply(*s, slot, claim >> 1 & kGenerationMask, seen[i]);
      }
    }
  }
}

}  // namespace fr::nccl
