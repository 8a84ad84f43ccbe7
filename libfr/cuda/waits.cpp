// waits.cpp - per stream, the operations that only the program's waits report as completed.
#include "cuda/waits.hpp"

#include <dlfcn.h>
#include <sched.h>

#include "format/hash.hpp"
#include "recorder/recorder.hpp"

namespace fr::cuda {

std::atomic<u32> g_wait_tracked{0};

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

constexpr u32 kOpen = 256;  // operations of one stream that are wait-tracked at a time
// The same over all streams: more would leave no rows for operations that NCCL reports as ended.
constexpr u32 kAllOpen = kDeviceOps / 2;
constexpr u32 kTies = 1024;
constexpr u32 kProbes = 8;
constexpr u64 kNobody = ~0ull;  // key of no stream
constexpr u64 kSeqBits = (1ull << 48) - 1;

// The open operations of a stream are numbered from 1 as they were put into it: done < open <=
// issued. Any thread raises `reported` and `wanted`; the one that then gets `busy` acts on
// them: no thread waits for another.
struct alignas(64) StreamRow {
  std::atomic<u64> key{0};  // 0: free
  std::atomic<u64> issued{0};
  std::atomic<u64> done{0};
  std::atomic<u64> reported{0};  // all up to this have ended
  std::atomic<u64> wanted{0};    // the program waits for all up to this
  std::atomic<u64> waited{0};    // and these are shown so
  std::atomic<u64> polled_ticks{0};
  std::atomic<u32> waiters{0};  // threads that are in a call
  std::atomic<u32> lapsed{0};   // no call polls any more
  std::atomic<u32> busy{0};
  std::atomic<Operation> open[kOpen] = {};  // 0: free, or reserved
};
StreamRow g_streams[kWaitStreams];
std::atomic<u32> g_n_streams{0};  // rows that were ever used

struct Tie {
  std::atomic<u32> version{0};  // odd while it is changed
  std::atomic<Event> event{nullptr};
  std::atomic<u64> place{0};  // row + 1 << 48 | seq
};
Tie g_ties[kTies];

// Default streams, and what a whole device was given, are those of whatever context is current:
// wait-tracked where all communicators of the process are in one.
std::atomic<int (*)(Context*)> g_ctx_get_current{nullptr};
std::atomic<Context> g_context{nullptr};
std::atomic<bool> g_several_contexts{false};

void count(std::atomic<u64> Cuda::* counter) noexcept {
  Recorder* r = recorder();
  if (r != nullptr && hot() != nullptr) {
    (r->region.section<Cuda>(kSecCuda)->*counter).fetch_add(1, kRelaxed);
  }
}

// In one order with `busy`, unlike the frontiers': otherwise the thread that leaves a row and the
// thread that raises a word could miss each other.
void raise_to(std::atomic<u64>& word, u64 value) noexcept {
  u64 seen = word.load(kRelaxed);
  while (seen < value && !word.compare_exchange_weak(seen, value)) {
  }
}

bool in_known_context() noexcept {
  const auto current = g_ctx_get_current.load(kAcquire);
  Context context = nullptr;
  return current != nullptr && !g_several_contexts.load(kRelaxed) &&
         current(&context) == kSuccess && context != nullptr && context == g_context.load(kRelaxed);
}

// 0: cannot be distinguished from other streams.
u64 key_of(Stream stream) noexcept {
  const u64 value = reinterpret_cast<u64>(stream);
  if (!is_default_stream(stream)) {
    return value;
  }
  constexpr u64 kPerThread = 2;
  return value != kPerThread && in_known_context() ? 1 : 0;
}

StreamRow* row_of(u64 key) noexcept {
  const u32 n = g_n_streams.load(kAcquire);
  for (u32 i = 0; i < n && key != 0; ++i) {
    if (g_streams[i].key.load(kRelaxed) == key) {
      return &g_streams[i];
    }
  }
  return nullptr;
}

[[gnu::cold, gnu::noinline]] StreamRow* make_row(u64 key) noexcept {
  static std::atomic<bool> making{false};
  if (making.exchange(true)) {
    return nullptr;  // two rows for one stream would be worse
  }
  StreamRow* row = row_of(key);
  for (u32 i = 0; i < kWaitStreams && row == nullptr; ++i) {
    if (g_streams[i].key.load() == 0) {
      row = &g_streams[i];
      row->key.store(key);
      if (i >= g_n_streams.load()) {
        g_n_streams.store(i + 1, kRelease);
      }
    }
  }
  making.store(false);
  return row;
}

// row + 1
u32 number_of(const StreamRow& row) noexcept {
  return static_cast<u32>(&row - g_streams) + 1;
}

// The oldest, by the thread that has `busy`.
void take_out(StreamRow& row, u64 seq) noexcept {
  row.open[seq % kOpen].store(0, kRelaxed);
  row.done.store(seq, kRelease);
  g_wait_tracked.fetch_sub(1, kRelaxed);
}

// Acts on `reported` and `wanted`, unless another thread has `busy`: that one then sees them.
void serve(StreamRow& row) noexcept {
  bool more = true;
  while (more) {
    if (row.busy.exchange(1) != 0) {
      return;
    }
    u64 done = row.done.load(kRelaxed);
    u64 waited = row.waited.load(kRelaxed);
    const u64 reported = row.reported.load();
    const u64 wanted = row.lapsed.load() == 0 ? row.wanted.load() : 0;
    bool unpublished = false;
    while (done < reported) {
      const Operation op = row.open[(done + 1) % kOpen].load(kAcquire);
      if (op == 0) {
        unpublished = true;  // comes in a moment, and then this again
        break;
      }
      kOperations.reached(op);
      take_out(row, ++done);
    }
    for (waited = waited > done ? waited : done; waited < wanted; ++waited) {
      const Operation op = row.open[(waited + 1) % kOpen].load(kAcquire);
      if (op == 0) {
        unpublished = true;
        break;
      }
      kOperations.wait_began(op);
    }
    row.waited.store(waited, kRelaxed);
    row.busy.store(0);
    more = !unpublished &&
           (row.reported.load() > done || (row.lapsed.load() == 0 && row.wanted.load() > waited));
  }
}

// Takes the oldest n out of the list, their end not reported. False: somebody is at it, or
// waits for them.
bool give_up(StreamRow& row, u64 n, bool waited_too) noexcept {
  if (row.busy.exchange(1) != 0) {
    return false;
  }
  u64 done = row.done.load(kRelaxed);
  const bool may = waited_too || (row.waited.load(kRelaxed) <= done && row.waiters.load() == 0);
  for (; may && n > 0 && done < row.issued.load(); --n) {
    const Operation op = row.open[(done + 1) % kOpen].load(kAcquire);
    if (op == 0) {
      break;
    }
    kOperations.untrack(op);
    take_out(row, ++done);
    if (!waited_too) {
      count(&Cuda::unasked);
    }
  }
  if (row.waited.load(kRelaxed) < done) {
    row.waited.store(done, kRelaxed);
  }
  row.busy.store(0);
  serve(row);
  return may;
}

void want(StreamRow& row, u64 seq) noexcept {
  row.polled_ticks.store(now_ticks(), kRelaxed);
  raise_to(row.wanted, seq);
  if (row.lapsed.load() != 0) {
    row.lapsed.store(0);
  }
  if (row.waited.load(kRelaxed) < seq) {
    serve(row);
  }
}

u32 tie_of(Event event, u32 probe) noexcept {
  return static_cast<u32>(mix(0, reinterpret_cast<u64>(event)) + probe) % kTies;
}

StreamRow& stream_at(const StreamPosition& at) noexcept {
  return g_streams[at.row - 1];
}

void add_place(StreamPositions& out, const StreamRow& row) noexcept {
  const u64 issued = row.issued.load(kAcquire);
  if (issued > row.done.load(kRelaxed)) {
    out.place[out.n++] = {number_of(row), 0, 0, issued};
  }
}

bool is_still_tied(Event event, const StreamPosition& at) noexcept {
  const Tie& t = g_ties[at.associate];
  return t.event.load(kAcquire) == event && t.version.load() == at.version;
}

}  // namespace

