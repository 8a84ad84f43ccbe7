// Helpers shared by several rules.
#include <algorithm>
#include <span>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "model/contains.hpp"
#include "model/hints.hpp"

namespace frtrace {

int main_pending(const Facts& f, const std::vector<int>& blamed, bool absent) {
  int best = -1;
  for (std::size_t k = 0; k < f.graph.pending.size(); ++k) {
    const Pending& p = f.graph.pending[k];
    const bool waits_for =
        std::ranges::any_of(p.absent, [&](int a) { return contains(blamed, a); });
    if (absent && !waits_for) {
      continue;
    }
    if (best < 0 || p.waits.size() > f.graph[best].waits.size() ||
        (p.waits.size() == f.graph[best].waits.size() && p.since < f.graph[best].since)) {
      best = static_cast<int>(k);
    }
  }
  return best;
}

bool who_wait_started(const Facts& f, const Pending& p) {
  return std::ranges::all_of(p.waits, [&](const Wait& w) {
    return w.record != kNoRecord && f.ev(w.evidence).records[w.record].state == State::kStarted;
  });
}

bool all_started(const Facts& f, const Pending& p) {
  return p.waits.size() == f.group(p.group).ranks.size() && who_wait_started(f, p);
}

Guilty guilty_rank(const Facts& f, int evidence, Why why, int pending) {
  Guilty g;
  g.evidence = evidence;
  g.rank = f.rank(evidence);
  g.why = why;
  g.pending = pending;
  return g;
}

bool is_at_store(const Facts& f, int evidence) {
  const std::vector<Hint> hints = hints_of(f.ev(evidence));
  return std::ranges::any_of(hints, [](const Hint& h) { return h.kind == HintKind::kStore; });
}

bool program_is_at_store(const Facts& f, int evidence) {
  const Record* call = f.lifecycle_in_flight(evidence);
  return call == nullptr ? is_at_store(f, evidence)
                         : f.ev(evidence).text(call->op).starts_with(kStoreCalls);
}

std::optional<std::size_t> step_of_member(const Facts& f, int group, std::size_t member,
                                          std::uint64_t seq) {
  const Group& g = f.group(group);
  const Record* r = f.slots[idx(group)].at(f.c, g, member, seq);
  if (r == nullptr) {
    return std::nullopt;
  }
  const int i = g.evidence[member];
  const std::size_t at = step_of(f.history.of(i), f.ev(i).index_of(*r));
  return at < f.history.of(i).size() ? std::optional(at) : std::nullopt;
}

std::vector<int> evidence_of(const std::vector<Guilty>& guilty) {
  std::vector<int> out;
  for (const Guilty& g : guilty) {
    if (g.evidence >= 0) {
      out.push_back(g.evidence);
    }
  }
  return out;
}

std::vector<int> problem_ranks(const Facts& f, Problem::Kind kind) {
  std::vector<int> out;
  for (const Problem& p : f.graph.problems) {
    if (p.kind == kind) {
      out.insert(out.end(), p.evidence.begin(), p.evidence.end());
    }
  }
  std::ranges::sort(out);
  return out;
}

bool is_new(const Facts& f, int i, std::size_t at) {
  const std::vector<Step>& steps = f.history.of(i);
  return at < steps.size() && at >= limits::kRepeats && usual_next(steps, at) &&
         is_first_of_its_kind(steps, at);
}

void blame(const Facts& f, const std::vector<int>& who, Why why, Cause& c) {
  for (const int i : who) {
    c.guilty.push_back(
        guilty_rank(f, i, why, f.graph.waits(i) ? f.graph.waits_in[idx(i)].front() : -1));
  }
  sort_by_rank(c.guilty);
}

std::optional<std::size_t> usual_if_awaited(const Facts& f, int i, std::size_t at,
                                            const std::vector<int>& pending) {
  const auto usual = usual_next(f.history.of(i), at);
  const bool awaited = usual && std::ranges::any_of(pending, [&](int k) {
                         return is_due_in(f, i, *usual, f.graph[k]);
                       });
  return awaited ? usual : std::nullopt;
}

bool is_due_in(const Facts& f, int i, std::size_t step, const Pending& p) {
  const Step& due = f.history.of(i)[step];
  const Record& r = f.ev(i).records[due.record];
  const Rank other = p.from == f.rank(i) ? p.to : p.from;
  const bool same = r.kind == Kind::kCollective ? p.kind == r.kind
                                                : p.kind != Kind::kCollective && r.peer >= 0 &&
                                                      f.group(p.group).ranks[idx(r.peer)] == other;
  return p.group == due.group && same && contains(p.absent, i);
}

bool makes_communicator(const Facts& f, int i, int group) {
  const auto kind = [&](int g) { return f.group(g).kind(); };
  const RankEvidence& e = f.ev(i);
  for (std::uint32_t row = 1; row < e.groups.size() && group >= 0; ++row) {
    const int own = f.c.group_at(i, row);
    if (own >= 0 && kind(own) == kind(group)) {
      return false;
    }
  }
  // Another member recorded a collective of that group: its communicator was made, with this rank.
  for (int g = 0; g < static_cast<int>(f.c.groups.size()) && group >= 0; ++g) {
    if (f.group(g).position.contains(f.rank(i)) && kind(g) == kind(group) &&
        std::ranges::any_of(f.slots[idx(g)].records, [](const auto& r) { return !r.empty(); })) {
      return false;
    }
  }
  return !e.format.empty() && group >= 0;
}

void sort_by_rank(std::vector<Guilty>& guilty) {
  std::ranges::stable_sort(guilty,
                           [](const Guilty& a, const Guilty& b) { return a.rank < b.rank; });
}

}  // namespace frtrace
