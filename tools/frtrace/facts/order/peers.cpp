// Ranks that part from their peers' program, if their own earlier iterations do not tell.
#include <algorithm>
#include <map>
#include <set>

#include "facts/limits.hpp"
#include "facts/order/order.hpp"
#include "model/operation.hpp"

namespace frtrace {

bool Anomalies::is_one_program(int i) const {
  const std::vector<Step>& steps = history_.of(i);
  return steps_of_program(c_.evidence_of(i), steps, steps.size()).size() == steps.size();
}

std::optional<std::size_t> Anomalies::met_since(int i, std::size_t issued,
                                                std::size_t stuck) const {
  const std::vector<Step>& steps = history_.of(i);
  const auto size = [&](std::size_t k) {
    const bool collective = history_.record(i, k).kind == Kind::kCollective && steps[k].group >= 0;
    return collective ? c_.groups[idx(steps[k].group)].ranks.size() : 0;
  };
  std::size_t largest = 1;
  for (std::size_t k = 0; k < steps.size(); ++k) {
    largest = std::max(largest, size(k));
  }
  for (std::size_t k = std::min(stuck, steps.size()); k-- > issued + 1;) {
    if (size(k) == largest && ended_alike(i, k)) {
      return k;
    }
  }
  return std::nullopt;
}

bool Anomalies::kept_its_place(int i, const Anomaly& a, std::size_t stuck) const {
  const std::vector<Step>& steps = history_.of(i);
  const bool skipped = a.kind == Anomaly::kSkipped;
  const int group = skipped ? usual(i, a).group : steps[a.issued].group;
  const Kind kind =
      skipped ? history_.record(a.owner(i), a.usual).kind : history_.record(i, a.issued).kind;
  if ((!skipped && a.kind != Anomaly::kInserted) || kind != Kind::kCollective) {
    return false;
  }
  std::set<std::uint64_t> kinds;
  std::size_t alike = 0;
  for (std::size_t k = a.issued + 1; k < std::min(stuck, steps.size()) && alike < limits::kContext;
       ++k) {
    if (steps[k].group == group && history_.record(i, k).kind == Kind::kCollective) {
      if (!ended_alike(i, k)) {
        return false;
      }
      kinds.insert(roles(i)[k]);
      ++alike;
    }
  }
  return kinds.size() > 1;
}

std::optional<Anomaly> Anomalies::since_met(int i, Anomaly a, std::size_t stuck) const {
  const auto met = met_since(i, a.issued, stuck);
  if (!met) {
    return a;
  }
  const std::span<const std::uint64_t> own(roles(i));
  const auto since = own.first(std::min(stuck + 1, own.size())).subspan(*met + 1);
  const bool message = history_.record(a.owner(i), a.usual).kind != Kind::kCollective;
  if (!message || std::ranges::find(since, role(a.owner(i), usual(i, a))) != since.end()) {
    return std::nullopt;
  }
  a.issued = *met + 1;
  a.kind = Anomaly::kSkipped;
  a.novel = std::ranges::find(own.first(a.issued), own[a.issued]) ==
            own.begin() + static_cast<std::ptrdiff_t>(a.issued);
  return a;
}

std::optional<Anomaly> Anomalies::by_peers(int i, std::size_t until) const {
  const std::vector<Step>& steps = history_.of(i);
  const RankEvidence& e = c_.evidence_of(i);
  if (steps.empty() || e.holes.only_active || !is_one_program(i)) {
    return std::nullopt;
  }
  // Without call sites, many different places look alike.
  const bool sites = !user_site(e, e.records[steps.back().record].stack).file.empty();
  const std::size_t context = sites ? limits::kPeerContext : limits::kPeerContextBare;
  const std::vector<std::uint64_t>& own = roles(i);
  const std::vector<int> others = peers(i, false);
  const std::size_t from = steps.size() - std::min(steps.size(), limits::kRecent);
  for (std::size_t p = std::max(from, context); p < std::min(until, steps.size()); ++p) {
    const auto here = own.begin() + static_cast<std::ptrdiff_t>(p);
    // The roles that followed the same few operations, in that order of issue -> first place.
    const auto followers = [&](const std::vector<std::uint64_t>& of, std::size_t end) {
      std::map<std::uint64_t, std::size_t> out;
      for (std::size_t q = context; q < end; ++q) {
        if (std::equal(here - static_cast<std::ptrdiff_t>(context), here,
                       of.begin() + static_cast<std::ptrdiff_t>(q - context))) {
          out.try_emplace(of[q], q);
        }
      }
      return out;
    };
    if (followers(own, p).contains(own[p])) {
      continue;  // the rank did so before
    }
    struct Next {
      std::size_t ranks = 0;
      int other = -1;
      std::size_t at = 0;
    };
    std::map<std::uint64_t, Next> next;  // roles that followed there on the other ranks
    for (const int j : others) {
      for (const auto& [role, at] : followers(roles(j), roles(j).size())) {
        next[role] = {next[role].ranks + 1, j, at};
      }
    }
    const auto most = std::ranges::max_element(
        next, [](const auto& a, const auto& b) { return a.second.ranks < b.second.ranks; });
    if (next.contains(own[p]) || next.empty() || most->second.ranks < limits::kPeersAgree) {
      continue;
    }
    const auto later = std::find(here, own.end(), most->first);
    const auto before = std::find(own.begin(), here, most->first);
    const Next& due = most->second;
    Anomaly a;
    a.issued = p;
    a.kind =
        kind_of(std::span(own).subspan(p), std::span(roles(due.other)).subspan(due.at), a.support);
    const bool never = before == here && later == own.end();
    a.usual =
        never ? due.at : static_cast<std::size_t>((before != here ? before : later) - own.begin());
    a.usual_of = never ? due.other : -1;
    return a;
  }
  return std::nullopt;
}

}  // namespace frtrace
