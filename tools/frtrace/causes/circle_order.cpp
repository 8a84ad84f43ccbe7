// Who on a circle of waits left the order that others show, or its own loop.
#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <tuple>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "facts/pending.hpp"
#include "model/contains.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// One who waits in the collective issued as much before it as this rank before it went on with what
// comes after that.
bool went_past(const Facts& f, int i, const Pending& p) {
  const std::vector<Step>& steps = f.history.of(i);
  const auto ticket = [&](const Step& s) { return f.ev(i).records[s.record].ticket; };
  return contains(p.absent, i) && std::ranges::any_of(p.waits, [&](const Wait& w) {
           const std::size_t due = step_of(f.history.of(w.evidence), w.record);
           const auto at = std::ranges::lower_bound(
               steps, f.ev(w.evidence).records[w.record].ticket, {}, ticket);
           return equal_run(f.anomalies.roles(i), static_cast<std::size_t>(at - steps.begin()),
                            f.anomalies.roles(w.evidence), due + 1) >= limits::kContextLeast;
         });
}

}  // namespace

bool is_held_up(const Facts& f, int i, const Pending& op) {
  return std::ranges::any_of(f.graph.waits_in[idx(i)], [&](int k) {
    const Pending& p = f.graph[k];
    return p.kind == Kind::kCollective && p.group == op.group && p.seq < op.seq;
  });
}

std::vector<int> wait_alike(const Facts& f, int evidence) {
  const std::size_t stuck = f.stuck_step(evidence);
  if (!is_new(f, evidence, stuck)) {
    return {};
  }
  const Step& step = f.history.of(evidence)[stuck];
  const Record& r = f.history.record(evidence, stuck);
  if (r.kind != Kind::kCollective || step.group < 0) {
    return {};
  }
  const Group& g = f.group(step.group);
  std::vector<int> alike;
  bool all = true;
  for (std::size_t m = 0; m < g.ranks.size(); ++m) {
    const int i = g.evidence[m];
    const auto at = step_of_member(f, step.group, m, r.seq);
    if (!at || f.anomalies.role(i, f.history.of(i)[*at]) != f.anomalies.role(evidence, step)) {
      continue;
    }
    const auto lacks = [&](const Pending& p) { return contains(p.absent, i); };
    all = all && *at == f.stuck_step(i) && std::ranges::any_of(f.graph.pending, lacks);
    alike.push_back(i);
  }
  return all && 2 * alike.size() < g.ranks.size() ? alike : std::vector<int>{};
}

Cause left_out_by(const Facts& f, std::vector<int> who, int pending, Assume why) {
  Cause c(Rule::kNeverIssued, Verdict::kMissing);
  c.pending = pending;
  for (const int i : wait_alike(f, who.front())) {
    if (!contains(who, i)) {
      who.push_back(i);
    }
  }
  for (const int i : who) {
    c.guilty.push_back(guilty_rank(f, i, Why::kSkipped, pending));
  }
  sort_by_rank(c.guilty);
  c.assume(why);
  return c;
}

std::optional<Cause> went_past(const Facts& f, const Problem& p, const std::vector<int>& who) {
  const auto k = std::ranges::find_if(p.pending, [&](int op) {
    return std::ranges::all_of(who, [&](int i) { return went_past(f, i, f.graph[op]); });
  });
  if (k == p.pending.end()) {
    return std::nullopt;
  }
  return left_out_by(f, who, *k, Assume::kPeersOrder);
}

std::optional<Cause> left_program(const Facts& f, const std::vector<int>& suspects) {
  std::vector<Deviant> deviants;
  for (const int i : suspects) {
    if (const auto a = f.anomalies.from_start(i)) {
      deviants.push_back({i, *a});
    }
  }
  return deviants.size() == 1 ? std::optional(of_deviants(f, deviants, true, true)) : std::nullopt;
}

