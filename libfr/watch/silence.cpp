// silence.cpp - when silence is too long, and what the main thread does meanwhile.
#include "watch/silence.hpp"

#include <sys/syscall.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "format/hash.hpp"
#include "format/silence.hpp"
#include "format/syscalls.hpp"
#include "format/ticks.hpp"
#include "fr/fr.h"
#include "recorder/in_flight.hpp"
#include "recorder/recorder.hpp"
#include "sample/proc_task.hpp"
#include "watch/control_page.hpp"
#include "watch/main_thread.hpp"

namespace fr {
namespace {

constexpr u64 kLook_ns = 1'000'000'000;
constexpr u64 kVisit_ns = 1'000'000'000;
constexpr u64 kSettled_ns = 3'000'000'000;  // see patience.cpp
constexpr u64 kOtherNodes_ns =
    5'000'000'000;  // a rank elsewhere that waits tells more: it is first
constexpr u64 kMaxBackOff_ns = 3'600'000'000'000;
constexpr u32 kGaps = 32;
constexpr u32 kFewestGaps = 8;

bool has_group(const View& view) noexcept {
  for (u32 i = 1; i < view.n_groups(); ++i) {
    if (get(view.group(i)->destroyed_ticks) == 0) {
      return true;
    }
  }
  return false;
}

// A rank that is watched before it makes its first group: see python/fr/early.py.
bool has_not_begun(const View& view) noexcept {
  return view.n_groups() <= 1 && get(view.header().head) == 0;
}

bool has_met(const View& view) noexcept {
  for (u32 i = 1; i < view.n_groups(); ++i) {
    if ((get(view.group(i)->issued) & kSeqMask) + get(view.group(i)->p2p_issued) != 0) {
      return true;
    }
  }
  return false;
}

bool awaits_requests(const Task& main) noexcept {
  return main.syscall == SYS_epoll_pwait || main.syscall == SYS_accept4 ||
#ifdef SYS_epoll_wait
         main.syscall == SYS_epoll_wait ||
#endif
         main.syscall == SYS_accept;
}

}  // namespace

void Silence::init() noexcept {
  static SiteRow unlearned{};  // FR_ADAPT=0
  SiteRow* rows = recorder_.region.section<SiteRow>(kSecSites);
  if (!floors_.adapt) {
    site_ = &unlearned;
  } else if (rows != nullptr) {
    const u64 key = hash_bytes(kSilentSite, std::strlen(kSilentSite)) | 1;
    site_ = &site_of(rows, kSites, key, kSilentSite);
  }
}

// A program that ended its groups, that exits or that a debugger holds is not silent, nor is a
// single rank.
bool Silence::may_be_silent() const noexcept {
  const View& view = recorder_.view;
  return site_ != nullptr && view.header().world_size.load() > 1 &&
         (has_group(view) || has_not_begun(view)) && recorder_.exit_stack.load() == 0 &&
         !recorder_.control->is_paused();
}

// True: a silence that was dumped is over.
bool Silence::note_progress(u64 now) noexcept {
  if (floors_.adapt && (visited_ns_ == 0 || now >= visited_ns_ + kVisit_ns)) {
    visited_ns_ = now;
    site_->visits.store(get(site_->visits) + 1, std::memory_order_relaxed);
  }
  const bool was_dumped = incident_ != 0;
  if (now_.looked_ns != 0 && now - now_.since_ns >= noted_from(floors_)) {
    const u64 asleep_ns = now_.is_busy ? 0 : now - now_.asleep_from_ns;
    if (floors_.adapt) {
      learn(*site_, {now - now_.since_ns, std::max(now_.longest_asleep_ns, asleep_ns), 0}, now);
    }
    if (now_.is_warned) {
      recorder_.region.header().false_warnings.fetch_add(1);
      site_->false_warnings.fetch_add(1);
    }
  }
  now_ = {};
  now_.since_ns = now;
  incident_ = 0;
  return was_dumped;
}

// False: a rank of the node issued something, or waits in an operation.
bool Silence::look_at_node(u64 now) noexcept {
  const AbsentRanks::Node node = absent_.look_at_node(now);
  const bool is_first = now_.looked_ns == 0;
  now_.looked_ns = now;
  if (node.is_in_flight || (!is_first && node.progress != now_.node_progress)) {
    return false;
  }
  now_.node_progress = node.progress;
  const bool is_busy = node.busy >= 0;
  if (is_first || is_busy != now_.is_busy) {
    if (!is_first && is_busy) {
      now_.longest_asleep_ns = std::max(now_.longest_asleep_ns, now - now_.asleep_from_ns);
    }
    now_.asleep_from_ns = now - now_.since_ns < kSettled_ns ? now_.since_ns : now;
    now_.is_busy = is_busy;
  }
  return true;
}

Silence::Due Silence::look(u64 now) noexcept {
  const View& view = recorder_.view;
  const u64 head = get(view.header().head);
  if (head != head_ || count_in_flight(view) != 0 || now_.since_ns == 0 || !may_be_silent()) {
    const bool has_issued = head != head_ && now_.since_ns != 0 && site_ != nullptr;
    head_ = head;
    Due due;
    due.is_over = has_issued && note_progress(now);
    if (!has_issued) {
      now_ = {};
      now_.since_ns = now;
    }
    return due;
  }
  const u64 idle_ns = now > now_.since_ns ? now - now_.since_ns : 0;
  if (idle_ns < noted_from(floors_)) {
    return {};
  }
  if (now >= now_.looked_ns + std::min(kLook_ns, noted_from(floors_)) && !look_at_node(now)) {
    Due due;
    due.is_over = note_progress(now);
    return due;
  }
  const u64 asleep_from_ns = now_.asleep_from_ns - std::min(now_.asleep_from_ns, now_.since_ns);
  const Deadline d =
      silence_deadline_of(*site_, {now_.is_busy, has_met(view), asleep_from_ns}, floors_);
  const Header& h = view.header();
  const bool has_other_nodes = h.world_size.load() > h.local_world_size || h.local_world_size == 0;
  now_.dump_after_ns =
      now_.put_off_ns != 0 ? now_.put_off_ns : d.dump_ns + (has_other_nodes ? kOtherNodes_ns : 0);
  Due due;
  due.warn = !now_.is_warned && idle_ns >= d.warn_ns;
  due.dump = recorder_.options.dump_on_timeout && idle_ns >= now_.dump_after_ns;
  return due;
}

// The median of the last gaps between two operations; 0: too few.
u64 Silence::usual_gap_ns() const noexcept {
  static RecordCopy r;  // of the watchdog's thread
  const View& view = recorder_.view;
  const TickClock clock(view.header());
  u64 gaps_ns[kGaps];
  u32 n = 0;
  u64 later_ns = 0;
  const u64 head = get(view.header().head);
  for (u64 back = 1; back <= head && back <= view.n_slots() && back <= 8 * kGaps && n < kGaps;
       ++back) {
    const u64 ticket = head - back;
    if (view.read(static_cast<u32>(ticket % view.n_slots()), r) != Slot::kWhole ||
        r.ticket != ticket || r.payload.kind > FR_RECV) {
      continue;
    }
    const u64 issued_ns = clock.unix_ns(r.payload.ticks);
    if (later_ns > issued_ns) {
      gaps_ns[n++] = later_ns - issued_ns;
    }
    later_ns = issued_ns;
  }
  std::sort(gaps_ns, gaps_ns + n);
  return n >= kFewestGaps ? gaps_ns[n / 2] : 0;
}

bool Silence::describe(ThreadStacks& threads, u64 now, char* out, std::size_t bytes) noexcept {
  std::size_t used = 0;
  const auto add = [&](const char* text, auto... values) {
    const int n = std::snprintf(out + used, bytes - used, text, values...);
    used = std::min(bytes - 1, used + static_cast<std::size_t>(std::max(n, 0)));
  };
  add("%s %.1f s", kSilentReason, static_cast<double>(now - now_.since_ns) / 1e9);
  const u64 gap_ns = usual_gap_ns();
  if (gap_ns >= 1'000'000'000) {
    add(" (usually every %.1f s)", static_cast<double>(gap_ns) / 1e9);
  } else if (gap_ns != 0) {
    add(" (usually every %.3g ms)", static_cast<double>(gap_ns) / 1e6);
  }
  const i32 rank = recorder_.region.header().rank.load();
  Task task{};
  task.tid = recorder_.pid;
  if (sample_first(recorder_.pid, task) && sample_again(recorder_.pid, task, now, now) &&
      awaits_requests(task)) {
    add("; rank %d awaits requests in %s", rank, syscall_name(task.syscall));
    return false;
  }
  char place[256] = "";
  const MainPlace at = main_place(threads, rank, recorder_.pid, place, sizeof place);
  if (at != MainPlace::kUnknown) {
    add("; %s", place);
  }
  return at != MainPlace::kPrompt;
}

void Silence::back_off(u64 now) noexcept {
  const u64 idle_ns = now > now_.since_ns ? now - now_.since_ns : 0;
  if (now_.since_ns == 0 || now_.dump_after_ns == 0 || idle_ns * 2 <= now_.dump_after_ns) {
    return;
  }
  u64 next_ns = now_.dump_after_ns;
  while (next_ns < 2 * idle_ns && next_ns < kMaxBackOff_ns) {
    next_ns *= 2;
  }
  now_.put_off_ns = now_.dump_after_ns = next_ns;
}

void Silence::put_off(u64 ns) noexcept {
  now_.since_ns += now_.since_ns != 0 ? ns : 0;
  now_.asleep_from_ns += now_.asleep_from_ns != 0 ? ns : 0;
}

void Silence::mark_hung(u64 incident, u64 now) noexcept {
  const bool is_silent = now_.since_ns != 0 && now_.looked_ns != 0;
  if (is_silent && now > now_.since_ns) {
    hung_since_ns_ = incident_ == 0 ? now_.since_ns : hung_since_ns_;
    incident_ = incident;
    dumped_as_ = now_.is_busy ? Others::kBusy : Others::kAsleep;
  }
}

u64 Silence::take_hung_since() noexcept {
  const u64 since_ns = hung_since_ns_;
  hung_since_ns_ = 0;
  return since_ns;
}

bool Silence::note_false_dump(u64 now) noexcept {
  return floors_.adapt && fr::note_false_dump(*site_, dumped_as_, now);
}

}  // namespace fr
