// One that goes on with another round, where most came to something new.
#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "model/contains.hpp"

namespace frtrace {

namespace {

// Ranks that issued a collective, and their steps of it.
using Came = std::map<int, std::size_t>;

// The members that issued that collective, of many the first, if it was new to each of them; else none.
Came came_new_to(const Facts& f, const Pending& op) {
  const Group& g = f.group(op.group);
  Came came;
  for (std::size_t m = 0; m < std::min(g.ranks.size(), limits::kVoters); ++m) {
    if (const auto at = step_of_member(f, op.group, m, op.seq)) {
      if (!came_to_new(f, g.evidence[m], *at)) {
        return {};
      }
      came[g.evidence[m]] = *at;
    }
  }
  return came;
}

// A peer issued there what the rank waits in before it came to that: the rank is behind, and not a round
// ahead.
bool is_behind(const Facts& f, int i, std::uint64_t came_to) {
  const std::vector<std::uint64_t>& own = f.anomalies.roles(i);
  const std::size_t stuck = f.stuck_step(i);
  return stuck < own.size() && std::ranges::any_of(
                                   f.anomalies.peers(i, true),
                                   [&](int j) {
                                     const auto at = f.anomalies.place_at(j, i, stuck);
                                     const auto its =
                                         std::span(f.anomalies.roles(j)).subspan(at ? *at : 0);
                                     return at && !its.empty() && its.front() == own[stuck] &&
                                            std::ranges::find(its, came_to) != its.end();
                                   });
}

// Amid its rounds, as far as its records show where these begin, the rank was due in something else; or it
// left their order in the last one.
bool left_amid(const Facts& f, int i, std::size_t at) {
  const std::vector<Anomaly> all = f.anomalies.any(i, f.stuck_step(i), true);
  const auto a = all.empty() ? std::nullopt : std::optional(all.front());
  if (a && a->issued < at && a->usual_of < 0 && at - a->issued + a->usual <= a->issued) {
    return true;
  }
  const std::vector<Step>& steps = f.history.of(i);
  const std::size_t first = first_repeated(std::span(steps).first(at));
  const auto usual = usual_next(steps, at);
  return f.ev(i).records.front().ticket <= 1 && first < at && usual &&
         steps[*usual].key != steps[first].key;
}

bool is_a_round_ahead(const Facts& f, int i, const Pending& op, const Came& came) {
  return !waits_for_any_rank(f, i) && !is_behind(f, i, role_of(f, op)) &&
         std::ranges::none_of(came, [&](const auto& c) {
           const bool awaited = std::ranges::any_of(f.graph.pending, [&](const Pending& p) {
             return contains(p.absent, c.first) && p.waits_here(i);
           });
           return awaited && left_amid(f, c.first, c.second);
         });
}

}  // namespace

std::optional<Cause> few_go_on(const Facts& f, const Problem& p, bool one) {
  for (const int k : first_of(p.pending)) {
    const Pending& op = f.graph[k];
    std::vector<int> few = op.absent;
    std::erase_if(few, [&](int i) { return is_held_up(f, i, op); });
    // Fewer than half of those who are asked whether they came.
    if (op.kind != Kind::kCollective || few.empty() ||
        few.size() > (one ? 1 : limits::kVoters / 2)) {
      continue;
    }
    const Came came = came_new_to(f, op);
    if (2 * came.size() > std::min(f.group(op.group).ranks.size(), limits::kVoters) &&
        2 * few.size() <= came.size() &&
        std::ranges::none_of(few, [&](int i) { return has_come_to_new(f, i); }) &&
        (!one || is_a_round_ahead(f, few.front(), op, came))) {
      return left_out_by(f, few, k, Assume::kFewAreWrong);
    }
  }
  return std::nullopt;
}

// The files of all others who wait there no longer hold what they issued in its place, and what they
// hold are operations of its own earlier iterations.
std::optional<Cause> alone_in_slot(const Facts& f, int pending) {
  const Pending& p = f.graph[pending];
  std::vector<int> holders, others;
  for (const Wait& w : p.waits) {
    (w.record == kNoRecord ? others : holders).push_back(w.evidence);
  }
  if (p.kind != Kind::kCollective || holders.size() != 1 || others.size() < 2) {
    return std::nullopt;
  }
  const int i = holders.front();
  const std::size_t at = f.stuck_step(i);
  const std::span roles(f.anomalies.roles(i));
  if (at >= roles.size() || std::ranges::count(roles, roles[at]) != 1) {
    return std::nullopt;
  }
  const std::set<std::uint64_t> before(roles.begin(),
                                       roles.begin() + static_cast<std::ptrdiff_t>(at));
  const bool alone = std::ranges::all_of(others, [&](int j) {
    const std::vector<std::uint64_t>& own = f.anomalies.roles(j);
    return own.size() >= limits::kRepeats &&
           std::ranges::all_of(own, [&](std::uint64_t role) { return before.contains(role); });
  });
  if (!alone) {
    return std::nullopt;
  }
  Cause c(Rule::kExtra, Verdict::kMismatch);
  c.pending = pending;
  c.others = others;
  c.guilty = {guilty_rank(f, i, Why::kExtraOperation, pending)};
  c.guilty.front().issued = f.history.of(i)[at].record;
  c.assume(Assume::kRecordsNotKept);
  c.assume(Assume::kFewAreWrong);
  return c;
}

}  // namespace frtrace