namespace {

// What stands for a pending collective on every rank, in its own group of that kind.
struct Collective {
  std::uint64_t role, seq;
};

Collective collective(const Facts& f, const Pending& p) {
  return {role_of(f, p), p.seq};
}

std::optional<std::size_t> place_of(const Facts& f, int i, const Collective& c) {
  const std::vector<std::uint64_t>& roles = f.anomalies.roles(i);
  for (std::size_t k = roles.size(); k-- > 0;) {
    if (roles[k] == c.role && f.ev(i).records[f.history.of(i)[k].record].seq == c.seq) {
      return k;
    }
  }
  return std::nullopt;
}

// Of members of two groups: who issued the first collective, or the one of a sister group, who
// both and in which order, and who waits in the second without the first.
struct Votes {
  std::size_t issued = 0, in_order = 0, otherwise = 0;
  std::vector<int> without;
};

Votes votes(const Facts& f, const Pending& first, const Pending& second) {
  const Collective x = collective(f, first), y = collective(f, second);
  std::set<int> voters;
  for (const int group : {first.group, second.group}) {
    const std::vector<int>& members = f.group(group).evidence;
    const std::size_t n = std::min(members.size(), limits::kVoters);
    voters.insert(members.begin(), members.begin() + static_cast<std::ptrdiff_t>(n));
  }
  voters.erase(-1);
  Votes v;
  for (const int i : voters) {
    const auto at = place_of(f, i, x), then = place_of(f, i, y);
    v.issued += at.has_value();
    v.in_order += at && then && *at < *then;
    v.otherwise += at && then && *at > *then;
  }
  for (const int i : first.absent) {
    if (second.waits_here(i) && !place_of(f, i, x)) {
      v.without.push_back(i);
    }
  }
  return v;
}

// The rank issued that step instead of what a step of its own, or of a peer, is one of.
Deviant left_out_at(int i, std::size_t issued, int owner, std::size_t usual) {
  Anomaly a;
  a.kind = Anomaly::kSkipped;
  a.issued = issued;
  a.usual = usual;
  a.usual_of = owner == i ? -1 : owner;
  return {i, a};
}

// They wait in what comes after that collective, which they all issued in earlier iterations.
std::optional<Cause> skipped_by(const Facts& f, const std::vector<int>& who, const Pending& p) {
  const std::uint64_t role = collective(f, p).role;
  std::vector<Deviant> deviants;
  for (const int i : who) {
    const std::vector<std::uint64_t>& roles = f.anomalies.roles(i);
    const auto usual = std::find(roles.rbegin(), roles.rend(), role);
    const std::size_t at = f.stuck_step(i);
    if (usual == roles.rend() || at >= roles.size()) {
      return std::nullopt;
    }
    deviants.push_back(left_out_at(i, at, i, idx(roles.rend() - usual) - 1));
  }
  return of_deviants(f, deviants, true, true);
}

// Some issued both of two collectives, as one of them ends early or has ended in a sister group, and
// all of them in one order. Fewer wait in the later one without the earlier: these left that order,
// whoever is on the circles.
std::optional<Cause> against_the_shown_order(const Facts& f, const Problem& p) {
  const std::span<const int> compared = first_of(p.pending);
  for (const int k : compared) {
    for (const int j : compared) {
      const Pending &first = f.graph[k], &second = f.graph[j];
      if (first.kind != Kind::kCollective || second.kind != Kind::kCollective ||
          std::ranges::none_of(first.absent, [&](int i) { return second.waits_here(i); })) {
        continue;
      }
      const Votes v = votes(f, first, second);
      if (v.in_order == 0 || v.otherwise != 0 || v.without.empty() ||
          v.without.size() >= v.issued) {
        continue;
      }
      if (auto c = skipped_by(f, v.without, first)) {
        return c;
      }
      if (auto c = went_past(f, p, v.without)) {
        return c;
      }
      Cause c(Rule::kOtherOrder, Verdict::kDeadlock);
      c.operations = p.pending;
      c.pending = p.pending.front();
      c.assume(Assume::kPeersOrder);
      blame(f, v.without, Why::kOtherOrder, c);
      return c;
    }
  }
  return std::nullopt;
}

// The last collective of each group that the rank issued before a record, or at all; from one thread.
std::map<int, std::uint64_t> last_of_groups(const Facts& f, int i, std::size_t before,
                                            std::uint32_t tid) {
  std::map<int, std::uint64_t> out;
  const std::vector<Record>& records = f.ev(i).records;
  for (std::size_t k = 0; k < std::min(before, records.size()); ++k) {
    if (records[k].kind == Kind::kCollective && records[k].tid == tid) {
      out[f.c.group_at(i, records[k].group)] = records[k].seq;
    }
  }
  return out;
}

// Who waits in a collective, by the last collective of another group that each issued before it.
using BySeq = std::map<std::uint64_t, std::vector<const Wait*>>;

std::map<int, BySeq> last_before(const Facts& f, const Pending& p) {
  std::map<int, BySeq> out;  // by group
  for (const Wait& w : p.waits) {
    if (const Record* r = f.record(w)) {
      for (const auto& [group, seq] : last_of_groups(f, w.evidence, w.record, r->tid)) {
        if (group >= 0 && group != p.group) {
          out[group][seq].push_back(&w);
        }
      }
    }
  }
  return out;
}

// Those who had issued less of the group than the others, and have not since.
std::vector<Deviant> behind_in(const Facts& f, int group, const BySeq& by_seq) {
  const auto& [last, most] = *by_seq.rbegin();
  const int other = most.front()->evidence;
  const std::vector<Step>& its = f.history.of(other);
  std::vector<Deviant> out;
  for (auto at = by_seq.begin(); at->first != last; ++at) {
    const auto due = std::ranges::find_if(its, [&](const Step& s) {
      const Record& r = f.ev(other).records[s.record];
      return s.group == group && r.kind == Kind::kCollective && r.seq == at->first + 1;
    });
    for (const Wait* w : at->second) {
      if (due != its.end() &&
          last_of_groups(f, w->evidence, SIZE_MAX, f.record(*w)->tid)[group] < last) {
        out.push_back(left_out_at(w->evidence, step_of(f.history.of(w->evidence), w->record), other,
                                  idx(due - its.begin())));
      }
    }
  }
  return out;
}

// Some came to a collective without one of another group that the others, who came to the former, too,
// had issued before: they left that out.
std::optional<Cause> came_without(const Facts& f, const Problem& p) {
  for (const int k : p.pending) {
    const Pending& op = f.graph[k];
    if (op.kind != Kind::kCollective || op.waits.size() < 3 ||
        op.waits.size() > limits::kSuspects) {
      continue;
    }
    for (const auto& [group, by_seq] : last_before(f, op)) {
      std::size_t few = 0;
      for (const auto& [seq, waits] : by_seq) {
        few += seq == by_seq.rbegin()->first ? 0 : waits.size();
      }
      const std::vector<Deviant> behind = behind_in(f, group, by_seq);
      // One that is ahead by a few added them rather.
      const bool told = by_seq.rbegin()->second.size() > few ||
                        by_seq.begin()->first + limits::kLookahead < by_seq.rbegin()->first;
      if (!behind.empty() && behind.size() == few && told) {
        return of_deviants(f, behind, true, false);
      }
    }
  }
  return std::nullopt;
}

// After the same as before `at` nothing else ever came, and that more than once.
bool came_often(const std::vector<Step>& steps, std::size_t usual, std::size_t at) {
  std::size_t times = 0;
  for (std::size_t k = limits::kContextLeast; k < at; ++k) {
    if (steps[k - 1].key == steps[at - 1].key && steps[k - 2].key == steps[at - 2].key) {
      if (steps[k].key != steps[usual].key) {
        return false;
      }
      ++times;
    }
  }
  return at >= limits::kContextLeast && times >= 2;
}

// One alone stands in a collective that it never issued before, where by its own earlier iterations
// something was due that others on the circle wait for: it left a loop.
std::optional<Cause> left_loop(const Facts& f, const Problem& p, const std::vector<int>& who) {
  std::vector<Deviant> left;
  for (const int i : who) {
    const std::vector<Step>& steps = f.history.of(i);
    const std::size_t at = f.stuck_step(i);
    const auto usual = at < steps.size() ? usual_next(steps, at) : std::nullopt;
    const bool due =
        usual && has_come_to_new(f, i) && !f.anomalies.has_twin(i) &&
        came_often(steps, *usual, at) &&
        std::ranges::any_of(p.pending, [&](int k) { return is_due_in(f, i, *usual, f.graph[k]); });
    if (due) {
      left.push_back(left_out_at(i, at, i, *usual));
    }
  }
  return left.size() == 1 ? std::optional(of_deviants(f, left, false, false)) : std::nullopt;
}

// None of them, of many the first, issued that collective, or the one of a sister group.
bool none_issued(const Facts& f, const std::vector<Wait>& who, const Pending& p) {
  const Collective c = collective(f, p);
  return std::ranges::none_of(
      std::span(who).first(std::min(who.size(), limits::kVoters)),
      [&](const Wait& w) { return place_of(f, w.evidence, c).has_value(); });
}

// The first that the rank waits in.
std::vector<int> first_waits(const Facts& f, int i) {
  std::vector<int> out;
  for (const int k : f.graph.waits_in[idx(i)]) {
    if (std::ranges::any_of(f.graph[k].waits, [&](const Wait& w) {
          return w.evidence == i && f.graph.fronts[idx(i)].holds(w.record);
        })) {
      out.push_back(k);
    }
  }
  return out;
}

// What some wait in that did not come to `op`, as most did: it waits for others of these, or it comes
// later and more of those who came are due there than wait in it.
bool comes_after(const Facts& f, const Pending& then, const Pending& op) {
  const auto is_few = [&](int i) { return contains(op.absent, i); };
  const std::ptrdiff_t few =
      std::ranges::count_if(then.waits, [&](const Wait& w) { return is_few(w.evidence); });
  return std::ranges::all_of(then.absent, is_few) ||
         (then.kind == Kind::kCollective && 2 * idx(few) < f.group(then.group).ranks.size() &&
          none_issued(f, op.waits, then));
}

// Most members came to a collective, and a few together did not, and wait in what comes after it.
std::optional<Cause> few_did_not_come(const Facts& f, const Problem& p) {
  for (const int k : p.pending) {
    const Pending& op = f.graph[k];
    if (op.kind != Kind::kCollective || op.absent.size() < 2 ||
        op.absent.size() > limits::kSuspects || 2 * op.absent.size() >= op.waits.size()) {
      continue;
    }
    std::vector<int> few = op.absent;
    std::erase_if(few, [&](int i) { return is_held_up(f, i, op); });
    const auto went_on = [&](int i) {
      const std::vector<int> in = first_waits(f, i);
      return !in.empty() &&
             std::ranges::all_of(in, [&](int j) { return comes_after(f, f.graph[j], op); });
    };
    if (!few.empty() && std::ranges::all_of(few, went_on)) {
      return left_out_by(f, few, k, Assume::kFewAreWrong);
    }
  }
  return std::nullopt;
}

// All other members sent that one as many messages, or received as many from it, as came before this.
bool is_one_ahead(const Facts& f, const Pending& message, const Pending& met, int i) {
  const Group& g = f.group(message.group);
  const bool sends = message.from == f.rank(i);
  const Rank other = sends ? message.to : message.from;
  std::size_t sisters = 0;
  for (std::size_t m = 0; m < g.ranks.size(); ++m) {
    const int j = g.evidence[m];
    const LaneEvidence* lane =
        j < 0 || j == i ? nullptr : lane_of(f.ev(j), g, g.row[m], sends, other);
    if (lane == nullptr) {
      continue;
    }
    if (lane->relative || lane->enqueued + 1 != message.seq || !met.waits_here(j)) {
      return false;
    }
    ++sisters;
  }
  return sisters != 0;
}

}  // namespace

