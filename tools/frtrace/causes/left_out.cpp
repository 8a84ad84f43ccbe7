// Ranks that left an operation out and went on, and wait elsewhere.
#include <algorithm>
#include <map>
#include <set>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "model/contains.hpp"
#include "model/crumbs.hpp"
#include "model/operation.hpp"
#include "model/threads.hpp"

namespace frtrace {

namespace {

std::vector<const Record*> issued_in(const Facts& f, int i, int group) {
  std::vector<const Record*> out;
  for (const Record& r : f.ev(i).records) {
    if (communicates(r) && f.c.group_at(i, r.group) == group) {
      out.push_back(&r);
    }
  }
  return out;
}

// All that the rank issued in that group came from one thread of its own, which has ended: what its
// other threads wait in does not hold that up.
bool lost_its_thread(const Facts& f, int i, int group) {
  const RankEvidence& e = f.ev(i);
  const std::size_t front = f.graph.fronts[idx(i)].first;
  const std::vector<const Record*> issued = issued_in(f, i, group);
  if (issued.empty() || front == kNoRecord) {
    return false;
  }
  const std::uint32_t tid = issued.front()->tid;
  return issued.size() >= (has_died(e, tid) ? 1 : limits::kOwnThread) &&
         std::ranges::all_of(issued, [tid](const Record* r) { return r->tid == tid; }) &&
         e.records[front].tid != tid && e.threads.present && e.threads.threads_lost == 0 &&
         thread_of(e.threads, static_cast<int>(tid)) == nullptr;
}

Cause never_issued_by(const Facts& f, int evidence, int pending) {
  Cause c(Rule::kNeverIssued, Verdict::kMissing);
  c.pending = pending;
  c.guilty = {guilty_rank(f, evidence, Why::kNeverIssued, pending)};
  c.explains = f.graph.leading_to({evidence});
  c.independent = true;
  return c;
}

// All who wait in it left their own order with it: nobody else had to come.
bool is_out_of_order(const Facts& f, const Pending& p) {
  return std::ranges::all_of(p.waits, [&](const Wait& w) {
    const std::size_t at = f.stuck_step(w.evidence);
    const auto a = f.anomalies.own(w.evidence, at);
    return a && a->issued == at && a->kind != Anomaly::kSkipped;
  });
}

}  // namespace

std::optional<Cause> other_thread_did_not_come(const Facts& f, const Problem& p, int evidence) {
  const RankEvidence& e = f.ev(evidence);
  const std::size_t front = f.graph.fronts[idx(evidence)].first;
  // One that the library started works for the one that waits.
  const auto is_own = [&](const Record& r) {
    return static_cast<int>(r.tid) == e.id.pid || is_of_thread(e, r.stack);
  };
  if (front == kNoRecord || !is_own(e.records[front])) {
    return std::nullopt;
  }
  const auto by_others = [&](int group) {
    const std::vector<const Record*> issued = issued_in(f, evidence, group);
    return issued.size() >= limits::kOwnThread && std::ranges::all_of(issued, [&](const Record* r) {
             return r->tid != e.records[front].tid && is_own(*r);
           });
  };
  const auto k = std::ranges::find_if(p.pending, [&](int op) {
    return f.graph[op].kind == Kind::kCollective && contains(f.graph[op].absent, evidence) &&
           by_others(f.graph[op].group);
  });
  return k == p.pending.end() ? std::nullopt : std::optional(never_issued_by(f, evidence, *k));
}

// Who waits elsewhere, or makes a group, though it was the turn of what others wait for it in, by
// its own earlier iterations: a fault by itself, whatever else is stuck.
std::vector<Cause> left_out(const Facts& f) {
  std::map<int, std::set<int>>
      awaited;  // evidence -> groups of collectives that it did not come to
  std::vector<Cause> out;
  for (std::size_t k = 0; k < f.graph.pending.size(); ++k) {
    const Pending& p = f.graph.pending[k];
    if (p.kind != Kind::kCollective || p.absent.empty() || is_out_of_order(f, p)) {
      continue;
    }
    std::vector<int> without_thread;
    for (const int a : p.absent) {
      const bool waits = f.graph.waits(a);
      if (waits || f.lifecycle_in_flight(a) != nullptr) {
        awaited[a].insert(p.group);
        if (waits && lost_its_thread(f, a, p.group)) {
          without_thread.push_back(a);
        }
      }
    }
    if (2 * without_thread.size() <
        f.group(p.group).ranks.size()) {  // of most it has done its work
      for (const int a : without_thread) {
        out.push_back(never_issued_by(f, a, static_cast<int>(k)));
        out.back().thread_ended = true;
      }
    }
  }
  std::map<int, std::vector<Cause>> by_group;  // of what they left out
  for (const auto& [i, groups] : awaited) {
    // All that it issued since agrees.
    const auto a = f.anomalies.own(i, f.stuck_step(i));
    const int group = a ? f.history.of(i)[a->usual].group : -1;
    if (a && a->kind == Anomaly::kSkipped && a->support > 0 &&
        a->issued + a->support == f.history.of(i).size() && groups.contains(group)) {
      by_group[group].push_back(of_deviants(f, {{i, *a}}, false, false));
    }
  }
  for (auto& [group, causes] : by_group) {
    // What most members do is the program's way: that operation is not in every iteration.
    if (2 * causes.size() > f.group(group).ranks.size()) {
      continue;
    }
    for (Cause& c : causes) {
      c.independent = true;
      out.push_back(std::move(c));
    }
  }
  return out;
}

namespace {

// What most members do is the program's way.
bool most_are_absent(const Facts& f, const Pending& p) {
  return p.kind == Kind::kCollective && 2 * p.absent.size() > f.group(p.group).ranks.size();
}

// Others wait in what it left: it did not come, or issued what it did in that one's place.
bool is_awaited(const Facts& f, const Deviant& d) {
  const std::vector<Step>& steps = f.history.of(d.evidence);
  const std::uint64_t due = f.anomalies.role(d.evidence, steps[d.how.usual]);
  const auto is_due = [&](const Wait& w) {
    const std::vector<Step>& its = f.history.of(w.evidence);
    const std::size_t at = step_of(its, w.record);
    return at < its.size() && f.anomalies.role(w.evidence, its[at]) == due;
  };
  return std::ranges::any_of(f.graph.pending, [&](const Pending& p) {
    return is_due_in(f, d.evidence, d.how.usual, p)
               ? !most_are_absent(f, p)
               : p.kind == Kind::kCollective && p.group == steps[d.how.issued].group &&
                     p.seq == f.history.record(d.evidence, d.how.issued).seq &&
                     std::ranges::any_of(p.waits, is_due);
  });
}

// That step is a collective in which more than half of its group wait.
bool is_where_most_wait(const Facts& f, int i, std::size_t step) {
  const int group = f.history.of(i)[step].group;
  const Record& r = f.history.record(i, step);
  return r.kind == Kind::kCollective && std::ranges::any_of(f.graph.pending, [&](const Pending& p) {
           return p.kind == r.kind && p.group == group && p.seq == r.seq &&
                  2 * p.waits.size() > f.group(group).ranks.size();
         });
}

// What the rank clearly did against its own order, before what it waits in now or there.
std::optional<Anomaly> left_clearly(const Facts& f, int i) {
  const std::size_t at = f.graph.waits(i) ? f.stuck_step(i) : SIZE_MAX;
  // What failed with another's end may have been left for that.
  const auto a = at < f.history.of(i).size() && blocks(f.history.record(i, at))
                     ? f.anomalies.own(i, at, f.stuck_end(i))
                     : std::nullopt;
  const bool clearly = a && a->usual_of < 0 && a->kind != Anomaly::kInserted &&
                       a->context >= (a->kind == Anomaly::kSkipped ? limits::kClearSupport
                                                                   : limits::kLeftOutClearly) &&
                       !(a->novel && is_of_most(f, i, a->issued)) &&
                       (a->kind == Anomaly::kSkipped || !is_where_most_wait(f, i, a->issued));
  return clearly ? a : std::nullopt;
}

// Who waits in what these left their order with, and left its own with it, too.
void add_likewise(const Facts& f, std::uint64_t role, std::vector<Deviant>& who) {
  const auto there = ranks_that(f, [&](int i) { return f.role_waited_in(i) == role; });
  if (2 * there.size() > f.c.ranks.size()) {
    return;
  }
  for (const int i : there) {
    const bool known = std::ranges::find(who, i, &Deviant::evidence) != who.end();
    const auto a = known ? std::nullopt : left_clearly(f, i);
    if (a && a->issued == f.stuck_step(i)) {
      who.push_back({i, *a});
    }
  }
}

}  // namespace

// Who waits elsewhere, and left its own order before that, clearly, with what others wait for it in:
// whoever else is at fault, this is none of the consequences, as victims only stop.
std::vector<Cause> left_order_too(const Facts& f) {
  std::map<std::uint64_t, std::vector<Deviant>> alike;  // by what they issued instead
  std::set<int> awaited;
  for (const Pending& p : f.graph.pending) {
    awaited.insert(p.absent.begin(), p.absent.end());
  }
  for (const Divergence& d : f.divergences) {
    for (const int m : d.past ? std::vector<int>() : d.apart()) {
      awaited.insert(f.group(d.group).evidence[idx(m)]);
    }
  }
  for (const int i : awaited) {
    const auto a = left_clearly(f, i);
    if (a && is_awaited(f, {i, *a})) {
      alike[f.anomalies.role(i, f.history.of(i)[a->issued])].push_back({i, *a});
    }
  }
  std::vector<Cause> out;
  for (auto& [role, who] : alike) {
    add_likewise(f, role, who);
    out.push_back(of_deviants(f, who, false, false));
    out.back().independent = true;
  }
  return out;
}

namespace {

// Two members of a group issued as much between two of its collectives, and the same since the last
// one: so do those who run one program. Tickets and the last records tell it quickly.
bool in_step(const Facts& f, int group, std::size_t m, std::size_t n) {
  const Group& g = f.group(group);
  const Slots& slots = f.slots[idx(group)];
  const int i = g.evidence[m], j = g.evidence[n];
  const std::vector<Record>&own = f.ev(i).records, &other = f.ev(j).records;
  const std::vector<std::uint32_t>&a = slots.records[m], &b = slots.records[n];
  const std::uint64_t last = std::min(own[a.back()].seq, other[b.back()].seq);
  const std::uint64_t first = std::max({own[a.front()].seq, other[b.front()].seq,
                                        last - std::min(last, std::uint64_t{limits::kRecent})});
  const auto at = [&](std::size_t member, std::uint64_t seq) {
    return slots.at(f.c, g, member, seq);
  };
  if (!at(m, first) || !at(n, first) || !at(m, last) || !at(n, last)) {
    return true;
  }
  if (at(m, last)->ticket - at(m, first)->ticket != at(n, last)->ticket - at(n, first)->ticket) {
    return false;
  }
  const auto role = [&](int evidence, std::size_t record) {
    const int of = f.c.group_at(evidence, f.ev(evidence).records[record].group);
    return f.anomalies.role(evidence, {0, of, static_cast<std::uint32_t>(record)}, false);
  };
  const std::size_t p = f.ev(i).index_of(*at(m, last)), q = f.ev(j).index_of(*at(n, last));
  const std::size_t rest = std::min({own.size() - p, other.size() - q, limits::kRecent});
  for (std::size_t k = 1; k < rest; ++k) {
    if (role(i, p + k) != role(j, q + k)) {
      return false;
    }
  }
  return true;
}

// Ranks that a group of theirs shows out of step with their neighbour in it.
std::set<int> out_of_step(const Facts& f) {
  std::set<int> out;
  for (int k = 0; k < static_cast<int>(f.c.groups.size()); ++k) {
    const std::vector<int>& evidence = f.group(k).evidence;
    std::vector<std::size_t> members;
    for (std::size_t m = 0; m < evidence.size(); ++m) {
      if (evidence[m] >= 0 && !f.slots[idx(k)].records[m].empty()) {
        members.push_back(m);
      }
    }
    std::set<int> apart;
    std::size_t pairs = 0;
    for (std::size_t m = 1; m < members.size(); ++m) {
      if (!in_step(f, k, members[m - 1], members[m])) {
        apart.insert({evidence[members[m - 1]], evidence[members[m]]});
        ++pairs;
      }
    }
    const double most = limits::kOutOfStep * static_cast<double>(members.size());
    if (members.size() == 2 || static_cast<double>(pairs) < most) {
      out.merge(apart);
    }
  }
  return out;
}

}  // namespace

// Who left out what nobody waits for yet, behind what it waits in: by its own earlier iterations and by
// what all peers did there.
std::vector<Cause> left_out_ahead(const Facts& f) {
  std::vector<Cause> out;
  for (const int i : out_of_step(f)) {
    auto a = f.graph.waits(i) ? f.anomalies.own(i, f.stuck_step(i)) : std::nullopt;
    a = a || !f.graph.waits(i) ? a : f.anomalies.from_start(i);
    if (!a || a->kind != Anomaly::kSkipped || a->context < limits::kContextLeast) {
      continue;
    }
    const bool to_the_end = a->issued + a->support == f.history.of(i).size();
    if (a->support < (to_the_end ? limits::kContextLeast : limits::kClearSupport) ||
        !f.anomalies.kept_by_peers(i, *a)) {
      continue;
    }
    Cause c = of_deviants(f, {{i, *a}}, false, false);
    if (c.verdict != Verdict::kMissing) {  // exchanged with what came next
      continue;
    }
    c.rule = Rule::kLeftOutAhead;
    c.explains.clear();
    c.independent = true;
    out.push_back(std::move(c));
  }
  return out;
}

}  // namespace frtrace
