// Ranks that wait for nothing and did not issue the operation that others wait in.
#include <algorithm>
#include <set>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "facts/pending.hpp"
#include "facts/polls.hpp"
#include "model/contains.hpp"
#include "model/hints.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// By its stack the rank sleeps outside of any operation: it waits for something outside of the
// job's communication before it issues another operation.
bool is_held_elsewhere(const Facts& f, int i) {
  const ThreadStack* t = told_thread(f.ev(i));
  return t != nullptr && !f.exit(i).ended() && !f.is_leaving(i) && !f.graph.waits(i) &&
         f.lifecycle_in_flight(i) == nullptr && now_at(f.ev(i)).line != 0 &&
         (t->activity == fr::Activity::kAsleep || t->activity == fr::Activity::kPolling);
}

// A minority waits in an operation that does not belong to the job: all others have left, or no
// rank ever issued it before. The same for a rank that left its order with a message.
bool is_extra(const Facts& f, const Pending& p, const std::vector<int>& absent) {
  if (p.kind != Kind::kCollective) {
    const int i = p.waits.front().evidence;
    const auto a = f.anomalies.own(i, f.stuck_step(i), f.stuck_end(i));
    return a && a->issued == f.stuck_step(i) && a->context >= limits::kContext;
  }
  if (absent.size() < 2 || p.waits.size() + p.busy.size() >= absent.size()) {
    return false;
  }
  if (std::ranges::all_of(absent, [&](int i) { return f.is_leaving(i); })) {
    return true;
  }
  if (std::ranges::all_of(absent, [&](int i) { return is_held_elsewhere(f, i); })) {
    return false;
  }
  return std::ranges::all_of(p.waits, [&](const Wait& w) {
    const std::vector<Step>& steps = f.history.of(w.evidence);
    const std::size_t pos = step_of(steps, w.record);
    // An operation added earlier in that group, whatever it is taken for, shifts all later ones.
    const auto a = f.anomalies.own(w.evidence, f.stuck_step(w.evidence));
    if (a && (a->kind == Anomaly::kInserted || a->kind == Anomaly::kSwapped) &&
        steps[a->issued].group == p.group) {
      return true;
    }
    return is_new(f, w.evidence, pos) &&
           std::ranges::none_of(f.history.of(absent.front()),
                                [&](const Step& s) { return s.key == steps[pos].key; });
  });
}

// By a waiting rank's earlier iterations this operation was due or, if `another`, a different one.
bool was_due(const Facts& f, const Pending& p, bool another = false) {
  return std::ranges::any_of(p.waits, [&](const Wait& w) {
    const std::vector<Step>& steps = f.history.of(w.evidence);
    const std::size_t pos = step_of(steps, w.record);
    const auto usual = pos < steps.size() ? usual_next(steps, pos) : std::nullopt;
    return usual && (steps[*usual].key != steps[pos].key) == another;
  });
}

// The rank's call sites are one ahead of a peer's from some slot on: it left the operation of that
// slot out, and nothing hung there. Returns the slot's sequence number; 0: no such slot.
std::uint64_t shifted_since(const Facts& f, int i, int group) {
  const Group& g = f.group(group);
  const Slots& s = f.slots[idx(group)];
  const auto mine = g.position.find(f.rank(i));
  const std::size_t own = mine == g.position.end() ? g.ranks.size() : idx(mine->second);
  std::size_t other = 0;
  while (other < g.ranks.size() && (other == own || s.records[other].empty())) {
    ++other;
  }
  if (own == g.ranks.size() || other == g.ranks.size()) {
    return 0;
  }
  const auto site_of = [&](std::size_t m, std::uint64_t seq) {
    const Record* r = s.at(f.c, g, m, seq);
    return r == nullptr ? Site() : user_site(f.ev(g.evidence[m]), r->stack);
  };
  std::uint64_t since = 0;
  int compared = 0;
  for (const std::size_t index : s.records[own]) {
    const std::uint64_t seq = f.ev(i).records[index].seq;
    const Site site = site_of(own, seq), same = site_of(other, seq), next = site_of(other, seq + 1);
    if (since == 0 && (site == same || site.file.empty() || same.file.empty())) {
      continue;
    }
    if (next.file.empty()) {
      break;
    }
    if (!(site == next)) {
      return 0;
    }
    since = since == 0 ? seq : since;
    ++compared;
  }
  return compared >= limits::kShifted ? since : 0;
}

