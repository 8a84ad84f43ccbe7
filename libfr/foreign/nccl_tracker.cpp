#include "foreign/nccl_tracker.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>

#include "cold/recorder.hpp"
#include "foreign/nccl_abi.hpp"

namespace fr::nccl {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

constexpr u32 kNoSlot = 0xfff;  // of an operation that found no row: its launch is not another one
constexpr u32 kApiGroups = 256;
constexpr u32 kThreads = 256;
constexpr u32 kScopes = 4;
constexpr u32 kGenerationMask = (1u << 20) - 1;
constexpr u32 kStepMask = (1u << 12) - 1;
static_assert(kDeviceOps < 0xfff && kPhases <= 4096 && kComms <= 4096 && kApiGroups <= 4096);

enum Kind : u32 {
  kOtherHandle = 1,
  kCommHandle,
  kGroupHandle,  // GroupApi
  kApiHandle,
  kTaskHandle,
  kTransferHandle,
  kStepHandle,
  kKernelHandle
};

// What only this process needs to know of an operation. Fields change while its row is claimed by
// one thread; others read them and look at the generation afterwards.
struct OpPrivate {
  std::atomic<u64> ticket, seq, packed;  // fr_ticket
  std::atomic<const void*> send, recv;
  std::atomic<u32> func;
  std::atomic<i32> peer;
  std::atomic<u32> group;                // generation << 12 | slot of the ApiGroup it is listed in
  std::atomic<u32> next;                 // operation of the same ApiGroup, + 1
  std::atomic<u32> closed;               // all its parts are known
  std::atomic<u32> done;                 // generation << 1 | 1 once it was ended
  std::atomic<u32> is_started;           // generation << 1 | 1
  std::atomic<u32> overtaken;            // at the last look: a later operation has ended
  std::atomic<u64> last_end_ticks;       // of a channel
  std::atomic<u64> last_transfer_ticks;  // end of a transfer
  std::atomic<u64> first_events, last_events;  // CUDA events around its first and last call
  std::atomic<u64> events_done;                // the last of them that have told its end
  std::atomic<u32> unseen_otherwise;           // NCCL does not tell its end
};

struct ApiGroup {
  std::atomic<u32> claim;
  std::atomic<u32> first;  // operation + 1
};

struct CommPrivate {
  std::atomic<const void*> nccl_comm;
  std::atomic<int*> mask;
  std::atomic<u32> events;
  std::atomic<u32> other_events;  // that the user's own plugin asked for
  std::atomic<u32> generation;
  std::atomic<u64> made_ticks;
  std::atomic<u32> children;
  std::atomic<u32> linked;  // a wrapper and the plugin both know it
  std::atomic<u32> kernels_seen;
  std::atomic<u32> transfers_seen;
  std::atomic<u64> launched;        // operations
  std::atomic<u64> last_completed;  // ticket + 1 of the newest operation that ended
};

// One thread of the host inside the library.
struct Thread {
  std::atomic<u32> tid;
  const void* unlinked;  // communicator of the call being made, if only the plugin knows it
  Handle current;        // operation of the call being made
  u32 current_parts;     // parts of it that the plugin told of
  u32 n_scopes;
  struct {
    fr_ticket ticket;
    Handle op;
  } scope[kScopes];
};

struct Name {
  const char* text;
  u32 id;
};

struct State {
  Hot* hot = nullptr;
  Device* device = nullptr;
  CommRow* comms = nullptr;
  DeviceOp* ops = nullptr;
  Phase* phases = nullptr;
  u64 salt = 0;
  i32 pid = 0;
  u32 generation = 0;
  bool stamps = true;
  u32 op_name[static_cast<u32>(Func::kFuncs)] = {};
  Name words[16] = {{"RING", 0},          {"TREE", 0},  {"COLLNET_DIRECT", 0},
                    {"COLLNET_CHAIN", 0}, {"NVLS", 0},  {"NVLS_TREE", 0},
                    {"PAT", 0},           {"LL", 0},    {"LL128", 0},
                    {"SIMPLE", 0},        {"CE", 0},    {"UNKNOWN", 0},
                    {nullptr, 0},         {nullptr, 0}, {nullptr, 0},
                    {nullptr, 0}};
  std::atomic<u32> op_cursor{0}, phase_cursor{0}, group_cursor{0};
  OpPrivate op[kDeviceOps] = {};
  ApiGroup groups[kApiGroups] = {};
  CommPrivate comm[kComms] = {};
  std::mutex comms_lock;  // cold: communicators come and go
};

std::atomic<State*> g_state{nullptr};
std::atomic<i32> g_captures{0};
std::atomic<u32> g_library_version{0};
std::atomic<u32> g_hooked{0};

Thread g_threads[kThreads];
struct OwnThread {
  Thread* thread;
  u32 tid;  // 0: not asked for yet
};
thread_local OwnThread t_own __attribute__((tls_model("initial-exec"))) = {};

// nullptr while nothing is recorded, also in a forked child.
State* state_in_force() noexcept {
  State* s = g_state.load(kAcquire);
  const Hot* h = hot();
  return s != nullptr && h == s->hot ? s : nullptr;
}

[[gnu::cold, gnu::noinline]] Thread* learn_thread() noexcept {
  t_own.tid = own_tid();
  for (int round = 0; round < 2; ++round) {
    for (Thread& row : g_threads) {
      u32 owner = row.tid.load();
      // second round: rows of threads that have ended
      if (owner != 0 && (round == 0 || syscall(SYS_tgkill, getpid(), owner, 0) == 0)) {
        continue;
      }
      if (row.tid.compare_exchange_strong(owner, t_own.tid)) {
        row.unlinked = nullptr;
        row.current = 0;
        row.current_parts = 0;
        row.n_scopes = 0;
        return t_own.thread = &row;
      }
    }
  }
  return t_own.thread = nullptr;
}

Thread* own_thread(State& s) noexcept {
  if (t_own.tid != own_tid()) [[unlikely]] {  // also after a fork
    if (learn_thread() == nullptr) {
      s.device->threads_lost.fetch_add(1, kRelaxed);
    }
  }
  return t_own.thread;
}

// ---------------------------------------------------------------- handles

Handle make(const State& s, Kind kind, u32 slot, u32 generation, u32 step = 0) noexcept {
  return s.salt << 48 | static_cast<u64>(kind) << 44 | static_cast<u64>(step & kStepMask) << 32 |
         static_cast<u64>(generation & kGenerationMask) << 12 | slot;
}
Kind kind_of(Handle h) noexcept {
  return static_cast<Kind>(h >> 44 & 15);
}
u32 slot_of(Handle h) noexcept {
  return static_cast<u32>(h) & 0xfff;
}
u32 generation_of(Handle h) noexcept {
  return static_cast<u32>(h >> 12) & kGenerationMask;
}
u32 step_of(Handle h) noexcept {
  return static_cast<u32>(h >> 32) & kStepMask;
}
bool is_own(const State& s, Handle h) noexcept {
  return h >> 48 == s.salt;
}
bool is_current(u32 claim, Handle h) noexcept {
  return (claim >> 1 & kGenerationMask) == generation_of(h);
}

void count(std::atomic<u64>& counter) noexcept {
  counter.fetch_add(1, kRelaxed);
}

// The operation that a handle names; nullptr when it is over and its row another's. Counts why not.
DeviceOp* find_op(State& s, Handle h, u32& slot) noexcept {
  if (h == 0) {
    return nullptr;
  }
  if (!is_own(s, h)) {
    count(s.device->foreign_handles);
    return nullptr;
  }
  const Kind kind = kind_of(h);
  slot = slot_of(h);
  if ((kind != kApiHandle && kind != kTaskHandle) || slot >= kDeviceOps) {
    return nullptr;  // of a kind that names no operation
  }
  DeviceOp& op = s.ops[slot];
  if (!is_current(op.claim.load(kAcquire), h)) {
    count(s.device->stale_handles);
    return nullptr;
  }
  return &op;
}

Phase* find_phase(State& s, Handle h) noexcept {
  const u32 slot = slot_of(h);
  if (slot >= kPhases) {
    return nullptr;
  }
  Phase& phase = s.phases[slot];
  const u32 claim = phase.claim.load(kAcquire);
  if ((claim & 1) == 0 || !is_current(claim, h)) {
    count(s.device->stale_handles);
    return nullptr;
  }
  return &phase;
}

// A free row, its generation one up; n when all that were looked at are in use.
template <class Row>
u32 claim_row(Row* rows, u32 n, u32 first, std::atomic<u32>& cursor) noexcept {
  for (u32 tries = 0; tries < 128; ++tries) {
    const u32 slot = cursor.fetch_add(1, kRelaxed) % n;
    if (slot < first) {
      continue;
    }
    u32 seen = rows[slot].claim.load(kRelaxed);
    if ((seen & 1) == 0 &&
        rows[slot].claim.compare_exchange_strong(seen, (seen + 2) | 1, kAcquire, kRelaxed)) {
      std::atomic_thread_fence(kRelease);
      return slot;
    }
  }
  return n;
}

template <class Row>
bool release_row(Row& row, u32 generation) noexcept {
  u32 seen = row.claim.load(kAcquire);
  return (seen & 1) != 0 && (seen >> 1 & kGenerationMask) == generation &&
         row.claim.compare_exchange_strong(seen, seen & ~1u, kRelease, kRelaxed);
}

// ---------------------------------------------------------------- operations

void keep_ticket(OpPrivate& p, const fr_ticket& t) noexcept {
  p.ticket.store(t.ticket, kRelaxed);
  p.seq.store(t.seq, kRelaxed);
  p.packed.store(t.group | static_cast<u64>(t.lane) << 32 | static_cast<u64>(t.kind) << 48 |
                     static_cast<u64>(t.flags) << 56,
                 kRelaxed);
}

fr_ticket ticket_of(const OpPrivate& p) noexcept {
  fr_ticket t;
  const u64 packed = p.packed.load(kRelaxed);
  t.ticket = p.ticket.load(kRelaxed);
  t.seq = p.seq.load(kRelaxed);
  t.group = static_cast<u32>(packed);
  t.lane = static_cast<u16>(packed >> 32);
  t.kind = static_cast<u8>(packed >> 48);
  t.flags = static_cast<u8>(packed >> 56);
  return t;
}

bool sees_kernels(const State& s, u32 comm) noexcept {
  return s.comms[comm].is_profiled.load(kRelaxed) != 0 &&
         (s.comm[comm].events.load(kRelaxed) & kEvKernelCh) != 0;
}

// Where kernels are not told of, a communicator that goes over the network has transfers: its
// operations are in flight while theirs are.
bool sees_end(const State& s, u32 comm) noexcept {
  return comm != kNoComm &&
         (sees_kernels(s, comm) || s.comm[comm].transfers_seen.load(kRelaxed) != 0);
}

// Claims a row for an operation with one part; kDeviceOps when none is free.
u32 claim_op(State& s, u32 comm, const Call& call, u32 flags) noexcept {
  const u32 slot = claim_row(s.ops, kDeviceOps, 0, s.op_cursor);
  if (slot == kDeviceOps) {
    count(s.device->ops_lost);
    return slot;
  }
  DeviceOp& op = s.ops[slot];
  OpPrivate& p = s.op[slot];
  op.flags.store(flags, kRelaxed);
  op.ticket.store(0, kRelaxed);
  op.stream.store(reinterpret_cast<u64>(call.stream), kRelaxed);
  op.launching_ticks.store(0, kRelaxed);
  op.launched_ticks.store(0, kRelaxed);
  op.comm.store(comm, kRelaxed);
  op.channels.store(0, kRelaxed);
  op.algorithm.store(0, kRelaxed);
  op.protocol.store(0, kRelaxed);
  op.parts.store(0, kRelaxed);
  op.parts_launched.store(0, kRelaxed);
  op.started_ticks.store(0, kRelaxed);
  op.ended_ticks.store(0, kRelaxed);
  op.device_start_ns.store(0, kRelaxed);
  op.device_end_ns.store(0, kRelaxed);
  op.channels_started.store(0, kRelaxed);
  op.channels_ended.store(0, kRelaxed);
  op.transfers_started.store(0, kRelaxed);
  op.transfers_ended.store(0, kRelaxed);
  p.send.store(call.send, kRelaxed);
  p.recv.store(call.recv, kRelaxed);
  p.func.store(static_cast<u32>(call.func), kRelaxed);
  p.peer.store(call.peer, kRelaxed);
  p.group.store(0, kRelaxed);
  p.next.store(0, kRelaxed);
  p.closed.store(0, kRelaxed);
  p.overtaken.store(0, kRelaxed);
  p.last_end_ticks.store(0, kRelaxed);
  p.last_transfer_ticks.store(0, kRelaxed);
  p.first_events.store(call.events, kRelaxed);
  p.last_events.store(call.events, kRelaxed);
  p.events_done.store(0, kRelaxed);
  p.unseen_otherwise.store(0, kRelaxed);
  return slot;
}

u32 generation_at(const State& s, u32 slot) noexcept {
  return s.ops[slot].claim.load(kRelaxed) >> 1 & kGenerationMask;
}

// Whoever turns the word from this generation's 0 into its 1 does what is to be done once.
bool first_time(std::atomic<u32>& word, u32 generation) noexcept {
  const u32 mine = generation << 1 | 1;
  return word.exchange(mine, std::memory_order_acq_rel) != mine;
}

// Ends the operation, once. at: 0 = now.
void finish(State& s, u32 slot, u32 generation, fr::State as, u32 error, u64 at) noexcept {
  OpPrivate& p = s.op[slot];
  DeviceOp& op = s.ops[slot];
  const fr_ticket t = ticket_of(p);
  if ((op.claim.load(kAcquire) >> 1 & kGenerationMask) != generation ||
      !first_time(p.done, generation)) {
    return;
  }
  if (as == fr::State::kFailed) {
    op.flags.fetch_or(kDevFailed, kRelaxed);
  }
  if (as == fr::State::kCompleted) {
    std::atomic<u64>& newest = s.comm[op.comm.load(kRelaxed) % kComms].last_completed;
    if (newest.load(kRelaxed) < op.ticket.load(kRelaxed)) {
      newest.store(op.ticket.load(kRelaxed), kRelaxed);
    }
  }
  if (as != fr::State::kReleased) {
    op.ended_ticks.store(at != 0 ? at : ticks_now(s.hot->clock), kRelaxed);
  } else {
    op.flags.fetch_or(kDevUnseen, kRelaxed);
  }
  release_row(op, generation);
  if (is_counted(t) && ((t.flags & FR_UNTRACKED) == 0 || as != fr::State::kReleased)) {
    end(*s.hot, t, as, error, at);
  }
}

// quiet: no more channels will come.
void try_complete(State& s, u32 slot, u32 generation, bool quiet) noexcept {
  DeviceOp& op = s.ops[slot];
  OpPrivate& p = s.op[slot];
  const u32 started = op.channels_started.load(kAcquire);
  const u32 ended = op.channels_ended.load(kAcquire);
  // Events end it where NCCL tells nothing, or, when the watchdog sees no change, not all.
  const u64 done = p.events_done.load(kAcquire);
  if (done != 0 && done == p.last_events.load(kRelaxed) && p.closed.load(kAcquire) != 0 &&
      (started == 0 || quiet)) {
    finish(s, slot, generation, fr::State::kCompleted, 0, p.last_end_ticks.load(kRelaxed));
    return;
  }
  if (p.closed.load(kAcquire) == 0 || ended == 0 || ended != started ||
      op.parts_launched.load(kRelaxed) < op.parts.load(kRelaxed)) {
    return;
  }
  // What is announced for sends and receives is a bound, in version 3 always: not all channels need
  // to come. Then a while without another one tells.
  if (!quiet && (ended < op.channels.load(kRelaxed) || op.channels.load(kRelaxed) == 0)) {
    return;
  }
  finish(s, slot, generation, fr::State::kCompleted, 0, p.last_end_ticks.load(kRelaxed));
}

u32 word_id(const State& s, const char* text) noexcept {
  if (text != nullptr) {
    for (const Name& word : s.words) {
      if (word.text != nullptr && std::strcmp(word.text, text) == 0) {
        return word.id;
      }
    }
  }
  return 0;
}

u64 ranks_of(const State& s, u32 comm) noexcept {
  const i32 n = s.comms[comm].n_ranks.load(kRelaxed);
  return n > 0 ? static_cast<u64>(n) : 1;
}

// No second rank takes part, and no kernel is told of.
bool is_one_sided(Func func) noexcept {
  return func == Func::kPutSignal || func == Func::kSignal || func == Func::kWaitSignal;
}

// NCCL tells nothing of communicators of one rank.
bool is_alone(const State& s, u32 comm) noexcept {
  return s.comms[comm].n_ranks.load(kRelaxed) == 1;
}

// The operation's kernel runs. device_ns 0: by what is seen of it, no clock told when.
void mark_started(State& s, u32 slot, u32 generation, u64 device_ns) noexcept {
  OpPrivate& p = s.op[slot];
  if (!first_time(p.is_started, generation)) {
    return;
  }
  s.ops[slot].started_ticks.store(ticks_now(s.hot->clock), kRelaxed);
  s.ops[slot].device_start_ns.store(device_ns, kRelaxed);
  const fr_ticket t = ticket_of(p);
  if (is_counted(t) && p.done.load(kRelaxed) != (generation << 1 | 1)) {
    started(*s.hot, t);
  }
}

// A record for one call. untracked: its end will not be seen.
fr_ticket begin_record(State& s, u32 comm, const Call& call, bool untracked) noexcept {
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
Handle begin_op(State& s, u32 comm, const Call& call, const fr_ticket& scope) noexcept {
  const bool unseen_otherwise = !sees_end(s, comm) || call.captured || call.count == 0 ||
                                is_one_sided(call.func) || is_alone(s, comm);
  const bool unseen = unseen_otherwise && call.events == 0;
  const u32 flags = (call.func == Func::kSend || call.func == Func::kRecv ? u32{kDevP2p} : 0) |
                    (call.captured ? u32{kDevCaptured} : 0) |
                    (scope.ticket != 0 ? u32{kDevAdopted} : 0) | (unseen ? u32{kDevUnseen} : 0) |
                    (call.events != 0 ? u32{kDevTimed} : 0);
  const u32 slot = claim_op(s, comm, call, flags);
  const bool lost = slot == kDeviceOps;
  const fr_ticket t = scope.ticket != 0 ? scope : begin_record(s, comm, call, unseen || lost);
  if (scope.ticket != 0) {
    s.comms[comm].pg_group.store(scope.group, kRelaxed);
  }
  if (lost) {
    return 0;
  }
  keep_ticket(s.op[slot], t);
  s.op[slot].unseen_otherwise.store(unseen_otherwise ? 1 : 0, kRelaxed);
  s.ops[slot].ticket.store(t.ticket != kNoTicket ? t.ticket : 0, kRelaxed);
  s.ops[slot].parts.store(1, kRelease);
  return make(s, kApiHandle, slot, generation_at(s, slot));
}

u32 comm_of(State& s, Handle context) noexcept {
  const u32 slot = slot_of(context);
  if (context == 0 || !is_own(s, context) || kind_of(context) != kCommHandle || slot >= kComms ||
      (s.comm[slot].generation.load(kAcquire) & kGenerationMask) != generation_of(context)) {
    count(context != 0 && !is_own(s, context) ? s.device->foreign_handles
                                              : s.device->stale_handles);
    return kNoComm;
  }
  return slot;
}

// A wrapper's row and the plugin's turn out to be one communicator: the plugin's stays.
void merge(State& s, u32 wrapped, u32 profiled) noexcept {
  if (wrapped == profiled || wrapped == kNoComm || profiled == kNoComm) {
    return;
  }
  CommRow& from = s.comms[wrapped];
  CommRow& to = s.comms[profiled];
  u32 none = 0;
  to.group.compare_exchange_strong(none, from.group.load());
  if (to.pg_group.load() == 0) {
    to.pg_group.store(from.pg_group.load());
  }
  if (to.n_ranks.load() <= 0) {
    to.n_ranks.store(from.n_ranks.load());
    to.rank.store(from.rank.load());
  }
  s.comm[profiled].nccl_comm.store(s.comm[wrapped].nccl_comm.exchange(nullptr));
  s.comm[profiled].linked.store(1);
  from.in_use.store(3);
}

// The current call of this thread, if the event can be its.
DeviceOp* current_op(State& s, Thread* t, u32 comm, const Call& call, u32& slot) noexcept {
  if (t == nullptr || t->current == 0) {
    return nullptr;
  }
  slot = slot_of(t->current);
  DeviceOp& op = s.ops[slot];
  if (!is_current(op.claim.load(kAcquire), t->current)) {
    return nullptr;
  }
  const u32 func = s.op[slot].func.load(kRelaxed);
  // ncclAlltoAll, Gather and Scatter are told as sends and receives
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

void list_in(State& s, Handle group, u32 op_slot) noexcept {
  if (group == 0 || !is_own(s, group) || kind_of(group) != kGroupHandle ||
      slot_of(group) >= kApiGroups) {
    return;
  }
  ApiGroup& g = s.groups[slot_of(group)];
  if (!is_current(g.claim.load(kAcquire), group)) {
    count(s.device->stale_handles);
    return;
  }
  OpPrivate& p = s.op[op_slot];
  const u32 mine = static_cast<u32>(group);  // generation and slot
  if (p.group.exchange(mine, kRelaxed) == mine) {
    return;  // another part of it is there already
  }
  p.next.store(g.first.load(kRelaxed), kRelaxed);
  g.first.store(op_slot + 1, kRelease);
}

// Calls visit(slot) for the operations of a group.
template <class Visit>
void each_op(State& s, Handle group, Visit visit) noexcept {
  if (!is_own(s, group) || kind_of(group) != kGroupHandle || slot_of(group) >= kApiGroups) {
    return;
  }
  ApiGroup& g = s.groups[slot_of(group)];
  if (!is_current(g.claim.load(kAcquire), group)) {
    count(s.device->stale_handles);
    return;
  }
  u32 at = g.first.load(kAcquire);
  for (u32 n = 0; at != 0 && at <= kDeviceOps && n < kDeviceOps; ++n) {
    const u32 slot = at - 1;
    if (s.op[slot].group.load(kRelaxed) != static_cast<u32>(group)) {
      break;  // the row is another operation's by now
    }
    at = s.op[slot].next.load(kRelaxed);
    visit(slot);
  }
}

void mark_launching(State& s, u32 slot) noexcept {
  DeviceOp& op = s.ops[slot];
  if (op.launching_ticks.load(kRelaxed) == 0) {
    op.launching_ticks.store(ticks_now(s.hot->clock), kRelaxed);
  }
}

void mark_launched(State& s, u32 slot) noexcept {
  DeviceOp& op = s.ops[slot];
  if (op.launched_ticks.load(kRelaxed) == 0) {
    const u64 now = ticks_now(s.hot->clock);
    if (op.launching_ticks.load(kRelaxed) == 0) {
      op.launching_ticks.store(now, kRelaxed);
    }
    op.launched_ticks.store(now, kRelaxed);
  }
}

void settle_slot(State& s, u32 slot, u32 generation) noexcept {
  DeviceOp& op = s.ops[slot];
  if ((op.claim.load(kAcquire) >> 1 & kGenerationMask) != generation) {
    return;
  }
  const u32 flags = op.flags.load(kRelaxed);
  if ((flags & kDevTimed) != 0 && (flags & kDevCaptured) == 0) {
    return;  // the events will tell
  }
  if ((flags & kDevUnseen) != 0 || op.parts_launched.load(kAcquire) < op.parts.load(kRelaxed)) {
    finish(s, slot, generation, fr::State::kReleased, 0, 0);
  }
}

// Its events will not tell: it is as if it had none.
void lose_events(State& s, u32 slot, u32 generation) noexcept {
  s.ops[slot].flags.fetch_and(~u32{kDevTimed}, kRelaxed);
  s.op[slot].last_events.store(0, kRelaxed);
  if (s.op[slot].unseen_otherwise.load(kRelaxed) != 0) {
    finish(s, slot, generation, fr::State::kReleased, 0, 0);
  }
}

// KernelCh makes NCCL put a host node into captured graphs: not asked for while one is captured.
void apply_mask(State& s) noexcept {
  const bool capturing = g_captures.load(kRelaxed) > 0;
  for (u32 i = 1; i < kComms; ++i) {
    if (int* mask = s.comm[i].mask.load(kRelaxed)) {
      const u32 events = s.comm[i].events.load(kRelaxed);
      const u32 others = s.comm[i].other_events.load(kRelaxed);
      const u32 asked = (capturing ? events & ~u32{kEvKernelCh} : events) | others;
      __atomic_store_n(mask, static_cast<int>(asked), __ATOMIC_RELAXED);
      return;  // one word for the whole process
    }
  }
}

// Shown in status and dumps.
void say_layer(const State& s) noexcept {
  char text[160];
  const u32 api = s.device->plugin_api.load();
  if (api != 0) {
    std::snprintf(text, sizeof text,
                  "profiler plugin, version %u of its interface; %u calls hooked", api,
                  g_hooked.load());
  } else {
    std::snprintf(text, sizeof text, "%u calls hooked; the profiler plugin was not asked for (yet)",
                  g_hooked.load());
  }
  fr_set_layer("nccl", text);
}

State* make_state() noexcept {
  static std::mutex lock;
  const std::lock_guard guard(lock);
  if (State* s = state_in_force()) {
    return s;
  }
  Recorder* r = recorder();
  auto* s = r != nullptr && r->hot.header != nullptr ? new (std::nothrow) State : nullptr;
  if (s == nullptr) {
    return nullptr;
  }
  s->hot = &r->hot;
  s->device = r->region.section<Device>(kSecDevice);
  s->comms = r->region.section<CommRow>(kSecComms);
  s->ops = r->region.section<DeviceOp>(kSecDeviceOps);
  s->phases = r->region.section<Phase>(kSecPhases);
  s->pid = r->pid;
  s->generation = r->hot.generation;
  s->stamps = r->options.timing != Timing::kOff;
  s->salt = (mix(static_cast<u64>(r->pid), r->region.header().proc_start) >> 40 & 0xffff) | 1;
  static constexpr const char* kOps[] = {
      "?",      "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all",
      "gather", "scatter",    "send",      "recv",   "put_signal", "signal",         "wait_signal"};
  static_assert(std::size(kOps) == static_cast<u32>(Func::kFuncs));
  for (u32 i = 0; i < std::size(kOps); ++i) {
    s->op_name[i] = fr_intern(kOps[i], std::strlen(kOps[i]));
  }
  for (Name& word : s->words) {
    word.id = word.text != nullptr ? fr_intern(word.text, std::strlen(word.text)) : 0;
  }
  s->device->library_version.store(g_library_version.load());
  s->device->hooked.store(g_hooked.load());
  g_state.store(s, kRelease);
  say_layer(*s);
  return s;
}

u32 new_comm(State& s, u64 hash, i32 n_ranks, i32 rank, const char* name) noexcept {
  for (int round = 0; round < 2; ++round) {
    for (u32 i = 1; i < kComms; ++i) {
      CommRow& row = s.comms[i];
      // second round: the evidence of ended ones gives way
      if (row.in_use.load() != (round == 0 ? 0 : 3)) {
        continue;
      }
      CommPrivate& p = s.comm[i];
      p.generation.fetch_add(1);
      p.nccl_comm.store(nullptr);
      p.mask.store(nullptr);
      p.events.store(0);
      p.other_events.store(0);
      p.children.store(0);
      p.linked.store(0);
      p.kernels_seen.store(0);
      p.transfers_seen.store(0);
      p.launched.store(0);
      p.last_completed.store(0);
      p.made_ticks.store(ticks_now(s.hot->clock));
      row.hash.store(hash);
      row.group.store(0);
      row.pg_group.store(0);
      row.n_ranks.store(n_ranks);
      row.rank.store(rank);
      row.n_nodes.store(0);
      row.name.store(name != nullptr ? fr_intern(name, std::strlen(name)) : 0);
      row.error.store(0);
      row.error_ticks.store(0);
      row.is_profiled.store(0);
      row.in_use.store(1, kRelease);
      if (Recorder* r = recorder()) {
        r->watchdog.use_ras();
      }
      return i;
    }
  }
  count(s.device->comms_lost);
  return kNoComm;
}

}  // namespace

// ---------------------------------------------------------------- names

Func func_of(const char* name) noexcept {
  static constexpr struct {
    const char* name;
    Func func;
  } kNames[] = {{"AllReduce", Func::kAllReduce},
                {"AllGather", Func::kAllGather},
                {"ReduceScatter", Func::kReduceScatter},
                {"Broadcast", Func::kBroadcast},
                {"Send", Func::kSend},
                {"Recv", Func::kRecv},
                {"Reduce", Func::kReduce},
                {"AlltoAll", Func::kAllToAll},
                {"AllToAll", Func::kAllToAll},
                {"Gather", Func::kGather},
                {"Scatter", Func::kScatter},
                {"PutSignal", Func::kPutSignal},
                {"Signal", Func::kSignal},
                {"WaitSignal", Func::kWaitSignal}};
  if (name != nullptr) {
    for (const auto& row : kNames) {
      if (std::strcmp(row.name, name) == 0) {
        return row.func;
      }
    }
  }
  return Func::kOther;
}

Func func_of_v1(u8 code) noexcept {
  static constexpr Func kFuncs[] = {Func::kBroadcast,     Func::kReduce,    Func::kAllGather,
                                    Func::kReduceScatter, Func::kAllReduce, Func::kOther,
                                    Func::kSend,          Func::kRecv};
  return code < std::size(kFuncs) ? kFuncs[code] : Func::kOther;
}

u8 dtype_of(int nccl_datatype) noexcept {
  //                            i8 u8 i32 u32 i64 u64 f16 f32 f64 bf16 e4m3 e5m2
  static constexpr u8 kCodes[] = {2, 1, 4, 29, 5, 30, 6, 7, 8, 16, 25, 24};
  return nccl_datatype >= 0 && nccl_datatype < static_cast<int>(std::size(kCodes))
             ? kCodes[nccl_datatype]
             : 0;
}

u8 dtype_of(const char* name) noexcept {
  static constexpr const char* kNames[] = {"ncclInt8",     "ncclUint8",      "ncclInt32",
                                           "ncclUint32",   "ncclInt64",      "ncclUint64",
                                           "ncclFloat16",  "ncclFloat32",    "ncclFloat64",
                                           "ncclBfloat16", "ncclFloat8e4m3", "ncclFloat8e5m2"};
  if (name != nullptr) {
    for (int i = 0; i < static_cast<int>(std::size(kNames)); ++i) {
      if (std::strcmp(kNames[i], name) == 0) {
        return dtype_of(i);
      }
    }
  }
  return 0;
}

u8 reduce_op_of(int nccl_redop) noexcept {
  static constexpr u8 kCodes[] = {1, 3, 5, 4, 2};  // sum prod max min avg
  return nccl_redop < 0 ? 0 : nccl_redop < 5 ? kCodes[nccl_redop] : 9;
}

// ---------------------------------------------------------------- state

bool ready() noexcept {
  if (state_in_force() != nullptr) {
    return true;
  }
  return start_unless_child() && make_state() != nullptr;
}

bool is_active() noexcept {
  const State* s = g_state.load(kAcquire);
  if (g_library_version.load(kRelaxed) == 0 &&
      (s == nullptr || s->device->plugin_api.load(kRelaxed) == 0)) {
    return false;
  }
  return ready() && stamps_wanted();
}

bool stamps_wanted() noexcept {
  const State* s = state_in_force();
  return s != nullptr && s->stamps;
}

void set_library_version(u32 version) noexcept {
  g_library_version.store(version);
  if (State* s = state_in_force()) {
    s->device->library_version.store(version);
  }
}

u32 library_version() noexcept {
  return g_library_version.load();
}

void set_hooked(u32 n) noexcept {
  g_hooked.store(n);
  if (State* s = state_in_force()) {
    s->device->hooked.store(n);
  }
}

Device* device() noexcept {
  State* s = state_in_force();
  return s != nullptr ? s->device : nullptr;
}

void capture_began() noexcept {
  g_captures.fetch_add(1);
  if (State* s = state_in_force()) {
    apply_mask(*s);
  }
}

void capture_ended() noexcept {
  if (g_captures.fetch_sub(1) <= 0) {
    g_captures.store(0);  // the hooks came in the middle of one
  }
  if (State* s = state_in_force()) {
    apply_mask(*s);
  }
}

bool is_capturing() noexcept {
  return g_captures.load(kRelaxed) > 0;
}

// ---------------------------------------------------------------- communicators

// The function by which NCCL makes a communicator's hash from its unique id: two accumulators that
// take the bytes eight at a time.
u64 unique_id_hash(const void* id, std::size_t bytes) noexcept {
  const char* at = static_cast<const char*>(id);
  u64 a = 1 ^ bytes;
  u64 b = 1;
  for (std::size_t left = bytes; left > 0;) {
    a += b;
    b ^= a;
    a = (a ^ a >> 31) * 0x9de62bbc8cef3ce3ull;
    b = (b ^ b >> 32) * 0x485cd6311b599e79ull;
    u64 word = 0;
    const std::size_t n = left < 8 ? left : 8;
    std::memcpy(&word, at, n);
    a += word;
    at += n;
    left -= n;
  }
  u64 h = (a ^ a >> 31) * 0xbac3bd562846de6bull + b;
  return (h ^ h >> 32) * 0x995a187a14e7b445ull;
}

u32 open_comm(u64 hash, i32 n_ranks, i32 rank, const char* name) noexcept {
  State* s = ready() ? state_in_force() : nullptr;
  if (s == nullptr) {
    return kNoComm;
  }
  const std::lock_guard lock(s->comms_lock);
  return new_comm(*s, hash, n_ranks, rank, name);
}

u32 bind_comm(u32 comm, const void* nccl_comm, i32 n_ranks, i32 rank, u64 since_ticks) noexcept {
  State* s = state_in_force();
  if (s == nullptr || comm == kNoComm) {
    return comm;
  }
  const std::lock_guard lock(s->comms_lock);
  CommRow& row = s->comms[comm];
  // Pointers are used again: whoever had this one is gone.
  for (u32 i = 1; i < kComms; ++i) {
    if (i != comm && s->comm[i].nccl_comm.load() == nccl_comm) {
      s->comm[i].nccl_comm.store(nullptr);
    }
  }
  row.n_ranks.store(n_ranks > 0 ? n_ranks : row.n_ranks.load());
  row.rank.store(rank >= 0 ? rank : row.rank.load());
  s->comm[comm].nccl_comm.store(nccl_comm);
  row.in_use.store(2, kRelease);
  if (row.is_profiled.load() != 0) {
    return comm;  // found by its hash
  }
  // The plugin told of one like it during the call, under a hash that was not known here.
  // (~0: made before anybody looked.)
  for (u32 i = 1; i < kComms; ++i) {
    const CommRow& other = s->comms[i];
    if (i != comm && other.in_use.load() != 3 && other.is_profiled.load() != 0 &&
        s->comm[i].linked.load() == 0 && s->comm[i].made_ticks.load() >= since_ticks &&
        (other.n_ranks.load() <= 0 ||
         (other.n_ranks.load() == row.n_ranks.load() && other.rank.load() == row.rank.load()))) {
      merge(*s, comm, i);
      s->comms[i].in_use.store(2);
      return i;
    }
  }
  return comm;
}

u64 child_hash(u32 parent, u64 salt) noexcept {
  State* s = state_in_force();
  if (s == nullptr || parent == kNoComm) {
    return mix(0, salt);
  }
  // Children are made in the same order on all members.
  return mix(mix(s->comms[parent].hash.load(), s->comm[parent].children.fetch_add(1) + 1), salt);
}

u32 find_comm(const void* nccl_comm) noexcept {
  const State* s = state_in_force();
  if (s == nullptr || nccl_comm == nullptr) {
    return kNoComm;
  }
  for (u32 i = 1; i < kComms; ++i) {
    if (s->comm[i].nccl_comm.load(kRelaxed) == nccl_comm) {
      return i;
    }
    if (s->comms[i].in_use.load(kRelaxed) == 0) {
      break;  // rows are used in order
    }
  }
  return kNoComm;
}

void close_comm(u32 comm, const char* why) noexcept {
  State* s = state_in_force();
  if (s == nullptr || comm == kNoComm) {
    return;
  }
  if (why != nullptr) {
    fail_operations(comm, why);
  }
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const u32 claim = s->ops[slot].claim.load(kAcquire);
    if ((claim & 1) != 0 && s->ops[slot].comm.load(kRelaxed) == comm) {
      finish(*s, slot, claim >> 1 & kGenerationMask, fr::State::kReleased, 0, 0);
    }
  }
  // What it was doing will not be told to have ended.
  for (u32 slot = 0; slot < kPhases; ++slot) {
    Phase& f = s->phases[slot];
    const u32 claim = f.claim.load(kAcquire);
    const u32 op = f.op.load(kRelaxed);
    if ((claim & 1) != 0 && op != 0 && s->ops[op - 1].comm.load(kRelaxed) == comm &&
        s->ops[op - 1].ticket.load(kRelaxed) == f.ticket.load(kRelaxed)) {
      release_row(f, claim >> 1 & kGenerationMask);
    }
  }
  const std::lock_guard lock(s->comms_lock);
  s->comm[comm].nccl_comm.store(nullptr);
  s->comms[comm].in_use.store(3);
  if (const u32 group = s->comms[comm].group.load()) {
    fr_group_destroyed(group);
  }
}

void fail_operations(u32 comm, const char* why) noexcept {
  State* s = state_in_force();
  if (s == nullptr || comm == kNoComm) {
    return;
  }
  const u32 error = fr_intern(why, std::strlen(why));
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const u32 claim = s->ops[slot].claim.load(kAcquire);
    if ((claim & 1) != 0 && s->ops[slot].comm.load(kRelaxed) == comm) {
      finish(*s, slot, claim >> 1 & kGenerationMask, fr::State::kFailed, error, 0);
    }
  }
}

