// Rules for cases in which no rank is named: errors of unknown origin, stale evidence, slow ranks.
#include <algorithm>
#include <set>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// An open question about these ranks; none if there are no ranks.
std::vector<Cause> open_question(Rule rule, std::vector<int> about) {
  if (about.empty()) {
    return {};
  }
  Cause c(rule, Verdict::kUndecided);
  c.others = std::move(about);
  return {c};
}

// Processes that failed with an error that usually follows from another's end, though no process
// ended before and nothing is in flight: for example in the call that makes the first group.
std::vector<Cause> errors_at_the_end(const Facts& f) {
  std::vector<int> failed = ranks_that(f, [&](int i) {
    const Exit& e = f.exit(i);
    return e.kind == ExitKind::kException && e.consequence && !e.terminated;
  });
  if (failed.empty() || !f.graph.pending.empty() || !f.missing_primary.empty()) {
    return {};
  }
  std::ranges::stable_sort(failed, {}, [&](int i) { return f.exit(i).time; });
  const int first = failed.front();
  const Record* last = f.last_operation(first);
  std::vector<Cause> out = open_question(Rule::kOpenOwnErrors, std::move(failed));
  const bool in_call = last != nullptr && last->kind == Kind::kLifecycle;
  out.front().lifecycle = in_call ? f.ev(first).text(last->op) : "the program";
  return out;
}

}  // namespace

// An operation that failed with an error of its own, though no process had ended before.
std::vector<Cause> own_errors(const Facts& f) {
  const Wait* earliest = nullptr;
  Cause c;
  for (std::size_t k = 0; k < f.graph.pending.size(); ++k) {
    for (const Wait& w : f.graph.pending[k].waits) {
      if (w.own_error && (earliest == nullptr || w.until < earliest->until)) {
        earliest = &w;
        c.pending = static_cast<int>(k);
      }
    }
  }
  if (earliest == nullptr) {
    return errors_at_the_end(f);
  }
  for (const Wait& w : f.graph[c.pending].waits) {
    if (w.own_error) {
      c.others.push_back(w.evidence);
    }
  }
  // The rank that failed first comes first: its error is shown.
  std::stable_partition(c.others.begin(), c.others.end(),
                        [&](int i) { return i == earliest->evidence; });
  c.set(Rule::kOpenOwnErrors, Verdict::kUndecided);
  c.explains = f.graph.leading_to({}, {c.pending});
  return {c};
}

// Ranks with evidence that is older than the waits for them.
std::vector<Cause> stale(const Facts& f) {
  Cause c;
  std::set<int> who, explained;
  for (const Problem& p : f.graph.problems) {
    if (p.kind == Problem::kStale) {
      who.insert(p.evidence.begin(), p.evidence.end());
      explained.insert(p.explains.begin(), p.explains.end());
    }
  }
  if (who.empty()) {
    return {};
  }
  c.set(Rule::kOpenStale, Verdict::kUndecided);
  c.others.assign(who.begin(), who.end());
  c.explains.assign(explained.begin(), explained.end());
  return {c};
}

// A rank has done nothing for long, and the evidence of others, which have operations in flight, is
// older or cut off: it does not show how long these operations have lasted.
std::vector<Cause> at_rest(const Facts& f) {
  Time latest = 0;
  bool whole = false;  // some file is whole, with its time or completions
  for (const int i : f.c.indices()) {
    const RankEvidence& e = f.ev(i);
    whole = whole || (!e.holes.truncated && !(e.holes.written_guessed && e.holes.only_active));
    const bool rests = !e.holes.truncated && !f.exit(i).ended() && !e.format.empty() &&
                       idle_s(e) >= limits::kStaleApart_s;
    latest = rests ? std::max(latest, e.written) : latest;
  }
  if (f.graph.young == 0 || (latest == 0 && whole)) {
    return {};
  }
  const auto is_older = [&](int i) {
    return !whole || f.ev(i).holes.truncated ||
           seconds_between(f.ev(i).written, latest) >= limits::kStaleApart_s;
  };
  return open_question(Rule::kOpenAtRest, ranks_that(f, is_older));
}

// A rank had a reason to dump, or all ranks of a PyTorch job rest, and the evidence that was read
// does not show why.
std::vector<Cause> alarm_alone(const Facts& f) {
  bool rest = f.graph.young == 0;
  for (const int i : f.c.indices()) {
    const RankEvidence& e = f.ev(i);
    const double idle = idle_s(e);
    rest = rest && !e.format.empty() && !e.records.empty() && !f.is_leaving(i) &&
           (idle < 0 || idle >= f.threshold_s);
  }
  if ((!f.alarmed && !rest) || f.c.missing.empty()) {
    return {};
  }
  return {Cause(Rule::kOpenAlarm, Verdict::kUndecided)};
}

// Most ranks stopped in the middle of an iteration, or all have rested for long, possibly in
// operations that the format does not record.
std::vector<Cause> stopped_amid_iteration(const Facts& f) {
  if (!f.p2p_unseen || f.graph.young != 0) {
    return {};
  }
  const std::vector<int> amid =
      ranks_that(f, [&](int i) { return stopped_amid(f.c, f.history, i); });
  // For longer than the program is usually busy between two operations.
  const std::vector<int> resting =
      ranks_that(f, [&](int i) { return !f.is_leaving(i) && idle_s(f.ev(i)) >= f.threshold_s; });
  const bool most = 2 * amid.size() > f.c.ranks.size();
  if (!most && resting.size() != f.c.ranks.size()) {
    return {};
  }
  return most ? open_question(Rule::kOpenAmid, amid) : open_question(Rule::kOpenResting, resting);
}

