// events.cpp - pairs of events, and the thread fr-cuda that polls them.
#include "cuda/events.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <iterator>
#include <new>
#include <utility>

#include "cuda/abi.hpp"
#include "cuda/errors.hpp"
#include "cuda/operations.hpp"
#include "cuda/waits.hpp"
#include "recorder/own_thread.hpp"
#include "recorder/recorder.hpp"

namespace fr::cuda {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

void count(std::atomic<u64>& counter) noexcept {
  counter.fetch_add(1, kRelaxed);
}

// ---------------------------------------------------------------- events

constexpr u32 kContexts = 8;
constexpr u32 kPairs = 1024;  // a device takes about as many launches ahead
constexpr u32 kAll = kContexts * kPairs;
constexpr u32 kBatch = 64;
constexpr u64 kAnchorAge_ns = 2'000'000'000;  // times are floats of ms: exact to 0.2 us at this age
constexpr u64 kAnchorLimit_ns = 20'000'000;   // for the anchor to be reached
constexpr u64 kAnchorTight_ns = 30'000;
constexpr u64 kAnchorPause_ns = 100'000'000;  // after one that was not
constexpr u32 kBusySleep_us = 1'000;
constexpr u32 kIdleSleep_us = 5'000;

// Handle of a pair: generation << 20 | context << 12 | slot.
struct EventPair {
  std::atomic<u32> claim;  // generation << 1 | in use
  Event start, end;        // made by fr-cuda, then never changed
  Stream stream;           // whoever holds the claim
};

struct ContextRow {
  enum : u32 { kWanted, kReady, kGone };
  std::atomic<Context> context{nullptr};
  std::atomic<u32> state{kWanted};
  std::atomic<u32> cursor{0};
  EventPair* pairs = nullptr;  // by fr-cuda, before kReady
  // fr-cuda's: what ties the device's clock to the host's
  Stream stream = nullptr;
  Event anchor = nullptr, spare = nullptr;
  u64 anchor_ns = 0;  // CLOCK_MONOTONIC when it was reached; 0 unknown
  u64 anchor_tried_ns = 0;
};

struct Observer {
  Hot* hot = nullptr;
  Cuda* cuda = nullptr;
  const Header* header = nullptr;
  Driver driver{};
  u32 call_mode = 0, call_context = 0, call_create = 0, call_record = 0, call_query = 0,
      call_elapsed = 0;  // string ids
  std::atomic<bool> stopping{false};
  std::atomic<bool> running{false};
  std::atomic<u64> rounds{0};
  ContextRow contexts[kContexts];
  // A pair is in here once at most: it never overflows.
  std::atomic<u64> submitted[kAll] = {};
  std::atomic<u64> head{0};
  // fr-cuda's own
  u64 tail = 0;
  u32 n_pending = 0;
  struct {
    u64 events;
    bool started;
  } pending[kAll] = {};
  u32 n_seen = 0;
  EventsSeen seen[kBatch] = {};
};

std::atomic<Observer*> g_observer{nullptr};

// nullptr without FR_TIMING=events, and in a forked child.
Observer* observer_in_force() noexcept {
  Observer* s = g_observer.load(kAcquire);
  return s != nullptr && hot() == s->hot && !s->stopping.load(kRelaxed) ? s : nullptr;
}

ContextRow& row_of(Observer& s, u64 events) noexcept {
  return s.contexts[events >> 12 & (kContexts - 1)];
}
EventPair& pair_of(Observer& s, u64 events) noexcept {
  return row_of(s, events).pairs[events & (kPairs - 1)];
}

u64 claim_pair(Observer& s, ContextRow& row) noexcept {
  const u64 context = static_cast<u64>(&row - s.contexts);
  for (u32 tries = 0; tries < 64; ++tries) {
    const u32 slot = row.cursor.fetch_add(1, kRelaxed) % kPairs;
    EventPair& p = row.pairs[slot];
    u32 seen = p.claim.load(kRelaxed);
    if ((seen & 1) == 0 &&
        p.claim.compare_exchange_strong(seen, (seen + 2) | 1, kAcquire, kRelaxed)) {
      return static_cast<u64>((seen + 2) >> 1) << 20 | context << 12 | slot;
    }
  }
  return 0;
}

void release_pair(Observer& s, u64 events) noexcept {
  EventPair& p = pair_of(s, events);
  p.claim.store(static_cast<u32>(events >> 20) << 1, kRelease);
}

// The row of a context; asks for its events when it has none.
ContextRow* find_context(Observer& s, Context context) noexcept {
  for (ContextRow& row : s.contexts) {
    Context seen = row.context.load(kAcquire);
    if (seen == nullptr && row.context.compare_exchange_strong(seen, context)) {
      return &row;
    }
    if (seen == context) {
      return &row;
    }
  }
  return nullptr;
}

// ---------------------------------------------------------------- the thread fr-cuda

// Every device call that may wait goes through here, and shows since when.
template <class F, class... A>
int call(Observer& s, u32 name, F function, A... arguments) noexcept {
  s.cuda->call_ticks.store(ticks_now(s.hot->clock), kRelaxed);
  s.cuda->call.store(name, kRelease);
  const int result = function(arguments...);
  s.cuda->call.store(0, kRelease);
  return result;
}

bool goes_on(const Observer& s) noexcept {
  return !s.stopping.load(kRelaxed) && hot() == s.hot;
}

// When the device reached a point, by both clocks: the tightest of a few readings that comes soon.
void take_anchor(Observer& s, ContextRow& row) noexcept {
  row.anchor_tried_ns = monotonic_ns();
  u64 best = kAnchorLimit_ns;
  for (int tries = 0; tries < 4 && best > kAnchorTight_ns; ++tries) {
    const u64 before = monotonic_ns();
    if (call(s, s.call_record, s.driver.event_record, row.spare, row.stream) != kSuccess) {
      return;
    }
    u64 took = 0;
    while (call(s, s.call_query, s.driver.event_query, row.spare) == kNotReady) {
      took = monotonic_ns() - before;
      if (took > kAnchorLimit_ns) {
        return;  // the one before stays
      }
      usleep(took > kAnchorTight_ns ? 20 : 0);
    }
    took = monotonic_ns() - before;
    if (took < best) {
      best = took;
      row.anchor_ns = before + took / 2;
      std::swap(row.anchor, row.spare);
    }
  }
}

void make_pool(Observer& s, ContextRow& row) noexcept {
  auto* pairs = new (std::nothrow) EventPair[kPairs]();
  bool ok =
      pairs != nullptr &&
      call(s, s.call_context, s.driver.ctx_set_current, row.context.load()) == kSuccess &&
      // of its own: the default stream would wait for all others
      call(s, s.call_create, s.driver.stream_create, &row.stream, kNonBlockingStream) == kSuccess &&
      call(s, s.call_create, s.driver.event_create, &row.anchor, kTimingEvent) == kSuccess &&
      call(s, s.call_create, s.driver.event_create, &row.spare, kTimingEvent) == kSuccess;
  for (u32 i = 0; ok && i < kPairs; ++i) {
    ok = call(s, s.call_create, s.driver.event_create, &pairs[i].start, kTimingEvent) == kSuccess &&
         call(s, s.call_create, s.driver.event_create, &pairs[i].end, kTimingEvent) == kSuccess;
  }
  if (ok) {
    take_anchor(s, row);
    s.cuda->pairs.fetch_add(kPairs, kRelaxed);
  }
  row.pairs = pairs;
  u32 wanted = ContextRow::kWanted;
  row.state.compare_exchange_strong(wanted, ok ? ContextRow::kReady : ContextRow::kGone);
}

void flush(Observer& s) noexcept {
  if (s.n_seen != 0) {
    kOperations.events_seen(s.seen, s.n_seen);
    s.n_seen = 0;
  }
}

void tell(Observer& s, const EventsSeen& e) noexcept {
  if (s.n_seen == kBatch) {
    flush(s);
  }
  s.seen[s.n_seen++] = e;
}

// The same moment in ticks; 0 while the rate is not known.
u64 ticks_of(const Observer& s, u64 mono_ns) noexcept {
  u64 ticks0 = 0, ticks1 = 0, mono0 = 0, mono1 = 0, unix_ns = 0;
  if (mono_ns == 0 || !read_anchor(s.header->first, ticks0, unix_ns, mono0) ||
      !read_anchor(s.header->last, ticks1, unix_ns, mono1)) {
    return 0;
  }
  double rate = 1;
  if (s.hot->clock != ClockKind::kMonotonic) {
    if (ticks1 <= ticks0 || mono1 <= mono0) {
      return 0;
    }
    rate = static_cast<double>(ticks1 - ticks0) / static_cast<double>(mono1 - mono0);
  }
  const double since = static_cast<double>(static_cast<i64>(mono_ns - mono1));
  const u64 ticks = ticks1 + static_cast<u64>(static_cast<i64>(since * rate));
  const u64 now = ticks_now(s.hot->clock);
  return ticks < now ? ticks : now;
}

void read_times(Observer& s, const ContextRow& row, const EventPair& p, EventsSeen& out) noexcept {
  float since_ms = 0;
  float took_ms = 0;
  if (row.anchor_ns == 0 ||
      call(s, s.call_elapsed, s.driver.event_elapsed_ms, &since_ms, row.anchor, p.start) !=
          kSuccess ||
      call(s, s.call_elapsed, s.driver.event_elapsed_ms, &took_ms, p.start, p.end) != kSuccess) {
    return;
  }
  out.start_ns = row.anchor_ns + static_cast<u64>(static_cast<i64>(since_ms * 1e6));
  out.end_ns = out.start_ns + static_cast<u64>(static_cast<i64>(took_ms * 1e6));
  out.start_ticks = ticks_of(s, out.start_ns);
  out.end_ticks = ticks_of(s, out.end_ns);
  count(s.cuda->timed);
}

// Its result; kContextDestroyed for one that is gone.
int use_context(Observer& s, const ContextRow& row, const ContextRow*& current) noexcept {
  if (row.state.load(kAcquire) != ContextRow::kReady) {
    return kContextDestroyed;
  }
  if (current == &row) {
    return kSuccess;
  }
  const int result = call(s, s.call_context, s.driver.ctx_set_current, row.context.load(kRelaxed));
  current = result == kSuccess ? &row : nullptr;
  return result;
}

// Takes the pairs handed over since the last call, in the order of their streams. False: none.
bool take_submitted(Observer& s) noexcept {
  bool any = false;
  const ContextRow* current = nullptr;
  for (;; ++s.tail) {
    const u64 events = s.submitted[s.tail % kAll].exchange(0, kAcquire);
    if (events == 0) {
      return any;
    }
    any = true;
    s.pending[s.n_pending++] = {events, false};
    ContextRow& row = row_of(s, events);
    if (monotonic_ns() - row.anchor_tried_ns >
            (row.anchor_ns != 0 ? kAnchorAge_ns : kAnchorPause_ns) &&
        use_context(s, row, current) == kSuccess) {
      take_anchor(s, row);
    }
  }
}

// Asks for the oldest pair of each stream, and on while they have ended.
void poll(Observer& s) noexcept {
  constexpr u32 kStreams = 64;
  struct {
    const ContextRow* row;
    Stream stream;
  } waits[kStreams];
  u32 n_waits = 0;
  const ContextRow* current = nullptr;
  u32 kept = 0;
  for (u32 i = 0; i < s.n_pending; ++i) {
    auto& at = s.pending[i];
    const ContextRow& row = row_of(s, at.events);
    const EventPair& p = pair_of(s, at.events);
    bool behind = n_waits == kStreams;  // more streams than that: their turn comes
    for (u32 w = 0; w < n_waits && !behind; ++w) {
      behind = waits[w].row == &row && waits[w].stream == p.stream;
    }
    if (behind) {
      s.pending[kept++] = at;
      continue;
    }
    EventsSeen seen{};
    seen.events = at.events;
    int result = use_context(s, row, current);
    if (result == kSuccess) {
      result = call(s, s.call_query, s.driver.event_query, p.end);
      if (result == kNotReady && !at.started &&
          call(s, s.call_query, s.driver.event_query, p.start) == kSuccess) {
        at.started = true;
        seen.what = EventsSeen::kStarted;
        tell(s, seen);
      }
    }
    if (result != kSuccess && result != kNotReady) {
      report_error(result, "cuEventQuery");
    }
    const bool untold = s.cuda->error_claimed.load() != 0 && !is_error_reported();
    if (result == kNotReady || (result != kSuccess && untold)) {
      waits[n_waits++] = {&row, p.stream};
      s.pending[kept++] = at;
      continue;
    }
    if (result == kSuccess) {
      seen.what = EventsSeen::kEnded;
      read_times(s, row, p, seen);
    } else {
      if (result == kDeinitialized) {
        s.stopping.store(true);  // the process is on its way out
      }
      seen.what = EventsSeen::kLost;
      count(s.cuda->unread);
    }
    tell(s, seen);
    release_pair(s, at.events);
  }
  s.n_pending = kept;
  flush(s);
}

void* observe(void* argument) noexcept {
  Observer& s = *static_cast<Observer*>(argument);
  s.cuda->observer_tid.store(own_tid());
  // Else asking for an event would break a graph that another thread is capturing.
  int mode = kCaptureModeRelaxed;
  call(s, s.call_mode, s.driver.thread_capture_mode, &mode);
  while (goes_on(s)) {
    for (ContextRow& row : s.contexts) {
      if (row.context.load(kAcquire) != nullptr &&
          row.state.load(kAcquire) == ContextRow::kWanted) {
        make_pool(s, row);
      }
    }
    const bool busy = take_submitted(s) || s.n_pending != 0;
    poll(s);
    s.cuda->polled_ticks.store(ticks_now(s.hot->clock), kRelaxed);
    s.rounds.fetch_add(1, kRelease);
    usleep(busy ? kBusySleep_us : kIdleSleep_us);
  }
  s.running.store(false, kRelease);
  return nullptr;
}

// ---------------------------------------------------------------- making it

// Never loads the driver into a process that does not use it.
bool bind(Driver& d) noexcept {
  void* library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  bool all = library != nullptr;
  const auto find = [&](auto& function, const char* name) {
    function =
        all ? reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name))
            : nullptr;
    all = all && function != nullptr;
  };
  find(d.ctx_get_current, "cuCtxGetCurrent");
  find(d.ctx_set_current, "cuCtxSetCurrent");
  find(d.ctx_get_device, "cuCtxGetDevice");
  find(d.stream_create, "cuStreamCreate");
  find(d.stream_get_ctx, "cuStreamGetCtx");
  find(d.stream_is_capturing, "cuStreamIsCapturing");
  find(d.thread_capture_mode, "cuThreadExchangeStreamCaptureMode");
  find(d.event_create, "cuEventCreate");
  find(d.event_record, "cuEventRecord");
  find(d.event_query, "cuEventQuery");
  find(d.event_elapsed_ms, "cuEventElapsedTime");
  return all;
}