bool expect_link(const void* nccl_comm) noexcept {
  State* s = state_in_force();
  Thread* t = s != nullptr ? own_thread(*s) : nullptr;
  if (t == nullptr) {
    return false;
  }
  for (u32 i = 1; i < kComms; ++i) {
    if (s->comms[i].in_use.load(kRelaxed) != 3 && s->comms[i].is_profiled.load(kRelaxed) != 0 &&
        s->comm[i].linked.load(kRelaxed) == 0) {
      t->unlinked = nccl_comm;
      return true;
    }
  }
  return false;
}

void forget_link() noexcept {
  if (t_own.thread != nullptr && t_own.tid == own_tid()) {
    t_own.thread->unlinked = nullptr;
  }
}

u32 thread_slot() noexcept {
  State* s = state_in_force();
  const Thread* t = s != nullptr ? own_thread(*s) : nullptr;
  return t != nullptr ? static_cast<u32>(t - g_threads) : ~0u;
}

namespace {

// The oldest operation in flight; comm kNoComm: of all of them.
Handle oldest_of(State& s, u32 comm, u64& ticket) noexcept {
  Handle oldest = 0;
  ticket = 0;
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const DeviceOp& op = s.ops[slot];
    const u32 claim = op.claim.load(kAcquire);
    const u64 own = op.ticket.load(kRelaxed);
    if ((claim & 1) != 0 && own != 0 && (ticket == 0 || own < ticket) &&
        (comm == kNoComm || op.comm.load(kRelaxed) == comm)) {
      oldest = make(s, kApiHandle, slot, claim >> 1);
      ticket = own;
    }
  }
  return oldest;
}

}  // namespace

