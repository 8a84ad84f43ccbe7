// wrappers.cpp - what runs instead of each hooked nccl* function.
#include "nccl/wrappers.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <iterator>

#include "cuda/abi.hpp"
#include "cuda/events.hpp"
#include "interpose/got.hpp"
#include "nccl/abi.hpp"
#include "nccl/tracker/tracker.hpp"
#include "recorder/log.hpp"
#include "recorder/recorder.hpp"

namespace fr::nccl {
namespace {

using Comm = void*;
using Stream = void*;

// ---------------------------------------------------------------- table

enum Index : u32 {
  kIdxAllReduce,
  kIdxBroadcast,
  kIdxBcast,
  kIdxReduce,
  kIdxAllGather,
  kIdxReduceScatter,
  kIdxAllToAll,
  kIdxGather,
  kIdxScatter,
  kIdxSend,
  kIdxRecv,
  kIdxPutSignal,
  kIdxSignal,
  kIdxWaitSignal,
  kIdxAllReduceConfig,  // these take a configuration; from 2.32
  kIdxBroadcastConfig,
  kIdxReduceConfig,
  kIdxAllGatherConfig,
  kIdxReduceScatterConfig,
  kIdxAllToAllConfig,
  kIdxGatherConfig,
  kIdxScatterConfig,
  kIdxGroupStart,
  kIdxGroupEnd,
  kIdxGroupSimulateEnd,
  kIdxInitRank,
  kIdxInitRankConfig,
  kIdxInitRankScalable,
  kIdxInitAll,
  kIdxSplit,
  kIdxShrink,
  kIdxGrow,
  kIdxFinalize,
  kIdxDestroy,
  kIdxAbort,
  kIdxRevoke,
  kIdxSuspend,
  kIdxResume,
  kIdxRegister,
  kIdxDeregister,
  kIdxWindowRegister,
  kIdxWindowDeregister,
  kIdxDevCommCreate,
  kIdxDevCommDestroy,
  kIdxMemAlloc,
  kIdxMemFree,
  kIdxGetAsyncError,
  kIdxDlsym,
  kIndices
};
extern Redirect g_table[kIndices];
void* learn(Redirect& r, void* leads_to) noexcept;

template <class F>
F real(Index i) noexcept {
  return reinterpret_cast<F>(g_table[i].real.load(std::memory_order_acquire));
}

// Functions of the library that are asked, not wrapped.
struct Library {
  std::atomic<int (*)(Comm, int*)> count;
  std::atomic<int (*)(Comm, int*)> user_rank;
  std::atomic<int (*)(Comm, int*)> device;
  std::atomic<const char* (*)(int)> error_text;
  std::atomic<const char* (*)(Comm)> last_error;
};
Library g_library;

// ---------------------------------------------------------------- one thread's groups of calls

constexpr u32 kPending = 128;
constexpr u32 kCallThreads = 256;
constexpr u32 kStreams = 8;  // that one group of calls gives work to

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
thread_local u32 t_depth __attribute__((tls_model("initial-exec"))) = 0;

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
CallThread g_threads[kCallThreads];

CallThread* call_thread() noexcept {
  const u32 at = thread_slot();
  if (at >= kCallThreads) {
    return nullptr;
  }
  CallThread& t = g_threads[at];
  if (t.tid != own_tid()) {
    t.tid = own_tid();
    t.n_pending = t.lost = t.n_timed = 0;
  }
  return &t;
}

void push(CallThread& t, const Pending& p) noexcept {
  if (p.op != 0 && t.n_pending != 0 && t.pending[t.n_pending - 1].op == p.op) {
    return;  // another part of it
  }
  if (t.n_pending < kPending) {
    t.pending[t.n_pending++] = p;
    return;
  }
  ++t.lost;
  if (p.op != 0) {
    launched(p.op);
    launched_later(p.op);
  } else {
    fr_end(&p.ticket, FR_RELEASED, nullptr);
    close_comm(p.comm, nullptr);
  }
}

bool accepted(int result) noexcept {
  return result == kSuccess || result == kInProgress;
}

// "ncclAllReduce: unhandled cuda error (1): ..."
struct ErrorText {
  char text[400];
  ErrorText(const char* call, int code, Comm comm) noexcept {
    const auto text_of = g_library.error_text.load();
    const auto last_of = g_library.last_error.load();
    const char* meaning = text_of != nullptr ? text_of(code) : nullptr;
    const char* last = last_of != nullptr ? last_of(comm) : nullptr;
    std::snprintf(text, sizeof text, "%s: %s (%d)%s%.300s", call,
                  meaning != nullptr ? meaning : "error", code,
                  last != nullptr && last[0] != '\0' ? ": " : "", last != nullptr ? last : "");
  }
};

// ---------------------------------------------------------------- communicators

struct Lifecycle {
  fr_ticket ticket{};
  Lifecycle(const char* name, u32 comm) noexcept {
    if (hot() == nullptr) {
      return;
    }
    const fr_ticket scope = scope_ticket();
    fr_op o;
    std::memset(&o, 0, sizeof o);
    o.struct_bytes = sizeof o;
    const fr_group_t framework = scope.ticket != 0 ? scope.group : framework_group_of(comm);
    o.group = framework != 0 ? framework : group_of(comm);
    o.op = fr_intern(name, std::strlen(name));
    o.kind = FR_LIFECYCLE;
    o.peer = -1;
    o.stack = FR_STACK_CAPTURE;
    fr_begin(&o, &ticket);
  }
  void end(int result, const char* call, Comm comm) const noexcept {
    if (accepted(result)) {
      fr_end(&ticket, FR_OK, nullptr);
    } else {
      fr_end(&ticket, FR_FAILED, ErrorText(call, result, comm).text);
    }
  }
};

bool ask_comm(Comm comm, i32& n_ranks, i32& rank) noexcept {
  const auto count = g_library.count.load();
  const auto user_rank = g_library.user_rank.load();
  return count != nullptr && user_rank != nullptr && count(comm, &n_ranks) == kSuccess &&
         user_rank(comm, &rank) == kSuccess;
}

// A communicator that was made before we hooked its calls.
[[gnu::cold, gnu::noinline]] u32 meet_comm(Comm comm) noexcept {
  if (comm == nullptr || !ready() || expect_link(comm)) {
    return kNoComm;  // or the plugin is about to say which one it is
  }
  int n_ranks = 0;
  int rank = -1;
  if (!ask_comm(comm, n_ranks, rank)) {
    return kNoComm;
  }
  const u32 row = open_comm(mix(0x6d6574, static_cast<u64>(n_ranks)), n_ranks, rank, "");
  cuda::prepare();
  return bind_comm(row, comm, n_ranks, rank, ~0ull);
}

u32 comm_row(Comm comm) noexcept {
  const u32 row = find_comm(comm);
  return row != kNoComm ? row : meet_comm(comm);
}

// Made, alone or within a group. framework: all its work will be in records of a framework's.
void comm_made(u32 row, Comm comm, i32 n_ranks, i32 rank, u64 since, bool framework) noexcept {
  if (comm == nullptr) {
    close_comm(row, nullptr);  // failed, or this rank has no part in it
    return;
  }
  if (n_ranks <= 0) {
    ask_comm(comm, n_ranks, rank);
  }
  row = bind_comm(row, comm, n_ranks, rank, since);
  cuda::prepare();
  if (!framework) {
    group_of(row);  // a rank that then does nothing with it must show that it has it
  }
}

// ---------------------------------------------------------------- calls that go on

// A call on a non-blocking communicator came back, its work goes on in the background: its record
// ends when ncclCommGetAsyncError says so, or when NCCL takes the next call for the communicator.
struct Background {
  std::atomic<u32> state;  // 0 free, 1 being written or read, 2 in progress
  std::atomic<Comm> comm;
  fr_ticket ticket;
  bool makes;  // the communicator, as `made` says
  bool framework;
  Pending made;
};
constexpr u32 kBackground = 256;
Background g_background[kBackground];
std::atomic<u32> g_n_background{0};

// False when it cannot be followed.
bool goes_on(const fr_ticket& ticket, Comm comm, const Pending* made) noexcept {
  if (comm == nullptr) {
    return false;
  }
  for (Background& b : g_background) {
    u32 free = 0;
    if (!b.state.compare_exchange_strong(free, 1)) {
      continue;
    }
    b.comm.store(comm);
    b.ticket = ticket;
    b.makes = made != nullptr;
    b.framework = scope_ticket().ticket != 0;
    b.made = made != nullptr ? *made : Pending{};
    making(b.makes ? 1 : 0);
    g_n_background.fetch_add(1);
    b.state.store(2);
    return true;
  }
  return false;
}

// What goes on for this communicator is over. True when that was its making, and it is not made.
[[gnu::cold, gnu::noinline]] bool end_background(Comm comm, fr_result how,
                                                 const char* text) noexcept {
  bool unmade = false;
  for (Background& b : g_background) {
    u32 set = 2;
    if (b.comm.load() != comm || !b.state.compare_exchange_strong(set, 1)) {
      continue;
    }
    const fr_ticket ticket = b.ticket;
    const Pending p = b.made;
    const bool makes = b.makes;
    const bool framework = b.framework;
    b.comm.store(nullptr);
    b.state.store(0);
    g_n_background.fetch_sub(1);
    making(makes ? -1 : 0);
    fr_end(&ticket, how, text);
    if (makes && how == FR_OK) {
      comm_made(p.comm, comm, p.n_ranks, p.rank, p.since_ticks, framework);
    } else if (makes) {
      close_comm(p.comm, nullptr);
      unmade = true;
    }
  }
  return unmade;
}

bool background_over(Comm comm, fr_result how, const char* text = nullptr) noexcept {
  if (how == FR_OK) {
    settle_later(comm);
  }
  return g_n_background.load(std::memory_order_relaxed) != 0 && end_background(comm, how, text);
}

// The call that makes a communicator came back, by itself or with its group.
void made(const char* name, const Pending& p, int result) noexcept {
  Comm comm = accepted(result) && p.out != nullptr ? *p.out : nullptr;
  if (result == kInProgress && goes_on(p.ticket, comm, &p)) {
    return;
  }
  if (accepted(result)) {
    fr_end(&p.ticket, FR_OK, nullptr);
    comm_made(p.comm, comm, p.n_ranks, p.rank, p.since_ticks, scope_ticket().ticket != 0);
  } else {
    fr_end(&p.ticket, FR_FAILED, ErrorText(name, result, nullptr).text);
    close_comm(p.comm, nullptr);
  }
}

// While a communicator may be in the making: what the plugin then tells of is one of these.
struct Making {
  Making() noexcept { making(1); }
  ~Making() { making(-1); }
};

template <class Call_>
int make_comm(const char* name, u64 hash, i32 n_ranks, i32 rank, Comm* out, Call_ call) noexcept {
  if (ready()) {
    hook_calls();  // whatever was loaded since: without the plugin nobody else looks
  }
  const Making now;
  const u64 since = now_ticks();
  const u32 row = open_comm(hash, n_ranks, rank, nullptr);
  const Lifecycle record(name, row);
  const int result = call();
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
template <class Call_>
int derive_comm(const char* name, Comm parent, u64 salt, Comm* out, Call_ call) noexcept {
  const u32 parent_row = ready() ? comm_row(parent) : kNoComm;
  const Making now;
  const u64 since = now_ticks();
  const u64 hash = child_hash(parent_row, salt);
  const Lifecycle record(name, parent_row);
  const int result = call();
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

template <class Call_>
int end_comm(const char* name, Comm comm, bool closes, const char* failing, Call_ call) noexcept {
  const bool unmade = background_over(comm, failing != nullptr ? FR_FAILED : FR_RELEASED, failing);
  const u32 row = !unmade && ready() ? comm_row(comm) : kNoComm;
  const Lifecycle record(name, row);
  if (failing != nullptr) {
    fail_operations(row, failing);
  }
  const int result = call();
  if (result != kInProgress || closes || !goes_on(record.ticket, comm, nullptr)) {
    record.end(result, name, nullptr);
  }
  if (closes && accepted(result)) {
    if (failing == nullptr) {
      cuda::settle();  // what it waited for has ended
    }
    close_comm(row, nullptr);
  }
  return result;
}

// A call that makes no work for the device but may wait: for other ranks, or for the device. In a
// group it is done at the group's end.
template <class Call_>
int setup(Index at, Comm comm, Call_ call) noexcept {
  const char* const name = g_table[at].name;
  background_over(comm, FR_OK);
  const Lifecycle record(name, comm != nullptr && hot() != nullptr ? comm_row(comm) : kNoComm);
  const int result = call();
  CallThread* t = hot() != nullptr && t_depth > 0 && comm != nullptr ? call_thread() : nullptr;
  if (t != nullptr && accepted(result)) {
    push(*t, {0, name, record.ticket, kNoComm, 0, -1, nullptr, 0});
  } else if (result != kInProgress || !goes_on(record.ticket, comm, nullptr)) {
    record.end(result, name, comm);
  }
  return result;
}

// ---------------------------------------------------------------- operations

// FR_TIMING=events: a pair of CUDA events around this call, or around the group's calls
// on its stream.
[[gnu::noinline]] void begin_events(CallThread* t, Comm comm, Call& what) noexcept {
  const bool grouped = t != nullptr && t_depth > 0;
  for (u32 i = 0; grouped && i < t->n_timed; ++i) {
    if (t->timed[i].stream == what.stream) {
      what.events = t->timed[i].events;
      return;
    }
  }
  if (grouped && t->n_timed == kStreams) {
    return;
  }
  int device = -1;
  const auto device_of = g_library.device.load();
  if (cuda::is_default_stream(what.stream) && device_of != nullptr &&
      device_of(comm, &device) != kSuccess) {
    device = -1;
  }
  const cuda::Begun begun = cuda::begin(what.stream, device);
  what.events = begun.events;
  what.captured = begun.captured;
  if (grouped && begun.events != 0) {
    t->timed[t->n_timed++] = {what.stream, begun.events};
  }
}

void lose_events(u64 events) noexcept {
  const cuda::EventsSeen lost{events, cuda::EventsSeen::kLost, 0, 0, 0, 0};
  events_seen(&lost, 1);
}

// done: the work is in the stream now. Else it comes later from a thread of NCCL's, or never.
void end_events(u64 events, bool done) noexcept {
  if (!done) {
    cuda::drop(events);
    lose_events(events);
  } else if (!cuda::end(events)) {
    lose_events(events);
  }
}

void end_group_events(CallThread& t, bool done) noexcept {
  for (u32 i = 0; i < t.n_timed; ++i) {
    end_events(t.timed[i].events, done);
  }
  t.n_timed = 0;
}

template <class Call_>
int operation(const char* name, Comm comm, Call what, Call_ call) noexcept {
  background_over(comm, FR_OK);  // one that is not ready may not be used
  const u32 row = hot() != nullptr ? comm_row(comm) : kNoComm;
  if (row == kNoComm) {
    const int result = call();
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
  const int result = call();
  if (!accepted(result)) [[unlikely]] {
    closed(op, false, ErrorText(name, result, comm).text);
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
    push(*t, {op, name, {}, row, 0, 0, nullptr, 0});
  } else if (result == kSuccess) {
    launched(op);
    settle(op);
  } else {
    launched_later(op);
  }
  return result;
}

Call call_of(Func func, std::size_t count, int dtype, Stream stream, const void* send = nullptr,
             const void* recv = nullptr) noexcept {
  Call c;
  c.func = func;
  c.count = count;
  c.dtype = dtype_of(dtype);
  c.stream = stream;
  c.send = send;
  c.recv = recv;
  return c;
}

template <Index kAt, class... Config>
int all_reduce(const void* send, void* recv, std::size_t count, int dtype, int op, Comm comm,
               Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kAllReduce, count, dtype, stream, send, recv);
  c.reduce_op = reduce_op_of(op);
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&all_reduce<kAt, Config...>)>(kAt)(send, recv, count, dtype, op, comm,
                                                            stream, config...);
  });
}

template <Index kAt, class... Config>
int broadcast(const void* send, void* recv, std::size_t count, int dtype, int root, Comm comm,
              Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kBroadcast, count, dtype, stream, send, recv);
  c.peer = root;
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&broadcast<kAt, Config...>)>(kAt)(send, recv, count, dtype, root, comm,
                                                           stream, config...);
  });
}

