// state.hpp - what the parts of the tracker (tracker.hpp) share: the state of one process, handles,
// rows. Not for others.
//
//   state.cpp       the state's making, names and numbers of NCCL's, graph captures
//   comms.cpp       communicators: made, found, merged, failed, closed
//   operations.cpp  records of operations: begun, launched, settled, ended
//   scopes.cpp      the framework's calls that operations belong to
//   events.cpp      the plugin's events of calls and launches
//   transfers.cpp   the plugin's events of transfers, steps and kernel channels
#pragma once

#include <cstring>
#include <mutex>

#include "nccl/abi.hpp"
#include "nccl/tracker/tracker.hpp"
#include "recorder/recorder.hpp"

namespace fr::nccl {

inline constexpr auto kRelaxed = std::memory_order_relaxed;
inline constexpr auto kAcquire = std::memory_order_acquire;
inline constexpr auto kRelease = std::memory_order_release;

// Slot in the handle of an operation that found no row: its launch is not another operation.
inline constexpr u32 kNoSlot = 0xfff;
inline constexpr u32 kApiGroups = 256;
inline constexpr u32 kThreads = 256;
inline constexpr u32 kScopes = 4;
inline constexpr u32 kGenerationMask = (1u << 20) - 1;
inline constexpr u32 kStepMask = (1u << 12) - 1;
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

// State of an operation that only this process needs. Fields change while one thread has claimed
// the row; other threads read them and check the generation afterwards.
struct OpPrivate {
  std::atomic<u64> ticket, seq, packed;  // fr_ticket
  std::atomic<const void*> send, recv;
  std::atomic<u32> func;
  std::atomic<i32> peer;
  std::atomic<u32> group;                // generation << 12 | slot of the ApiGroup it is listed in
  std::atomic<u32> next;                 // operation of the same ApiGroup, + 1
  std::atomic<u64> word;                 // generation << 32 | Bits
  std::atomic<u64> last_end_ticks;       // of a channel
  std::atomic<u64> last_transfer_ticks;  // end of a transfer
  std::atomic<u64> first_events, last_events;  // CUDA events around its first and last call
  std::atomic<u64> events_done;                // the last of them that reported its end
  std::atomic<u32> self_parts;                 // launched: sends and receives of the rank itself
  std::atomic<u32> directions;                 // kSends, kReceives; 0: a collective
};
inline constexpr u32 kSends = 1, kReceives = 2;

enum Bit : u32 {
  kPublished = 1,         // before that nobody starts, ends or waits for what is in the row
  kClosed = 2,            // all its parts are known
  kStarted = 4,           // its record says so
  kDone = 8,              // it was ended
  kWaited = 16,           // the program waits for it
  kShown = 32,            // its record shows whether the program waits
  kFollowed = 64,         // it has a place among cuda/waits.hpp's
  kWrapped = 128,         // by a wrapper, which says when it is launched
  kLater = 256,           // NCCL goes on with its launch in the background
  kUnseenOtherwise = 512  // but for CUDA events nothing reports its end
};
constexpr u32 kOvertaken = 1024;  // times of three that a later operation was seen to have ended

// One change of an operation's word. If several threads want the same change, one makes it and does
// the work that goes with it. None does when the row is another operation's, or becomes it
// meanwhile.
struct Change {
  u32 set = 0, clear = 0, needs = kPublished, unless = 0;
};
constexpr Change kClose{.set = kClosed};
constexpr Change kStart{.set = kStarted, .unless = kStarted};
constexpr Change kBeginWait{.set = kWaited | kShown, .unless = kWaited | kDone};
constexpr Change kEndWait{.clear = kWaited, .needs = kWaited};
constexpr Change kLaunchLater{.set = kLater, .unless = kDone};
constexpr Change kLaunchNow{.clear = kLater, .needs = kLater};
constexpr Change kEnd{.set = kDone, .clear = kWaited, .unless = kDone};
// It was released too early.
constexpr Change kReopen{.clear = kDone | 3 * kOvertaken, .needs = kDone};

struct ApiGroup {
  std::atomic<u32> claim;
  std::atomic<u32> first;  // operation + 1
};

struct CommPrivate {
  std::atomic<const void*> nccl_comm;
  std::atomic<int*> mask;
  std::atomic<u32> events;
  std::atomic<u32> other_events;  // that the user's own plugin requested
  std::atomic<u32> generation;
  std::atomic<u64> made_ticks;
  std::atomic<u32> children;
  std::atomic<u32> linked;  // a wrapper and the plugin both know it
  std::atomic<u32> kernels_seen;
  std::atomic<u32> transfers_seen;
  std::atomic<u32> later;           // has operations that are launched in the background
  std::atomic<u64> launched;        // operations
  std::atomic<u64> last_completed;  // ticket + 1 of the newest operation that ended
  std::atomic<u32> kernels_wrong;   // of what is issued from now on others' kernels are reported
};

// One thread of the host inside the library.
struct Thread {
  std::atomic<u32> tid;
  const void* unlinked;  // communicator of the call being made, if only the plugin knows it
  Handle current;        // operation of the call being made
  u32 current_parts;     // parts of it that the plugin reported
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

struct Tracker {
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
  std::atomic<bool> capture_reported{false};  // by NCCL with its last group of calls
  std::atomic<bool> kernels_off{false};       // not asked for any more, for good
  std::atomic<u32> op_cursor{0}, phase_cursor{0}, group_cursor{0};
  OpPrivate op[kDeviceOps] = {};
  ApiGroup groups[kApiGroups] = {};
  CommPrivate comm[kComms] = {};
  std::mutex comms_lock;  // cold: communicators come and go
};

extern std::atomic<Tracker*> g_tracker;
extern std::atomic<u32> g_library_version;
extern std::atomic<u32> g_hooked;
extern std::atomic<i32> g_making;
extern std::atomic<bool> g_later;  // some communicator has such

extern Thread g_threads[kThreads];
struct OwnThread {
  Thread* thread;
  u32 tid;  // 0: not known yet
};
extern constinit thread_local OwnThread t_own __attribute__((tls_model("initial-exec")));

// nullptr while nothing is recorded, also in a forked child.
inline Tracker* tracker_in_force() noexcept {
  Tracker* s = g_tracker.load(kAcquire);
  const Hot* h = hot();
  return s != nullptr && h == s->hot ? s : nullptr;
}

Thread* learn_thread() noexcept;  // cold

inline Thread* own_thread(Tracker& s) noexcept {
  if (t_own.tid != own_tid()) [[unlikely]] {  // also after a fork
    if (learn_thread() == nullptr) {
      s.device->threads_lost.fetch_add(1, kRelaxed);
    }
  }
  return t_own.thread;
}

// ---------------------------------------------------------------- handles

inline Handle make(const Tracker& s, Kind kind, u32 slot, u32 generation, u32 step = 0) noexcept {
  return s.salt << 48 | static_cast<u64>(kind) << 44 | static_cast<u64>(step & kStepMask) << 32 |
         static_cast<u64>(generation & kGenerationMask) << 12 | slot;
}

inline Kind kind_of(Handle h) noexcept {
  return static_cast<Kind>(h >> 44 & 15);
}

inline u32 slot_of(Handle h) noexcept {
  return static_cast<u32>(h) & 0xfff;
}

inline u32 generation_of(Handle h) noexcept {
  return static_cast<u32>(h >> 12) & kGenerationMask;
}

inline u32 step_of(Handle h) noexcept {
  return static_cast<u32>(h >> 32) & kStepMask;
}

inline bool is_own(const Tracker& s, Handle h) noexcept {
  return h >> 48 == s.salt;
}

inline bool is_current(u32 claim, Handle h) noexcept {
  return (claim >> 1 & kGenerationMask) == generation_of(h);
}

// Names of NCCL's, which differ early: a call of strcmp for each row of a table costs more.
inline bool is_same(const char* a, const char* b) noexcept {
  for (; *a == *b; ++a, ++b) {
    if (*a == '\0') {
      return true;
    }
  }
  return false;
}

inline void count(std::atomic<u64>& counter) noexcept {
  counter.fetch_add(1, kRelaxed);
}

template <class... Word>
void clear(std::atomic<Word>&... words) noexcept {
  (words.store({}, kRelaxed), ...);
}

// The operation that a handle names; nullptr when it is over and its row another's. Counts why not.
inline DeviceOp* find_op(Tracker& s, Handle h, u32& slot) noexcept {
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

inline Phase* find_phase(Tracker& s, Handle h) noexcept {
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

inline u32 comm_of(Tracker& s, Handle context) noexcept {
  const u32 slot = slot_of(context);
  if (context == 0 || !is_own(s, context) || kind_of(context) != kCommHandle || slot >= kComms ||
      (s.comm[slot].generation.load(kAcquire) & kGenerationMask) != generation_of(context)) {
    count(context != 0 && !is_own(s, context) ? s.device->foreign_handles
                                              : s.device->stale_handles);
    return kNoComm;
  }
  return slot;
}

// A free row, its generation one up; n when all are in use.
template <class Row>
u32 claim_row(Row* rows, u32 n, u32 first, std::atomic<u32>& cursor) noexcept {
  for (u32 tries = 0; tries < n; ++tries) {
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

inline void keep_ticket(OpPrivate& p, const fr_ticket& t) noexcept {
  p.ticket.store(t.ticket, kRelaxed);
  p.seq.store(t.seq, kRelaxed);
  p.packed.store(t.group | static_cast<u64>(t.lane) << 32 | static_cast<u64>(t.kind) << 48 |
                     static_cast<u64>(t.flags) << 56,
                 kRelaxed);
}

inline fr_ticket ticket_of(const OpPrivate& p) noexcept {
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

inline bool asks_for_kernels(const Tracker& s, u32 comm) noexcept {
  return s.comms[comm].is_profiled.load(kRelaxed) != 0 &&
         (s.comm[comm].events.load(kRelaxed) & kEvKernelCh) != 0;
}

// For operations issued now, NCCL would report other operations' kernels, or nothing.
inline bool loses_kernels(const Tracker& s, u32 comm) noexcept {
  return s.kernels_off.load(kRelaxed) || s.comm[comm].kernels_wrong.load(kRelaxed) != 0;
}

// Whether kernels are reported for operations issued now; for the given operation.
inline bool sees_kernels(const Tracker& s, u32 comm) noexcept {
  return asks_for_kernels(s, comm) && !loses_kernels(s, comm);
}
inline bool sees_kernels(const Tracker& s, const DeviceOp& op) noexcept {
  return asks_for_kernels(s, op.comm.load(kRelaxed) % kComms) &&
         (op.flags.load(kRelaxed) & kDevNoKernels) == 0;
}

// Where kernels are not reported, a communicator that goes over the network has transfers: its
// operations are in flight while theirs are.
inline bool sees_end(const Tracker& s, u32 comm) noexcept {
  return comm != kNoComm &&
         (sees_kernels(s, comm) || s.comm[comm].transfers_seen.load(kRelaxed) != 0);
}

// NCCL reports nothing of communicators of one rank.
inline bool is_alone(const Tracker& s, u32 comm) noexcept {
  return s.comms[comm].n_ranks.load(kRelaxed) == 1;
}

inline u32 generation_at(const Tracker& s, u32 slot) noexcept {
  return s.ops[slot].claim.load(kRelaxed) >> 1 & kGenerationMask;
}

inline bool has(const OpPrivate& p, u32 bits) noexcept {
  return (p.word.load(kAcquire) & bits) != 0;
}

// Returns the bits before the change, with kPublished; 0: the change was not this thread's to make.
inline u32 change(OpPrivate& p, u32 generation, const Change& c) noexcept {
  u64 seen = p.word.load(kAcquire);
  do {
    const u32 bits = static_cast<u32>(seen);
    if (seen >> 32 != generation || (bits & c.needs) != c.needs || (bits & c.unless) != 0) {
      return 0;
    }
  } while (!p.word.compare_exchange_weak(seen, (seen & ~u64{c.clear}) | c.set));
  return static_cast<u32>(seen);
}

inline bool is_p2p(const Call& call) noexcept {
  return call.func == Func::kSend || call.func == Func::kRecv;
}

inline void mark_launching(Tracker& s, u32 slot) noexcept {
  DeviceOp& op = s.ops[slot];
  if (op.launching_ticks.load(kRelaxed) == 0) {
    op.launching_ticks.store(ticks_now(s.hot->clock), kRelaxed);
  }
}

inline void mark_launched(Tracker& s, u32 slot) noexcept {
  DeviceOp& op = s.ops[slot];
  if (op.launched_ticks.load(kRelaxed) == 0) {
    const u64 now = ticks_now(s.hot->clock);
    if (op.launching_ticks.load(kRelaxed) == 0) {
      op.launching_ticks.store(now, kRelaxed);
    }
    op.launched_ticks.store(now, kRelaxed);
  }
}

inline ApiGroup* find_group(Tracker& s, Handle h) noexcept {
  if (h == 0 || !is_own(s, h) || kind_of(h) != kGroupHandle || slot_of(h) >= kApiGroups) {
    return nullptr;
  }
  ApiGroup& g = s.groups[slot_of(h)];
  if (!is_current(g.claim.load(kAcquire), h)) {
    count(s.device->stale_handles);
    return nullptr;
  }
  return &g;
}

// Calls visit(slot) for the operations of a group, the newest first, until it returns false.
template <class Visit>
void each_op(Tracker& s, Handle group, Visit visit) noexcept {
  const ApiGroup* g = find_group(s, group);
  u32 at = g != nullptr ? g->first.load(kAcquire) : 0;
  for (u32 n = 0; at != 0 && at <= kDeviceOps && n < kDeviceOps; ++n) {
    const u32 slot = at - 1;
    if (s.op[slot].group.load(kRelaxed) != static_cast<u32>(group)) {
      break;  // the row is another operation's by now
    }
    at = s.op[slot].next.load(kRelaxed);
    if (!visit(slot)) {
      break;
    }
  }
}

u32 claim_op(Tracker& s, u32 comm, const Call& call, u32 flags) noexcept;
void publish_op(Tracker& s, u32 slot, u32 bits) noexcept;  // with one part; its ticket is kept
fr_ticket begin_record(Tracker& s, u32 comm, const Call& call, bool untracked) noexcept;
Handle begin_op(Tracker& s, u32 comm, const Call& call, const fr_ticket& scope, u32 bits) noexcept;
DeviceOp* current_op(Tracker& s, Thread* t, u32 comm, const Call& call, u32& slot) noexcept;
void mark_started(Tracker& s, u32 slot, u32 generation, u64 device_ns) noexcept;
void settle_slot(Tracker& s, u32 slot, u32 generation) noexcept;
DeviceOp* task_late(Tracker& s, u32 slot, u32 generation) noexcept;  // nullptr: too late
void try_complete(Tracker& s, u32 slot, u32 generation, bool quiet) noexcept;
void finish(Tracker& s, u32 slot, u32 generation, State as, u32 error, u64 at) noexcept;

// ---------------------------------------------------------------- the rest

void merge(Tracker& s, u32 wrapped, u32 profiled) noexcept;
void apply_mask(Tracker& s) noexcept;
// An operation is being issued while a graph is captured, by this call or by another thread.
void issued_in_capture(Tracker& s) noexcept;
// The graph has it.
void mark_captured(Tracker& s, u32 slot) noexcept;
// The rank's kernel copies what it sends itself, for an operation.
void sent_to_itself(Tracker& s, u32 slot) noexcept;
void say_layer(const Tracker& s) noexcept;

}  // namespace fr::nccl