Observer* make_observer() noexcept {
  static std::atomic<bool> busy{false};
  Recorder* r = recorder();
  if (r == nullptr || hot() == nullptr || r->options.timing != Timing::kEvents ||
      busy.exchange(true)) {
    return nullptr;
  }
  Observer* s = observer_in_force();
  if (s == nullptr && !r->ended.load()) {
    s = new (std::nothrow) Observer;
    if (s != nullptr && !bind(s->driver)) {
      delete s;
      s = nullptr;
    }
    if (s != nullptr) {
      s->hot = &r->hot;
      s->cuda = r->region.section<Cuda>(kSecCuda);
      s->header = &r->region.header();
      const auto name = [](const char* text) { return fr_intern(text, std::strlen(text)); };
      s->call_mode = name("cuThreadExchangeStreamCaptureMode");
      s->call_context = name("cuCtxSetCurrent");
      s->call_create = name("cuEventCreate");
      s->call_record = name("cuEventRecord");
      s->call_query = name("cuEventQuery");
      s->call_elapsed = name("cuEventElapsedTime");
      s->running.store(true);
      if (start_thread(observe, s, "fr-cuda")) {
        fr_set_layer("cuda", "events around NCCL's calls; fr-cuda asks for them");
        g_observer.store(s, kRelease);
      } else {
        delete s;
        s = nullptr;
      }
    }
  }
  busy.store(false);
  return s;
}

}  // namespace