// Beside a process that ended, an idle rank is a fault of its own only if it stopped long before
// and waits for nothing that the ended process may owe it.
bool stands_alone(const Facts& f, int i) {
  const RankEvidence& e = f.ev(i);
  if (f.exit(i).ended() || !e.format.empty() || f.settled.waits(i) ||
      f.lifecycle_in_flight(i) != nullptr || f.is_leaving(i) || e.losses.no_group != 0 ||
      e.records.empty()) {
    return false;
  }
  for (const Hint& hint : hints_of(e)) {
    if (hint.kind == HintKind::kStore || hint.kind == HintKind::kLockFile ||
        hint.kind == HintKind::kFifo) {
      return false;
    }
  }
  const double hang_s = e.timeout_s();
  return seconds_between(e.records.back().time, e.written) >= hang_s / 2 &&
         std::ranges::any_of(f.settled.pending, [&](const Pending& p) {
           return contains(p.absent, i) && p.seconds() >= hang_s;
         });
}

// If sends and receives are not recorded, several ranks that did not come, or left no file, are
// likelier to wait for each other than to have stopped. Not so for two ranks of a job with few
// kinds of groups, which has no pipeline stages.
bool may_wait_unseen(const Facts& f, const std::vector<int>& idle, const Pending& p) {
  const std::size_t several = idle.size() + f.c.missing.size();
  const bool deaf = std::ranges::any_of(idle, [&](int i) {
    return !f.ev(i).format.empty() && !runs_in_order(f.c, p) && f.ev(i).lanes.empty();
  });
  std::set<GroupKind> kinds;
  for (const Group& g : f.c.groups) {
    kinds.insert(g.kind());
  }
  return several > 1 &&
         (f.p2p_unseen || (deaf && (several > 2 || kinds.size() >= limits::kStagedKinds)));
}

// The rank issued operations until its evidence was written: it is late, not stuck.
bool is_moving(const Facts& f, int i) {
  const RankEvidence& e = f.ev(i);
  if (e.format.empty() || e.holes.written_guessed || e.records.empty() || f.exit(i).ended()) {
    return false;
  }
  const bool failed = std::ranges::any_of(f.graph.pending, [&](const Pending& p) {
    return contains(p.absent, i) &&
           std::ranges::any_of(p.waits, [](const Wait& w) { return w.failed; });
  });
  return !failed && seconds_between(e.records.back().time, e.written) < f.threshold_s;
}

// The other is_early() holds for an operation that the rank did not issue.
bool is_early(const Facts& f, int i) {
  return std::ranges::any_of(f.graph.pending, [&](const Pending& p) {
    return contains(p.absent, i) && is_early(f.c, f.slots, p, i);
  });
}

Cause extra(const Facts& f, int k) {
  const Pending& p = f.graph[k];
  Cause c(Rule::kExtra, Verdict::kMismatch);
  c.pending = k;
  c.others = p.absent;
  std::set<int> seen;
  for (const Wait& w : p.waits) {
    if (seen.insert(w.evidence).second) {
      Guilty g = guilty_rank(f, w.evidence, Why::kExtraOperation, k);
      g.issued = w.record;
      c.guilty.push_back(g);
    }
  }
  c.explains = f.graph.leading_to({seen.begin(), seen.end()}, {k});
  c.assume(Assume::kFewAreWrong);
  sort_by_rank(c.guilty);
  return c;
}

// The operation that most others wait in for this rank; `main` if that one lacks the rank.
int waited_in(const Facts& f, int i, int main) {
  return contains(f.graph[main].absent, i) ? main : main_pending(f, {i});
}