void comm_failed(u32 comm, const char* text) noexcept {
  State* s = state_in_force();
  if (s == nullptr || comm == kNoComm || s->comms[comm].error.load() != 0) {
    return;
  }
  const u32 error = fr_intern(text, std::strlen(text));
  u32 none = 0;
  if (!s->comms[comm].error.compare_exchange_strong(none, error)) {
    return;  // the first one counts
  }
  s->comms[comm].error_ticks.store(ticks_now(s->hot->clock));
  u64 ticket = 0;
  fail_operation(oldest_of(*s, comm, ticket), text);
}

Handle oldest_in_flight(u64& ticket) noexcept {
  State* s = state_in_force();
  return s != nullptr ? oldest_of(*s, kNoComm, ticket) : 0;
}

void fail_operation(Handle handle, const char* why) noexcept {
  State* s = state_in_force();
  u32 slot = 0;
  if (s == nullptr || handle == 0 || find_op(*s, handle, slot) == nullptr) {
    return;
  }
  finish(*s, slot, generation_of(handle), fr::State::kFailed, fr_intern(why, std::strlen(why)), 0);
  if (Recorder* r = recorder()) {
    r->watchdog.wake();
  }
}

fr_group_t group_of(u32 comm) noexcept {
  State* s = state_in_force();
  if (s == nullptr || comm == kNoComm) {
    return 0;
  }
  CommRow& row = s->comms[comm];
  if (const u32 group = row.group.load(kAcquire)) {
    return group;
  }
  const std::lock_guard lock(s->comms_lock);
  if (row.group.load() == 0) {
    char name[32];
    std::snprintf(name, sizeof name, "nccl:%016llx",
                  static_cast<unsigned long long>(row.hash.load()));
    char desc[128] = "";
    if (const u32 id = row.name.load()) {
      const auto text = recorder()->view.string(id);
      std::snprintf(desc, sizeof desc, "%.*s", static_cast<int>(text.size()), text.data());
    }
    fr_group_info info{};
    info.struct_bytes = sizeof info;
    info.n_ranks = row.n_ranks.load();
    info.own_rank = row.rank.load();
    info.name = name;
    info.desc = desc;
    info.backend = "nccl";
    row.group.store(fr_group(&info), kRelease);
  }
  return row.group.load();
}

