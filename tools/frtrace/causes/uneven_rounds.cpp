// Where all members issue equally much between two collectives of their group: who this time issued
// less than most before it came, or more and did not come.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "model/contains.hpp"

namespace frtrace {

namespace {

// A collective whose members all left evidence, and are not too many to count for each.
bool is_countable(const Facts& f, const Pending& op) {
  return op.kind == Kind::kCollective && op.seq != 0 && op.unknown.empty() &&
         f.group(op.group).ranks.size() <= limits::kVoters;
}

// What the member issued since the collective of that number, or since the program began, before the
// step `to`; nullopt: nobody knows.
std::optional<std::size_t> since(const Facts& f, int group, std::size_t member, std::uint64_t seq,
                                 std::size_t to) {
  const int i = f.group(group).evidence[member];
  if (seq == 0) {
    const RankEvidence& e = f.ev(i);
    return !e.records.empty() && e.records.front().ticket <= 1 ? std::optional(to) : std::nullopt;
  }
  const auto from = step_of_member(f, group, member, seq);
  return from && *from < to ? std::optional(to - *from - 1) : std::nullopt;
}

enum class Rounds : std::uint8_t { kUnknown, kEven, kUneven };

// Whether in the rounds before, as far as all members' records reach, all issued equally much, and not
// only collectives.
Rounds rounds_before(const Facts& f, const Pending& op) {
  const std::size_t members = f.group(op.group).ranks.size();
  Rounds out = Rounds::kUnknown;
  for (std::uint64_t seq = op.seq; --seq > 0;) {
    std::optional<std::size_t> common;
    for (std::size_t m = 0; m < members; ++m) {
      const auto end = step_of_member(f, op.group, m, seq);
      const auto n = end ? since(f, op.group, m, seq - 1, *end) : std::nullopt;
      if (!n) {
        return out;
      }
      if (common && *common != *n) {
        return Rounds::kUneven;
      }
      common = n;
    }
    out = *common != 0 ? Rounds::kEven : out;
  }
  return out;
}

// How much each member issued since the collective before `op`.
struct Counts {
  std::map<int, std::size_t> issued;         // by evidence; empty where one is not known
  std::map<std::size_t, std::size_t> times;  // how many of those that came issued so much
};

Counts since_the_last(const Facts& f, const Pending& op) {
  Counts out;
  const Group& g = f.group(op.group);
  for (std::size_t m = 0; m < g.ranks.size(); ++m) {
    const int i = g.evidence[m];  // all have evidence: nobody is unknown
    const bool waits = std::ranges::find(op.waits, i, &Wait::evidence) != op.waits.end();
    const auto to = waits ? step_of_member(f, op.group, m, op.seq) : f.history.of(i).size();
    const bool is_first = !waits || to == f.stuck_step(i);  // it waits in nothing earlier
    const auto n = to && is_first ? since(f, op.group, m, op.seq - 1, *to) : std::nullopt;
    if (!n) {
      return {};
    }
    out.issued[i] = *n;
    out.times[*n] += waits;
  }
  return out;
}

}  // namespace

std::optional<Cause> uneven_rounds(const Facts& f, const Problem& p) {
  for (const int k : p.pending) {
    const Pending& op = f.graph[k];
    const Group& g = f.group(op.group);
    if (!is_countable(f, op)) {
      continue;
    }
    const auto [issued, times] = since_the_last(f, op);
    const Rounds before = issued.empty() ? Rounds::kUneven : rounds_before(f, op);
    if (before == Rounds::kUneven) {
      continue;
    }
    const auto most = std::ranges::max_element(times, {}, [](const auto& x) { return x.second; });
    // In a first round all who came must have issued as much.
    const bool enough = before == Rounds::kEven ? 2 * most->second >= g.ranks.size()
                                                : most->second == op.waits.size() &&
                                                      most->second > 2 && most->first != 0;
    if (most->second < 2 || !enough) {
      continue;
    }
    std::vector<int> odd;
    for (const auto& [i, n] : issued) {
      if (contains(op.absent, i) ? n > most->first : n < most->first) {
        odd.push_back(i);
      }
    }
    if (odd.size() != 1) {
      continue;
    }
    // What others wait in for it.
    const auto lacks = [&](int other) { return contains(f.graph[other].absent, odd.front()); };
    const auto at = std::ranges::find_if(p.pending, lacks);
    if (at != p.pending.end()) {
      return left_out_by(f, odd, *at, Assume::kPeersOrder);
    }
  }
  return std::nullopt;
}

namespace {

// Members that some of `from` wait for where they are stuck; `busy`: also in
// collectives that these issued.
std::set<int> awaited_by(const Facts& f, const std::vector<int>& from,
                         const std::vector<int>& members, bool busy) {
  std::set<int> out;
  for (const int i : from) {
    for (const int k : f.graph.waits_in[idx(i)]) {
      const Pending& p = f.graph[k];
      std::ranges::copy_if(members, std::inserter(out, out.end()), [&](int j) {
        return contains(p.absent, j) ||
               (busy && p.kind == Kind::kCollective && contains(p.busy, j));
      });
    }
  }
  return out;
}

}  // namespace

std::optional<Cause> few_apart(const Facts& f, const Problem& p) {
  for (const int k : p.pending) {
    const Pending& op = f.graph[k];
    const Group& g = f.group(op.group);
    if (!is_countable(f, op)) {
      continue;
    }
    std::vector<int> there, rest;  // stand in it; wait elsewhere, whether they issued it or not
    std::size_t most_there = 0, least_rest = SIZE_MAX;
    bool wait = true, all_came = true;
    for (std::size_t m = 0; m < g.ranks.size(); ++m) {
      const int i = g.evidence[m];
      const auto at = step_of_member(f, op.group, m, op.seq);
      const bool stands = at && *at == f.stuck_step(i);
      const auto n = since(f, op.group, m, op.seq - 1, at ? *at : f.history.of(i).size());
      (stands ? there : rest).push_back(i);
      wait = wait && f.graph.waits(i);
      all_came = all_came && at;
      most_there = stands ? std::max(most_there, n.value_or(0)) : most_there;
      least_rest = stands ? least_rest : std::min(least_rest, n.value_or(SIZE_MAX));
    }
    const std::size_t few = std::min(there.size(), rest.size());
    if (!wait || few < 2 || there.size() == rest.size() || least_rest <= most_there) {
      continue;
    }
    const std::set<int> awaited = awaited_by(f, rest, there, all_came);
    if (awaited.size() < few) {
      continue;
    }
    if (rest.size() == few) {
      return left_out_by(f, rest, k, Assume::kFewAreWrong);
    }
    const auto lacks = [&](int other) {
      return contains(rest, f.graph[other].waits.front().evidence) &&
             std::ranges::any_of(there, [&](int i) { return contains(f.graph[other].absent, i); });
    };
    if (const auto at = std::ranges::find_if(p.pending, lacks); at != p.pending.end()) {
      return left_out_by(f, there, *at, Assume::kFewAreWrong);
    }
  }
  return std::nullopt;
}

}  // namespace frtrace