bool is_at_rest(const RankEvidence& e) {
  return !e.holes.no_members && !e.holes.no_p2p &&
         std::ranges::none_of(
             e.records, [](const Record& r) { return r.state == State::kFailed || blocks(r); });
}

// The group of the operation that peers issued after the operations that rank `i` issued last; -1:
// unknown.
int next_group_of_peers(const Facts& f, int i) {
  const std::vector<std::uint64_t>& own = f.anomalies.roles(i);
  std::size_t most = 0;
  int group = -1;
  for (const int j : f.anomalies.peers(i, true)) {
    const std::vector<std::uint64_t>& other = f.anomalies.roles(j);
    for (std::size_t q = 0; q + 1 < other.size(); ++q) {
      std::size_t n = 0;
      while (n <= q && n < own.size() && own[own.size() - 1 - n] == other[q - n]) {
        ++n;
      }
      if (n > most) {
        most = n;
        group = f.history.of(j)[q + 1].group;
      }
    }
  }
  return most >= std::min(own.size(), limits::kContextLeast) ? group : -1;
}

// By the rank's own earlier iterations, its next operation is one in which others wait for it.
bool is_next(const Facts& f, int i) {
  const std::vector<int> all = f.graph.those([](const Pending&) { return true; });
  return usual_if_awaited(f, i, f.history.of(i).size(), all).has_value();
}

// The rank waits for nothing, is alive, and its evidence is recent.
bool stands_still(const Facts& f, int i) {
  return !f.graph.waits(i) && !f.exit(i).ended() && !f.stale[idx(i)];
}

// Several ranks that seem idle may wait for each other while they make a communicator. Drops the
// ranks with peers that next issued the first operation of a kind of group. If the next operation
// is unknown, drops a rank if most of the job stands still.
void drop_makers(const Facts& f, std::vector<int>& idle) {
  std::size_t still = 0;
  for (const int i : f.c.indices()) {
    still += stands_still(f, i) ? 1 : 0;
  }
  if (still < 2 || f.ev(idle.front()).format.empty()) {
    return;
  }
  std::erase_if(idle, [&](int i) {
    const int next = next_group_of_peers(f, i);
    return next >= 0 ? makes_communicator(f, i, next)
                     : 2 * still > f.c.ranks.size() && !is_next(f, i);
  });
}

// All idle ranks are in one call that makes a group, and fewer ranks left it out than made it,
// members or not: the two sides wait for each other.
bool are_in_call(const Facts& f, const std::vector<int>& idle) {
  const Record* first = f.lifecycle_in_flight(idle.front());
  const auto is_it = [&](int i, const Record& r) {
    return r.kind == Kind::kLifecycle && r.seq == first->seq && f.ev(i).text(r.op) == "new_group";
  };
  const bool one = first != nullptr && std::ranges::all_of(idle, [&](int i) {
                     const Record* r = f.lifecycle_in_flight(i);
                     return r != nullptr && is_it(i, *r);
                   });
  if (!one) {
    return false;
  }
  const std::vector<int> made = ranks_that(f, [&](int i) {
    return std::ranges::any_of(f.ev(i).records, [&](const Record& r) { return is_it(i, r); });
  });
  const std::size_t absent = absent_from_call(f, idle).size();
  return absent != 0 && absent < made.size();
}

}  // namespace

bool may_be_between(const Facts& f) {
  const std::vector<int> idle = problem_ranks(f, Problem::kIdle);
  return idle.size() >= limits::kBetween &&
         std::ranges::any_of(f.c.ranks, [](auto* e) { return e->holes.written_guessed; }) &&
         std::ranges::none_of(
             f.graph.pending,
             [&](const Pending& p) {
               return p.kind == Kind::kCollective && f.group(p.group).ranks.size() > 2 &&
                      std::ranges::any_of(p.absent, [&](int i) { return contains(idle, i); });
             }) &&
         !is_node(f, f.ranks(idle)) &&
         std::ranges::none_of(f.c.groups, [&](const Group& g) { return g.ranks == f.ranks(idle); });
}

