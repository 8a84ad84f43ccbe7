// slower_steps.cpp - compares the newest steps of a rank with those before them.
#include "watch/slower_steps.hpp"

#include <algorithm>
#include <climits>
#include <cstdio>

#include "format/text.hpp"
#include "format/ticks.hpp"
#include "recorder/log.hpp"
#include "recorder/recorder.hpp"
#include "sample/map_file.hpp"
#include "watch/control_page.hpp"
#include "watch/main_thread.hpp"

namespace fr {
namespace {

constexpr u64 kEvery_ns = 5'000'000'000;
constexpr u64 kRecords = 4096;  // the newest of a ring
constexpr u32 kSteps = 256;     // the newest of them
constexpr u32 kNewest = 5;      // steps that must be long
constexpr u32 kFewestBefore = 20;
constexpr u64 kTimes = 3;
constexpr u64 kLeast_ns = 50'000'000;

struct Mark {
  u64 issued_ns;  // unix
  u64 idle_ns;    // time with no operation in flight, summed up to it
  i64 number;     // of fr.step; -1 none
};

// The begins of the newest steps, oldest first.
struct Marks {
  Mark all[kSteps + 1];
  u32 n = 0;
  void add(const Mark& mark) noexcept {
    if (n == kSteps + 1) {
      std::copy(all + 1, all + n, all);
      --n;
    }
    all[n++] = mark;
  }
};

template <class Fn>
void each_record(const View& view, Fn fn) noexcept {
  static RecordCopy r;  // of the watchdog's thread
  const u64 head = get(view.header().head);
  const u64 n = std::min<u64>({head, view.n_slots(), kRecords});
  for (u64 ticket = head - n; ticket != head; ++ticket) {
    if (view.read(static_cast<u32>(ticket % view.n_slots()), r) == Slot::kWhole &&
        r.ticket == ticket) {
      fn(r);
    }
  }
}

bool is_same_place(const Payload& a, const Payload& b) noexcept {
  return a.group == b.group && a.op == b.op && a.stack == b.stack && a.in_numel == b.in_numel;
}

// Whether fr.step marks the steps; else `newest` is the newest completed collective.
bool find_place(const View& view, Payload& newest) noexcept {
  u32 steps = 0;
  newest = {};
  each_record(view, [&](const RecordCopy& r) {
    steps += r.payload.kind == FR_STEP ? 1 : 0;
    if (r.payload.kind == FR_COLLECTIVE && r.has_status && r.state == State::kCompleted) {
      newest = r.payload;
    }
  });
  return steps > kNewest + kFewestBefore;
}

void find_marks(const View& view, Marks& marks) noexcept {
  const TickClock clock(view.header());
  Payload place;
  const bool by_steps = find_place(view, place);
  u64 busy_until_ns = 0, idle_ns = 0;
  each_record(view, [&](const RecordCopy& r) {
    const bool is_step = r.payload.kind == FR_STEP;
    if (!is_step && r.payload.kind > FR_RECV) {
      return;
    }
    const u64 issued_ns = clock.unix_ns(r.payload.ticks);
    const u64 idle_to_here_ns =
        idle_ns + (busy_until_ns != 0 && issued_ns > busy_until_ns ? issued_ns - busy_until_ns : 0);
    if (by_steps ? is_step : r.payload.kind == FR_COLLECTIVE && is_same_place(r.payload, place)) {
      marks.add({issued_ns, idle_to_here_ns, is_step ? static_cast<i64>(r.payload.seq) : -1});
    }
    if (!is_step) {
      idle_ns = idle_to_here_ns;
      const u64 ended_ns = r.has_status ? clock.unix_ns(r.ended_ticks) : 0;
      busy_until_ns = std::max({busy_until_ns, issued_ns, ended_ns});
    }
  });
}

u64 median(const u64* values, u32 n) noexcept {
  u64 sorted[kSteps];
  std::copy(values, values + n, sorted);
  std::nth_element(sorted, sorted + n / 2, sorted + n);
  return sorted[n / 2];
}

}  // namespace

bool StepTimes::are_slower() const noexcept {
  return before_ns != 0 && now_ns >= kTimes * before_ns && now_ns - before_ns >= kLeast_ns;
}

bool StepTimes::are_idle() const noexcept {
  return idle_now_ns > idle_before_ns && idle_now_ns - idle_before_ns > (now_ns - before_ns) / 2;
}

StepTimes step_times(const View& view) noexcept {
  static constinit Marks marks{};  // of the watchdog's thread
  marks.n = 0;
  find_marks(view, marks);
  if (marks.n <= kNewest + kFewestBefore) {
    return {};
  }
  u64 step_ns[kSteps], idle_ns[kSteps];
  const u32 n = marks.n - 1;
  for (u32 i = 0; i < n; ++i) {
    const Mark &from = marks.all[i], &to = marks.all[i + 1];
    step_ns[i] = to.issued_ns > from.issued_ns ? to.issued_ns - from.issued_ns : 0;
    idle_ns[i] = to.idle_ns - from.idle_ns;
  }
  const u32 before = n - kNewest;
  StepTimes out;
  out.before_ns = median(step_ns, before);
  out.idle_before_ns = median(idle_ns, before);
  out.now_ns = median(step_ns + before, kNewest);
  out.idle_now_ns = median(idle_ns + before, kNewest);
  u32 first = before;
  while (first > 0 && step_ns[first - 1] >= (out.before_ns + out.now_ns) / 2) {
    --first;
  }
  out.since_unix_ns = marks.all[first].issued_ns;
  out.since_step = marks.all[first].number;
  return out;
}

bool SlowerSteps::is_first_of_node() const noexcept {
  for (const PeerRow& peer : recorder_.control->page().peers) {
    if (peer.state.load(std::memory_order_acquire) == kPeerLive) {
      return &peer == recorder_.control->own();
    }
  }
  return false;
}

void SlowerSteps::tell(const StepTimes& own, u32 ranks, ThreadStacks& threads) noexcept {
  char since[64], place[256] = "";
  if (own.since_step >= 0) {
    std::snprintf(since, sizeof since, "since step %lld", static_cast<long long>(own.since_step));
  } else {
    std::snprintf(since, sizeof since, "for %.1f s",
                  static_cast<double>(unix_now_ns() - own.since_unix_ns) / 1e9);
  }
  main_place(threads, recorder_.region.header().rank.load(), recorder_.pid, place, sizeof place);
  const auto ms = [](u64 ns) { return static_cast<double>(ns) / 1e6; };
  log_line(kLogWarn,
           "all %u ranks of this node became slow: a step takes %.3g ms %s (%.3g ms before), "
           "%.3g ms of it with no operation in flight (%.3g ms before)%s%s",
           ranks, ms(own.now_ns), since, ms(own.before_ns), ms(own.idle_now_ns),
           ms(own.idle_before_ns), place[0] != '\0' ? "; " : "", place);
}

void SlowerSteps::look(u64 now, ThreadStacks& threads) noexcept {
  if (has_told_ || now - looked_ns_ < kEvery_ns || !recorder_.control->is_shared()) {
    return;
  }
  looked_ns_ = now;
  if (!is_first_of_node()) {
    return;
  }
  const StepTimes own = step_times(recorder_.view);
  if (!own.are_slower()) {
    return;
  }
  u32 ranks = 1;
  for (const PeerRow& peer : recorder_.control->page().peers) {
    if (&peer == recorder_.control->own() || peer.ring[0] == '\0' ||
        peer.state.load(std::memory_order_acquire) != kPeerLive) {
      continue;
    }
    char path[PATH_MAX];
    format(path, sizeof path, "%s/%s", recorder_.region.dir.c_str(), peer.ring);
    Mapping m = map_file(path);
    const View view = View::of(m.base, m.bytes);
    const StepTimes theirs = view.ok() ? step_times(view) : StepTimes{};
    unmap_file(m);
    // One rank that is slow makes the others wait in operations: LateRank tells of it.
    if (!theirs.are_slower() || theirs.are_idle() != own.are_idle()) {
      return;
    }
    ++ranks;
  }
  if (ranks > 1) {
    has_told_ = true;
    tell(own, ranks, threads);
  }
}

}  // namespace fr