int bcast(void* buffer, std::size_t count, int dtype, int root, Comm comm, Stream stream) noexcept {
  Call c = call_of(Func::kBroadcast, count, dtype, stream, buffer, buffer);
  c.peer = root;
  return operation("ncclBcast", comm, c, [&] {
    return real<decltype(&bcast)>(kIdxBcast)(buffer, count, dtype, root, comm, stream);
  });
}

template <Index kAt, class... Config>
int reduce(const void* send, void* recv, std::size_t count, int dtype, int op, int root, Comm comm,
           Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kReduce, count, dtype, stream, send, recv);
  c.reduce_op = reduce_op_of(op);
  c.peer = root;
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&reduce<kAt, Config...>)>(kAt)(send, recv, count, dtype, op, root, comm,
                                                        stream, config...);
  });
}

template <Index kAt, class... Config>
int all_gather(const void* send, void* recv, std::size_t count, int dtype, Comm comm, Stream stream,
               Config... config) noexcept {
  const Call c = call_of(Func::kAllGather, count, dtype, stream, send, recv);
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&all_gather<kAt, Config...>)>(kAt)(send, recv, count, dtype, comm, stream,
                                                            config...);
  });
}

template <Index kAt, class... Config>
int reduce_scatter(const void* send, void* recv, std::size_t count, int dtype, int op, Comm comm,
                   Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kReduceScatter, count, dtype, stream, send, recv);
  c.reduce_op = reduce_op_of(op);
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&reduce_scatter<kAt, Config...>)>(kAt)(send, recv, count, dtype, op, comm,
                                                                stream, config...);
  });
}

