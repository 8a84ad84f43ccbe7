#include "facts/late/rhythm.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "facts/late/series.hpp"
#include "facts/late/stragglers.hpp"
#include "facts/limits.hpp"
#include "facts/order/course.hpp"

namespace frtrace {

namespace {

// Records at which a step of the rank begins: its own marks, else one call site's.
std::vector<std::size_t> step_starts(const RankEvidence& e) {
  using Place = std::tuple<std::uint32_t, Id, std::uint32_t>;  // group, operation, stack
  std::vector<std::size_t> steps;
  std::map<Place, std::vector<std::size_t>> calls;
  for (std::size_t r = 0; r < e.records.size(); ++r) {
    const Record& one = e.records[r];
    if (one.kind == Kind::kStep) {
      steps.push_back(r);
    } else if (one.kind == Kind::kCollective) {
      calls[{one.group, one.op, one.stack}].push_back(r);
    }
  }
  if (steps.size() >= 2 * limits::kChangeFewest || calls.empty()) {
    return steps;
  }
  return std::ranges::max_element(calls, {}, [](const auto& x) { return x.second.size(); })->second;
}

std::optional<SlowerSteps> slower_steps_of(const RankEvidence& e) {
  const std::vector<std::size_t> at = step_starts(e);
  std::vector<double> gaps_s;
  for (std::size_t k = 1; k < at.size(); ++k) {
    gaps_s.push_back(seconds_between(e.records[at[k - 1]].time, e.records[at[k]].time));
  }
  const std::vector<Change> all = changes(gaps_s);
  if (all.empty()) {
    return {};
  }
  const Change& last = all.back();
  if (last.after < limits::kSlowTimes * last.before ||
      last.after - last.before < limits::kSlowLeast_s) {
    return {};
  }
  const std::size_t first = at[std::min(last.at, at.size() - 1)];
  return SlowerSteps{last.before, last.after, e.records[first].time, step_number(e, first + 1)};
}

}  // namespace

std::optional<SlowerSteps> slower_steps(const Case& c) {
  std::optional<SlowerSteps> out;
  for (const RankEvidence* e : c.ranks) {
    const auto own = slower_steps_of(*e);
    if (!own || (out && std::abs(seconds_between(out->since, own->since)) > 3 * own->after_s)) {
      return {};
    }
    out = out ? out : own;
  }
  return c.missing.empty() ? out : std::nullopt;
}

std::optional<LateTurns> late_in_turn(const Case& c, const std::vector<Slots>& slots) {
  bool by_clocks = false;
  LateTurns out;
  double late_s = 0;
  std::map<int, std::uint32_t> last;
  for (const Arrivals& site : arrivals(c, slots, by_clocks)) {
    out.of += site.slots;
    for (const Arrivals::Member& m : site.members) {
      const auto long_s = [&](float s) { return s >= limits::kTurnLeast_s; };
      for (const float s : m.each_s) {
        late_s += long_s(s) ? static_cast<double>(s) : 0;
        out.late += long_s(s) ? 1 : 0;
        last[m.evidence] += long_s(s) ? 1 : 0;
      }
    }
  }
  Time first = 0, end = 0;
  for (const RankEvidence* e : c.ranks) {
    if (!e->records.empty()) {
      first = first == 0 ? e->records.front().time : std::min(first, e->records.front().time);
      end = std::max(end, e->records.back().time);
    }
  }
  std::erase_if(last, [](const auto& x) { return x.second == 0; });
  out.ranks = last.size();
  out.share = end > first ? late_s / seconds_between(first, end) : 0;
  out.each_s = out.late != 0 ? late_s / static_cast<double>(out.late) : 0;
  const bool most = 4 * out.ranks >= 3 * c.ranks.size();  // else the work is uneven
  const bool counts = !by_clocks && out.ranks >= 2 && most && out.late >= limits::kTurnsFewest &&
                      out.share >= limits::kTurnShare;
  return counts ? std::optional(out) : std::nullopt;
}

}  // namespace frtrace