bool is_profiled(u32 comm) noexcept {
  const State* s = state_in_force();
  return s != nullptr && comm != kNoComm && s->comms[comm].is_profiled.load(kRelaxed) != 0;
}

Handle plugin_init(u32 api, u64 hash, const char* name, i32 n_nodes, i32 n_ranks, i32 rank,
                   int* mask, u32 events) noexcept {
  State* s = ready() ? state_in_force() : nullptr;
  if (s == nullptr) {
    return 0;
  }
  std::unique_lock lock(s->comms_lock);
  u32 comm = kNoComm;
  for (u32 i = 1; i < kComms && hash != 0 && comm == kNoComm; ++i) {
    const CommRow& row = s->comms[i];
    const u32 use = row.in_use.load();
    if ((use == 1 || use == 2) && row.hash.load() == hash && row.is_profiled.load() == 0 &&
        (row.rank.load() == rank || row.rank.load() < 0)) {
      comm = i;  // a wrapper is in the call that makes it
    }
  }
  const bool wrapped = comm != kNoComm;
  if (!wrapped) {
    comm = new_comm(*s, hash, n_ranks, rank, name);
  }
  if (comm == kNoComm) {
    return 0;
  }
  CommRow& row = s->comms[comm];
  if (n_ranks > 0) {
    row.n_ranks.store(n_ranks);
    row.rank.store(rank);
  }
  row.n_nodes.store(static_cast<u32>(n_nodes > 0 ? n_nodes : 0));
  if (name != nullptr && name[0] != '\0') {
    row.name.store(fr_intern(name, std::strlen(name)));
  }
  s->comm[comm].events.store(events);
  s->comm[comm].mask.store(mask);
  s->comm[comm].linked.store(wrapped ? 1 : 0);
  row.is_profiled.store(1, kRelease);
  s->device->plugin_api.store(api);
  s->device->events.store(events);
  say_layer(*s);
  if (mask != nullptr) {
    __atomic_store_n(mask, static_cast<int>(events), __ATOMIC_RELAXED);
    apply_mask(*s);
  }
  lock.unlock();
  if (!wrapped && hash != 0 && g_hooked.load() == 0) {
    group_of(comm);  // a rank that then does nothing with it must show that it has it
  }
  return make(*s, kCommHandle, comm, s->comm[comm].generation.load());
}