namespace {

// Ranks that issued nothing, if the blamed ranks use sends and receives: a blamed rank may wait for
// such a rank while NCCL makes a communicator for the first message between the two.
std::vector<Rank> may_make_communicator(const Facts& f, const std::vector<int>& who) {
  const auto blank = [&](int i) {
    return !f.graph.waits(i) && !f.exit(i).ended() && f.ev(i).records.empty() &&
           f.ev(i).losses.overwritten == 0;
  };
  const bool messages = std::ranges::any_of(who, [&](int i) {
    return !f.ev(i).format.empty() && std::ranges::any_of(f.ev(i).records, is_p2p);
  });
  return messages ? f.ranks(ranks_that(f, blank)) : std::vector<Rank>{};
}

// An open question. The caller sets its rule.
Cause undecided(const Facts& f, const std::vector<int>& who, int main) {
  Cause open;
  open.verdict = Verdict::kUndecided;
  open.pending = main;
  open.others = who;
  open.explains = f.graph.leading_to(who);
  return open;
}

// Others have waited long for these ranks, which issued operations until their files were written.
std::vector<Cause> still_issue(const Facts& f, const std::vector<int>& who) {
  const int k = main_pending(f, who);
  if (k < 0 || f.graph[k].seconds() < limits::kStaleApart_s) {
    return {};
  }
  Cause open = undecided(f, who, k);
  open.rule = Rule::kOpenStillIssues;
  return {open};
}

std::size_t count_waiting(const Facts& f) {
  return static_cast<std::size_t>(
      std::ranges::count_if(f.c.indices(), [&](int i) { return f.graph.waits(i); }));
}

// The departure by which the rank went on without that operation: it issued the operation that
// usually follows. nullopt: none.
std::optional<Anomaly> went_on_without(const Facts& f, int i, const Pending& p) {
  for (const Anomaly& a : f.anomalies.any(i, f.stuck_step(i), true)) {
    if (a.kind == Anomaly::kSkipped && is_due_in(f, i, a.usual, p) &&
        f.anomalies.due_seq(i, a) == p.seq) {
      return a;
    }
  }
  return std::nullopt;
}

Cause missing(const Facts& f, const std::vector<int>& who, int main, bool left) {
  Cause c(left ? Rule::kLeft : Rule::kNeverIssued, left ? Verdict::kExited : Verdict::kMissing);
  c.pending = main;
  for (const int i : who) {
    const int k = waited_in(f, i, main);
    Guilty g = guilty_rank(f, i,
                           f.exit(i).clean() || (left && f.has_left(i)) ? Why::kLeftEarly
                           : f.ev(i).salvage == Salvage::kUnresponsive  ? Why::kUnresponsive
                                                                        : Why::kNeverIssued,
                           k);
    if (const std::uint64_t seq = shifted_since(f, i, f.graph[k].group)) {
      g.seq = seq;
      g.why = g.why == Why::kNeverIssued ? Why::kSkipped : g.why;
    }
    c.guilty.push_back(g);
  }
  sort_by_rank(c.guilty);
  c.explains = f.graph.leading_to(who);
  const Pending& p = f.graph[main];
  if (!p.unknown.empty()) {
    c.assume(Assume::kRankWithoutEvidence, p.unknown);
  }
  if (who.size() > 1 && p.kind == Kind::kCollective && p.absent.size() >= p.waits.size() && !left &&
      was_due(f, p, true)) {
    c.assume(Assume::kTie);
  }
  if (const std::vector<Rank> blank = may_make_communicator(f, who); !blank.empty()) {
    c.assume(Assume::kMayMakeCommunicator, blank);
  }
  // Rings have no stacks, so the many ranks may be polling.
  if (!left && who.size() > count_waiting(f) && std::ranges::none_of(who, [&](int i) {
        return told_thread(f.ev(i)) != nullptr || !f.ev(i).format.empty();
      })) {
    c.assume(Assume::kStacksUnseen, f.ranks(who));
  }
  const bool failed = std::ranges::any_of(p.waits, [](const Wait& w) { return w.failed; });
  if (p.seconds() < limits::kShortHang_s && !failed && !f.timed_out) {
    c.assume(Assume::kShortHang, {}, p.seconds());
  }
  return c;
}

Cause left_out_or_missing(const Facts& f, const std::vector<int>& who, bool left) {
  const int awaited = main_pending(f, who);
  const auto skip =
      left || who.size() > 1 ? std::nullopt : went_on_without(f, who.front(), f.graph[awaited]);
  return skip ? of_deviants(f, {{who.front(), *skip}}, false, false)
              : missing(f, who, awaited, left);
}

// A few ranks wait for most others of their group, or of the job: either side may be wrong, for
// example if a rank goes through one iteration too many.
bool few_wait_for_many(const Facts& f, const Pending& p, const std::vector<int>& idle) {
  const auto absent = static_cast<std::size_t>(
      std::ranges::count_if(idle, [&](int i) { return contains(p.absent, i); }));
  if (p.kind == Kind::kCollective && p.waits.size() * 2 < absent && absent > 2 &&
      absent * 2 > f.group(p.group).ranks.size()) {
    return true;
  }
  const std::size_t waiting = count_waiting(f);
  const auto still = static_cast<std::size_t>(
      std::ranges::count_if(f.c.indices(), [&](int i) { return stands_still(f, i); }));
  return waiting * 2 < still && waiting < idle.size();
}

// Blames the waiting ranks if they left their own order; else an open question.
Cause few_or_many(const Facts& f, const Pending& p, const std::vector<int>& idle, Cause open) {
  std::vector<int> suspects = idle;
  for (const Wait& w : p.waits) {
    suspects.push_back(w.evidence);
  }
  const auto waits = [&](const Guilty& g) { return f.graph.waits(g.evidence); };
  if (auto c = left_order(f, suspects, true); c && std::ranges::all_of(c->guilty, waits)) {
    return *c;
  }
  open.rule = Rule::kOpenFewOrMany;
  return open;
}

// Drops ranks in a call that makes groups: they wait there for the other idle ranks.
void drop_inside_calls(const Facts& f, std::vector<int>& idle) {
  const auto waits = [&](int i) {
    const Record* call = f.lifecycle_in_flight(i);
    return call != nullptr && f.ev(i).salvage != Salvage::kUnresponsive && !f.exit(i).ended() &&
           (f.ev(i).text(call->op) == "init_process_group" ||
            f.ev(i).text(call->op) == "new_group");
  };
  if (!std::ranges::all_of(idle, waits)) {
    std::erase_if(idle, waits);
  }
}

// Drops ranks that wait in the store or in a loop: they wait for another rank, possibly for a rank
// that waits for them. True: all ranks do so, and none is dropped.
bool drop_waiting(const Facts& f, std::vector<int>& idle) {
  const std::vector<int> polling = that_poll(f, idle);
  std::vector<int> elsewhere = idle;
  std::erase_if(elsewhere,
                [&](int i) { return program_is_at_store(f, i) || contains(polling, i); });
  if (elsewhere.empty()) {
    return true;
  }
  idle = std::move(elsewhere);
  return false;
}

// All idle ranks only wait, in the ranks' store or in loops of their own. An open question, unless
// they are a minority: then the others wait for them, whatever they wait for.
std::optional<Cause> only_wait(const Facts& f, const std::vector<int>& idle, Cause open) {
  if (std::ranges::all_of(idle, [&](int i) { return program_is_at_store(f, i); })) {
    open.rule = Rule::kOpenAtStore;
    return open;
  }
  const bool at_store = std::ranges::any_of(idle, [&](int i) { return program_is_at_store(f, i); });
  if (at_store || idle.size() > count_waiting(f)) {
    open.rule = Rule::kOpenPolls;
    return open;
  }
  return {};
}

// A loop may wait for another rank, more likely if no more ranks wait in the operation than poll.
void doubt_polls(const Facts& f, const std::vector<int>& idle, const Pending& p, Cause& c) {
  c.assume(Assume::kPolls, f.ranks(idle));
  if (idle.size() >= p.waits.size()) {
    c.assume(Assume::kTie);
  }
}

}  // namespace