template <Index kAt, class... Config>
int all_to_all(const void* send, void* recv, std::size_t count, int dtype, Comm comm, Stream stream,
               Config... config) noexcept {
  const Call c = call_of(Func::kAllToAll, count, dtype, stream, send, recv);
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&all_to_all<kAt, Config...>)>(kAt)(send, recv, count, dtype, comm, stream,
                                                            config...);
  });
}

template <Index kAt, class... Config>
int gather(const void* send, void* recv, std::size_t count, int dtype, int root, Comm comm,
           Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kGather, count, dtype, stream, send, recv);
  c.peer = root;
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&gather<kAt, Config...>)>(kAt)(send, recv, count, dtype, root, comm,
                                                        stream, config...);
  });
}

template <Index kAt, class... Config>
int scatter(const void* send, void* recv, std::size_t count, int dtype, int root, Comm comm,
            Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kScatter, count, dtype, stream, send, recv);
  c.peer = root;
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&scatter<kAt, Config...>)>(kAt)(send, recv, count, dtype, root, comm,
                                                         stream, config...);
  });
}

int send_to(const void* buffer, std::size_t count, int dtype, int peer, Comm comm,
            Stream stream) noexcept {
  Call c = call_of(Func::kSend, count, dtype, stream, buffer);
  c.peer = peer;
  return operation("ncclSend", comm, c, [&] {
    return real<decltype(&send_to)>(kIdxSend)(buffer, count, dtype, peer, comm, stream);
  });
}

