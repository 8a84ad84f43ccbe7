// deadlines.cpp - the table of deadlines, and what moves it.
#include "watch/deadlines.hpp"

#include <algorithm>
#include <cstring>

#include "format/text.hpp"
#include "format/view.hpp"

namespace fr {
namespace {

constexpr auto kInRow = std::memory_order_relaxed;
constexpr u64 kGone_ns = 2'000'000'000;  // an end that is being reported is no hang
// Of a site that nobody knows yet: it may be a first compilation.
constexpr u64 kFirstWarn_ns = 60'000'000'000;
constexpr u64 kFirstDump_ns = 660'000'000'000;  // one of ten minutes, and what comes with it
constexpr u64 kKnown = 5;                       // visits
constexpr u64 kMargin_ns = 60'000'000'000;
constexpr u64 kHalfLife_ns = 3 * 3'600'000'000'000;
constexpr u64 kForgiven_ns = 24 * 3'600'000'000'000;
constexpr u32 kMostDoublings = 3;
constexpr u64 kHalf = 32;  // noted waits of one half of what is recent

u64 longest(const SiteLongest& l) noexcept {
  return std::max({get(l.ns), get(l.recent_ns[0]), get(l.recent_ns[1])});
}

void raise_longest(std::atomic<u64>& to, u64 ns) noexcept {
  if (ns > get(to)) {
    to.store(ns, kInRow);
  }
}

// What a deadline follows from in a state.
SiteLongest& measure(SiteRow& site, Others others) noexcept {
  return others == Others::kCame     ? site.together
         : others == Others::kAsleep ? site.asleep
                                     : site.absent;
}

}  // namespace

const char* words_of(Others others) noexcept {
  switch (others) {
    case Others::kUnseen:
      break;
    case Others::kCame:
      return "all members have come";
    case Others::kAsleep:
      return "a member has not come, and sleeps";
    case Others::kBusy:
      return "a member has not come, and computes";
    case Others::kGone:
      return "a member has ended";
  }
  return "";
}

u64 before_timeout(u64 timeout_ns) noexcept {
  return timeout_ns - std::min(kMargin_ns, timeout_ns / 5);
}

Deadline deadline_of(const SiteRow* site, const Standstill& now, const Floors& floors) noexcept {
  if (!floors.adapt) {
    return {floors.warn_ns, floors.dump_ns};
  }
  if (now.others == Others::kGone) {
    return {floors.warn_is_set ? floors.warn_ns : kGone_ns,
            floors.dump_is_set ? floors.dump_ns : kGone_ns};
  }
  static const SiteRow nothing{};
  const SiteRow& known = site != nullptr ? *site : nothing;
  const bool is_known = get(known.visits) >= kKnown;
  Deadline d{floors.warn_ns, floors.dump_ns};
  if (!is_known) {
    d.warn_ns = floors.warn_is_set ? d.warn_ns : std::max(d.warn_ns, kFirstWarn_ns);
    d.dump_ns = floors.dump_is_set ? d.dump_ns : std::max(d.dump_ns, kFirstDump_ns);
  }
  const auto later = [](const SiteLongest& l, Deadline least, u64 warn, u64 dump) {
    return Deadline{std::max(least.warn_ns, warn * longest(l)) << l.doublings.load(),
                    std::max(least.dump_ns, dump * longest(l)) << l.doublings.load()};
  };
  d = later(known.absent, d, 5, 10);
  // Where nobody is seen to compute, earlier; a state that comes and goes puts that off, but not
  // beyond the time above.
  if (now.others == Others::kCame || now.others == Others::kAsleep) {
    const bool came = now.others == Others::kCame;
    const bool is_early = came && is_known && !floors.dump_is_set;
    const Deadline sooner =
        later(came ? known.together : known.asleep,
              {floors.warn_ns, is_early ? floors.dump_ns / 2 : floors.dump_ns}, 3, 5);
    d = {std::min(d.warn_ns, now.since_ns + sooner.warn_ns),
         std::min(d.dump_ns, now.since_ns + sooner.dump_ns)};
  }
  // torch ends the job at its timeout, and the evidence with it
  return {d.warn_ns, std::min(d.dump_ns, now.limit_ns)};
}

void learn(SiteRow& site, const Waited& waited, u64 now_ns) noexcept {
  decay(site, now_ns);
  const u64 n = get(site.noted);
  const u64 half = n / kHalf % 2;
  const struct {
    SiteLongest& of;
    u64 ns;
  } all[] = {{site.absent, waited.absent_ns},
             {site.asleep, waited.asleep_ns},
             {site.together, waited.together_ns}};
  for (const auto& [of, ns] : all) {
    if (n % kHalf == 0) {
      of.recent_ns[half].store(0, kInRow);
    }
    raise_longest(of.ns, ns);
    raise_longest(of.recent_ns[half], ns);
  }
  site.noted.store(n + 1, kInRow);
}

void decay(SiteRow& site, u64 now_ns) noexcept {
  u64 last = get(site.decayed_ns);
  if (last == 0 || last > now_ns) {
    site.decayed_ns.store(last = now_ns, kInRow);
  }
  const u64 halves = (now_ns - last) / kHalfLife_ns;
  site.decayed_ns.store(last + halves * kHalfLife_ns, kInRow);
  for (SiteLongest* l : {&site.absent, &site.asleep, &site.together}) {
    l->ns.store(halves < 64 ? get(l->ns) >> halves : 0, kInRow);
    const u32 doublings = l->doublings.load();
    if (doublings != 0 && now_ns >= get(l->alarmed_ns) + kForgiven_ns) {
      l->doublings.store(doublings - 1, kInRow);
      l->alarmed_ns.store(now_ns, kInRow);
    }
  }
}

bool note_false_dump(SiteRow& site, Others others, u64 now_ns) noexcept {
  SiteLongest& l = measure(site, others);
  l.false_dumps.store(l.false_dumps.load() + 1, kInRow);
  l.alarmed_ns.store(now_ns, kInRow);
  const u32 doublings = l.doublings.load();
  if (doublings >= kMostDoublings) {
    return false;
  }
  l.doublings.store(doublings + 1, kInRow);
  return true;
}

SiteRow& site_of(SiteRow* rows, u32 n, u64 key, const char* text) noexcept {
  const u32 home = static_cast<u32>(key % (n - 1));
  for (u32 i = 0; i + 1 < n; ++i) {
    SiteRow& row = rows[(home + i) % (n - 1)];
    if (row.key.load(kInRow) == key) {
      return row;
    }
    if (row.key.load(kInRow) == 0) {
      format_line(row.text, sizeof row.text, text, std::strlen(text));
      row.key.store(key, std::memory_order_release);
      return row;
    }
  }
  SiteRow& rest = rows[n - 1];
  if (rest.key.load(kInRow) == 0) {
    format(rest.text, sizeof rest.text, "%s", "other call sites");
    rest.key.store(~0ull, std::memory_order_release);
  }
  return rest;
}

}  // namespace fr