std::optional<Cause> owes_write(const Facts& f, const std::vector<int>& idle) {
  Cause c(Rule::kOwesWrite, Verdict::kMissing);
  c.owed = owed_write(f, idle);
  if (!c.owed) {
    return {};
  }
  c.others = idle;
  c.explains = idle;
  for (const int i : c.owed->owing) {
    const std::vector<int>& waits_in = f.graph.waits_in[idx(i)];
    c.guilty.push_back(guilty_rank(f, i, Why::kSkipped, waits_in.empty() ? -1 : waits_in.front()));
    c.explains.push_back(i);
  }
  sort_by_rank(c.guilty);
  c.assume(Assume::kOwesWrite);
  return c;
}

std::vector<Cause> never_issued(const Facts& f) {
  std::vector<int> idle = problem_ranks(f, Problem::kIdle);
  const bool beside = f.scene == Scene::kExits || f.scene == Scene::kOneKilled;
  if (beside) {
    std::erase_if(idle, [&](int i) { return !stands_alone(f, i); });
  }
  // A single file may be early. If others are early too, or a file is lost, the rank may have
  // issued the operation since.
  const bool early = idle.size() == 1 && f.c.missing.empty() && is_moving(f, idle.front()) &&
                     is_early(f, idle.front());
  if (!early) {
    const std::vector<int> all = idle;
    std::erase_if(idle, [&](int i) { return is_moving(f, i); });
    if (idle.empty()) {
      return still_issue(f, all);
    }
  }
  drop_inside_calls(f, idle);
  const int k = main_pending(f, idle);
  if (k < 0) {
    return {};
  }
  const Pending& p = f.graph[k];
  if (const auto c = owes_write(f, idle)) {
    return {*c};
  }
  if (p.absent.size() == idle.size() && p.unknown.empty() && is_extra(f, p, idle)) {
    return {extra(f, k)};
  }
  if (are_in_call(f, idle)) {
    return {};
  }
  const bool left = std::ranges::all_of(idle, [&](int i) { return f.has_left(i); });
  Cause open = undecided(f, idle, k);
  const bool all_wait = drop_waiting(f, idle);
  if (const auto c = all_wait ? only_wait(f, idle, open) : std::nullopt) {
    return {*c};
  }
  const bool few_wait = !left && few_wait_for_many(f, p, idle);
  // The operation was due, and the stacks show the many inside the program: the many stopped.
  const bool due = few_wait && was_due(f, p) && std::ranges::all_of(idle, [&](int i) {
                     return !now_at(f.ev(i)).file.empty() && !is_in_torch(f.ev(i));
                   });
  if (few_wait && !due) {
    return {few_or_many(f, p, idle, std::move(open))};
  }
  if (!left && may_wait_unseen(f, idle, p)) {
    open.rule = Rule::kOpenUnrecorded;
    return {open};
  }
  if (!left && may_be_between(f)) {
    open.rule = Rule::kOpenBetween;
    return {open};
  }
  if (runs_in_order(f.c, p)) {
    drop_makers(f, idle);
  }
  if (idle.empty()) {
    open.rule = Rule::kOpenCommunicator;
    return {open};
  }
  Cause c = left_out_or_missing(f, idle, left);
  // None of their operations failed or hangs: no other fault stopped them.
  c.independent = !early && std::ranges::all_of(idle, [&](int i) {
    return !f.exit(i).ended() && is_at_rest(f.ev(i));
  });
  if (due) {
    c.assume(Assume::kEarlierIterations);  // the few did not issue one too many
  }
  if (all_wait) {
    doubt_polls(f, idle, p, c);
  }
  if (early) {
    c.assume(Assume::kEarlyFile, f.ranks(idle));
  }
  if (beside) {
    c.independent = true;
    c.assume(Assume::kBesideAnEnd);
  }
  return {c};
}

}  // namespace frtrace