void plugin_more_events(Handle context, u32 events) noexcept {
  State* s = state_in_force();
  const u32 comm = s != nullptr ? comm_of(*s, context) : kNoComm;
  if (comm != kNoComm) {
    s->comm[comm].other_events.store(events);
    apply_mask(*s);
  }
}

void plugin_learn(Handle context, u64 hash, i32 rank, const char* name) noexcept {
  State* s = state_in_force();
  const u32 comm = s != nullptr ? comm_of(*s, context) : kNoComm;
  if (comm == kNoComm || hash == 0 || s->comms[comm].hash.load(kRelaxed) != 0) {
    return;
  }
  const std::lock_guard lock(s->comms_lock);
  s->comms[comm].hash.store(hash);
  s->comms[comm].rank.store(rank);
  if (name != nullptr && name[0] != '\0') {
    s->comms[comm].name.store(fr_intern(name, std::strlen(name)));
  }
  for (u32 i = 1; i < kComms; ++i) {
    const CommRow& row = s->comms[i];
    if (i != comm && row.in_use.load() == 2 && row.hash.load() == hash &&
        row.is_profiled.load() == 0 && row.rank.load() == rank) {
      s->comms[comm].n_ranks.store(0);
      merge(*s, i, comm);
      s->comms[comm].in_use.store(2);
      return;
    }
  }
}

void plugin_finalize(Handle context) noexcept {
  State* s = state_in_force();
  const u32 comm = s != nullptr ? comm_of(*s, context) : kNoComm;
  if (comm != kNoComm) {
    close_comm(comm, nullptr);
    s->comm[comm].mask.store(nullptr);
  }
}

// ---------------------------------------------------------------- wrappers

Handle open(u32 comm, const Call& call) noexcept {
  State* s = state_in_force();
  if (s == nullptr || comm == kNoComm) {
    return 0;
  }
  Thread* t = own_thread(*s);
  if (t == nullptr) {
    return begin_op(*s, comm, call, fr_ticket{});
  }
  t->current_parts = 0;
  if (t->n_scopes == 0 || t->n_scopes > kScopes) {
    return t->current = begin_op(*s, comm, call, fr_ticket{});
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
    scope.op = begin_op(*s, comm, call, scope.ticket);
  }
  return t->current = scope.op;
}

