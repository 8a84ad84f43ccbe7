// Ranks that wait for each other.
#include <algorithm>
#include <set>
#include <span>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "model/contains.hpp"
#include "model/hints.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

void add_new(std::vector<Deviant>& deviants, const std::vector<Deviant>& more) {
  for (const Deviant& d : more) {
    if (std::ranges::find(deviants, d.evidence, &Deviant::evidence) == deviants.end()) {
      deviants.push_back(d);
    }
  }
}

// Adds the ranks that departed from their own order with the same collective, after the same few
// operations, each in its group of that kind.
void add_sisters(const Facts& f, std::vector<Deviant>& deviants) {
  const Deviant d = deviants.front();
  const std::size_t at = d.how.issued;
  const Record& r = f.history.record(d.evidence, at);
  if (r.kind != Kind::kCollective || at < limits::kPeerContext) {
    return;
  }
  const auto upto = [&](int i, std::size_t k) {
    return std::span(f.anomalies.roles(i, false))
        .subspan(k - limits::kPeerContext, limits::kPeerContext + 1);
  };
  std::vector<Deviant> sisters;
  for (const int i : f.c.indices()) {
    const std::size_t end = f.graph.waits(i) ? f.history.of(i).size() : 0;
    for (std::size_t k = limits::kPeerContext; k < end; ++k) {
      const auto a = f.history.record(i, k).seq == r.seq &&
                             std::ranges::equal(upto(i, k), upto(d.evidence, at))
                         ? f.anomalies.own_at(i, f.stuck_step(i), k)
                         : std::nullopt;
      if (a) {
        sisters.push_back({i, *a});
      }
    }
  }
  if (2 * sisters.size() < f.c.ranks.size()) {
    add_new(deviants, sisters);
  }
}

}  // namespace

Cause of_deviants(const Facts& f, std::vector<Deviant> deviants, bool by_peers, bool in_cycle) {
  Cause c;
  c.rule = Rule::kLeftOrder;
  if (in_cycle && !by_peers) {
    add_sisters(f, deviants);
  }
  for (Deviant& d : deviants) {
    d.how.kind = f.anomalies.exchanged(d.evidence, d.how) ? Anomaly::kSwapped : d.how.kind;
  }
  const Anomaly a = deviants.front().how;
  // Another order: an operation was exchanged with a later operation, or the rank never issued it
  // there, or another thread of the rank, which waits for a lock, may still issue it. An operation
  // left out for good is a skip, wherever the rank waits now.
  const bool order =
      a.kind == Anomaly::kSwapped ||
      (a.kind == Anomaly::kSkipped &&
       ((in_cycle && a.novel) || has_thread_at_lock(f.ev(deviants.front().evidence))));
  const bool skip = a.kind == Anomaly::kSkipped && !order;
  c.verdict = order ? Verdict::kDeadlock : skip ? Verdict::kMissing : Verdict::kMismatch;
  c.anomaly = a;
  c.by_peers = by_peers;
  for (const Deviant& d : deviants) {
    const std::vector<Step>& steps = f.history.of(d.evidence);
    Guilty g = guilty_rank(f, d.evidence,
                           order                              ? Why::kOtherOrder
                           : skip                             ? Why::kSkipped
                           : d.how.kind == Anomaly::kInserted ? Why::kExtraOperation
                                                              : Why::kDiffers);
    g.issued = steps[d.how.issued].record;
    g.usual_of = d.how.owner(d.evidence);
    g.usual = f.history.of(g.usual_of)[d.how.usual].record;
    g.seq = order || skip ? f.anomalies.due_seq(d.evidence, d.how) : 0;
    c.guilty.push_back(g);
  }
  sort_by_rank(c.guilty);
  const std::vector<int> who = evidence_of(c.guilty);
  c.pending = main_pending(f, who);
  c.pending = c.pending < 0 ? main_pending(f, who, false) : c.pending;
  c.explains = f.graph.leading_to(who, f.graph.waits_in[idx(who.front())]);
  if (a.part) {
    c.assume(Assume::kNoEarlierIterations, f.ranks(who));
  } else {
    c.assume(by_peers ? Assume::kPeersOrder : Assume::kEarlierIterations);
  }
  return c;
}