int recv_from(void* buffer, std::size_t count, int dtype, int peer, Comm comm,
              Stream stream) noexcept {
  Call c = call_of(Func::kRecv, count, dtype, stream, nullptr, buffer);
  c.peer = peer;
  return operation("ncclRecv", comm, c, [&] {
    return real<decltype(&recv_from)>(kIdxRecv)(buffer, count, dtype, peer, comm, stream);
  });
}

int put_signal(const void* buffer, std::size_t count, int dtype, int peer, void* window,
               std::size_t offset, int signal, int context, unsigned flags, Comm comm,
               Stream stream) noexcept {
  Call c = call_of(Func::kPutSignal, count, dtype, stream, buffer);
  c.peer = peer;
  return operation("ncclPutSignal", comm, c, [&] {
    return real<decltype(&put_signal)>(kIdxPutSignal)(buffer, count, dtype, peer, window, offset,
                                                      signal, context, flags, comm, stream);
  });
}

int signal_to(int peer, int signal, int context, unsigned flags, Comm comm,
              Stream stream) noexcept {
  Call c = call_of(Func::kSignal, 0, -1, stream);
  c.peer = peer;
  return operation("ncclSignal", comm, c, [&] {
    return real<decltype(&signal_to)>(kIdxSignal)(peer, signal, context, flags, comm, stream);
  });
}