std::optional<Cause> one_went_on(const Facts& f, const Problem& p) {
  for (const int k : p.pending) {
    const Pending& op = f.graph[k];
    const int i = op.absent.size() == 1 ? op.absent.front() : -1;
    const std::vector<int> in = i < 0 ? std::vector<int>{} : first_waits(f, i);
    if (op.kind == Kind::kCollective && in.size() == 1 &&
        f.graph[in.front()].kind != Kind::kCollective &&
        is_one_ahead(f, f.graph[in.front()], op, i)) {
      return left_out_by(f, {i}, k, Assume::kPeersOrder);
    }
  }
  return std::nullopt;
}

namespace {

// The step of the rank's last message to that one; its size: none is kept.
std::size_t last_send(const Facts& f, int i, Rank to) {
  const std::vector<Step>& steps = f.history.of(i);
  for (std::size_t k = steps.size(); k-- > 0;) {
    const Record& r = f.history.record(i, k);
    if (r.kind == Kind::kSend && steps[k].group >= 0 && r.peer >= 0 &&
        f.group(steps[k].group).ranks[idx(r.peer)] == to) {
      return k;
    }
  }
  return steps.size();
}

// Who sent to a rank that receives from any rank, by how many messages each sent.
std::map<std::uint64_t, std::vector<int>> senders_to(const Facts& f, int server) {
  std::map<std::uint64_t, std::vector<int>> out;
  for (const int j : f.c.group_of[idx(server)]) {
    const Group* g = j < 0 ? nullptr : &f.group(j);
    for (std::size_t m = 0; g != nullptr && m < g->ranks.size(); ++m) {
      const int i = g->evidence[m];
      const LaneEvidence* sent =
          i < 0 ? nullptr : lane_of(f.ev(i), *g, g->row[m], true, f.rank(server));
      if (sent != nullptr && !sent->relative) {
        out[sent->enqueued].push_back(i);
      }
    }
  }
  return out;
}

// All sent as many messages to one that receives from any rank, but for one of those on the circle: that
// one left a message out, or sent one more.
std::optional<Cause> sent_another_number(const Facts& f, const Problem& p) {
  for (const int server : p.evidence) {
    if (!f.anomalies.receives_from_any(server)) {
      continue;
    }
    const auto senders = senders_to(f, server);
    if (senders.size() != 2) {
      continue;
    }
    const bool fewer = senders.begin()->second.size() == 1;
    const auto& [alone, most] = fewer ? std::tie(senders.begin()->second, senders.rbegin()->second)
                                      : std::tie(senders.rbegin()->second, senders.begin()->second);
    if (alone.size() != 1 || most.size() < limits::kPeersAgree ||
        !contains(p.evidence, alone.front())) {
      continue;
    }
    const int i = alone.front(), other = fewer ? i : most.front();
    const std::size_t at = f.stuck_step(i);
    const std::size_t usual = fewer ? last_send(f, i, f.rank(server)) : f.stuck_step(other);
    if (at >= f.history.of(i).size() || usual >= f.history.of(other).size()) {
      continue;
    }
    Deviant d = left_out_at(i, at, other, usual);
    d.how.kind = fewer ? Anomaly::kSkipped : Anomaly::kInserted;
    return of_deviants(f, {d}, true, true);
  }
  return std::nullopt;
}

}  // namespace