namespace {

// The rank's calls were hooked, so the streams of the operations that it waits in are known.
bool has_streams(const Facts& f, const Problem& p, int evidence) {
  return std::ranges::all_of(p.pending, [&](int k) {
    const std::vector<Wait>& waits = f.graph[k].waits;
    return std::ranges::all_of(waits, [&](const Wait& w) {
      const auto at = w.evidence == evidence && w.record != kNoRecord
                          ? f.devices.of(evidence, w.record)
                          : std::nullopt;
      return w.evidence != evidence || (at && f.devices[*at].stream != 0);
    });
  });
}

// Every member issued all of these operations, and only some files record devices. The devices' own
// waits, not the order in which the hosts issued, would show the cause.
bool is_below_the_host(const Facts& f, const Problem& p) {
  bool any = false, all = true;
  for (const int i : f.c.indices()) {
    const DeviceEvidence& d = f.ev(i).device;
    any = any || d.present;
    all = all && d.present &&
          (d.plugin_api == 0 || d.plugin_api >= kTellsLaunches || has_streams(f, p, i));
  }
  return any && !all && std::ranges::all_of(p.pending, [&](int k) { return f.graph[k].complete; });
}

// All ranks wait at the same place of the program, by operation, call site and role. If all members
// of a group are on the cycle and each waits for another member, the group may number them in any
// order.
bool stuck_alike(const Facts& f, const std::vector<int>& who) {
  std::set<std::uint64_t> roles;
  std::set<std::int32_t> awaited;
  std::size_t on_ring = 0;
  for (const int i : who) {
    const std::vector<Step>& steps = f.history.of(i);
    const std::size_t at = f.stuck_step(i);
    if (at >= steps.size()) {
      roles.insert(0);
      continue;
    }
    const Record& r = f.ev(i).records[steps[at].record];
    const int group = steps[at].group;
    const bool ring = who.size() >= 3 && r.kind != Kind::kCollective && group >= 0 &&
                      f.group(group).ranks.size() == who.size();
    if (ring) {
      awaited.insert(r.peer);
      ++on_ring;
    }
    roles.insert(f.anomalies.role(i, steps[at], !ring));
  }
  return roles.size() == 1 && awaited.size() == on_ring;
}

// The cycle has only collectives, or all its ranks wait at the same place: no rank stands out. In a
// cycle with other messages some rank left out an operation.
bool is_program_way(const Facts& f, const Problem& p) {
  const bool messages =
      std::ranges::any_of(p.pending, [&](int k) { return f.graph[k].kind != Kind::kCollective; });
  return !messages || stuck_alike(f, p.evidence);
}

// `on_all`: ranks that are on every cycle of the problem.
Cause deadlock(const Facts& f, const Problem& p, const std::vector<int>& on_all) {
  Cause c;
  c.pending = p.pending.front();
  if (is_below_the_host(f, p)) {
    c.set(Rule::kOpenStreams, Verdict::kUndecided);
    return c;
  }
  c.verdict = Verdict::kDeadlock;
  c.operations = p.pending;
  std::vector<int> who = on_all.size() == 1 ? on_all : std::vector<int>();
  c.rule = who.empty() ? Rule::kCycle : Rule::kOtherOrder;
  if (who.empty() && !is_program_way(f, p)) {
    c.verdict = Verdict::kUndecided;
    c.others = p.evidence;
    return c;
  }
  if (auto other = who.empty() ? std::nullopt : other_thread_did_not_come(f, p, who.front())) {
    return *other;
  }
  if (who.empty()) {
    who = on_all.empty() ? p.evidence : on_all;
    // The pairing of sends and receives may be a guess.
    const bool guessed =
        std::ranges::any_of(p.pending, [&](int k) { return f.graph[k].numbers_guessed; });
    c.assume(Assume::kNoEarlierIterations, guessed ? f.ranks(who) : f.c.missing);
  } else {
    c.assume(Assume::kPeersOrder);
  }
  blame(f, who, c.rule == Rule::kCycle ? Why::kOnCycle : Why::kOtherOrder, c);
  return c;
}

// All ranks met after the departure, so it is over. Exception: the operation left out is of another
// group, and others still wait for the rank there.
bool is_past(const Facts& f, const Deviant& d) {
  const auto met = f.anomalies.met_since(d.evidence, d.how.issued, f.stuck_step(d.evidence));
  const int group = f.history.of(d.how.owner(d.evidence))[d.how.usual].group;
  return met && (d.how.kind != Anomaly::kSkipped || f.history.of(d.evidence)[*met].group == group ||
                 std::ranges::none_of(f.graph.pending, [&](const Pending& p) {
                   return p.kind == Kind::kCollective && p.group == group &&
                          contains(p.absent, d.evidence);
                 }));
}

// Most members of the group and of its sisters issued the same collective there, and all of these
// left their order for it: it comes only in some iterations.
bool left_with_most(const Facts& f, int i, std::size_t issued) {
  const Record& r = f.history.record(i, issued);
  const Step& step = f.history.of(i)[issued];
  if (r.kind != Kind::kCollective || step.group < 0) {
    return false;
  }
  const std::uint64_t role = f.anomalies.role(i, step);
  const auto left = [&](int j, std::size_t at) {
    if (f.anomalies.role(j, f.history.of(j)[at]) != role) {
      return false;
    }
    const std::vector<Anomaly> all = f.anomalies.any(j, f.stuck_step(j), false);
    return std::ranges::find(all, at, &Anomaly::issued) != all.end();
  };
  std::size_t with = 0, members = 0;
  for (int s = 0; s < static_cast<int>(f.c.groups.size()) && members < limits::kVoters; ++s) {
    const Group& g = f.group(s);
    if (s == step.group || g.kind() == f.group(step.group).kind()) {
      members += g.ranks.size();
      for (std::size_t m = 0; m < std::min(g.ranks.size(), limits::kVoters); ++m) {
        const auto at = step_of_member(f, s, m, r.seq);
        with += at && left(g.evidence[m], *at);
      }
    }
  }
  return with > 2 && 2 * with > members;
}

// The rank's departure nearest to the hang, because first iterations vary. With several waiting
// ranks, a departure after the wait began is no reason.
std::optional<Anomaly> last_departure(const Facts& f, int who, bool of_several) {
  const std::size_t stuck = f.stuck_step(who);
  std::optional<Anomaly> last;
  for (const Anomaly& a : f.anomalies.any(who, stuck, false)) {
    const bool later = of_several && a.issued >= f.stuck_end(who);
    const auto left = later || left_with_most(f, who, a.issued)
                          ? std::nullopt
                          : f.anomalies.since_met(who, a, stuck);
    if (left && (!last || (left->issued > last->issued && left->issued <= stuck))) {
      last = left;
    }
  }
  return last;
}

}  // namespace