void learn_context() noexcept {
  if (g_ctx_get_current.load(kAcquire) == nullptr) {
    // A process with a communicator has loaded it, or it is another device's library.
    void* library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
    if (library == nullptr) {
      return;
    }
    g_ctx_get_current.store(reinterpret_cast<int (*)(Context*)>(dlsym(library, "cuCtxGetCurrent")),
                            kRelease);
  }
  const auto current = g_ctx_get_current.load(kAcquire);
  Context context = nullptr;
  if (current == nullptr || current(&context) != kSuccess || context == nullptr) {
    return;
  }
  Context known = nullptr;
  if (!g_context.compare_exchange_strong(known, context) && known != context) {
    g_several_contexts.store(true);
  }
}

StreamPosition reserve(Stream stream) noexcept {
  const u64 key = key_of(stream);
  if (key == 0) {
    return {};
  }
  StreamRow* row = row_of(key);
  if (row == nullptr) {
    row = make_row(key);
  }
  for (int tries = 0; row != nullptr && tries < 2; ++tries) {
    u64 issued = row->issued.load(kRelaxed);
    while (issued - row->done.load(kAcquire) < kOpen && g_wait_tracked.load(kRelaxed) < kAllOpen) {
      if (row->issued.compare_exchange_weak(issued, issued + 1, std::memory_order_acq_rel)) {
        g_wait_tracked.fetch_add(1, kRelaxed);
        count(&Cuda::followed);
        return {number_of(*row), 0, 0, issued + 1};
      }
    }
    if (!give_up(*row, kOpen / 4, false)) {
      break;
    }
  }
  count(&Cuda::unfollowed);
  return {};
}

