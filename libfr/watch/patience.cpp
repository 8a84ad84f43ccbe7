// patience.cpp - looks once a second at a group that stands still.
#include "watch/patience.hpp"

#include <algorithm>
#include <cstdio>

#include "format/call_site.hpp"
#include "format/ticks.hpp"
#include "recorder/recorder.hpp"
#include "watch/attend.hpp"

namespace fr {
namespace {

// Whether a process computes takes two looks: what they say then was so from the beginning.
constexpr u64 kSettled_ns = 3'000'000'000;

}  // namespace

void Patience::every_tick(u64 now) noexcept {
  if (floors_.adapt) {
    sites_.count_visits(now);
  }
}

void Patience::look(Standing& w, u32 group, u64 since, u64 now) noexcept {
  static RecordCopy r;  // of the watchdog's thread
  const View& view = recorder_.view;
  if (w.site == nullptr) {
    if (!oldest_in_flight(view, group, r)) {
      return;
    }
    const TickClock clock(view.header());
    w.site = &sites_.of(r);
    w.ticket = r.ticket;
    w.began_unix_ns = clock.unix_ns(r.payload.ticks);
    w.failed = get(view.header().failed);
    w.state_since_ns = since;
    w.limit_ns = ~0ull;
    if (r.payload.timeout_ms != 0 && w.began_unix_ns != 0) {
      const u64 before_ns = before_timeout(u64{r.payload.timeout_ms} * 1'000'000);
      const u64 age_ns = unix_now_ns() - w.began_unix_ns;
      const u64 lead_ns = age_ns > now - since ? age_ns - (now - since) : 0;
      w.limit_ns = before_ns > lead_ns ? before_ns - lead_ns : 0;
    }
  } else if (view.read(static_cast<u32>(w.ticket % view.n_slots()), r) != Slot::kWhole ||
             r.ticket != w.ticket) {
    return;
  }
  AbsentRanks::Seen seen = absent_.look(r, now);
  u64 settled = kSettled_ns;
  if (now - since >= asked_from(floors_)) {
    ask_attendance(recorder_, seen, now);
    settled += seen.key != 0 ? asked_from(floors_) + told_within(recorder_) : 0;
  }
  if (seen.others != w.seen.others) {
    if (w.seen.others == Others::kAsleep) {
      w.asleep_ns = std::max(w.asleep_ns, now - w.state_since_ns);
    }
    w.state_since_ns = now - since < settled ? since : now;
  }
  if (seen.others == Others::kCame) {
    w.state_since_ns = std::max(since, now > seen.came_ago_ns ? now - seen.came_ago_ns : 0);
  }
  w.seen = seen;
  w.looked_ns = now;
}

Deadline Patience::deadline(Standing& w, u32 group, u64 since, u64 now) noexcept {
  const u64 noted = noted_from(floors_);
  if (!floors_.adapt || now - since < noted) {
    return {floors_.warn_ns, floors_.dump_ns};
  }
  if (w.looked_ns == 0 || now - w.looked_ns >= noted) {
    look(w, group, since, now);
  }
  return deadline_of(w.site,
                     {w.seen.others, w.state_since_ns > since ? w.state_since_ns - since : 0,
                      w.site != nullptr ? w.limit_ns : ~0ull},
                     floors_);
}

bool Patience::went_on(Standing& w, u64 since, u64 now) noexcept {
  if (w.site == nullptr) {
    return true;
  }
  if (get(recorder_.view.header().failed) != w.failed) {
    return false;
  }
  const bool came = w.seen.others == Others::kCame;
  const u64 together = came ? now - w.state_since_ns : 0;
  if (w.seen.others == Others::kAsleep) {
    w.asleep_ns = std::max(w.asleep_ns, now - w.state_since_ns);
  }
  if (w.seen.others == Others::kUnseen && w.seen.key != 0) {
    w.asleep_ns = std::max(w.asleep_ns, now - since);  // on another node, for all that is known
  }
  learn(*w.site, {now - since - together, w.asleep_ns, together}, now);
  return true;
}

bool Patience::note_false_dump(const Standing& w, u64 now) noexcept {
  return w.site != nullptr && fr::note_false_dump(*w.site, w.seen.others, now);
}

void Patience::describe(const Standing& w, char* out, std::size_t bytes) const noexcept {
  out[0] = '\0';
  const AbsentRanks::Seen& s = w.seen;
  std::size_t used = 0;
  const auto add = [&](const char* text, auto... values) {
    const int n = std::snprintf(out + used, bytes - used, text, values...);
    used = std::min(bytes - 1, used + static_cast<std::size_t>(std::max(n, 0)));
  };
  if (s.others == Others::kCame) {
    add("; all members have come");
  } else if (s.others == Others::kGone) {
    add("; rank %d has ended", s.absent);
  } else if (s.absent >= 0 && s.seq != kNoSeq) {
    if (s.more_absent == 0) {
      add("; rank %d has not come", s.absent);
    } else {
      add("; rank %d and %u more have not come", s.absent, s.more_absent);
    }
    if (s.others == Others::kBusy && s.busy == s.absent && s.more_absent == 0) {
      add(", it computes");
    } else if (s.others == Others::kBusy) {
      add(", rank %d computes", s.busy);
    }
  }
  const u64 longest = w.site != nullptr ? longest_ns(*w.site) : 0;
  if (longest >= 1'000'000'000) {
    add("; it took %.1f s here before", static_cast<double>(longest) / 1e9);
  }
}

}  // namespace fr