void closed(Handle handle, bool ok, const char* error) noexcept {
  State* s = state_in_force();
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
    finish(*s, slot, generation_of(handle), fr::State::kFailed,
           error != nullptr ? fr_intern(error, std::strlen(error)) : 0, 0);
    if (Recorder* r = recorder()) {
      r->watchdog.wake();
    }
    return;
  }
  if ((op->flags.load(kRelaxed) & kDevAdopted) == 0) {
    s->op[slot].closed.store(1, kRelease);
    try_complete(*s, slot, generation_of(handle), false);
  }
}

void launching(Handle handle) noexcept {
  State* s = state_in_force();
  u32 slot = 0;
  if (s != nullptr && handle != 0 && find_op(*s, handle, slot) != nullptr) {
    mark_launching(*s, slot);
  }
}

void launched(Handle handle) noexcept {
  State* s = state_in_force();
  u32 slot = 0;
  if (s != nullptr && handle != 0 && find_op(*s, handle, slot) != nullptr) {
    mark_launched(*s, slot);
  }
}

void settle(Handle handle) noexcept {
  State* s = state_in_force();
  u32 slot = 0;
  if (s != nullptr && handle != 0 && find_op(*s, handle, slot) != nullptr) {
    settle_slot(*s, slot, generation_of(handle));
  }
}

namespace {

// Nothing was told for so long: nothing more will come. The watchdog looks every 100 ms, exit()
// waits for 200.
constexpr i64 kQuiet_ns = 50'000'000;

// Without kernels: the last transfer of a send or receive ends it. A collective's ranks may have
// work beyond their transfers, and one without any is not told of at all: how it ended is not seen.
template <class IsQuiet>
void settle_transfers(State& s, u32 slot, u32 generation, const IsQuiet& is_quiet) noexcept {
  const DeviceOp& op = s.ops[slot];
  const u32 ended = op.transfers_ended.load(kAcquire);
  const u64 since =
      ended != 0 ? s.op[slot].last_transfer_ticks.load(kRelaxed) : op.launched_ticks.load(kRelaxed);
  if (since == 0 || op.transfers_started.load(kRelaxed) != ended ||
      op.parts_launched.load(kRelaxed) < op.parts.load(kRelaxed) || !is_quiet(since)) {
    return;
  }
  const bool seen = ended != 0 && (op.flags.load(kRelaxed) & kDevP2p) != 0;
  finish(s, slot, generation, seen ? fr::State::kCompleted : fr::State::kReleased, 0,
         seen ? since : 0);
}

}  // namespace

void settle_all() noexcept {
  State* s = state_in_force();
  if (s == nullptr) {
    return;
  }
  const TickClock clock(*s->hot->header);
  const i64 now_ns = static_cast<i64>(clock.unix_ns(ticks_now(s->hot->clock)));
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
    } else if (!sees_kernels(*s, op.comm.load(kRelaxed) % kComms)) {
      settle_transfers(*s, slot, generation, is_quiet);
    }
    // A communicator runs its operations in their order: what a later one has overtaken has ended,
    // and its end was not told.
    const u64 newest = s->comm[op.comm.load(kRelaxed) % kComms].last_completed.load(kRelaxed);
    if (op.launched_ticks.load(kRelaxed) != 0 && op.ticket.load(kRelaxed) < newest &&
        s->op[slot].overtaken.fetch_add(1, kRelaxed) >= 2) {
      finish(*s, slot, generation, fr::State::kReleased, 0, 0);
    }
  }
}

// ---------------------------------------------------------------- CUDA's events