int wait_signal(int n, void* signals, Comm comm, Stream stream) noexcept {
  const Call c = call_of(Func::kWaitSignal, 0, -1, stream);
  return operation("ncclWaitSignal", comm, c, [&] {
    return real<decltype(&wait_signal)>(kIdxWaitSignal)(n, signals, comm, stream);
  });
}

// ---------------------------------------------------------------- groups of calls

int group_start() noexcept {
  const int result = real<decltype(&group_start)>(kIdxGroupStart)();
  t_depth += result == kSuccess ? 1 : 0;
  return result;
}

// What was called in the group is done now, or has failed with it. launches: it was
// not a simulation.
void finish_group(CallThread& t, int result, const char* name, bool launches) noexcept {
  for (u32 i = 0; i < t.n_pending; ++i) {
    const Pending& p = t.pending[i];
    if (p.op != 0 && !launches) {
      unfollow(p.op);
    } else if (p.op != 0 && result == kSuccess) {
      launched(p.op);
      settle(p.op);
    } else if (p.op != 0 && accepted(result)) {
      launched_later(p.op);
    } else if (p.op != 0) {
      closed(p.op, false, ErrorText(name, result, nullptr).text);
    } else {
      made(accepted(result) ? p.name : name, p, result);
    }
  }
  t.n_pending = 0;
}

int group_end() noexcept {
  const auto original = real<decltype(&group_end)>(kIdxGroupEnd);
  t_depth -= t_depth > 0 ? 1 : 0;
  CallThread* t = hot() != nullptr && t_depth == 0 ? call_thread() : nullptr;
  if (t == nullptr) {
    return original();
  }
  int makes = 0;
  for (u32 i = 0; i < t->n_pending; ++i) {
    if (t->pending[i].op != 0) {
      launching(t->pending[i].op);
    } else if (t->pending[i].comm != kNoComm) {
      ++makes;
    }
  }
  making(makes);
  const int result = original();
  if (result == kSuccess) {
    end_group_events(*t, true);
  }
  finish_group(*t, result, "ncclGroupEnd", true);
  making(-makes);
  end_group_events(*t, false);
  return result;
}

int group_simulate_end(void* info) noexcept {
  const int result = real<decltype(&group_simulate_end)>(kIdxGroupSimulateEnd)(info);
  t_depth -= t_depth > 0 ? 1 : 0;
  CallThread* t = hot() != nullptr && t_depth == 0 ? call_thread() : nullptr;
  if (t != nullptr) {
    finish_group(*t, kSuccess, "ncclGroupSimulateEnd", false);
    end_group_events(*t, false);
  }
  return result;
}

// ---------------------------------------------------------------- their making and their end

int init_rank(Comm* out, int n_ranks, UniqueId id, int rank) noexcept {
  return make_comm("ncclCommInitRank", unique_id_hash(&id, sizeof id), n_ranks, rank, out, [&] {
    return real<decltype(&init_rank)>(kIdxInitRank)(out, n_ranks, id, rank);
  });
}

