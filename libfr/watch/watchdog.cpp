// watchdog.cpp - the loop, and the rules for when a dump is due: a request, a failed operation, a
// stalled group, an incident of a peer.
#include "watch/watchdog.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "format/call_site.hpp"
#include "format/file_name.hpp"
#include "format/silence.hpp"
#include "format/system_names.hpp"
#include "format/text.hpp"
#include "recorder/clock_anchor.hpp"
#include "recorder/in_flight.hpp"
#include "recorder/log.hpp"
#include "recorder/own_thread.hpp"
#include "recorder/parts.hpp"
#include "recorder/recorder.hpp"
#include "sample/process.hpp"
#include "watch/control_page.hpp"
#include "watch/follower.hpp"

namespace fr {
namespace {

constexpr u64 kSecond_ns = 1'000'000'000ull;
constexpr u64 kTick_ns = 100'000'000ull;
constexpr u64 kHung_ns = kSecond_ns;  // without progress for this long at a dump: part of its hang
constexpr u64 kGather_ns = kSecond_ns / 2;  // ranks that stall together notice it within that
constexpr u64 kPausedLook_ns = kSecond_ns / 5;
constexpr u64 kMaxBackOff_ns = 3600 * kSecond_ns;
// RAS gathers from all processes of the job, and waits for those that are gone: it is asked so long
// before a dump for a stall. Other dumps wait for it this long.
constexpr u64 kAskAhead_ns = 3 * kSecond_ns;
constexpr u64 kAnswer_ns = 300'000'000;
constexpr const char* kNoProgress = "no progress for";  // begins the reason of a stall's dump

std::atomic<void (*)()> g_tick{nullptr};

void pause_ns(u64 ns) {
  const timespec t{static_cast<time_t>(ns / kSecond_ns), static_cast<long>(ns % kSecond_ns)};
  nanosleep(&t, nullptr);
}

}  // namespace

Watchdog::Watchdog(Recorder& recorder) noexcept
    : recorder_(recorder),
      store_(recorder),
      salvage_(recorder, encoder_, threads_, store_),
      late_rank_(recorder),
      slower_steps_(recorder),
      patience_(recorder),
      silence_(recorder) {}

void Watchdog::set_floors(const Floors& floors) noexcept {
  patience_.set_floors(floors);
  silence_.set_floors(floors);
}

bool Watchdog::start() noexcept {
  Recorder& r = recorder_;
  Header& h = r.region.header();
  incident_.store(r.first_incident);
  void* stalls = mmap(nullptr, sizeof(Stall) * kGroups, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (!requests_.open() || stalls == MAP_FAILED || !writer_.init() || !encoder_.init(h.n_records) ||
      !patience_.init()) {
    return false;
  }
  stalls_ = static_cast<Stall*>(stalls);
  silence_.init();
  if (r.options.threads != ThreadSampling::kOff &&
      !threads_.init(r.options.threads == ThreadSampling::kSignal, r.options.locals)) {
    log_line(kLogWarn, "no memory for the stacks of threads: dumps are without");
  }
  h.ask_signal.store(static_cast<u32>(threads_.signal()));
  salvage_.init();
  copier_.set_recorder(r);
  if (!start_thread(RingCopier::thread_main, &copier_, "fr-copier") ||
      !start_thread(thread_main, this, "fr-watchdog")) {
    return false;
  }
  if (verdict_.is_needed()) {
    start_thread(VerdictThread::thread_main, &verdict_, "fr-verdict");
  }
  requests_.serve_begins();
  writer_.set_kept();
  const bool elsewhere = h.world_size.load() > h.local_world_size || h.local_world_size == 0;
  if ((elsewhere && r.options.trigger != ToNodes::kOff) || !r.control->is_shared()) {
    start_follower(r);
  }
  return true;
}

void* Watchdog::thread_main(void* self) noexcept {
  static_cast<Watchdog*>(self)->run();
  return nullptr;
}

void Watchdog::run() noexcept {
  Recorder& r = recorder_;
  Header& h = r.region.header();
  pause_ns(10'000'000);
  take_anchor(h.last, h.clock_kind);  // two anchors give the tick rate
  salvage_.take_leftovers();
  u64 last_look_ns = monotonic_ns();
  u64 last_anchor_ns = last_look_ns;
  for (;;) {
    open_pipe();
    pollfd fds[2] = {{requests_.event_fd(), POLLIN, 0}, {pipe_fd_, POLLIN, 0}};
    poll(fds, pipe_fd_ >= 0 ? 2 : 1, static_cast<int>(kTick_ns / 1'000'000));
    requests_.drain();

    const u64 now = monotonic_ns();
    h.heartbeat_unix_ns.store(unix_now_ns());
    if (PeerRow* row = r.control->own()) {
      row->heartbeat_unix_ns.store(h.heartbeat_unix_ns.load());
    }
    if (now - last_anchor_ns > kSecond_ns) {
      take_anchor(h.last, h.clock_kind);
      for_each_part(&Part::every_second);
      check_losses();
      last_anchor_ns = now;
    }
    if (now - last_look_ns > 10 * kTick_ns + kSecond_ns) {
      // We were stopped or starved ourselves: that time says nothing about the operations.
      for (u32 i = 0; i < kGroups; ++i) {
        stalls_[i].since_ns += now - last_look_ns;
        stalls_[i].wait.state_since_ns += now - last_look_ns;
      }
      silence_.put_off(now - last_look_ns);
    }
    last_look_ns = now;

    for_each_part(&Part::every_tick);
    requests_.serve(
        [](void* self, const char* reason, Trigger trigger) {
          auto& w = *static_cast<Watchdog*>(self);
          w.close_survived();  // the next crash comes after it, not into it
          return w.dump(reason, trigger) ? w.store_.last_path() : nullptr;
        },
        this);
    if (pipe_fd_ >= 0) {
      char bytes[64];
      if (read(pipe_fd_, bytes, sizeof bytes) > 0) {
        dump("a byte came through FR_PIPE", Trigger::kPipe);
      }
    }
    if (const int signal = requests_.take_signal()) {
      char reason[64];
      format(reason, sizeof reason, "signal %d (%s)", signal,
             signal == r.options.signal ? "FR_SIGNAL" : "frtrace asked");
      dump(reason, Trigger::kSignal);
    }
    if (stacks_wanted_.exchange(false)) {
      answer_stacks();
    }
    close_survived();
    if (r.options.dump_on_timeout) {
      check_failures();
    }
    const u64 current = get(r.control->page().incident);
    // An incident that this process's own signal handler opened is dumped when the handler asks.
    if (current > incident_.load() && current != get(h.incident)) {
      char reason[200];
      char text[160];
      r.control->reason(text, sizeof text);
      const i32 opener = r.control->page().incident_rank.load();
      if (opener >= 0) {
        format(reason, sizeof reason, "rank %d: %s", opener, text);
      } else {
        format(reason, sizeof reason, "%s", text);  // no rank: another node, or frtrace
      }
      dump_incident(current, reason, Trigger::kPeer);
    }
    slow_exit_.look(now);
    check_stalls(now);
    check_silence(now);
    warn(now);
    check_went_on(now);
    salvage_.check_peers(now);
    late_rank_.look(now);
    slower_steps_.look(now, threads_);
  }
}

// ---------------------------------------------------------------- what triggers

// A crash that the process lived on after is over, and the next one is an incident of its own.
void Watchdog::close_survived() noexcept {
  if (survived_.exchange(false)) {
    dump_incident(incident_.load(), "went on: the process lives with the signal", Trigger::kWentOn);
    recorder_.control->claim_over(incident_.load());
  }
}

// The group was destroyed, and the process has made others since: it went on.
bool Watchdog::is_left_behind(u32 group) const noexcept {
  const View& view = recorder_.view;
  const u64 destroyed = group < view.n_groups() ? get(view.group(group)->destroyed_ticks) : 0;
  for (u32 i = 1; i < view.n_groups() && destroyed != 0; ++i) {
    if (get(view.group(i)->created_ticks) > destroyed) {
      return true;
    }
  }
  return false;
}

void Watchdog::check_failures() noexcept {
  const u64 failed = get(recorder_.region.header().failed);
  if (failed == failures_seen_) {
    return;
  }
  const u64 now = monotonic_ns();
  if (failure_dump_ns_ != 0 && now - failure_dump_ns_ < recorder_.options.timeout_ns) {
    return;  // a job that lives with failing operations gets one dump per FR_TIMEOUT_S
  }
  failures_seen_ = failed;
  RecordCopy r;
  RecordCopy last;
  bool found = false, left_behind = false;
  const View& view = recorder_.view;
  for (u32 slot = 0; slot < view.n_slots(); ++slot) {
    if (view.read(slot, r) == Slot::kWhole && r.has_status && r.state == State::kFailed &&
        (!found || r.ended_ticks < last.ended_ticks)) {
      if (is_left_behind(r.payload.group)) {
        left_behind = true;
        continue;
      }
      last = r;
      found = true;
    }
  }
  if (!found && left_behind) {
    return;  // a restart within the process, which later dumps tell of
  }
  failure_dump_ns_ = now;
  char reason[200] = "an operation failed";
  if (found) {
    char what[120];
    describe(view, last, what, sizeof what);
    format(reason, sizeof reason, "%s failed", what);
  }
  dump(reason, Trigger::kFailure);
}

void Watchdog::check_stalls(u64 now) noexcept {
  const View& view = recorder_.view;
  patience_.every_tick(now);
  for (u32 i = 0; i < view.n_groups(); ++i) {
    const GroupRow& g = *view.group(i);
    Stall& s = stalls_[i];
    const u64 in_flight = count_in_flight(g);
    const u64 progress = get(g.ended) + get(g.p2p_ended) + get(g.lifecycle_ended) +
                         get(g.wait_ended) + get(g.wait_only_ended) + get(g.started_seq);
    if (in_flight == 0 || progress != s.progress || s.since_ns == 0) {
      note_progress(s, progress, now);
    } else {
      check_stall(i, in_flight, now);
    }
  }
}

void Watchdog::note_progress(Stall& s, u64 progress, u64 now) noexcept {
  Header& h = recorder_.region.header();
  // An operation ended by an error is no progress: the stall lasts until something succeeds.
  const bool failed = get(h.failed) != hung_failures_;
  if (s.since_ns != 0 && progress != s.progress && patience_.went_on(s.wait, s.since_ns, now)) {
    if (s.warned) {
      h.false_warnings.fetch_add(1);
      if (SiteRow* site = s.wait.site) {
        site->false_warnings.fetch_add(1);
      }
    }
    if (s.incident != 0 && !failed && is_alarm_ && patience_.note_false_dump(s.wait, now)) {
      is_doubled_ = true;
    }
  }
  const u64 incident = failed ? s.incident : 0;
  const u64 hung_since_ns = s.hung_since_ns;
  s = {};
  s.progress = progress;
  s.since_ns = now;
  s.incident = incident;
  s.hung_since_ns = hung_since_ns;
}

void Watchdog::check_stall(u32 group, u64 in_flight, u64 now) noexcept {
  const Recorder& r = recorder_;
  const View& view = r.view;
  Stall& s = stalls_[group];
  if (now > s.since_ns + kPausedLook_ns && r.control->is_paused()) {
    s.since_ns = now;  // whoever waits for a rank in a debugger does not hang
    s.wait = {};
    return;
  }
  const u64 idle = now > s.since_ns ? now - s.since_ns : 0;
  Deadline deadline = patience_.deadline(s.wait, group, now - idle, now);
  if (s.wait.seen.others == Others::kGone && dumped_ns_ + kSecond_ns >= s.since_ns) {
    deadline = {r.options.warn_ns, r.options.timeout_ns};  // the end of that rank has its dump
  }
  s.dump_after_ns = s.put_off_ns != 0 ? s.put_off_ns : deadline.dump_ns;
  const u64 ahead = std::min(s.dump_after_ns / 2, kAskAhead_ns);
  if (r.options.dump_on_timeout && idle + ahead >= s.dump_after_ns) {
    for_each_part(&Part::before_dump, recorder_);
  }
  // Before there is a group the job starts. Ranks that import slowly are ordinary: nothing is said
  // of them before there is a dump.
  const bool starts = view.n_groups() == 1;
  const bool warn = !s.warned && !starts && idle >= deadline.warn_ns;
  const bool dump_now = r.options.dump_on_timeout && idle >= s.dump_after_ns;
  if (!warn && !dump_now) {
    return;
  }
  RecordCopy oldest;
  char what[160] = "an operation that the ring no longer has";
  char device[160] = "";
  char others[120];
  if (oldest_in_flight(view, group, oldest)) {
    describe(view, oldest, what, sizeof what);
    describe_device(view, oldest.ticket, device, sizeof device);
  }
  patience_.describe(s.wait, others, sizeof others);
  char reason[512];
  std::snprintf(reason, sizeof reason, "%s %.1f s: %s, %llu in flight%s%s%s", kNoProgress,
                static_cast<double>(idle) / 1e9, what, static_cast<unsigned long long>(in_flight),
                device[0] != '\0' ? ": " : "", device, others);
  if (warn) {
    s.warned = true;
    queue_warning(reason, now);
  }
  if (dump_now) {
    dump(reason, Trigger::kTimeout);
  }
}

// No operation is in flight, and this node's ranks issue none.
void Watchdog::check_silence(u64 now) noexcept {
  const Silence::Due due = silence_.look(now);
  if (due.is_over && is_alarm_ && silence_.note_false_dump(now)) {
    is_doubled_ = true;
  }
  if (!due.warn && !due.dump) {
    return;
  }
  char reason[512];
  const bool is_fault = silence_.describe(threads_, now, reason, sizeof reason);
  if (due.warn) {
    silence_.note_warned();
    queue_warning(reason, now);
  }
  if (due.dump && is_fault) {
    dump(reason, Trigger::kTimeout);
  } else if (due.dump) {
    silence_.back_off(now);
  }
}

void Watchdog::queue_warning(const char* text, u64 now) noexcept {
  const u64 unix_now = unix_now_ns();
  recorder_.region.header().warned_unix_ns.store(unix_now);
  recorder_.control->note_warning(unix_now);
  if (warning_due_ns_ == 0) {
    format(warning_, sizeof warning_, "%s", text);
    warning_due_ns_ = now + kGather_ns;
  }
}

// One rank of the node says it for all that wait by then.
void Watchdog::warn(u64 now) noexcept {
  if (warning_due_ns_ == 0 || now < warning_due_ns_) {
    return;
  }
  warning_due_ns_ = 0;
  char ranks[200];
  if (recorder_.control->claim_warning(unix_now_ns(), recorder_.options.warn_ns, ranks,
                                       sizeof ranks)) {
    log_line(kLogWarn, "%s%s", ranks, warning_);
  }
}

// Reports tables without room: from then on the recording is partial.
void Watchdog::check_losses() noexcept {
  const Header& h = recorder_.region.header();
  const struct {
    u64 lost;
    const char* text;
  } losses[] = {
      {get(h.groups_lost),
       "no room for more process groups: operations of new ones are counted, but "
       "not attributed to a group"},
      {get(h.strings_lost), "no room for more names: new call sites and operations have none"},
      {get(h.stacks_lost), "no room for more call sites: new ones are not recorded"},
  };
  for (u32 i = 0; i < 3; ++i) {
    if (losses[i].lost != 0 && !loss_said_[i]) {
      loss_said_[i] = true;
      log_line(kLogWarn, "%s", losses[i].text);
    }
  }
}

// Which groups hang in what an incident was opened for.
void Watchdog::mark_hung(u64 incident, bool is_silent, u64 now) noexcept {
  const Recorder& r = recorder_;
  const u64 least = r.options.timeout_ns / 2 < kHung_ns ? r.options.timeout_ns / 2 : kHung_ns;
  bool any = false;
  for (u32 i = 0; i < r.view.n_groups(); ++i) {
    Stall& s = stalls_[i];
    if (s.since_ns != 0 && now > s.since_ns + least && count_in_flight(*r.view.group(i)) != 0) {
      s.hung_since_ns = s.incident == 0 ? s.since_ns : s.hung_since_ns;
      s.incident = incident;
      any = true;
    }
  }
  if (is_silent) {
    silence_.mark_hung(incident, now);
    any = any || silence_.incident() != 0;
  }
  if (any) {
    hung_failures_ = get(r.region.header().failed);
    set_hung(incident);
  }
}

void Watchdog::set_hung(u64 incident) noexcept {
  hung_.store(incident);
  if (PeerRow* row = recorder_.control->own()) {
    row->hung.store(incident);
  }
}

// The hang of the last incident is over where all of its groups made progress.
void Watchdog::check_went_on(u64 now) noexcept {
  const u64 incident = hung_.load();
  if (incident == 0) {
    return;
  }
  if (silence_.incident() != 0) {
    return;
  }
  u64 since_ns = now;
  for (u32 i = 0; i < recorder_.view.n_groups(); ++i) {
    const Stall& s = stalls_[i];
    if (s.incident != 0) {
      return;
    }
    since_ns = s.hung_since_ns != 0 && s.hung_since_ns < since_ns ? s.hung_since_ns : since_ns;
  }
  for (u32 i = 0; i < recorder_.view.n_groups(); ++i) {
    stalls_[i].hung_since_ns = 0;
  }
  const u64 silent_since_ns = silence_.take_hung_since();
  since_ns = silent_since_ns != 0 ? std::min(since_ns, silent_since_ns) : since_ns;
  if (is_alarm_) {
    recorder_.region.header().false_dumps.fetch_add(1);
  }
  char reason[64];
  std::snprintf(reason, sizeof reason, "went on after %.1f s",
                static_cast<double>(now - since_ns) / 1e9);
  dump_incident(incident, reason, Trigger::kWentOn);
  set_hung(0);
  if (recorder_.control->claim_over(incident)) {
    const bool was_silent = silent_since_ns != 0;
    log_line(kLogWarn, "incident %llu is over: the %s %s%s",
             static_cast<unsigned long long>(incident), was_silent ? "job" : "operation", reason,
             !is_doubled_ ? ""
             : was_silent ? "; the deadline of such a silence is doubled"
                          : "; the deadlines of its call site are doubled");
  }
  is_doubled_ = false;
}

void Watchdog::open_pipe() noexcept {
  const Recorder& r = recorder_;
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
    log_line(kLogWarn, "FR_PIPE: cannot make %s: %s", pipe_path_, error_text(errno));
  }
}

// ---------------------------------------------------------------- dumping

bool Watchdog::dump(const char* reason, Trigger trigger) noexcept {
  Recorder& r = recorder_;
  // A failure or the end of a process belongs to the incident that is open; the rest opens its own.
  const bool join = trigger == Trigger::kFailure || trigger == Trigger::kException ||
                    trigger == Trigger::kExit || trigger == Trigger::kCrash ||
                    trigger == Trigger::kEndSignal;
  const u64 incident =
      r.control->open_incident(incident_.load(), r.region.header().rank.load(), reason, join);
  return dump_incident(incident, reason, trigger);
}

bool Watchdog::dump_incident(u64 incident, const char* reason, Trigger trigger) noexcept {
  Recorder& r = recorder_;
  Header& h = r.region.header();
  const u64 begun = monotonic_ns();
  const u64 failed = get(h.failed);
  const u64 head = get(h.head);
  take_anchor(h.last, h.clock_kind);
  if (incident > incident_.load()) {
    h.incident.store(incident);
    incident_.store(incident);
  }
  salvage_.expect_answers(incident_.load(), begun);
  if (trigger == Trigger::kTimeout || trigger == Trigger::kPeer) {
    const bool is_silent = std::strstr(reason, kSilentReason) != nullptr;
    is_alarm_ = is_silent || std::strstr(reason, kNoProgress) != nullptr;
    mark_hung(incident, is_silent, begun);  // before the file is there: it may go on at that moment
  }
  for_each_part(&Part::before_dump, r);
  DumpFacts facts;
  facts.reason = reason;
  facts.trigger = trigger_name(trigger);
  facts.incident = incident;
  facts.control = &r.control->page();
  facts.is_alive = is_alive;
  const bool went_on = trigger == Trigger::kWentOn;
  facts.threads = went_on ? nullptr : threads_.collect();  // where it was is in the first dump
  for (const Part& part : kParts) {
    if (part.ras_answer != nullptr) {
      facts.ras = part.ras_answer(kAnswer_ns);
    }
    if (part.nodes_answer != nullptr && !went_on) {
      facts.nodes = part.nodes_answer(incident);
    }
  }
  const DumpEncoder::Bytes bytes = encoder_.encode(r.view, facts);
  char name[kNameBytes];
  if (r.control->shares_rank()) {
    h.shares_rank.store(1);
  }
  // The first dump of an incident stays as it is, also where a peer wrote it for this rank.
  PeerRow* row = r.control->own();
  const bool first =
      !went_on && own_dump_ != incident && (row == nullptr || get(row->salvaged) != incident + 1);
  format_dump_name(name, sizeof name, h, incident,
                   first ? NameParts::Beside::kNone : NameParts::Beside::kLater, true);
  const bool ok = bytes.data != nullptr && store_.store(name, bytes);
  if (ok && !went_on) {
    own_dump_ = incident;
    dumped_ns_ = begun;
    dumped_head_.store(head);
    if (row != nullptr && store_.is_seen_by_peers()) {
      row->dumped.store(incident);
    }
  }
  back_off(begun);
  if (!ok) {
    h.dumps_failed.fetch_add(1);
    return false;
  }
  failures_dumped_.store(failed);
  // One rank of the node says it.
  const bool quiet = trigger == Trigger::kPeer || trigger == Trigger::kManual || went_on ||
                     !r.control->claim_dump_line(incident);
  log_line(quiet ? kLogInfo : kLogWarn, "dump %llu (%s) in %.1f ms: %s",
           static_cast<unsigned long long>(incident), reason,
           static_cast<double>(monotonic_ns() - begun) / 1e6, store_.last_path());
  store_.prune();
  writer_.queue(incident, reason, store_.last_path());
  if (!went_on && !store_.has_sink()) {
    verdict_.ask(incident);
  }
  return true;
}

// For `frtrace stacks`, which reads the file and removes it: no incident, nothing in FR_DUMP_DIR.
void Watchdog::answer_stacks() noexcept {
  Recorder& r = recorder_;
  if (r.region.name.empty()) {
    return;
  }
  take_anchor(r.region.header().last, r.region.header().clock_kind);
  DumpFacts facts;
  facts.reason = "frtrace stacks";
  facts.trigger = trigger_name(Trigger::kManual);
  facts.incident = incident_.load();
  facts.control = &r.control->page();
  facts.is_alive = is_alive;
  facts.threads = threads_.collect();
  const DumpEncoder::Bytes bytes = encoder_.encode(r.view, facts);
  char name[kNameBytes];
  char path[PATH_MAX];
  format(name, sizeof name, "%s%s", r.region.name.c_str(), kStacksEnding);
  if (bytes.data != nullptr) {
    write_durably(r.region.dir.c_str(), name, bytes.data, bytes.size, path, sizeof path);
  }
}

// Whatever is stalled now has its dump; the next one is for twice the time.
void Watchdog::back_off(u64 now) noexcept {
  const Recorder& r = recorder_;
  silence_.back_off(now);
  for (u32 i = 0; i < r.view.n_groups(); ++i) {
    Stall& s = stalls_[i];
    const u64 idle = now > s.since_ns ? now - s.since_ns : 0;
    if (s.since_ns != 0 && s.dump_after_ns != 0 && idle * 2 > s.dump_after_ns) {
      u64 next = s.dump_after_ns;
      while (next < 2 * idle && next < kMaxBackOff_ns) {
        next *= 2;
      }
      s.put_off_ns = s.dump_after_ns = next;
    }
  }
}

// Longer than Salvage takes to give a peer up, which counts from when the watchdog saw the incident.
void Watchdog::await_peers() noexcept {
  constexpr u64 kLimit_ns = 2'500'000'000;
  constexpr u64 kSettled_ns = 8 * kSecond_ns;  // by then all peers have answered or been salvaged
  const Control& page = recorder_.control->page();
  if (!requests_.is_served() || incident_.load() == recorder_.first_incident ||
      unix_now_ns() - page.incident_unix_ns.load() > kSettled_ns) {
    return;
  }
  const u64 deadline = monotonic_ns() + kLimit_ns;
  while (monotonic_ns() < deadline && salvage_.is_awaited()) {
    wake();
    pause_ns(5'000'000);
  }
}

void set_tick(void (*tick)()) noexcept {
  g_tick.store(tick);
}

void call_tick() noexcept {
  if (const auto tick = g_tick.load()) {
    tick();
  }
}

}  // namespace fr