void publish(const StreamPosition& at, Operation op) noexcept {
  StreamRow& row = stream_at(at);
  row.open[at.seq % kOpen].store(op);
  if (row.reported.load() >= at.seq || (row.wanted.load() >= at.seq && row.lapsed.load() == 0)) {
    serve(row);
  }
}

void find_stream(Stream stream, StreamPositions& out) noexcept {
  if (const StreamRow* row = row_of(key_of(stream))) {
    add_place(out, *row);
  }
}

void find_event(Event event, StreamPositions& out) noexcept {
  for (u32 probe = 0; probe < kProbes; ++probe) {
    const u32 number = tie_of(event, probe);
    const Tie& t = g_ties[number];
    const u32 version = t.version.load(kAcquire);
    if (t.event.load(kAcquire) != event || event == nullptr) {
      continue;
    }
    const u64 place = t.place.load(kAcquire);
    if ((version & 1) == 0 && t.version.load(kRelaxed) == version && place != 0) {
      const StreamPosition at{static_cast<u32>(place >> 48), number, version, place & kSeqBits};
      if (at.seq > stream_at(at).done.load(kRelaxed)) {
        out.place[out.n++] = at;
      }
    }
    return;
  }
}

void find_all(StreamPositions& out) noexcept {
  if (!in_known_context()) {
    return;
  }
  const u32 n = g_n_streams.load(kAcquire);
  for (u32 i = 0; i < n; ++i) {
    add_place(out, g_streams[i]);
  }
}

void dissociate(Event event) noexcept {
  for (u32 probe = 0; probe < kProbes && event != nullptr; ++probe) {
    Tie& t = g_ties[tie_of(event, probe)];
    u32 version = t.version.load(kRelaxed);
    if (t.event.load(kRelaxed) == event && (version & 1) == 0 &&
        t.version.compare_exchange_strong(version, version + 1, kAcquire, kRelaxed)) {
      if (t.event.load(kRelaxed) == event) {
        t.place.store(0, kRelaxed);
        t.event.store(nullptr, kRelease);
      }
      t.version.store(version + 2, kRelease);
    }
  }
}