int init_rank_config(Comm* out, int n_ranks, UniqueId id, int rank, void* config) noexcept {
  return make_comm("ncclCommInitRankConfig", unique_id_hash(&id, sizeof id), n_ranks, rank, out,
                   [&] {
                     return real<decltype(&init_rank_config)>(kIdxInitRankConfig)(out, n_ranks, id,
                                                                                  rank, config);
                   });
}

int init_rank_scalable(Comm* out, int n_ranks, int rank, int n_ids, UniqueId* ids,
                       void* config) noexcept {
  const u64 hash = ids != nullptr && n_ids > 0 ? unique_id_hash(ids, sizeof *ids) : 0;
  return make_comm("ncclCommInitRankScalable", hash, n_ranks, rank, out, [&] {
    return real<decltype(&init_rank_scalable)>(kIdxInitRankScalable)(out, n_ranks, rank, n_ids, ids,
                                                                     config);
  });
}

int init_all(Comm* comms, int n, const int* devices) noexcept {
  const Making now;
  const u64 since = now_ticks();
  const bool records = ready();
  const Lifecycle record("ncclCommInitAll", kNoComm);
  const int result = real<decltype(&init_all)>(kIdxInitAll)(comms, n, devices);
  record.end(result, "ncclCommInitAll", nullptr);
  for (int i = 0; records && accepted(result) && comms != nullptr && i < n; ++i) {
    comm_made(open_comm(mix(0x616c6c, static_cast<u64>(n)), n, i, nullptr), comms[i], n, i, since,
              scope_ticket().ticket != 0);
  }
  return result;
}

int split(Comm parent, int color, int key, Comm* out, void* config) noexcept {
  return derive_comm("ncclCommSplit", parent, static_cast<u64>(color), out, [&] {
    return real<decltype(&split)>(kIdxSplit)(parent, color, key, out, config);
  });
}

int shrink(Comm parent, int* ranks, int n, Comm* out, void* config, int flags) noexcept {
  return derive_comm("ncclCommShrink", parent, 0x73687269, out, [&] {
    return real<decltype(&shrink)>(kIdxShrink)(parent, ranks, n, out, config, flags);
  });
}

int grow(Comm parent, int n_ranks, const UniqueId* id, int rank, Comm* out, void* config) noexcept {
  return derive_comm("ncclCommGrow", parent, 0x67726f77, out, [&] {
    return real<decltype(&grow)>(kIdxGrow)(parent, n_ranks, id, rank, out, config);
  });
}

int finalize(Comm comm) noexcept {
  return end_comm("ncclCommFinalize", comm, false, nullptr,
                  [&] { return real<decltype(&finalize)>(kIdxFinalize)(comm); });
}

int destroy(Comm comm) noexcept {
  return end_comm("ncclCommDestroy", comm, true, nullptr,
                  [&] { return real<decltype(&destroy)>(kIdxDestroy)(comm); });
}

int abort_comm(Comm comm) noexcept {
  return end_comm("ncclCommAbort", comm, true, "ended by ncclCommAbort",
                  [&] { return real<decltype(&abort_comm)>(kIdxAbort)(comm); });
}

int revoke(Comm comm, int flags) noexcept {
  return end_comm("ncclCommRevoke", comm, false, "ended by ncclCommRevoke",
                  [&] { return real<decltype(&revoke)>(kIdxRevoke)(comm, flags); });
}

int suspend(Comm comm, int flags) noexcept {
  return end_comm("ncclCommSuspend", comm, false, nullptr,
                  [&] { return real<decltype(&suspend)>(kIdxSuspend)(comm, flags); });
}

int resume(Comm comm) noexcept {
  return end_comm("ncclCommResume", comm, false, nullptr,
                  [&] { return real<decltype(&resume)>(kIdxResume)(comm); });
}

// ---------------------------------------------------------------- memory

int register_buffer(Comm comm, void* buffer, std::size_t bytes, void** handle) noexcept {
  return setup(kIdxRegister, comm, [&] {
    return real<decltype(&register_buffer)>(kIdxRegister)(comm, buffer, bytes, handle);
  });
}

int deregister_buffer(Comm comm, void* handle) noexcept {
  return setup(kIdxDeregister, comm,
               [&] { return real<decltype(&deregister_buffer)>(kIdxDeregister)(comm, handle); });
}

int register_window(Comm comm, void* buffer, std::size_t bytes, void** window, int flags) noexcept {
  return setup(kIdxWindowRegister, comm, [&] {
    return real<decltype(&register_window)>(kIdxWindowRegister)(comm, buffer, bytes, window, flags);
  });
}

int deregister_window(Comm comm, void* window) noexcept {
  return setup(kIdxWindowDeregister, comm, [&] {
    return real<decltype(&deregister_window)>(kIdxWindowDeregister)(comm, window);
  });
}

