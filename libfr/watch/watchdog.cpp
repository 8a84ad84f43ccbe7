#include "watch/watchdog.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "format/call_site.hpp"
#include "nccl/tracker/tracker.hpp"
#include "recorder/clock_anchor.hpp"
#include "recorder/log.hpp"
#include "recorder/recorder.hpp"
#include "sample/files.hpp"
#include "sample/own_thread.hpp"
#include "watch/oom.hpp"

namespace fr {
namespace {

constexpr u64 kSecond_ns = 1'000'000'000ull;
constexpr u64 kTick_ns = 100'000'000ull;
constexpr u32 kQueue = 16;
constexpr u64 kMaxBackOff_ns = 3600 * kSecond_ns;
// RAS gathers from all processes of the job, and waits for those that are gone: it is asked so long
// before a dump for a stall. Other dumps wait for it this long.
constexpr u64 kAskAhead_ns = 3 * kSecond_ns;
constexpr u64 kAnswer_ns = 300'000'000;
constexpr u64 kAnswerIsOld_ns = 10 * kSecond_ns;
constexpr i32 kNodesThatAsk = 8;  // one question of each goes to all processes of the job
constexpr i32 kRanksInJson = 32;  // about what fits; NCCL's text sums up instead

void pause_ns(u64 ns) {
  const timespec t{static_cast<time_t>(ns / kSecond_ns), static_cast<long>(ns % kSecond_ns)};
  nanosleep(&t, nullptr);
}

u64 get(const std::atomic<u64>& a) {
  return a.load(std::memory_order_acquire);
}

void add_one(int fd) {
  const u64 one = 1;
  [[maybe_unused]] const ssize_t n = write(fd, &one, sizeof one);  // full = already awake
}

}  // namespace

const char* trigger_name(Trigger trigger) noexcept {
  static constexpr const char* kNames[] = {"timeout", "manual",    "peer", "failure", "signal",
                                           "pipe",    "exception", "exit", "crash",   "signal"};
  return kNames[static_cast<u32>(trigger)];
}

u64 count_in_flight(const GroupRow& g) noexcept {
  if (get(g.destroyed_ticks) != 0) {
    return 0;
  }
  // ended before issued: a race then counts too many, and the next look corrects it
  const u64 ended = get(g.ended) + get(g.p2p_ended) + get(g.lifecycle_ended);
  const u64 wait_only_ended = get(g.wait_only_ended);
  const u64 wait_ended = get(g.wait_ended);
  const u64 issued = (get(g.issued) & kSeqMask) + get(g.p2p_issued) + get(g.lifecycle_issued);
  const u64 tracked = issued - get(g.untracked) - get(g.wait_only);
  const u64 tracked_ended = ended - wait_only_ended;
  const u64 waiting = get(g.waited) - wait_ended;
  const i64 n = static_cast<i64>(tracked - tracked_ended) + static_cast<i64>(waiting);
  return n > 0 ? static_cast<u64>(n) : 0;
}

u64 count_in_flight(const Recorder& r) noexcept {
  u64 n = 0;
  for (u32 i = 0; i < r.view.n_groups(); ++i) {
    n += count_in_flight(*r.view.group(i));
  }
  return n;
}

bool Watchdog::start(Recorder& recorder) noexcept {
  recorder_ = &recorder;
  incident_.store(recorder.first_incident);
  peers_checked_incident_ = recorder.first_incident;
  event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  writer_fd_ = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
  constexpr int kProt = PROT_READ | PROT_WRITE;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  void* stalls = mmap(nullptr, sizeof(Stall) * kGroups, kProt, kFlags | MAP_POPULATE, -1, 0);
  void* queue = mmap(nullptr, sizeof(Written) * kQueue, kProt, kFlags, -1, 0);
  if (event_fd_ < 0 || writer_fd_ < 0 || stalls == MAP_FAILED || queue == MAP_FAILED ||
      !encoder_.init(recorder.region.header().n_records)) {
    return false;
  }
  if (recorder.options.threads != ThreadSampling::kOff &&
      !threads_.init(recorder.options.threads == ThreadSampling::kSignal, recorder.options.locals)) {
    log_line(kLogWarn, "no memory for the stacks of threads: dumps are without");
  }
  recorder.region.header().ask_signal.store(static_cast<u32>(threads_.signal()));
  oom_kills_ = oom_kills();
  stalls_ = static_cast<Stall*>(stalls);
  queue_ = static_cast<Written*>(queue);
  running_ = start_thread(thread_main, this, "fr-watchdog");
  if (!running_) {
    return false;
  }
  const Header& h = recorder.region.header();
  if (h.world_size.load() > h.local_world_size || h.local_world_size == 0 ||
      !recorder.control.is_shared()) {
    // Ranks elsewhere: their incidents are seen in the shared FR_DUMP_DIR. A thread of its own,
    // because a hung file system must not hold the watchdog.
    start_thread(follower_main, this, "fr-follower");
  }
  return true;
}

void* Watchdog::thread_main(void* self) noexcept {
  static_cast<Watchdog*>(self)->run();
  return nullptr;
}

void Watchdog::wake() noexcept {
  add_one(event_fd_);
}

void Watchdog::note_signal(int signal) noexcept {
  signal_.store(signal);
  wake();
}

void Watchdog::run() noexcept {
  Recorder& r = *recorder_;
  Header& h = r.region.header();
  pause_ns(10'000'000);
  take_anchor(h.last, h.clock_kind);  // two anchors give the tick rate
  take_leftovers();
  u64 last_look_ns = monotonic_ns();
  u64 last_anchor_ns = last_look_ns;
  for (;;) {
    open_pipe();
    pollfd fds[2] = {{event_fd_, POLLIN, 0}, {pipe_fd_, POLLIN, 0}};
    poll(fds, pipe_fd_ >= 0 ? 2 : 1, static_cast<int>(kTick_ns / 1'000'000));
    u64 drained = 0;
    [[maybe_unused]] const ssize_t n = read(event_fd_, &drained, sizeof drained);

    const u64 now = monotonic_ns();
    h.heartbeat_unix_ns.store(unix_now_ns());
    if (PeerRow* row = r.control.own()) {
      row->heartbeat_unix_ns.store(h.heartbeat_unix_ns.load());
    }
    if (now - last_anchor_ns > kSecond_ns) {
      take_anchor(h.last, h.clock_kind);
      check_end_handlers(r);
      last_anchor_ns = now;
    }
    if (now - last_look_ns > 10 * kTick_ns + kSecond_ns) {
      // We were stopped or starved ourselves: that time says nothing about the operations.
      for (u32 i = 0; i < kGroups; ++i) {
        stalls_[i].since_ns += now - last_look_ns;
      }
    }
    last_look_ns = now;

    nccl::settle_all();
    serve_requests();
    if (pipe_fd_ >= 0) {
      char bytes[64];
      if (read(pipe_fd_, bytes, sizeof bytes) > 0) {
        dump("a byte came through FR_PIPE", Trigger::kPipe);
      }
    }
    if (const int signal = signal_.exchange(0)) {
      char reason[64];
      format(reason, sizeof reason, "signal %d (%s)", signal,
             signal == r.options.signal ? "FR_SIGNAL" : "frtrace asked");
      dump(reason, Trigger::kSignal);
    }
    if (r.options.dump_on_timeout) {
      check_failures();
    }
    const u64 current = get(r.control.page().incident);
    if (current > incident_.load()) {
      char reason[200];
      char text[160];
      r.control.reason(text, sizeof text);
      format(reason, sizeof reason, "rank %d: %s", r.control.page().incident_rank.load(), text);
      dump_incident(current, reason, Trigger::kPeer);
    }
    check_stalls(now);
    check_peers(now);
  }
}

// ---------------------------------------------------------------- what triggers

bool Watchdog::request_dump(const char* reason, Trigger trigger, u64 limit_ns, char* path,
                            std::size_t path_bytes) noexcept {
  if (!running_) {
    return false;
  }
  for (Request& q : requests_) {
    u32 state = Request::kFree;
    if (!q.state.compare_exchange_strong(state, Request::kClaimed)) {
      continue;
    }
    q.trigger = trigger;
    std::snprintf(q.reason, sizeof q.reason, "%s", reason);
    q.state.store(Request::kPosted);
    wake();
    const u64 deadline = monotonic_ns() + limit_ns;
    while (q.state.load() != Request::kDone) {
      if (monotonic_ns() > deadline) {
        state = Request::kPosted;
        if (!q.state.compare_exchange_strong(state, Request::kAbandoned)) {
          state = Request::kRunning;
          q.state.compare_exchange_strong(state, Request::kAbandoned);
        }
        if (q.state.load() != Request::kDone) {
          return false;
        }
        break;
      }
      pause_ns(500'000);
    }
    const bool ok = q.ok;
    if (path != nullptr && path_bytes > 0) {
      std::snprintf(path, path_bytes, "%s", q.path);
    }
    q.state.store(Request::kFree);
    return ok;
  }
  return false;
}

void Watchdog::serve_requests() noexcept {
  for (Request& q : requests_) {
    u32 state = Request::kPosted;
    if (q.state.load() == Request::kAbandoned) {
      q.state.store(Request::kFree);
      continue;
    }
    if (!q.state.compare_exchange_strong(state, Request::kRunning)) {
      continue;
    }
    q.ok = dump(q.reason, q.trigger);
    std::memcpy(q.path, last_path_, sizeof q.path);
    state = Request::kRunning;
    if (!q.state.compare_exchange_strong(state, Request::kDone)) {
      q.state.store(Request::kFree);  // given up on meanwhile
    }
  }
}

void Watchdog::check_failures() noexcept {
  const u64 failed = get(recorder_->region.header().failed);
  if (failed == failures_seen_) {
    return;
  }
  const u64 now = monotonic_ns();
  if (failure_dump_ns_ != 0 && now - failure_dump_ns_ < recorder_->options.timeout_ns) {
    return;  // a job that lives with failing operations gets one dump per FR_TIMEOUT_S
  }
  failures_seen_ = failed;
  failure_dump_ns_ = now;
  RecordCopy r;
  RecordCopy last;
  bool found = false;
  const View& view = recorder_->view;
  for (u32 slot = 0; slot < view.n_slots(); ++slot) {
    if (view.read(slot, r) == Slot::kWhole && r.has_status && r.state == State::kFailed &&
        (!found || r.ended_ticks < last.ended_ticks)) {
      last = r;
      found = true;
    }
  }
  char reason[200] = "an operation failed";
  if (found) {
    char what[120];
    describe(view, last, what, sizeof what);
    format(reason, sizeof reason, "%s failed", what);
  }
  dump(reason, Trigger::kFailure);
}

void Watchdog::check_stalls(u64 now) noexcept {
  const Recorder& r = *recorder_;
  const View& view = r.view;
  for (u32 i = 0; i < view.n_groups(); ++i) {
    const GroupRow& g = *view.group(i);
    Stall& s = stalls_[i];
    const u64 in_flight = count_in_flight(g);
    const u64 progress = get(g.ended) + get(g.p2p_ended) + get(g.lifecycle_ended) +
                         get(g.wait_ended) + get(g.wait_only_ended) + get(g.started_seq);
    if (in_flight == 0 || progress != s.progress || s.since_ns == 0) {
      s = {progress, now, r.options.timeout_ns, false};
      continue;
    }
    const u64 idle = now > s.since_ns ? now - s.since_ns : 0;
    const u64 ahead =
        r.options.timeout_ns / 2 < kAskAhead_ns ? r.options.timeout_ns / 2 : kAskAhead_ns;
    if (r.options.dump_on_timeout && idle + ahead >= s.dump_after_ns) {
      ask_ras();
    }
    const bool warn = !s.warned && idle >= r.options.warn_ns;
    const bool dump_now = r.options.dump_on_timeout && idle >= s.dump_after_ns;
    if (!warn && !dump_now) {
      continue;
    }
    RecordCopy oldest;
    char what[160] = "an operation that the ring no longer has";
    char device[160] = "";
    if (oldest_in_flight(view, i, oldest)) {
      describe(view, oldest, what, sizeof what);
      describe_device(view, oldest.ticket, device, sizeof device);
    }
    char reason[400];
    std::snprintf(reason, sizeof reason, "no progress for %.1f s: %s, %llu in flight%s%s",
                  static_cast<double>(idle) / 1e9, what, static_cast<unsigned long long>(in_flight),
                  device[0] != '\0' ? ": " : "", device);
    if (warn) {
      s.warned = true;
      log_line(kLogWarn, "%s", reason);
    }
    if (dump_now) {
      dump(reason, Trigger::kTimeout);
    }
  }
}

void Watchdog::open_pipe() noexcept {
  const Recorder& r = *recorder_;
  const i32 rank = r.region.header().rank.load();
  if (r.options.pipe.empty() || pipe_fd_ >= 0 || rank < 0 || pipe_path_[0] != '\0') {
    return;
  }
  format(pipe_path_, sizeof pipe_path_, "%s%d.pipe", r.options.pipe.c_str(), rank);
  unlink(pipe_path_);
  if (mkfifo(pipe_path_, 0600) == 0) {
    pipe_fd_ =
        open(pipe_path_, O_RDWR | O_NONBLOCK | O_CLOEXEC);  // RDWR: no hang-up between writers
  }
  if (pipe_fd_ < 0) {
    log_line(kLogWarn, "FR_PIPE: cannot make %s: %s", pipe_path_, std::strerror(errno));
  }
}

// ---------------------------------------------------------------- dumping

void Watchdog::use_ras() noexcept {
  const Recorder& r = *recorder_;
  if (!r.options.ras.empty() && r.region.header().local_rank.load() <= 0) {
    ras_.start(r.options.ras.c_str());
  }
}

void Watchdog::ask_ras() noexcept {
  const Header& h = recorder_->region.header();
  const i32 per_node = h.local_world_size > 0 ? h.local_world_size : 1;
  if (h.rank.load() < kNodesThatAsk * per_node) {
    ras_.ask(h.world_size.load() <= kRanksInJson, kAnswerIsOld_ns);
  }
}

bool Watchdog::dump(const char* reason, Trigger trigger) noexcept {
  Recorder& r = *recorder_;
  // What ends a process belongs to the incident that is open; the rest opens its own.
  const bool join = trigger == Trigger::kFailure || trigger == Trigger::kException ||
                    trigger == Trigger::kExit || trigger == Trigger::kCrash ||
                    trigger == Trigger::kEndSignal;
  const u64 incident =
      r.control.open_incident(incident_.load(), r.region.header().rank.load(), reason, join);
  return dump_incident(incident, reason, trigger);
}

bool Watchdog::dump_incident(u64 incident, const char* reason, Trigger trigger) noexcept {
  Recorder& r = *recorder_;
  Header& h = r.region.header();
  const u64 begun = monotonic_ns();
  const u64 failed = get(h.failed);
  take_anchor(h.last, h.clock_kind);
  h.incident.store(incident);
  incident_.store(incident);
  if (incident > peers_checked_incident_) {
    incident_seen_ns_ = begun;
  }
  ask_ras();
  DumpFacts facts;
  facts.reason = reason;
  facts.trigger = trigger_name(trigger);
  facts.incident = incident;
  facts.control = &r.control.page();
  facts.threads = threads_.collect();
  facts.ras = ras_.take(kAnswer_ns);
  const DumpEncoder::Bytes bytes = encoder_.encode(r.view, facts);
  char name[256];
  format_name(name, sizeof name, h.job, h.attempt, h.rank.load() >= 0 ? h.rank.load() : -1,
              incident, "fr");
  const bool ok = bytes.data != nullptr && store(name, bytes);
  if (PeerRow* row = r.control.own()) {
    row->dumped.store(incident);
  }
  // Whatever is stalled now has its dump; the next one is for twice the time.
  for (u32 i = 0; i < r.view.n_groups(); ++i) {
    Stall& s = stalls_[i];
    const u64 idle = begun > s.since_ns ? begun - s.since_ns : 0;
    if (s.since_ns != 0 && idle * 2 > s.dump_after_ns) {
      u64 next = s.dump_after_ns;
      while (next < 2 * idle && next < kMaxBackOff_ns) {
        next *= 2;
      }
      s.dump_after_ns = next;
    }
  }
  if (!ok) {
    h.dumps_failed.fetch_add(1);
    return false;
  }
  failures_dumped_.store(failed);
  log_line(trigger == Trigger::kPeer || trigger == Trigger::kManual ? kLogInfo : kLogWarn,
           "dump %llu (%s) in %.1f ms: %s", static_cast<unsigned long long>(incident), reason,
           static_cast<double>(monotonic_ns() - begun) / 1e6, last_path_);
  prune();
  if (writer_.load() != nullptr && get(queued_) - get(delivered_) < kQueue) {
    Written& w = queue_[get(queued_) % kQueue];
    w.incident = incident;
    format(w.reason, sizeof w.reason, "%s", reason);
    std::memcpy(w.path, last_path_, sizeof w.path);
    queued_.fetch_add(1);
    add_one(writer_fd_);
  }
  return true;
}

bool Watchdog::store(const char* name, const DumpEncoder::Bytes& bytes,
                     Existing existing) noexcept {
  if (const fr_sink sink = sink_.load()) {
    format(last_path_, sizeof last_path_, "%s", name);
    return sink(name, bytes.data, bytes.size, sink_user_.load()) == 0;
  }
  int error = 0;
  for (const auto& dir : recorder_->dump_dirs) {
    if (dir[0] == '\0') {
      continue;
    }
    if (write_durably(dir, name, bytes.data, bytes.size, last_path_, sizeof last_path_, existing)) {
      if (&dir != &recorder_->dump_dirs[0] && !unwritable_said_) {
        unwritable_said_ = true;
        log_line(kLogError, "cannot write dumps to %s: %s; they go to %s", recorder_->dump_dirs[0],
                 std::strerror(error), dir);
      }
      return true;
    }
    if (existing == Existing::kKeep && errno == EEXIST) {
      return false;
    }
    error = error == 0 ? errno : error;
  }
  last_path_[0] = '\0';
  if (!unwritable_said_) {
    unwritable_said_ = true;
    log_line(kLogError, "cannot write dumps, neither to %s nor to %s: %s", recorder_->dump_dirs[0],
             recorder_->dump_dirs[1], std::strerror(error));
  }
  return false;
}

// Keeps the first incident of this run and the last ones.
void Watchdog::prune() noexcept {
  const Recorder& r = *recorder_;
  const Header& h = r.region.header();
  struct Context {
    const Header& header;
    u64 first_incident;
    i32 rank;
    u64 numbers[256];
    u32 n;
    bool fr[256];
  } c{h, r.first_incident, h.rank.load(), {}, 0, {}};
  // the first and the newest are always kept
  const u32 newest = r.options.keep_dumps > 2 ? r.options.keep_dumps - 1 : 1;
  if (sink_.load() != nullptr) {
    return;
  }
  char dir[PATH_MAX];
  format(dir, sizeof dir, "%s", last_path_);
  char* slash = std::strrchr(dir, '/');
  if (slash == nullptr) {
    return;
  }
  *slash = '\0';
  each_entry(
      dir,
      [](const char* name, void* context) {
        auto& x = *static_cast<Context*>(context);
        NameParts parts;
        if (parse_name(name, parts) && std::strcmp(parts.job, x.header.job) == 0 &&
            parts.attempt == x.header.attempt && parts.rank == x.rank &&
            parts.number > x.first_incident && x.n < std::size(x.numbers)) {
          x.numbers[x.n] = parts.number;
          x.fr[x.n++] = parts.is_fr;
        }
      },
      &c);
  u64 first = ~0ull;
  for (u32 i = 0; i < c.n; ++i) {
    first = c.numbers[i] < first ? c.numbers[i] : first;
  }
  for (u32 i = 0; i < c.n; ++i) {
    u32 newer = 0;
    for (u32 k = 0; k < c.n; ++k) {
      newer += c.numbers[k] > c.numbers[i] && c.fr[k] ? 1 : 0;
    }
    if (c.numbers[i] != first && newer >= newest) {
      char name[256];
      char path[PATH_MAX];
      format_name(name, sizeof name, h.job, h.attempt, c.rank, c.numbers[i],
                  c.fr[i] ? "fr" : "ring");
      format(path, sizeof path, "%s/%s", dir, name);
      unlink(path);
    }
  }
}

// ---------------------------------------------------------------- writers

void Watchdog::set_sink(fr_sink sink, void* user) noexcept {
  sink_user_.store(user);
  sink_.store(sink);
}

void Watchdog::set_writer(fr_writer writer, void* user) noexcept {
  if (writer == nullptr) {
    await_writer(5000);
  }
  writer_user_.store(user);
  writer_.store(writer);
  if (writer != nullptr && !writer_started_) {
    writer_started_ = start_thread(writer_main, this, "fr-writer");
  }
}

void Watchdog::await_writer(int most_ms) const noexcept {
  for (int i = 0; i < most_ms && get(delivered_) < get(queued_); ++i) {
    pause_ns(1'000'000);
  }
}

void* Watchdog::writer_main(void* self) noexcept {
  auto& w = *static_cast<Watchdog*>(self);
  for (;;) {
    u64 one = 0;
    if (read(w.writer_fd_, &one, sizeof one) != sizeof one) {
      continue;
    }
    const Written& item = w.queue_[get(w.delivered_) % kQueue];
    Mapping m = map_file(item.path);
    const fr_writer writer = w.writer_.load();
    if (writer != nullptr && m.base != nullptr) {
      writer(item.path, m.base, m.bytes, item.incident, item.reason, w.writer_user_.load());
    }
    unmap_file(m);
    w.delivered_.fetch_add(1);
  }
}

}  // namespace fr