std::vector<Deviant> who_left_out(const Facts& f, const Pending& op) {
  std::vector<Deviant> out;
  const std::size_t n = std::min(op.absent.size(), limits::kSuspects);
  for (const int i : std::span(op.absent).first(op.kind == Kind::kCollective ? n : 0)) {
    const auto a = is_held_up(f, i, op)
                       ? std::nullopt
                       : f.anomalies.left_out(i, f.stuck_step(i), op.group, op.seq);
    if (a) {
      out.push_back({i, *a});
    }
  }
  return out.size() < op.waits.size() ? out : std::vector<Deviant>{};
}

bool waits_for_any_rank(const Facts& f, int i) {
  const std::size_t at = f.graph.fronts[idx(i)].first;
  return at != kNoRecord && f.ev(i).records[at].kind == Kind::kRecv && f.ev(i).records[at].peer < 0;
}

std::optional<Cause> left_on_circle(const Facts& f, const Problem& p,
                                    const std::vector<int>& suspects) {
  auto c = few_did_not_come(f, p);
  c = c ? c : sent_another_number(f, p);
  c = c ? c : against_the_shown_order(f, p);
  c = c ? c : came_without(f, p);
  c = c ? c : left_program(f, suspects);
  c = c ? c : left_loop(f, p, suspects);
  c = c ? c : few_go_on(f, p, false);
  for (const int k : first_of(p.pending)) {
    const std::vector<Deviant> who = c ? std::vector<Deviant>() : who_left_out(f, f.graph[k]);
    c = who.empty() ? c : std::optional(of_deviants(f, who, false, true));
  }
  return c;
}

}  // namespace frtrace