int create_device_comm(Comm comm, const void* needs, void* out) noexcept {
  return setup(kIdxDevCommCreate, comm, [&] {
    return real<decltype(&create_device_comm)>(kIdxDevCommCreate)(comm, needs, out);
  });
}

int destroy_device_comm(Comm comm, const void* device_comm) noexcept {
  return setup(kIdxDevCommDestroy, comm, [&] {
    return real<decltype(&destroy_device_comm)>(kIdxDevCommDestroy)(comm, device_comm);
  });
}

int allocate(void** out, std::size_t bytes) noexcept {
  return setup(kIdxMemAlloc, nullptr,
               [&] { return real<decltype(&allocate)>(kIdxMemAlloc)(out, bytes); });
}

int release(void* memory) noexcept {
  return setup(kIdxMemFree, nullptr, [&] { return real<decltype(&release)>(kIdxMemFree)(memory); });
}

// ---------------------------------------------------------------- errors

int get_async_error(Comm comm, int* error) noexcept {
  const int result = real<decltype(&get_async_error)>(kIdxGetAsyncError)(comm, error);
  if (result == kSuccess && error != nullptr && !accepted(*error) && hot() != nullptr)
      [[unlikely]] {
    comm_failed(find_comm(comm), ErrorText("asynchronous error", *error, comm).text);
  }
  if (result == kSuccess && error != nullptr && *error != kInProgress) {
    const bool ok = *error == kSuccess;
    background_over(comm, ok ? FR_OK : FR_FAILED,
                    ok ? nullptr : ErrorText("asynchronous error", *error, comm).text);
  }
  return result;
}

// ---------------------------------------------------------------- dlsym

// ctypes and its like ask with a handle: then it does not matter who asks. What they get is ours.
void* look_up(void* handle, const char* name) noexcept {
  const auto original = real<decltype(&look_up)>(kIdxDlsym);
  if (handle == RTLD_DEFAULT || handle == RTLD_NEXT || name == nullptr ||
      std::strncmp(name, "nccl", 4) != 0) {
    return original(handle, name);  // a jump: who asks matters here, and is still the caller
  }
  void* const found = original(handle, name);
  if (found == nullptr) {
    return found;
  }
  for (u32 i = 0; i < kIdxDlsym; ++i) {
    Redirect& r = g_table[i];
    if (std::strcmp(r.name, name) == 0) {
      return learn(r, found) == found ? r.ours : found;
    }
  }
  return found;
}

