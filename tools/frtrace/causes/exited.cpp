// Processes that ended while others wait for them, and ranks without evidence.
#include <algorithm>
#include <limits>
#include <set>
#include <span>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "model/contains.hpp"

namespace frtrace {

namespace {

Why why_of(const Exit& e) {
  switch (e.kind) {
    case ExitKind::kSignal:
      return Why::kKilled;
    case ExitKind::kException:
      return Why::kException;
    case ExitKind::kStatus:
      return e.status == 0 ? Why::kLeftEarly : Why::kExit;
    case ExitKind::kGone:
    case ExitKind::kNone:
      break;
  }
  return Why::kGone;
}

bool earlier(const Exit& a, const Exit& b) {
  return a.time != b.time && a.time != 0 && (b.time == 0 || a.time < b.time);
}

// The processes that ended first, or ended the same way at the same moment, except processes that
// waited for another process that ended.
std::vector<int> first_to_end(const Facts& f, bool all_gone) {
  const std::set<int> dead(f.primary.begin(), f.primary.end());
  std::vector<int> causes = f.primary;
  std::erase_if(causes, [&](int i) {
    return f.exit(i).kind == ExitKind::kGone && !all_gone &&
           std::ranges::any_of(f.graph.waits_in[idx(i)], [&](int k) {
             return std::ranges::any_of(f.graph[k].absent,
                                        [&](int a) { return a != i && dead.contains(a); });
           });
  });
  if (causes.empty() && f.missing_primary.empty()) {
    causes = f.primary;
  }
  std::ranges::stable_sort(causes, [&](int a, int b) { return earlier(f.exit(a), f.exit(b)); });
  std::vector<int> chosen;
  for (const int i : causes) {
    const Exit &first = f.exit(causes.front()), &e = f.exit(i);
    const bool same =
        why_of(e) == why_of(first) && seconds_between(first.time, e.time) < limits::kSameCause_s;
    if (i == causes.front() || first.time == 0 || e.time == 0 || same) {
      chosen.push_back(i);
    }
  }
  std::ranges::sort(chosen);
  return chosen;
}

// Adds ends that only peers saw. Such an end may be a consequence of a known end, unless it came
// before that.
void add_missing(const Facts& f, Time known, Cause& c) {
  // A process that ended without a word was killed. An exit status may come from an error that
  // followed.
  const auto silent = [&](int i) {
    const ExitKind kind = f.missing_exits[idx(i)].kind;
    return kind == ExitKind::kGone || kind == ExitKind::kSignal;
  };
  const bool any_silent = std::ranges::any_of(f.missing_primary, silent);
  bool added = false;
  for (const int i : f.missing_primary) {
    const Exit& e = f.missing_exits[idx(i)];
    const bool before =
        known != 0 && e.time != 0 && seconds_between(e.time, known) > limits::kSameCause_s;
    if ((!any_silent || silent(i)) &&
        (c.guilty.empty() || added || before || e.kind == ExitKind::kSignal)) {
      c.guilty.push_back({.rank = f.c.missing[idx(i)], .why = why_of(e)});
      added = true;
    }
  }
  if (added) {
    c.assume(Assume::kEndedSeenByPeers);
  }
}

// Evidence of a rank that a killed rank waited for, and that never came and waits for nothing; -1:
// none.
int waited_in_vain(const Facts& f, int i) {
  const ExitKind kind = f.exit(i).kind;
  if (kind != ExitKind::kGone && kind != ExitKind::kSignal) {
    return -1;
  }
  for (const Problem& p : f.settled.problems) {
    const int a = p.kind == Problem::kIdle ? p.evidence.front() : -1;
    if (a >= 0 && !f.exit(a).by_itself() &&
        std::ranges::any_of(f.settled.waits_in[idx(i)],
                            [&](int k) { return contains(f.settled[k].absent, a); })) {
      return a;
    }
  }
  return -1;
}

}  // namespace

std::vector<Cause> exited(const Facts& f) {
  if (f.scene != Scene::kExits) {
    return {};
  }
  const bool all_gone =
      f.c.missing.empty() && f.primary.size() == f.c.ranks.size() &&
      std::ranges::all_of(f.primary, [&](int i) { return f.exit(i).kind == ExitKind::kGone; });
  Cause c(Rule::kExited, Verdict::kExited);
  const std::vector<int> chosen = first_to_end(f, all_gone);
  Time known = 0;
  for (const int i : chosen) {
    c.guilty.push_back(guilty_rank(f, i, why_of(f.exit(i))));
    known = known == 0 || (f.exit(i).time != 0 && f.exit(i).time < known) ? f.exit(i).time : known;
  }
  add_missing(f, known, c);
  const int absent_from = main_pending(f, chosen);
  for (Guilty& g : c.guilty) {
    g.pending = absent_from;
  }
  c.pending = absent_from >= 0 ? absent_from : main_pending(f, chosen, false);
  // Every later wait may be a consequence of the end.
  c.explains = ranks_that(f, [&](int i) { return f.graph.waits(i); });
  for (const int i : chosen) {
    const int a = waited_in_vain(f, i);
    if (a >= 0 && !contains(chosen, a)) {
      c.absent_too = a;
      c.assume(Assume::kOtherMayBeFirst, {f.rank(a), f.rank(i)});
      break;
    }
  }
  if (chosen.size() > 1) {
    c.assume(all_gone ? Assume::kAllGone : Assume::kOneEvent);
  }
  sort_by_rank(c.guilty);
  return {c};
}

std::vector<Cause> one_killed(const Facts& f) {
  if (f.scene != Scene::kOneKilled) {
    return {};
  }
  Cause c(Rule::kOneKilled, Verdict::kExited);
  c.pending = main_pending(f, {f.killed});
  c.guilty = {guilty_rank(f, f.killed, Why::kKilled, c.pending)};
  c.explains = f.graph.leading_to({f.killed});
  return {c};
}

namespace {

// All ranks ended by themselves with status 0, some after a signal that the program handles.
std::vector<Cause> ended_when_told(const Facts& f) {
  const std::vector<int> clean = ranks_that(f, [&](int i) { return f.exit(i).clean(); });
  std::vector<int> told = ranks_that(f, [&](int i) { return f.exit(i).handled != 0; });
  if (told.empty() || clean.size() != f.c.ranks.size() || !f.c.missing.empty()) {
    return {};
  }
  Cause c(Rule::kOkToldToEnd, Verdict::kOk);
  c.others = std::move(told);
  return {c};
}

}  // namespace

std::vector<Cause> terminated(const Facts& f) {
  std::vector<int> told = ranks_that(f, [&](int i) { return f.exit(i).terminated; });
  if (told.empty()) {
    return ended_when_told(f);
  }
  std::ranges::stable_sort(told, {}, [&](int i) { return f.exit(i).time; });
  Cause c;
  c.others = told;
  // A process that another sender ended, before the others, was the target.
  const Exit& first = f.exit(told[0]);
  if (told.size() > 1) {
    const Exit& second = f.exit(told[1]);
    if (first.sender_pid != 0 && second.sender_pid != 0 && first.time != 0 &&
        first.sender_pid != second.sender_pid && first.time < second.time) {
      c.set(Rule::kKilledBefore, Verdict::kExited);
      c.guilty = {guilty_rank(f, told[0], Why::kKilled)};
      c.assume(Assume::kSignalOrder);
      return {c};
    }
  }
  // The job may have been ended because it was slow.
  for (Cause& s : f.c.missing.empty() ? slow(f) : std::vector<Cause>{}) {
    if (s.verdict == Verdict::kSlow) {
      return {std::move(s)};
    }
  }
  c.set(f.c.missing.empty() ? Rule::kOkTerminated : Rule::kOpenTerminated,
        f.c.missing.empty() ? Verdict::kOk : Verdict::kUndecided);
  return {c};
}

bool is_node(const Facts& f, const std::vector<Rank>& who) {
  if (who.size() < 2 || who.back() - who.front() + 1 != static_cast<Rank>(who.size())) {
    return false;
  }
  const auto n = static_cast<Rank>(who.size());
  for (const RankEvidence* e : f.c.ranks) {
    if (const int local = e->id.local_world_size; local > 0 && local < e->id.world_size) {
      return n == local && who.front() % local == 0;
    }
  }
  return contains(std::span(limits::kNodeSizes), n) && who.front() % n == 0;
}

namespace {

// In a pending operation, the device of a rank with evidence received data from that rank or sent
// data to it.
bool moved_data(const Facts& f, Rank who) {
  for (const Pending& p : f.graph.pending) {
    for (const Wait& w : p.waits) {
      const auto at = f.devices.of(w.evidence, w.record);
      if (!at) {
        continue;
      }
      for (const DevicePhase& phase : f.devices.phases(*at)) {
        if (phase.kind != PhaseKind::kKernel && f.devices.peer(*at, phase.peer) == who &&
            (phase.step > 0 || phase.wait == PhaseWait::kInFlight)) {
          return true;
        }
      }
    }
  }
  return false;
}

// The record of the operation that was due where the rank clearly left its usual order, beyond the
// normal variation of programs; nullopt: it did not.
std::optional<std::size_t> left_out_record(const Facts& f, int i) {
  const std::size_t stuck = f.stuck_step(i);
  const std::vector<Step>& steps = f.history.of(i);
  const auto a = f.anomalies.own(i, stuck, f.stuck_end(i));
  const auto kind_at = [&](std::size_t step) { return f.ev(i).records[steps[step].record].kind; };
  const auto of_collectives_here = [&] {
    return (a->kind == Anomaly::kSkipped || a->kind == Anomaly::kSwapped) && a->issued == stuck &&
           kind_at(a->issued) == Kind::kCollective && kind_at(a->usual) == Kind::kCollective;
  };
  const auto skipped = [&] {
    return a->kind == Anomaly::kSkipped && a->context + a->support > limits::kLeftOutClearly;
  };
  return a && (a->novel || of_collectives_here() || skipped())
             ? std::optional<std::size_t>(steps[a->usual].record)
             : std::nullopt;
}

// The rank without evidence may wait for a rank that left its usual order where an operation with
// it, or an operation that others wait in, was due.
bool has_suspect(const Facts& f, Rank who) {
  std::set<int> waiting, suspects;  // groups; evidence
  for (const Pending& p : f.graph.pending) {
    waiting.insert(p.group);
    suspects.insert(p.absent.begin(), p.absent.end());
    for (const Wait& w : p.waits) {
      suspects.insert(w.evidence);
    }
  }
  const std::size_t compared = std::min(suspects.size(), limits::kSuspects);
  return std::any_of(suspects.begin(), std::next(suspects.begin(), compared), [&](int i) {
    const auto due = left_out_record(f, i);
    const Record* r = due ? &f.ev(i).records[*due] : nullptr;
    const int at = r != nullptr ? f.c.group_at(i, r->group) : -1;
    if (at < 0) {
      return false;
    }
    const Group& g = f.group(at);
    if (r->kind == Kind::kCollective) {
      return waiting.contains(at) || g.position.contains(who);
    }
    const Rank peer = r->peer >= 0 ? g.ranks[idx(r->peer)] : -1;
    return peer == who || std::ranges::any_of(f.graph.pending, [&](const Pending& p) {
             return p.group == at && p.kind != Kind::kCollective && contains(p.absent, i) &&
                    (p.from == peer || p.to == peer);
           });
  });
}

// The devices of all members are in one of the problem's operations, and no rank without evidence
// is a member.
bool runs_without_end(const Facts& f, const Problem& problem) {
  return problem.kind == Problem::kComplete &&
         std::ranges::any_of(problem.pending, [&](int k) { return all_started(f, f.graph[k]); });
}

// The rank's own group of that kind; -1: none.
int sister_of(const Facts& f, int i, int group) {
  const auto& own = f.c.group_of[idx(i)];
  const auto it = std::ranges::find_if(
      own, [&](int g) { return g >= 0 && f.group(g).kind() == f.group(group).kind(); });
  return it == own.end() ? -1 : *it;
}

// The rank issued its counterpart of `first` before the operation of `then`, which it waits in.
bool issued_before(const Facts& f, const Wait& then, const Pending& first) {
  const int g = sister_of(f, then.evidence, first.group);
  const Record* r = g < 0
                        ? nullptr
                        : f.slots[idx(g)].at(f.c, f.group(g),
                                             idx(f.group(g).at(f.rank(then.evidence))), first.seq);
  return r != nullptr && f.ev(then.evidence).index_of(*r) < then.record;
}

// A collective that lacks only this rank, while all idle ranks are past it, each in its own group
// of that kind, so none of them held it up. Other operations that lack this rank come later in the
// program. -1: none.
int lacks_only(const Facts& f, Rank who) {
  const std::vector<int> idle = problem_ranks(f, Problem::kIdle);
  const auto lacks = [&](const Pending& p) {
    return p.kind == Kind::kCollective && p.absent.empty() && p.unknown.size() == 1 &&
           p.unknown.front() == who;
  };
  const auto explains = [&](int k) {
    const Pending& p = f.graph[k];
    const Wait& w = p.waits.front();
    const auto went_past = [&](int i) {
      const int g = sister_of(f, i, p.group);
      const GroupEvidence* own =
          g < 0 ? nullptr : f.c.member(f.group(g), idx(f.group(g).at(f.rank(i))));
      return own != nullptr && own->enqueued >= p.seq;
    };
    return std::ranges::all_of(idle, went_past) &&
           std::ranges::none_of(f.graph.pending, [&](const Pending& op) {
             return contains(op.unknown, who) && !op.absent.empty() &&
                    (op.kind != Kind::kCollective || issued_before(f, w, op));
           });
  };
  const std::vector<int> all = f.graph.those(lacks);
  const auto it = std::ranges::find_if(all, explains);
  return idle.empty() || it == all.end() ? -1 : *it;
}

}  // namespace

std::vector<Cause> no_evidence(const Facts& f) {
  std::vector<Rank> who;
  Cause c;
  std::set<int> explained;
  for (const Problem& p : f.graph.problems) {
    if (p.kind == Problem::kNoEvidence) {
      who.push_back(p.rank);
      explained.insert(p.explains.begin(), p.explains.end());
    }
  }
  if (who.empty() || std::ranges::any_of(f.graph.problems, [&](const Problem& p) {
        return runs_without_end(f, p);
      })) {
    return {};
  }
  std::ranges::sort(who);
  c.explains.assign(explained.begin(), explained.end());
  const std::vector<int> open = f.graph.those([](const Pending& p) { return !p.unknown.empty(); });
  c.pending = *std::ranges::max_element(open, {}, [&](int k) { return f.graph[k].waits.size(); });
  const Pending& p = f.graph[c.pending];
  const auto add = [&](Rank rank, Why why) {
    c.guilty.push_back({.rank = rank, .why = why, .pending = c.pending});
  };
  for (std::size_t i = 0; i < f.missing_exits.size(); ++i) {
    const Rank rank = f.c.missing[i];
    if (f.missing_exits[i].ended() && contains(who, rank)) {
      add(rank, why_of(f.missing_exits[i]));
    }
  }
  if (!c.guilty.empty()) {
    c.set(Rule::kSeenEnded, Verdict::kExited);
    c.assume(Assume::kEndedSeenByPeers);
    return {c};
  }
  const auto any = [&](auto&& test) { return std::ranges::any_of(who, test); };
  const bool failed = std::ranges::any_of(p.waits, [](const Wait& w) { return w.failed; });
  const bool lasting = f.alarmed || failed || p.seconds() >= limits::kLongWait_s;
  const bool node = is_node(f, f.c.missing);
  const std::set<Rank> seen = missing_seen(f.c, true);
  const bool alive = any([&](Rank x) { return seen.contains(x); });
  const bool doubtful = !f.hidden.empty() && f.hidden.front().doubtful;
  // If several ranks are lost, the awaited rank may itself wait for another.
  const bool alone = who.size() == 1 && f.c.missing == who;
  // A watchdog prints nothing about a rank that has nothing in flight.
  const bool logged =
      std::ranges::all_of(f.c.ranks, [](const RankEvidence* e) { return e->holes.from_log; });
  if ((alone || node) && lasting && !alive && !p.complete && !doubtful && !logged &&
      (node || !any([&](Rank x) { return moved_data(f, x); })) && !has_suspect(f, who.front())) {
    c.set(Rule::kNoEvidence, Verdict::kExited);
    for (const Rank x : node ? f.c.missing : who) {
      add(x, Why::kNoEvidence);
    }
    c.assume(Assume::kLostOnly, who);
    if (const int k = who.size() == 1 ? lacks_only(f, who.front()) : -1; k >= 0) {
      c.independent = true;
      c.pending = c.guilty.front().pending = k;
      c.explains = f.graph.leading_to({}, {k});
    }
    return {c};
  }
  c.set(Rule::kOpenNoEvidence, Verdict::kUndecided);
  for (const Rank x : who) {
    add(x, Why::kNoEvidence);
  }
  return {c};
}

// All waits end at one rank, and its PyTorch file is much older than they are: it wrote no new file
// when the others wrote theirs. (Ranks with fr also write the files of other ranks.)
std::vector<Cause> old_file(const Facts& f) {
  const std::vector<Problem>& ends = f.graph.problems;
  const bool one =
      ends.size() == 1 && ends.front().kind == Problem::kStale && ends.front().evidence.size() == 1;
  const int i = one ? ends.front().evidence.front() : -1;
  const std::vector<int> open =
      f.graph.those([i](const Pending& p) { return contains(p.stale, i); });
  if (open.empty() || !f.c.missing.empty()) {
    return {};
  }
  const RankEvidence& e = f.ev(i);
  double older_s = std::numeric_limits<double>::infinity();
  for (const RankEvidence* other : f.c.ranks) {
    older_s = std::min(older_s, other == &e ? older_s : seconds_between(e.written, other->written));
  }
  Cause c(Rule::kOldFile, Verdict::kExited);
  c.explains = ends.front().explains;
  c.pending = *std::ranges::max_element(open, {}, [&](int k) { return f.graph[k].waits.size(); });
  const Pending& p = f.graph[c.pending];
  // The ages of copied files are unknown.
  const bool copied = std::ranges::any_of(
      f.c.ranks, [](const RankEvidence* other) { return other->holes.written_guessed; });
  if (e.format.empty() || copied || older_s < limits::kStaleApart_s ||
      p.seconds() < limits::kLongWait_s || has_suspect(f, f.rank(i))) {
    return {};
  }
  c.guilty.push_back(guilty_rank(f, i, Why::kNoEvidence, c.pending));
  c.assume(Assume::kOldFile, {f.rank(i)}, older_s);
  return {c};
}

}  // namespace frtrace