bool events_on() noexcept {
  return observer_in_force() != nullptr;
}

void prepare() noexcept {
  learn_context();
  Observer* s = observer_in_force();
  if (s == nullptr && (s = make_observer()) == nullptr) {
    return;
  }
  Context context = nullptr;
  if (s->driver.ctx_get_current(&context) != kSuccess || context == nullptr) {
    return;
  }
  const ContextRow* row = find_context(*s, context);
  for (int ms = 0; row != nullptr && row->state.load(kAcquire) == ContextRow::kWanted && ms < 100;
       ++ms) {
    usleep(1000);
  }
}

Begun begin(Stream stream, i32 device) noexcept {
  Observer* s = observer_in_force();
  if (s == nullptr) {
    return {};
  }
  const Driver& d = s->driver;
  int capture = 0;
  const int asked = d.stream_is_capturing(stream, &capture);
  if (asked != kSuccess && asked != kCaptureImplicit) {
    report_error(asked, "cuStreamIsCapturing");
    count(s->cuda->refused);
    return {};
  }
  if (asked != kSuccess || capture != 0 || is_capturing()) {
    count(s->cuda->captured);
    return {0, asked == kSuccess && capture == kCaptureActive};
  }
  Context context = nullptr;
  if (!is_default_stream(stream)) {
    d.stream_get_ctx(stream, &context);
  } else {
    // Default streams are the current device's; NCCL's work goes to the communicator's.
    int current = -1;
    if (device >= 0 && d.ctx_get_device(&current) == kSuccess && current == device) {
      d.ctx_get_current(&context);
    }
  }
  ContextRow* row = context != nullptr ? find_context(*s, context) : nullptr;
  if (row == nullptr || row->state.load(kAcquire) != ContextRow::kReady) {
    count(s->cuda->no_context);
    return {};
  }
  const u64 events = claim_pair(*s, *row);
  if (events == 0) {
    count(s->cuda->exhausted);
    return {};
  }
  EventPair& p = pair_of(*s, events);
  p.stream = stream;
  if (const int result = d.event_record(p.start, stream); result != kSuccess) {
    report_error(result, "cuEventRecord");
    count(s->cuda->refused);
    release_pair(*s, events);
    return {};
  }
  return {events, false};
}