void associate(Event event, const StreamPositions& at) noexcept {
  if (at.n == 0 || event == nullptr) {
    return;
  }
  for (u32 probe = 0; probe < kProbes; ++probe) {
    Tie& t = g_ties[tie_of(event, probe)];
    u32 version = t.version.load(kRelaxed);
    const auto is_free = [&t] {
      const u64 place = t.place.load(kRelaxed);
      return place == 0 || (place & kSeqBits) <= g_streams[(place >> 48) - 1].done.load(kRelaxed);
    };
    if (!is_free() || (version & 1) != 0 ||
        !t.version.compare_exchange_strong(version, version + 1, kAcquire, kRelaxed)) {
      continue;
    }
    const bool mine = is_free();
    if (mine) {
      t.place.store(static_cast<u64>(at.place[0].row) << 48 | at.place[0].seq, kRelaxed);
      t.event.store(event, kRelease);
    }
    t.version.store(version + 2, kRelease);
    if (mine) {
      return;
    }
  }
  count(&Cuda::untied);
}

void polled(const StreamPositions& positions, Event event, int result) noexcept {
  for (u32 i = 0; i < positions.n; ++i) {
    const StreamPosition& at = positions.place[i];
    if (event != nullptr && !is_still_tied(event, at)) {
      continue;  // recorded anew meanwhile: the answer may be about that
    }
    if (result == kSuccess) {
      raise_to(stream_at(at).reported, at.seq);
      serve(stream_at(at));
    } else if (result == kNotReady) {
      want(stream_at(at), at.seq);
    }
  }
}

void begin_wait(const StreamPositions& positions) noexcept {
  for (u32 i = 0; i < positions.n; ++i) {
    stream_at(positions.place[i]).waiters.fetch_add(1);
    want(stream_at(positions.place[i]), positions.place[i].seq);
  }
}

void end_wait(const StreamPositions& positions, Event event, int result) noexcept {
  if (result == kSuccess) {
    polled(positions, event, result);
  }
  for (u32 i = 0; i < positions.n; ++i) {
    stream_at(positions.place[i]).waiters.fetch_sub(1);
  }
}

void abandon_stream(Stream stream) noexcept {
  StreamRow* row = is_default_stream(stream) ? nullptr : row_of(key_of(stream));
  if (row == nullptr) {
    return;
  }
  bool empty = false;
  for (int tries = 0; tries < 100 && !empty; ++tries) {
    if (!(empty = give_up(*row, kOpen, true))) {
      sched_yield();
    }
  }
  // Its numbers go on: what is still associated with them is over. Else no call polls for the rest.
  row->key.store(empty ? 0 : kNobody);
}

void abandon_all() noexcept {
  const u32 n = g_n_streams.load(kAcquire);
  for (u32 i = 0; i < n; ++i) {
    give_up(g_streams[i], kOpen, true);
  }
}

void look(u64 before_ticks) noexcept {
  const u32 n = g_n_streams.load(kAcquire);
  for (u32 i = 0; i < n; ++i) {
    StreamRow& row = g_streams[i];
    u64 done = row.done.load(kRelaxed);
    if (row.issued.load() <= done || row.busy.exchange(1) != 0) {
      continue;
    }
    done = row.done.load(kRelaxed);
    for (Operation op = 0; done < row.issued.load() &&
                           (op = row.open[(done + 1) % kOpen].load(kAcquire)) != 0 &&
                           kOperations.is_over(op);) {
      take_out(row, ++done);
    }
    u64 waited = row.waited.load(kRelaxed);
    if (waited > done && row.waiters.load() == 0 &&
        row.polled_ticks.load(kRelaxed) < before_ticks) {
      row.lapsed.store(1);
      while (waited > done) {
        kOperations.wait_ended(row.open[waited-- % kOpen].load(kAcquire));
      }
    }
    row.waited.store(waited > done ? waited : done, kRelaxed);
    row.busy.store(0);
    if (row.lapsed.load() != 0 && row.waiters.load() != 0) {
      row.lapsed.store(0);  // a wait began meanwhile
    }
    serve(row);
  }
}

}  // namespace fr::cuda
