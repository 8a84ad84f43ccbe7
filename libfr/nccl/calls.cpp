// calls.cpp - groups of calls, communicators in the making, calls that go on in the background.
#include "nccl/calls.hpp"

#include <cstdio>
#include <cstring>

#include "cuda/abi.hpp"

namespace fr::nccl {

Library g_library;
thread_local u32 t_depth __attribute__((tls_model("initial-exec"))) = 0;

namespace {

CallThread g_threads[kCallThreads];

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

// Ends the background work of this communicator. True when that was its making, and it failed.
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

void lose_events(u64 events) noexcept {
  const cuda::EventsSeen lost{events, cuda::EventsSeen::kLost, 0, 0, 0, 0};
  events_seen(&lost, 1);
}

}  // namespace

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

void finish_group(CallThread& t, int result, const char* name, bool launches) noexcept {
  for (u32 i = 0; i < t.n_pending; ++i) {
    const Pending& p = t.pending[i];
    if (p.op != 0 && !launches) {
      untrack(p.op);
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

ErrorText::ErrorText(const char* call, int code, Comm comm) noexcept {
  const auto text_of = g_library.error_text.load();
  const auto last_of = g_library.last_error.load();
  const char* meaning = text_of != nullptr ? text_of(code) : nullptr;
  const char* last = last_of != nullptr ? last_of(comm) : nullptr;
  std::snprintf(text, sizeof text, "%s: %s (%d)%s%.300s", call,
                meaning != nullptr ? meaning : "error", code,
                last != nullptr && last[0] != '\0' ? ": " : "", last != nullptr ? last : "");
}

Lifecycle::Lifecycle(const char* name, u32 comm) noexcept {
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

void Lifecycle::end(int result, const char* call, Comm comm) const noexcept {
  if (accepted(result)) {
    fr_end(&ticket, FR_OK, nullptr);
  } else {
    fr_end(&ticket, FR_FAILED, ErrorText(call, result, comm).text);
  }
}

u32 comm_row(Comm comm) noexcept {
  const u32 row = find_comm(comm);
  return row != kNoComm ? row : meet_comm(comm);
}

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

bool background_over(Comm comm, fr_result how, const char* text) noexcept {
  if (how == FR_OK) {
    settle_later(comm);
  }
  return g_n_background.load(std::memory_order_relaxed) != 0 && end_background(comm, how, text);
}

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

void begin_events(CallThread* t, Comm comm, Call& what) noexcept {
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

}  // namespace fr::nccl