std::optional<Cause> left_order(const Facts& f, const std::vector<int>& suspects, bool in_cycle,
                                bool one_did) {
  std::vector<Deviant> deviants;
  const auto is_pending_of = [&](const Anomaly& a, int i) {
    const std::vector<Step>& steps = f.history.of(i);
    return std::ranges::any_of(f.graph.pending, [&](const Pending& p) {
      return p.group == steps[a.issued].group || p.group == steps[a.usual].group;
    });
  };
  for (const int i : suspects) {
    const auto a = f.anomalies.own(i, f.stuck_step(i), in_cycle ? f.stuck_end(i) : SIZE_MAX);
    // Outside a cycle the order matters only if equal steps surround the departure and an operation
    // in one of its groups is stuck.
    if (a &&
        (in_cycle || (a->context + a->support > limits::kClearSupport && is_pending_of(*a, i)))) {
      deviants.push_back({i, *a});
    }
  }
  std::erase_if(deviants, [&](const Deviant& d) {
    return left_with_most(f, d.evidence, d.how.issued) || (in_cycle && is_past(f, d));
  });
  // A rank that waits where it left its order is more suspect than a rank that went on long after,
  // most of all if it waits in an operation that it never issued before.
  const auto weight = [&](const Deviant& d) {
    const bool here = d.how.issued == f.stuck_step(d.evidence);
    const bool clearly = d.how.support > limits::kClearSupport || d.how.context >= limits::kContext;
    return here && d.how.novel ? 2 : here && clearly ? 1 : 0;
  };
  int most_weight = 0;
  for (const Deviant& d : deviants) {
    most_weight = std::max(most_weight, weight(d));
  }
  std::erase_if(deviants, [&](const Deviant& d) { return weight(d) < most_weight; });
  // All suspects are on every cycle, so one of them left the order: find the only rank that ever
  // departed.
  if (one_did && deviants.empty()) {
    for (const int i : suspects) {
      if (const auto all = f.anomalies.any(i, f.stuck_step(i), true); !all.empty()) {
        deviants.push_back({i, all.front()});
      }
    }
    const int who = deviants.size() == 1 ? deviants.front().evidence : -1;
    if (const auto a = who < 0 ? std::nullopt : last_departure(f, who, suspects.size() > 1)) {
      return of_deviants(f, {{who, *a}}, false, true);
    }
    deviants.clear();
  }
  const bool by_peers = in_cycle && deviants.empty() && !stuck_alike(f, suspects);
  for (std::size_t k = 0; by_peers && k < suspects.size(); ++k) {
    if (const auto a = f.anomalies.by_peers(suspects[k], f.stuck_end(suspects[k]))) {
      deviants.push_back({suspects[k], *a});
    }
  }
  // A few deviants mean something; outside a cycle, only a single rank does.
  const std::size_t few = suspects.size() / (by_peers ? 3 : 2);
  const std::size_t most = in_cycle ? std::max<std::size_t>(by_peers || one_did, few) : 1;
  if (deviants.empty() || deviants.size() > most) {
    return std::nullopt;
  }
  // A departure that most ranks on the cycle made in this iteration singles out no rank.
  const Deviant& first = deviants.front();
  const auto likewise =
      static_cast<std::size_t>(by_peers ? 0 : std::ranges::count_if(suspects, [&](int i) {
        return f.anomalies.did_likewise(i, f.stuck_step(i), first.evidence, first.how);
      }));
  return suspects.size() > 2 && 3 * likewise > 2 * suspects.size()
             ? std::nullopt
             : std::optional<Cause>(of_deviants(f, deviants, by_peers, in_cycle));
}