namespace {

void apply(State& s, u32 slot, u32 generation, const EventsSeen& seen) noexcept {
  DeviceOp& op = s.ops[slot];
  OpPrivate& p = s.op[slot];
  const bool first = p.first_events.load(kRelaxed) == seen.events;
  const bool last = p.last_events.load(kRelaxed) == seen.events;
  if (seen.what == EventsSeen::kLost) {
    if (last) {
      lose_events(s, slot, generation);
    }
    return;
  }
  // NCCL's own stamps, channel by channel, are better where there are some.
  const bool nccl_tells = op.channels_started.load(kAcquire) != 0;
  if (first && !nccl_tells && first_time(p.is_started, generation)) {
    u64 at = seen.start_ticks != 0 ? seen.start_ticks : ticks_now(s.hot->clock);
    // The two clocks are tied to some microseconds only; nothing starts before its launch.
    const u64 launching = op.launching_ticks.load(kRelaxed);
    at = at > launching ? at : launching;
    op.started_ticks.store(at, kRelaxed);
    const fr_ticket t = ticket_of(p);
    if (is_counted(t) && p.done.load(kRelaxed) != (generation << 1 | 1)) {
      started(*s.hot, t, at);
    }
  }
  if (seen.what != EventsSeen::kEnded) {
    return;
  }
  if (!nccl_tells && seen.end_ns != 0) {
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

void events_seen(const EventsSeen* seen, u32 n) noexcept {
  State* s = state_in_force();
  if (s == nullptr) {
    return;
  }
  // One pair may stand for a whole group of operations: each row is asked whose it is.
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

// ---------------------------------------------------------------- frameworks

void enter(const fr_ticket& ticket) noexcept {
  State* s = state_in_force();
  if (s == nullptr && g_library_version.load(kRelaxed) != 0 && ticket.ticket != 0 && ready())
      [[unlikely]] {
    s = state_in_force();  // the first operation may be what makes the communicator
  }
  Thread* t = s != nullptr ? own_thread(*s) : nullptr;
  if (t == nullptr) {
    return;
  }
  if (t->n_scopes++ < kScopes) {
    t->scope[t->n_scopes - 1] = {ticket, 0};
  }
}

bool leave() noexcept {
  State* s = state_in_force();
  Thread* t = s != nullptr ? own_thread(*s) : nullptr;
  if (t == nullptr || t->n_scopes == 0) {
    return false;
  }
  if (t->n_scopes-- > kScopes) {
    return false;
  }
  const Handle handle = t->scope[t->n_scopes].op;
  u32 slot = 0;
  DeviceOp* op = handle != 0 ? find_op(*s, handle, slot) : nullptr;
  if (op == nullptr) {
    return handle != 0;  // over already, its row another's
  }
  if ((op->flags.load(kRelaxed) & kDevUnseen) != 0) {
    return s->op[slot].done.load(kRelaxed) == (generation_of(handle) << 1 | 1);
  }
  s->op[slot].closed.store(1, kRelease);
  try_complete(*s, slot, generation_of(handle), false);
  return true;
}

fr_ticket scope_ticket() noexcept {
  State* s = state_in_force();
  Thread* t = s != nullptr ? own_thread(*s) : nullptr;
  return t != nullptr && t->n_scopes > 0 && t->n_scopes <= kScopes
             ? t->scope[t->n_scopes - 1].ticket
             : fr_ticket{};
}

// ---------------------------------------------------------------- plugin

Handle other_start() noexcept {
  const State* s = state_in_force();
  return s != nullptr ? make(*s, kOtherHandle, 0, 0) : u64{1} << 48 | u64{kOtherHandle} << 44;
}

Handle group_api_start(Handle context, bool captured) noexcept {
  State* s = state_in_force();
  if (s == nullptr || comm_of(*s, context) == kNoComm) {
    return other_start();
  }
  (void)captured;
  const u32 slot = claim_row(s->groups, kApiGroups, 0, s->group_cursor);
  if (slot == kApiGroups) {
    count(s->device->ops_lost);
    return other_start();
  }
  s->groups[slot].first.store(0, kRelaxed);
  return make(*s, kGroupHandle, slot, s->groups[slot].claim.load(kRelaxed) >> 1);
}

void group_api_stop(Handle group) noexcept {
  State* s = state_in_force();
  if (s == nullptr) {
    return;
  }
  each_op(*s, group, [&](u32 slot) {
    mark_launched(*s, slot);
    settle_slot(*s, slot, generation_at(*s, slot));
  });
  if (!release_row(s->groups[slot_of(group) % kApiGroups], generation_of(group))) {
    count(s->device->stale_handles);
  }
}

Handle api_start(Handle context, Handle group, const Call& call) noexcept {
  State* s = state_in_force();
  const u32 comm = s != nullptr ? comm_of(*s, context) : kNoComm;
  if (comm == kNoComm) {
    return other_start();
  }
  Thread* t = own_thread(*s);
  if (t != nullptr && t->unlinked != nullptr && s->comm[comm].linked.load(kRelaxed) == 0) {
    s->comm[comm].nccl_comm.store(t->unlinked);
    s->comm[comm].linked.store(1);
    t->unlinked = nullptr;
  }
  u32 slot = 0;
  DeviceOp* op = current_op(*s, t, comm, call, slot);
  Handle handle = 0;
  if (op != nullptr) {
    // The wrapper counted one part for its call; what a call is split into is counted here.
    if (t->current_parts++ > 0) {
      op->parts.fetch_add(1, kRelaxed);
    }
    if (call.captured) {
      op->flags.fetch_or(kDevCaptured | kDevUnseen, kRelaxed);
    }
    if (call.stream != nullptr) {
      op->stream.store(reinterpret_cast<u64>(call.stream), kRelaxed);
    }
    handle = make(*s, kApiHandle, slot, generation_at(*s, slot));
  } else if (t != nullptr && t->n_scopes > 0 && t->n_scopes <= kScopes) {
    // A framework's call reached the library past our wrappers.
    auto& scope = t->scope[t->n_scopes - 1];
    if (find_op(*s, scope.op, slot) != nullptr) {
      s->ops[slot].parts.fetch_add(1, kRelaxed);
    } else {
      scope.op = begin_op(*s, comm, call, scope.ticket);
      slot = slot_of(scope.op);
    }
    handle = scope.op;
  } else if (call.func == Func::kSend || call.func == Func::kRecv) {
    // Whom it is with is told with its launch: the record is made then, the row says it was issued.
    slot = claim_op(*s, comm, call, kDevP2p | (call.captured ? kDevCaptured | kDevUnseen : 0));
    if (slot == kDeviceOps) {
      return make(*s, kApiHandle, kNoSlot, 0);
    }
    keep_ticket(s->op[slot], fr_ticket{});
    s->op[slot].closed.store(1, kRelaxed);
    s->ops[slot].parts.store(1, kRelease);
    handle = make(*s, kApiHandle, slot, generation_at(*s, slot));
  } else {
    handle = begin_op(*s, comm, call, fr_ticket{});
    slot = slot_of(handle);
    if (handle != 0) {
      s->op[slot].closed.store(1, kRelease);
    }
  }
  if (handle == 0) {
    return make(*s, kApiHandle, kNoSlot, 0);
  }
  list_in(*s, group, slot);
  return handle;
}

Handle launch_start(Handle context, Handle group) noexcept {
  State* s = state_in_force();
  const u32 comm = s != nullptr ? comm_of(*s, context) : kNoComm;
  if (comm != kNoComm) {
    each_op(*s, group, [&](u32 slot) {
      if (s->ops[slot].comm.load(kRelaxed) == comm) {
        mark_launching(*s, slot);
      }
    });
  }
  return other_start();
}

namespace {

// A device takes about a thousand launches ahead. If more have passed and no kernel was ever told
// of, this library does not tell: its operations are not in flight for ever.
constexpr u64 kSilent = 2048;

void give_up(State& s, u32 comm) noexcept {
  s.comm[comm].events.fetch_and(~u32{kEvKernelCh}, kRelaxed);
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const u32 claim = s.ops[slot].claim.load(kAcquire);
    if ((claim & 1) != 0 && s.ops[slot].comm.load(kRelaxed) == comm &&
        s.ops[slot].launched_ticks.load(kRelaxed) != 0 &&
        (s.ops[slot].flags.load(kRelaxed) & kDevTimed) == 0) {
      finish(s, slot, claim >> 1 & kGenerationMask, fr::State::kReleased, 0, 0);
    }
  }
}

// Up to version 4 nothing ties a launch to its call but what it is about.
DeviceOp* match_op(State& s, u32 comm, const Call& call, u32& found) noexcept {
  const bool p2p = call.func == Func::kSend || call.func == Func::kRecv;
  u64 oldest = ~0ull;
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const DeviceOp& op = s.ops[slot];
    const OpPrivate& p = s.op[slot];
    if ((op.claim.load(kAcquire) & 1) == 0 || op.comm.load(kRelaxed) != comm ||
        op.parts_launched.load(kRelaxed) >= op.parts.load(kRelaxed) ||
        p.func.load(kRelaxed) != static_cast<u32>(call.func) ||
        op.ticket.load(kRelaxed) >= oldest) {
      continue;
    }
    const bool adopted = (op.flags.load(kRelaxed) & kDevAdopted) != 0;
    if (!adopted &&
        (p2p ? p.peer.load(kRelaxed) != call.peer
             : p.send.load(kRelaxed) != call.send || p.recv.load(kRelaxed) != call.recv)) {
      continue;
    }
    oldest = op.ticket.load(kRelaxed);
    found = slot;
  }
  return oldest != ~0ull ? &s.ops[found] : nullptr;
}

}  // namespace

Handle task_start(Handle context, Handle parent, const Call& call, u32 channels, const char* algo,
                  const char* proto) noexcept {
  State* s = state_in_force();
  const u32 comm = s != nullptr ? comm_of(*s, context) : kNoComm;
  if (comm == kNoComm) {
    return other_start();
  }
  if (s->comm[comm].launched.fetch_add(1, kRelaxed) >= kSilent && sees_kernels(*s, comm) &&
      s->comm[comm].kernels_seen.load(kRelaxed) == 0) [[unlikely]] {
    give_up(*s, comm);
  }
  u32 slot = 0;
  DeviceOp* op = nullptr;
  if (parent != 0 && is_own(*s, parent) && kind_of(parent) == kApiHandle) {
    op = find_op(*s, parent, slot);
    if (op == nullptr) {
      return other_start();  // a replay whose capture is long forgotten; counted as stale
    }
    if ((op->flags.load(kRelaxed) & kDevCaptured) != 0) {
      op->parts_launched.fetch_add(1, kRelaxed);  // counts the replays
      return make(*s, kTaskHandle, slot, generation_of(parent));
    }
    if (s->op[slot].ticket.load(kRelaxed) == 0) {
      const bool unseen = !sees_end(*s, comm) || is_alone(*s, comm);
      const fr_ticket t = begin_record(*s, comm, call, unseen);
      keep_ticket(s->op[slot], t);
      s->op[slot].peer.store(call.peer, kRelaxed);
      op->ticket.store(t.ticket != kNoTicket ? t.ticket : 0, kRelaxed);
      if (unseen) {
        op->flags.fetch_or(kDevUnseen, kRelaxed);
      }
    }
  } else {
    op = current_op(*s, own_thread(*s), comm, call, slot);
    if (op == nullptr || op->parts_launched.load(kRelaxed) >= op->parts.load(kRelaxed)) {
      op = match_op(*s, comm, call, slot);
    }
    if (op == nullptr) {
      // Its caller is not wrapped: the launch is the first that is seen of it.
      const Handle handle = begin_op(*s, comm, call, fr_ticket{});
      if (handle == 0) {
        return other_start();
      }
      slot = slot_of(handle);
      op = &s->ops[slot];
      s->op[slot].closed.store(1, kRelease);
      count(s->device->unmatched);
    }
  }
  op->channels.fetch_add(channels, kRelaxed);
  op->algorithm.store(word_id(*s, algo), kRelaxed);
  op->protocol.store(word_id(*s, proto), kRelaxed);
  mark_launched(*s, slot);
  op->parts_launched.fetch_add(1, kRelease);
  return make(*s, kTaskHandle, slot, generation_at(*s, slot));
}

Handle ce_start(Handle context, Handle parent, const Call& call) noexcept {
  const Handle handle = task_start(context, parent, call, 0, "CE", nullptr);
  State* s = state_in_force();
  u32 slot = 0;
  // Copy engines: no kernel whose end could be told.
  if (s != nullptr && kind_of(handle) == kTaskHandle && find_op(*s, handle, slot) != nullptr) {
    finish(*s, slot, generation_of(handle), fr::State::kReleased, 0, 0);
  }
  return handle;
}

Handle transfer_start(Handle parent, i32 pid, u32 channel, i32 peer, u32 n_steps,
                      bool is_send) noexcept {
  State* s = state_in_force();
  if (s == nullptr) {
    return other_start();
  }
  u32 op_slot = 0;
  DeviceOp* op = nullptr;
  const bool foreign = pid != 0 && pid != s->pid;
  if (foreign) {
    count(s->device->foreign_handles);
  } else {
    op = find_op(*s, parent, op_slot);
    if (op == nullptr) {
      return other_start();
    }
  }
  const u32 slot = claim_row(s->phases, kPhases, 0, s->phase_cursor);
  if (slot == kPhases) {
    count(s->device->phases_lost);
    return other_start();
  }
  Phase& f = s->phases[slot];
  f.op.store(op != nullptr ? op_slot + 1 : 0, kRelaxed);
  f.ticket.store(op != nullptr ? op->ticket.load(kRelaxed) : 0, kRelaxed);
  f.ticks.store(ticks_now(s->hot->clock), kRelaxed);
  f.what.store((is_send ? kPhaseSend : kPhaseRecv) | channel << 8, kRelaxed);
  f.peer.store(peer, kRelaxed);
  f.n_steps.store(n_steps, kRelaxed);
  f.next_step.store(0, kRelaxed);
  f.waits.store(0, kRelaxed);
  f.pid.store(foreign ? static_cast<u32>(pid) : 0, kRelaxed);
  f.first.store(0, kRelaxed);
  f.second.store(0, kRelease);
  if (op != nullptr) {
    op->transfers_started.fetch_add(1, kRelaxed);
    s->comm[op->comm.load(kRelaxed) % kComms].transfers_seen.store(1, kRelaxed);
  }
  return make(*s, kTransferHandle, slot, f.claim.load(kRelaxed) >> 1);
}

namespace {

// The operation a transfer is of, kDeviceOps when its row is another one's by now.
u32 op_of(const State& s, const Phase& f) noexcept {
  const u32 op = f.op.load(kRelaxed);
  return op != 0 && s.ops[op - 1].ticket.load(kRelaxed) == f.ticket.load(kRelaxed) ? op - 1
                                                                                   : kDeviceOps;
}

// Its kernel filled or took a buffer: it runs.
void kernel_moved(State& s, const Phase& f) noexcept {
  const u32 op = op_of(s, f);
  if (op != kDeviceOps && s.ops[op].started_ticks.load(kRelaxed) == 0 &&
      !sees_kernels(s, s.ops[op].comm.load(kRelaxed) % kComms)) {
    mark_started(s, op, generation_at(s, op), 0);
  }
}

void set_wait(State& s, Phase& f, u32 step, Wait wait) noexcept {
  const u32 shift = 4 * (step % 8);
  const u32 before = f.waits.load(kRelaxed);
  const u32 after = (before & ~(15u << shift)) | static_cast<u32>(wait) << shift;
  if (after != before) {  // told again at every poll while it waits
    f.waits.store(after, kRelaxed);
    f.ticks.store(ticks_now(s.hot->clock), kRelaxed);
  }
}

}  // namespace

Handle step_start(Handle transfer, u32 step) noexcept {
  State* s = state_in_force();
  if (s == nullptr || !is_own(*s, transfer) || kind_of(transfer) != kTransferHandle) {
    return other_start();
  }
  Phase* f = find_phase(*s, transfer);
  if (f == nullptr) {
    return other_start();
  }
  const u32 before = f->waits.load(kRelaxed) >> 4 * (step % 8) & 15;
  if (before == 0) {  // not when it is told again
    set_wait(*s, *f, step,
             (f->what.load(kRelaxed) & 0xff) == kPhaseRecv ? Wait::kData : Wait::kPosted);
  }
  return make(*s, kStepHandle, slot_of(transfer), generation_of(transfer), step);
}

Handle net_start(Handle step, i64 id, const void* data) noexcept {
  State* s = state_in_force();
  if (s == nullptr || data == nullptr || !is_own(*s, step) || kind_of(step) != kStepHandle) {
    return other_start();
  }
  u64 word = 0;
  if (id == kNetIb1) {
    const auto& d = *static_cast<const NetIb1*>(data);
    word = d.type == kNetQp ? net_word(Net::kIb, static_cast<u32>(d.request.device),
                                       static_cast<u32>(d.request.qp))
                            : 0;
  } else if (id == kNetSocket1) {
    const auto& d = *static_cast<const NetSocket1*>(data);
    word = d.type == kNetSocket ? net_word(Net::kSocket, 0, static_cast<u32>(d.transfer.fd)) : 0;
  }
  if (word != 0) {  // other plugins' events are their own
    if (Phase* f = find_phase(*s, step)) {
      f->second.store(word, kRelaxed);
    }
  }
  return other_start();
}

Handle kernel_start(Handle parent, u32 channel, u64 device_ns) noexcept {
  State* s = state_in_force();
  u32 op_slot = 0;
  DeviceOp* op = s != nullptr ? find_op(*s, parent, op_slot) : nullptr;
  if (op == nullptr) {
    return other_start();
  }
  const u32 generation = generation_of(parent);
  s->comm[op->comm.load(kRelaxed) % kComms].kernels_seen.store(1, kRelaxed);
  op->channels_started.fetch_add(1, kRelaxed);
  mark_started(*s, op_slot, generation, device_ns);
  const u32 slot = claim_row(s->phases, kPhases, 0, s->phase_cursor);
  if (slot == kPhases) {
    count(s->device->phases_lost);
    return make(*s, kTaskHandle, op_slot, generation, 1);  // step 1: its stop ends a channel
  }
  Phase& f = s->phases[slot];
  f.op.store(op_slot + 1, kRelaxed);
  f.ticket.store(op->ticket.load(kRelaxed), kRelaxed);
  f.ticks.store(ticks_now(s->hot->clock), kRelaxed);
  f.what.store(kPhaseKernel | channel << 8, kRelaxed);
  f.peer.store(-1, kRelaxed);
  f.n_steps.store(generation, kRelaxed);  // of the operation; see stop()
  f.next_step.store(0, kRelaxed);
  f.waits.store(0, kRelaxed);
  f.pid.store(0, kRelaxed);
  f.first.store(device_ns, kRelaxed);
  f.second.store(0, kRelease);
  return make(*s, kKernelHandle, slot, f.claim.load(kRelaxed) >> 1);
}

namespace {

void channel_ended(State& s, u32 slot, u32 generation) noexcept {
  DeviceOp& op = s.ops[slot];
  if ((op.claim.load(kAcquire) >> 1 & kGenerationMask) != generation) {
    count(s.device->stale_handles);
    return;
  }
  s.op[slot].last_end_ticks.store(ticks_now(s.hot->clock), kRelaxed);
  op.channels_ended.fetch_add(1, kRelease);
  try_complete(s, slot, generation, false);
}

void kernel_stamp(State& s, Phase& f, u64 device_ns) noexcept {
  if (device_ns == 0) {
    return;
  }
  f.second.store(device_ns, kRelaxed);
  if (const u32 slot = f.op.load(kRelaxed); slot != 0) {
    std::atomic<u64>& end = s.ops[slot - 1].device_end_ns;
    if (end.load(kRelaxed) < device_ns) {
      end.store(device_ns, kRelaxed);
    }
  }
  // The host learns of it some time after: the least lag seen is the best offset.
  const i64 offset = static_cast<i64>(monotonic_ns() - device_ns);
  const i64 best = s.device->clock_offset_ns.load(kRelaxed);
  if (best == 0 || offset < best) {
    s.device->clock_offset_ns.store(offset, kRelaxed);
  }
}

}  // namespace

void state(Handle handle, int event_state, u64 bytes_or_ns, u32 step) noexcept {
  State* s = state_in_force();
  if (s == nullptr || handle == 0) {
    return;
  }
  if (!is_own(*s, handle)) {
    count(s->device->foreign_handles);
    return;
  }
  const Kind kind = kind_of(handle);
  if (kind == kGroupHandle) {
    if (event_state == kStGroupEndApiStart) {
      each_op(*s, handle, [&](u32 slot) { mark_launching(*s, slot); });
    }
    return;
  }
  if (kind != kStepHandle && kind != kTransferHandle && kind != kKernelHandle) {
    return;
  }
  Phase* f = find_phase(*s, handle);
  if (f == nullptr) {
    return;
  }
  if (kind == kKernelHandle) {
    if (event_state == kStKernelChStop) {
      kernel_stamp(*s, *f, bytes_or_ns);
    }
    return;
  }
  if (kind == kTransferHandle) {
    if (event_state == kStSendRemFifoWait) {
      set_wait(*s, *f, step, Wait::kPeerCredit);
    }
    return;
  }
  step = step_of(handle);
  switch (event_state) {
    case kStStepSendGpuWait:
      set_wait(*s, *f, step, Wait::kOwnKernel);
      break;
    case kStStepSendPeerWait:
      set_wait(*s, *f, step, Wait::kPeerCredit);
      break;
    case kStStepSendWait:
      f->first.fetch_add(bytes_or_ns, kRelaxed);
      set_wait(*s, *f, step, Wait::kInFlight);
      kernel_moved(*s, *f);
      break;
    case kStStepRecvWait:
      set_wait(*s, *f, step, Wait::kData);
      break;
    case kStStepRecvFlushWait:
      f->first.fetch_add(bytes_or_ns, kRelaxed);
      set_wait(*s, *f, step, Wait::kFlush);
      break;
    case kStStepRecvGpuWait:
      set_wait(*s, *f, step, Wait::kOwnKernelTakes);
      break;
    default:
      break;
  }
}

void stop(Handle handle) noexcept {
  State* s = state_in_force();
  if (s == nullptr || handle == 0) {
    return;
  }
  if (!is_own(*s, handle)) {
    count(s->device->foreign_handles);
    return;
  }
  switch (kind_of(handle)) {
    case kGroupHandle:
      group_api_stop(handle);
      return;
    case kStepHandle:
      if (Phase* f = find_phase(*s, handle)) {
        set_wait(*s, *f, step_of(handle), Wait::kNone);
        // the handle has the step's low bits only
        const u32 next = f->next_step.load(kRelaxed);
        const u32 ahead = (step_of(handle) + 1 - next) & kStepMask;
        if (ahead < kStepMask / 2) {
          f->next_step.store(next + ahead, kRelaxed);
        }
      }
      return;
    case kTransferHandle:
      if (Phase* f = find_phase(*s, handle)) {
        const u32 op = op_of(*s, *f);
        const u64 now = ticks_now(s->hot->clock);
        f->ticks.store(now, kRelaxed);
        if (release_row(*f, generation_of(handle)) && op != kDeviceOps) {
          s->op[op].last_transfer_ticks.store(now, kRelaxed);
          s->ops[op].transfers_ended.fetch_add(1, kRelease);
        }
      }
      return;
    case kKernelHandle:
      if (Phase* f = find_phase(*s, handle)) {
        const u32 op = f->op.load(kRelaxed);
        const u32 generation = f->n_steps.load(kRelaxed);
        f->ticks.store(ticks_now(s->hot->clock), kRelaxed);
        if (release_row(*f, generation_of(handle)) && op != 0) {
          channel_ended(*s, op - 1, generation);
        }
      }
      return;
    case kTaskHandle:
      if (step_of(handle) != 0 && slot_of(handle) < kDeviceOps) {
        channel_ended(*s, slot_of(handle), generation_of(handle));
      }
      return;
    default:
      return;  // nothing ends with it
  }
}

}  // namespace fr::nccl