namespace {

// An open question about the ranks with a watchdog that saw a hang and for which `shows` holds.
template <class Shows>
std::vector<Cause> open_hang(const Facts& f, Rule rule, const Shows& shows) {
  return open_question(
      rule, ranks_that(f, [&](int i) { return f.ev(i).trigger == Trigger::kTimeout && shows(i); }));
}

}  // namespace

// The records do not show the hang: its operations found no room in the recorder.
std::vector<Cause> unattributed(const Facts& f) {
  return open_hang(f, Rule::kOpenUnattributed, [&](int i) {
    const Losses& lost = f.ev(i).losses;
    return lost.no_group != 0 || lost.groups_lost != 0 || lost.strings_lost != 0;
  });
}

// The operation is still in flight, and no rank can be found that it waits for.
std::vector<Cause> unmatched(const Facts& f) {
  return open_hang(f, Rule::kOpenUnmatched, [&](int i) {
    const RankEvidence& e = f.ev(i);
    return !f.graph.waits(i) && std::ranges::any_of(e.records, [&](const Record& r) {
      return blocks(r) && seconds_between(r.time, e.written) >= f.threshold_s;
    });
  });
}

// No file holds or counts an operation: the files are stacks, or PyTorch's files of gloo, which
// lack sends and receives.
std::vector<Cause> without_operations(const Facts& f) {
  const std::vector<int> without = ranks_that(f, [&](int i) {
    const RankEvidence& e = f.ev(i);
    // PyTorch lists gloo's groups, though no file records their operations.
    return e.holes.only_stacks ||
           (!e.format.empty() && e.records.empty() && !e.holes.only_active &&
            f.c.ranks.size() > 1 &&
            std::ranges::all_of(e.groups, [](const GroupEvidence& g) { return g.enqueued == 0; }));
  });
  return without.size() == f.c.ranks.size() ? open_question(Rule::kOpenNoOperations, without)
                                            : std::vector<Cause>{};
}

// All ranks have issued the same operations and rest, and no file tells whether the last of these
// completed.
std::vector<Cause> without_completions(const Facts& f) {
  const std::vector<int> resting = ranks_that(f, [&](int i) {
    return f.ev(i).holes.no_completions && !f.is_leaving(i) && idle_s(f.ev(i)) >= f.threshold_s;
  });
  return resting.size() == f.c.ranks.size() ? open_question(Rule::kOpenNoCompletions, resting)
                                            : std::vector<Cause>{};
}

std::vector<Cause> calls_only(const Facts& f) {
  const bool stuck = f.alarmed || !f.graph.pending.empty();
  if (!f.records_less || !stuck) {
    return {};
  }
  return open_question(Rule::kOpenCallsOnly,
                       ranks_that(f, [&](int i) { return f.ev(i).holes.calls_only; }));
}

bool only_times(const Facts& f) {
  return !f.c.ranks.empty() &&
         std::ranges::all_of(f.c.ranks, [](const RankEvidence* e) { return e->holes.only_times; });
}

// Nothing is stuck; a rank keeps the others waiting all the time.
namespace {

// No rank stands out: all became slow at once, or each is late in turn.
std::vector<Cause> slow_together(const Facts& f) {
  if (f.c.ranks.size() < 2 || only_times(f)) {
    return {};
  }
  Cause c(Rule::kSlowSteps, Verdict::kSlow);
  c.others = ranks_that(f, [](int) { return true; });
  c.slower = slower_steps(f.c);
  if (!c.slower) {
    c.rule = Rule::kLateInTurn;
    c.in_turn = late_in_turn(f.c, f.slots);
  }
  if (!c.slower && !c.in_turn) {
    return {};
  }
  c.assume(Assume::kRingsOnly);
  return {c};
}

}  // namespace

std::vector<Cause> slow(const Facts& f) {
  Cause c;
  c.late = stragglers(f.c, f.slots);
  const std::vector<Straggler>& late = c.late.ranks;
  const bool none = late.empty() || f.c.ranks.size() < 2;
  if (none && only_times(f)) {
    c.set(Rule::kOpenTimesOnly, Verdict::kUndecided);
    c.others = ranks_that(f, [](int) { return true; });
    return {c};
  }
  if (none) {
    return slow_together(f);
  }
  // More than a third of the ranks, and not one node: uneven work, not stragglers.
  if (c.late.node.empty() && late.size() > std::max<std::size_t>(1, f.c.ranks.size() / 3)) {
    if (std::vector<Cause> together = slow_together(f); !together.empty()) {
      return together;
    }
    c.set(only_times(f) ? Rule::kOpenTimesOnly : Rule::kOk,
          only_times(f) ? Verdict::kUndecided : Verdict::kOk);
    for (const Straggler& s : late) {
      c.others.push_back(s.evidence);
    }
    return {c};
  }
  c.set(Rule::kSlow, Verdict::kSlow);
  for (const Straggler& s : late) {
    c.guilty.push_back(guilty_rank(f, s.evidence, Why::kLate));
    c.guilty.back().issued = s.worst().record;
  }
  c.assume(c.late.by_clocks ? Assume::kClocksAgree : Assume::kRingsOnly);
  return {c};
}

}  // namespace frtrace