namespace {

// Some ranks on the cycle wait for a file lock that another rank on it holds. The same program may
// run for long until the holder needs the others, so no order of operations is wrong.
std::optional<Cause> lock_cycle(const Facts& f, const Problem& p) {
  const bool lock = std::ranges::any_of(
      p.evidence, [&](int i) { return contains(p.evidence, f.graph.lock_holders[idx(i)]); });
  if (!lock) {
    return std::nullopt;
  }
  Cause c(Rule::kLockCycle, Verdict::kDeadlock);
  c.operations = p.pending;
  c.pending = p.pending.empty() ? -1 : p.pending.front();
  c.explains = p.explains;
  blame(f, p.evidence, Why::kOnCycle, c);
  return c;
}

// The rank waits where its own earlier iterations had another operation, and others on the cycle
// wait for it in that operation: they would go on if the rank had issued it.
std::optional<Anomaly> owed(const Facts& f, const Problem& p, int i) {
  const std::vector<Step>& steps = f.history.of(i);
  const std::size_t at = f.stuck_step(i);
  const auto usual = at < steps.size() ? usual_if_awaited(f, i, at, p.pending) : std::nullopt;
  if (!usual || steps[*usual].key == steps[at].key || !f.anomalies.is_one_program(i)) {
    return std::nullopt;
  }
  Anomaly a;
  a.kind = Anomaly::kSkipped;
  a.issued = at;
  a.usual = *usual;
  return a;
}

// Exactly one rank on the cycle owes an operation: it left that operation out.
std::optional<Cause> owes_alone(const Facts& f, const Problem& p) {
  std::vector<Deviant> owing;
  for (const int i : p.evidence) {
    if (const auto a = owed(f, p, i)) {
      owing.push_back({i, *a});
    }
  }
  return owing.size() == 1 ? std::optional(of_deviants(f, owing, false, true)) : std::nullopt;
}

// All ranks wait at one place of the program that none had reached before: no earlier iteration
// shows an order from which a rank could depart.
bool is_new_to_all(const Facts& f, const std::vector<int>& who) {
  return stuck_alike(f, who) && std::ranges::all_of(who, [&](int i) {
           const std::vector<Step>& steps = f.history.of(i);
           const std::size_t at = f.stuck_step(i);
           return at < steps.size() && is_first_of_its_kind(steps, at);
         });
}

bool waits_for_any_rank(const Facts& f, int i) {
  const std::size_t at = f.graph.fronts[idx(i)].first;
  return at != kNoRecord && f.ev(i).records[at].kind == Kind::kRecv && f.ev(i).records[at].peer < 0;
}

}  // namespace

std::vector<Cause> cycle(const Facts& f) {
  std::vector<Cause> out;
  for (const Problem& p : f.graph.problems) {
    if (p.kind != Problem::kCycle) {
      continue;
    }
    if (auto l = lock_cycle(f, p)) {
      out.push_back(std::move(*l));
      continue;
    }
    std::vector<int> on_all = f.graph.on_all_circles(p);
    // A receive from any rank lies on every cycle through its possible senders.
    std::erase_if(on_all, [&](int i) { return waits_for_any_rank(f, i); });
    std::optional<Cause> c;
    if (!is_new_to_all(f, p.evidence)) {
      c = left_order(f, on_all.empty() ? p.evidence : on_all, true, !on_all.empty());
    }
    c = c ? c : owes_alone(f, p);
    c = c ? c : deadlock(f, p, on_all);
    c->explains = p.explains;
    out.push_back(std::move(*c));
  }
  return out;
}

}  // namespace frtrace