#define FR_ROW(index, name, function) {name, reinterpret_cast<void*>(function), {nullptr}, false}
Redirect g_table[kIndices] = {
    FR_ROW(kIdxAllReduce, "ncclAllReduce", all_reduce<kIdxAllReduce>),
    FR_ROW(kIdxBroadcast, "ncclBroadcast", broadcast<kIdxBroadcast>),
    FR_ROW(kIdxBcast, "ncclBcast", bcast),
    FR_ROW(kIdxReduce, "ncclReduce", reduce<kIdxReduce>),
    FR_ROW(kIdxAllGather, "ncclAllGather", all_gather<kIdxAllGather>),
    FR_ROW(kIdxReduceScatter, "ncclReduceScatter", reduce_scatter<kIdxReduceScatter>),
    FR_ROW(kIdxAllToAll, "ncclAlltoAll", all_to_all<kIdxAllToAll>),
    FR_ROW(kIdxGather, "ncclGather", gather<kIdxGather>),
    FR_ROW(kIdxScatter, "ncclScatter", scatter<kIdxScatter>),
    FR_ROW(kIdxSend, "ncclSend", send_to),
    FR_ROW(kIdxRecv, "ncclRecv", recv_from),
    FR_ROW(kIdxPutSignal, "ncclPutSignal", put_signal),
    FR_ROW(kIdxSignal, "ncclSignal", signal_to),
    FR_ROW(kIdxWaitSignal, "ncclWaitSignal", wait_signal),
    FR_ROW(kIdxAllReduceConfig, "ncclAllReduceConfig",
           (all_reduce<kIdxAllReduceConfig, const void*>)),
    FR_ROW(kIdxBroadcastConfig, "ncclBroadcastConfig",
           (broadcast<kIdxBroadcastConfig, const void*>)),
    FR_ROW(kIdxReduceConfig, "ncclReduceConfig", (reduce<kIdxReduceConfig, const void*>)),
    FR_ROW(kIdxAllGatherConfig, "ncclAllGatherConfig",
           (all_gather<kIdxAllGatherConfig, const void*>)),
    FR_ROW(kIdxReduceScatterConfig, "ncclReduceScatterConfig",
           (reduce_scatter<kIdxReduceScatterConfig, const void*>)),
    FR_ROW(kIdxAllToAllConfig, "ncclAlltoAllConfig", (all_to_all<kIdxAllToAllConfig, const void*>)),
    FR_ROW(kIdxGatherConfig, "ncclGatherConfig", (gather<kIdxGatherConfig, const void*>)),
    FR_ROW(kIdxScatterConfig, "ncclScatterConfig", (scatter<kIdxScatterConfig, const void*>)),
    FR_ROW(kIdxGroupStart, "ncclGroupStart", group_start),
    FR_ROW(kIdxGroupEnd, "ncclGroupEnd", group_end),
    FR_ROW(kIdxGroupSimulateEnd, "ncclGroupSimulateEnd", group_simulate_end),
    FR_ROW(kIdxInitRank, "ncclCommInitRank", init_rank),
    FR_ROW(kIdxInitRankConfig, "ncclCommInitRankConfig", init_rank_config),
    FR_ROW(kIdxInitRankScalable, "ncclCommInitRankScalable", init_rank_scalable),
    FR_ROW(kIdxInitAll, "ncclCommInitAll", init_all),
    FR_ROW(kIdxSplit, "ncclCommSplit", split),
    FR_ROW(kIdxShrink, "ncclCommShrink", shrink),
    FR_ROW(kIdxGrow, "ncclCommGrow", grow),
    FR_ROW(kIdxFinalize, "ncclCommFinalize", finalize),
    FR_ROW(kIdxDestroy, "ncclCommDestroy", destroy),
    FR_ROW(kIdxAbort, "ncclCommAbort", abort_comm),
    FR_ROW(kIdxRevoke, "ncclCommRevoke", revoke),
    FR_ROW(kIdxSuspend, "ncclCommSuspend", suspend),
    FR_ROW(kIdxResume, "ncclCommResume", resume),
    FR_ROW(kIdxRegister, "ncclCommRegister", register_buffer),
    FR_ROW(kIdxDeregister, "ncclCommDeregister", deregister_buffer),
    FR_ROW(kIdxWindowRegister, "ncclCommWindowRegister", register_window),
    FR_ROW(kIdxWindowDeregister, "ncclCommWindowDeregister", deregister_window),
    FR_ROW(kIdxDevCommCreate, "ncclDevCommCreate", create_device_comm),
    FR_ROW(kIdxDevCommDestroy, "ncclDevCommDestroy", destroy_device_comm),
    FR_ROW(kIdxMemAlloc, "ncclMemAlloc", allocate),
    FR_ROW(kIdxMemFree, "ncclMemFree", release),
    FR_ROW(kIdxGetAsyncError, "ncclCommGetAsyncError", get_async_error),
    {"dlsym", reinterpret_cast<void*>(&look_up), {nullptr}, true},
};
#undef FR_ROW

RedirectTable g_nccl = {g_table, kIndices, {"libnccl.so", nullptr}, {0}, {0}};

void* learn(Redirect& r, void* leads_to) noexcept {
  return g_nccl.learn(r, leads_to);
}

void* loaded(const char* name) noexcept {
  return dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
}

// What places lead to that were never called through yet.
void find_originals() noexcept {
  g_table[kIdxDlsym].real.store(reinterpret_cast<void*>(&dlsym));
  if (void* nccl = loaded("libnccl.so.2")) {
    for (u32 i = 0; i < kIdxDlsym; ++i) {
      learn(g_table[i], dlsym(nccl, g_table[i].name));
    }
    g_nccl.is_bound.store(true);
    const auto find = [nccl](auto& function, const char* name) {
      using F = decltype(function.load());
      function.store(reinterpret_cast<F>(dlsym(nccl, name)));
    };
    find(g_library.count, "ncclCommCount");
    find(g_library.user_rank, "ncclCommUserRank");
    find(g_library.device, "ncclCommCuDevice");
    find(g_library.error_text, "ncclGetErrorString");
    find(g_library.last_error, "ncclGetLastError");
    int version = 0;
    const auto ask = reinterpret_cast<int (*)(int*)>(dlsym(nccl, "ncclGetVersion"));
    if (ask != nullptr && ask(&version) == kSuccess) {
      set_library_version(static_cast<u32>(version));
    }
    dlclose(nccl);
  }
  cuda::find_originals();
}

}  // namespace

u32 hook_calls() noexcept {
  find_originals();
  RedirectTable* const tables[] = {&g_nccl, &cuda::calls()};
  const u32 refused = g_nccl.refused.load();
  redirect_calls(tables, std::size(tables));
  set_hooked(g_nccl.in_force.load());
  if (g_nccl.refused.load() != refused) {
    log_line(kLogInfo, "%u calls of NCCL lead to another copy of it and are not recorded",
             g_nccl.refused.load());
  }
  return g_nccl.in_force.load() + cuda::calls().in_force.load();
}

u32 unhook_calls() noexcept {
  RedirectTable* const tables[] = {&g_nccl, &cuda::calls()};
  const u32 n = restore_calls(tables, std::size(tables));
  set_hooked(0);
  return n;
}

}  // namespace fr::nccl