bool end(u64 events) noexcept {
  Observer* s = observer_in_force();
  if (s == nullptr) {
    return false;
  }
  const EventPair& p = pair_of(*s, events);
  if (const int result = s->driver.event_record(p.end, p.stream); result != kSuccess) {
    report_error(result, "cuEventRecord");
    count(s->cuda->refused);
    release_pair(*s, events);
    return false;
  }
  s->submitted[s->head.fetch_add(1, kRelaxed) % kAll].store(events, kRelease);
  return true;
}

void drop(u64 events) noexcept {
  Observer* s = observer_in_force();
  if (s != nullptr && events != 0) {
    release_pair(*s, events);
  }
}

void settle() noexcept {
  const Observer* s = observer_in_force();
  if (s == nullptr) {
    return;
  }
  // Two rounds: the one under way may have passed what has just come.
  const u64 until = s->rounds.load(kAcquire) + 2;
  for (int ms = 0; s->rounds.load(kAcquire) < until && ms < 20; ++ms) {
    usleep(1000);
  }
}

void stop() noexcept {
  Observer* s = g_observer.load(kAcquire);
  if (s == nullptr || s->hot != hot()) {
    return;
  }
  s->stopping.store(true);
  for (int ms = 0; s->running.load(kAcquire) && ms < 50; ++ms) {
    usleep(1000);  // then it is stuck, and stays so
  }
}

void lose_contexts() noexcept {
  Observer* s = observer_in_force();
  if (s == nullptr) {
    return;
  }
  for (ContextRow& row : s->contexts) {
    if (row.context.load() != nullptr) {
      row.state.store(ContextRow::kGone);
      row.context.store(&row);  // equals no context
    }
  }
}

}  // namespace fr::cuda
