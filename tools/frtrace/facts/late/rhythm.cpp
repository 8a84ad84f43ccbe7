#include "facts/late/rhythm.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "facts/late/stragglers.hpp"
#include "facts/limits.hpp"
#include "facts/order/course.hpp"

namespace frtrace {

namespace {

// Records at which steps of the rank begin: its own marks, else its most frequent call.
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
  const std::vector<Change> all = step_changes(e, step_starts(e));
  if (all.empty()) {
    return {};
  }
  const Change& last = all.back();
  if (last.after < limits::kSlowTimes * last.before ||
      last.after - last.before < limits::kSlowLeast_s) {
    return {};
  }
  return SlowerSteps{last.before, last.after, e.records[last.at].time, step_number(e, last.at + 1)};
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

}  // namespace frtrace
