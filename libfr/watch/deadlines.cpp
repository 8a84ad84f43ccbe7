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
// For a call site not seen before: it may be a first compilation.
constexpr u64 kFirstWarn_ns = 60'000'000'000;
constexpr u64 kFirstDump_ns = 660'000'000'000;  // one of ten minutes, and what comes with it
constexpr u64 kKnown = 5;                       // visits
constexpr u32 kHalfLife_s = 3 * 3600;
constexpr u32 kForgiven_s = 24 * 3600;
constexpr u16 kMostDoublings = 3;
constexpr u32 kHalf = 32;  // noted waits of one half of what is recent

u64 longest_ns(const SiteLongest& l) noexcept {
  return u64{std::max({l.ms.load(), l.recent_ms[0].load(), l.recent_ms[1].load()})} * 1'000'000;
}

// Rounded up: what was waited is never past its own deadline.
u32 in_ms(u64 ns) noexcept {
  return static_cast<u32>(std::min<u64>((ns + 999'999) / 1'000'000, ~0u));
}

u32 in_s(u64 ns) noexcept {
  return static_cast<u32>(ns / 1'000'000'000);
}

void raise_longest(std::atomic<u32>& to, u32 ms) noexcept {
  to.store(std::max(to.load(kInRow), ms), kInRow);
}

// The learned times that a state's deadline follows from.
SiteLongest& measure(SiteRow& site, Others others) noexcept {
  return others == Others::kCame     ? site.together
         : others == Others::kAsleep ? site.asleep
                                     : site.absent;
}

}  // namespace

u64 longest_ns(const SiteRow& site) noexcept {
  return std::max(longest_ns(site.absent), longest_ns(site.together));
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
    return Deadline{std::max(least.warn_ns, warn * longest_ns(l)) << l.doublings.load(),
                    std::max(least.dump_ns, dump * longest_ns(l)) << l.doublings.load()};
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

Deadline silence_deadline_of(const SiteRow& site, const Silent& now,
                             const Floors& floors) noexcept {
  const Others others = now.is_busy ? Others::kBusy : Others::kAsleep;
  Deadline d = deadline_of(&site, {others, now.asleep_from_ns, ~0ull}, floors);
  // Silences vary more than waits for a rank: a server's gaps, a data set that is opened anew.
  const u64 asleep_ns = floors.adapt ? longest_ns(site.asleep) << site.asleep.doublings.load() : 0;
  d.warn_ns = std::max(d.warn_ns, now.asleep_from_ns + 5 * asleep_ns);
  d.dump_ns = std::max(d.dump_ns, now.asleep_from_ns + 10 * asleep_ns);
  const bool is_ordinary = get(site.visits) < kKnown || !floors.adapt;
  const auto is_late = [&](bool is_set) {
    return now.is_busy || !now.has_met || (is_ordinary && !is_set);
  };
  if (is_late(floors.warn_is_set)) {
    d.warn_ns = std::max(d.warn_ns, kFirstWarn_ns);
  }
  if (is_late(floors.dump_is_set)) {
    d.dump_ns = std::max(d.dump_ns, kFirstDump_ns);
  }
  return d;
}

void learn(SiteRow& site, const Waited& waited, u64 now_ns) noexcept {
  decay(site, now_ns);
  const u32 n = site.noted.load();
  const u32 half = n / kHalf % 2;
  const struct {
    SiteLongest& of;
    u64 ns;
  } all[] = {{site.absent, waited.absent_ns},
             {site.asleep, waited.asleep_ns},
             {site.together, waited.together_ns}};
  for (const auto& [of, ns] : all) {
    if (n % kHalf == 0) {
      of.recent_ms[half].store(0, kInRow);
    }
    raise_longest(of.ms, in_ms(ns));
    raise_longest(of.recent_ms[half], in_ms(ns));
  }
  site.noted.store(n + 1, kInRow);
}

void decay(SiteRow& site, u64 now_ns) noexcept {
  const u32 now_s = in_s(now_ns);
  u32 last_s = site.decayed_s.load();
  if (last_s == 0 || last_s > now_s) {
    last_s = now_s;
  }
  const u32 halves = (now_s - last_s) / kHalfLife_s;
  site.decayed_s.store(last_s + halves * kHalfLife_s, kInRow);
  for (SiteLongest* l : {&site.absent, &site.asleep, &site.together}) {
    l->ms.store(halves < 32 ? l->ms.load() >> halves : 0, kInRow);
    const u16 doublings = l->doublings.load();
    if (doublings != 0 && now_s >= l->alarmed_s.load() + kForgiven_s) {
      l->doublings.store(static_cast<u16>(doublings - 1), kInRow);
      l->alarmed_s.store(now_s, kInRow);
    }
  }
}

bool note_false_dump(SiteRow& site, Others others, u64 now_ns) noexcept {
  SiteLongest& l = measure(site, others);
  l.false_dumps.store(static_cast<u16>(std::min(l.false_dumps.load() + 1, 0xffff)), kInRow);
  l.alarmed_s.store(in_s(now_ns), kInRow);
  const u16 doublings = l.doublings.load();
  if (doublings >= kMostDoublings) {
    return false;
  }
  l.doublings.store(static_cast<u16>(doublings + 1), kInRow);
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
