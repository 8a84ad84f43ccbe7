// All facts of a case, and the order of the hang and the ends of processes.
#include "facts/facts.hpp"

#include <algorithm>
#include <csignal>
#include <limits>

#include "facts/limits.hpp"
#include "model/contains.hpp"
#include "model/hints.hpp"
#include "model/operation.hpp"
#include "model/threads.hpp"

namespace frtrace {

namespace {

// The dump was written because something went wrong, not on request.
bool is_alarm(const RankEvidence* e) {
  return e->trigger == Trigger::kTimeout || e->trigger == Trigger::kPeer ||
         e->trigger == Trigger::kFailure || e->trigger == Trigger::kSalvage;
}

// The rank's watchdog had warned of a stall that lasted until the end.
bool is_warned(const RankEvidence* e) {
  const Time warned = e->id.warned;
  return warned != 0 && std::ranges::any_of(e->records, [warned](const Record& r) {
           const bool lasts = blocks(r) || (r.state == State::kFailed && r.ended > warned);
           return lasts && r.time != 0 && r.time < warned;
         });
}

std::vector<int> primary_of(const std::vector<Exit>& exits) {
  std::vector<int> out;
  for (std::size_t i = 0; i < exits.size(); ++i) {
    if (exits[i].primary()) {
      out.push_back(static_cast<int>(i));
    }
  }
  return out;
}

}  // namespace

Facts::Facts(const Case& the_case)
    : c(the_case),
      slots(make_slots(c)),
      history(c),
      anomalies(c, history),
      devices(c),
      device_errors(frtrace::device_errors(c)),
      divergences(frtrace::divergences(c, slots)),
      exits(exits_of(c)),
      missing_exits(exits_of_missing(c)),
      primary(primary_of(exits)),
      missing_primary(primary_of(missing_exits)),
      hidden(hidden_failures(c, history)),
      stale(stale_evidence(c)),
      threshold_s(limits::kStuck_s) {
  bool warned = false;
  for (const RankEvidence* e : c.ranks) {
    threshold_s = std::min(threshold_s, 0.5 * e->timeout_s());
    alarmed = alarmed || is_alarm(e);
    warned = warned || is_warned(e);
    timed_out = timed_out || e->trigger == Trigger::kTimeout;
    p2p_unseen = p2p_unseen || e->holes.no_p2p;
    records_less = records_less || e->holes.calls_only;
  }
  records_less = records_less && std::ranges::any_of(c.ranks, [](const auto* e) {
                   return !e->holes.calls_only && !e->records.empty();
                 });
  threshold_s = std::max(threshold_s, young_in_torch_s());
  if (!alarmed && !warned) {
    const bool by_hand = std::ranges::any_of(
        c.ranks, [](const RankEvidence* e) { return e->trigger == Trigger::kManual; });
    double usual_s =
        std::max(by_hand ? limits::kStuckByHand_s : 0, usual_wait_s(limits::kUsualWaitFewest));
    for (const RankEvidence* e : c.ranks) {
      usual_s = std::min(usual_s, e->timeout_s());  // a wait of a timeout is a hang
    }
    threshold_s = std::max(threshold_s, usual_s);
  }
  settled = waits_if(exits, threshold_s);
  find_scene();
}

WaitGraph Facts::waits_if(const std::vector<Exit>& ends, double young_s) const {
  return wait_graph(c, slots, ends, stale, young_s, hidden);
}

// If all files are PyTorch's, the shortest wait that shows a hang. 0: there are other files.
double Facts::young_in_torch_s() const {
  double least_s = limits::kStuckInTorch_s;
  for (const RankEvidence* e : c.ranks) {
    if (e->format.empty()) {
      return 0;
    }
    for (const Record& r : e->records) {
      if (blocks(r) && r.timeout_ms != 0) {
        least_s = std::min(least_s, r.timeout_ms / 2e3);
      }
    }
  }
  return c.ranks.empty() ? 0 : least_s;
}

// If no rank had a reason to dump, a few times the usual gap between two operations of a rank is no
// hang.
double Facts::usual_wait_s(std::size_t fewest) const {
  std::vector<double> usual;
  for (std::size_t i = 0; i < c.ranks.size(); i += 1 + c.ranks.size() / limits::kUsualWaitRanks) {
    const std::vector<Record>& records = c.ranks[i]->records;
    std::vector<double> gaps;
    for (std::size_t r = records.size() - std::min(records.size(), limits::kUsualWaitRecords) + 1;
         r < records.size(); ++r) {
      if (records[r - 1].time != 0 && records[r].time != 0) {
        gaps.push_back(seconds_between(records[r - 1].time, records[r].time));
      }
    }
    if (gaps.size() >= fewest) {
      const auto high = gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() * 95 / 100);
      std::nth_element(gaps.begin(), high, gaps.end());
      usual.push_back(*high);
    }
  }
  if (usual.empty()) {
    return 0;
  }
  const auto middle = usual.begin() + static_cast<std::ptrdiff_t>(usual.size() / 2);
  std::nth_element(usual.begin(), middle, usual.end());
  return std::min(limits::kUsualWaitMost_s, limits::kUsualWaitTimes * *middle);
}

void Facts::find_scene() {
  const bool read_are_gone =
      c.ranks.size() > 1 && primary.size() == c.ranks.size() &&
      std::ranges::all_of(primary, [&](int i) { return exits[idx(i)].kind == ExitKind::kGone; });
  // Some ranks were long in a call that makes or destroys groups, and no process ended before: all
  // were killed because of that.
  const auto in_call = [&](int i) {
    const Record* call = lifecycle_in_flight(i);
    return call != nullptr && seconds_between(call->time, ev(i).written) >= limits::kStuck_s;
  };
  if (read_are_gone && std::ranges::any_of(primary, in_call)) {
    const auto [first, last] =
        std::ranges::minmax(primary, {}, [&](int i) { return ev(i).written; });
    if (seconds_between(ev(first).written, ev(last).written) < limits::kLastSign_s) {
      scene = Scene::kAllKilled;
      exits.assign(exits.size(), {});
      primary.clear();
      graph = waits_if(exits, threshold_s);
      return;
    }
  }
  if (read_are_gone && c.missing.empty()) {
    // All processes were killed at once, perhaps because of a hang: the rings show it.
    const std::vector<Exit> alive(exits.size());
    const double stuck_s = std::clamp(usual_wait_s(limits::kUsualWaitFewestKilled),
                                      limits::kStuckWhenKilled_s, limits::kStuck_s);
    WaitGraph before = waits_if(alive, stuck_s);
    std::size_t idle = 0, cycles = 0;
    for (const Problem& p : before.problems) {
      idle += p.kind == Problem::kIdle || p.kind == Problem::kLagging ? 1 : 0;
      cycles += p.kind == Problem::kCycle || p.kind == Problem::kComplete ? 1 : 0;
    }
    if ((idle != 0 && idle < c.ranks.size()) || cycles != 0) {
      scene = Scene::kAllKilled;
      graph = std::move(before);
      exits = alive;
      primary.clear();
      return;
    }
  }
  if (!primary.empty() || !missing_primary.empty()) {
    // A process that ended after a hang waited in it until then.
    const std::vector<Exit> none(exits.size());
    WaitGraph without_ends = waits_if(none, threshold_s);
    scene = what_came_first(without_ends);
    graph = scene == Scene::kExits ? waits_if(exits, 0) : std::move(without_ends);
    // A process that fails in a message that does not fit its other end is a symptom, not a cause.
    // So is a process that its transport aborts where members of a group differ.
    const bool misfit =
        std::ranges::any_of(graph.pending,
                            [&](const Pending& p) {
                              return p.unequal && (contains(primary, p.unequal->sender) ||
                                                   contains(primary, p.unequal->receiver));
                            }) ||
        (missing_primary.empty() &&
         std::ranges::all_of(primary, [&](int i) { return aborted_by_data(i); }));
    if (scene == Scene::kExits && misfit) {
      scene = Scene::kHangThenEnd;
      graph = waits_if(none, 0);
    }
    return;
  }
  if (find_one_killed()) {
    scene = Scene::kOneKilled;
    return;
  }
  graph = settled;
}

// gloo aborts a process that receives more than it has room for.
bool Facts::aborted_by_data(int i) const {
  return exit(i).signal == SIGABRT && std::ranges::any_of(divergences, [&](const Divergence& d) {
           return !d.past && group(d.group).position.contains(rank(i));
         });
}

// A hang that lasted longer than the timeout before any process ended is not explained by that end.
// If processes were killed, a hang far longer than the job's usual waits is not, either: stuck
// processes are killed by hand, one after the other.
Scene Facts::what_came_first(const WaitGraph& without_ends) const {
  Time first_end = 0;
  bool killed_only = true;
  for (const int i : primary) {
    const Exit& e = exit(i);
    first_end = first_end == 0 || (e.time != 0 && e.time < first_end) ? e.time : first_end;
    killed_only = killed_only && (e.kind == ExitKind::kGone || e.signal == SIGKILL);
  }
  if (first_end == 0) {
    return Scene::kExits;
  }
  const auto lived_on = [&](int i) {
    const bool wrote_itself = ev(i).source == Source::kDump && !ev(i).salvaged;
    return !exit(i).ended() || exit(i).terminated ||
           seconds_between(first_end, exit(i).time) > (wrote_itself ? 0 : limits::kLastSign_s);
  };
  // A circle of waits, or an idle rank that lived on, lasted longer than that before the first end.
  const auto was_stuck = [&](double most_s) {
    const auto lasted = [&](int k) {
      const Pending& op = without_ends[k];
      return seconds_between(op.since, first_end) >
             std::min(most_s, ev(op.waits.front().evidence).timeout_s());
    };
    return std::ranges::any_of(without_ends.problems, [&](const Problem& p) {
      const bool is_idle = p.kind == Problem::kIdle || p.kind == Problem::kLagging;
      return p.kind == Problem::kCycle ? std::ranges::all_of(p.pending, lasted)
                                       : is_idle && lived_on(p.evidence.front()) &&
                                             std::ranges::any_of(p.pending, lasted);
    });
  };
  if (was_stuck(std::numeric_limits<double>::infinity())) {
    return Scene::kHangThenEnd;
  }
  if (!killed_only) {
    return Scene::kExits;
  }
  const double usual_s = usual_wait_s(limits::kUsualWaitFewest);
  const bool unusual =
      was_stuck(std::max(usual_s == 0 ? limits::kLongWait_s : usual_s, limits::kStuck_s));
  return unusual ? Scene::kHangThenKills : Scene::kExits;
}

// One process was told to end by a signal sent to it alone, before the others' waits began.
bool Facts::find_one_killed() {
  int who = -1;
  for (const int i : c.indices()) {
    const Exit& e = exit(i);
    if (e.terminated && e.sender_pid != 0 && e.time != 0 && (who < 0 || e.time < exit(who).time)) {
      who = i;
    }
  }
  if (who < 0) {
    return false;
  }
  const Exit& own = exit(who);
  // A launcher sends signals to all processes. A signal that came earlier, or at an unknown time,
  // may be the cause instead.
  if (std::ranges::any_of(exits, [&](const Exit& e) {
        return e.terminated && &e != &own &&
               (e.sender_pid == own.sender_pid || e.time == 0 || e.time <= own.time);
      })) {
    return false;
  }
  WaitGraph all = waits_if(exits, 0);
  bool waited_for = false;
  for (const Pending& p : all.pending) {
    if (!contains(p.absent, who)) {
      continue;
    }
    if (seconds_between(p.since, own.time) > limits::kStuck_s) {
      return false;  // it was late before that
    }
    waited_for = true;
  }
  if (!waited_for || all.waits(who)) {
    return false;
  }
  killed = who;
  graph = std::move(all);
  return true;
}

const Record* Facts::record(const Wait& w) const {
  return w.record == kNoRecord ? nullptr : &ev(w.evidence).records[w.record];
}

const Group* Facts::group_of(int i, const Record& r) const {
  const int g = c.group_at(i, r.group);
  return g < 0 ? nullptr : &group(g);
}

std::vector<Rank> Facts::ranks(const std::vector<int>& evidence) const {
  std::vector<Rank> out;
  for (const int i : evidence) {
    out.push_back(rank(i));
  }
  sort_unique(out);
  return out;
}

const Record* Facts::last_operation(int i) const {
  const Record* last = ev(i).last_record(communicates);
  return last != nullptr
             ? last
             : ev(i).last_record([](const Record& r) { return r.kind == Kind::kLifecycle; });
}

const Record* Facts::lifecycle_in_flight(int i) const {
  return ev(i).last_record([](const Record& r) {
    return r.kind == Kind::kLifecycle && r.ended == 0 &&
           (r.state == State::kEnqueued || r.state == State::kStarted ||
            r.state == State::kWaiting);
  });
}

bool Facts::has_left(int i) const {
  if (exit(i).ended()) {
    return exit(i).clean();
  }
  const ThreadStack* t = program_thread(ev(i));
  return t != nullptr && t->tid == ev(i).id.pid && script_is_over(ev(i).threads, ev(i).id.pid);
}

bool Facts::is_leaving(int i) const {
  if (exit(i).ended()) {
    return exit(i).clean();
  }
  const Record* last = ev(i).last_record([&](const Record& r) {
    return communicates(r) ||
           (r.kind == Kind::kLifecycle && canonical_op(ev(i).text(r.op)) == "destroyprocessgroup");
  });
  return last != nullptr && !communicates(*last);
}

std::size_t Facts::stuck_step(int i) const {
  const std::vector<Step>& steps = history.of(i);
  std::size_t stuck = steps.size();
  for (const int k : graph.waits_in[idx(i)]) {
    for (const Wait& w : graph[k].waits) {
      if (w.evidence == i && w.record != kNoRecord) {
        stuck = std::min(stuck, step_of(steps, w.record));
      }
    }
  }
  return stuck;
}

std::size_t Facts::stuck_end(int i) const {
  const Front& front = graph.fronts[idx(i)];
  const std::size_t first = stuck_step(i);
  const std::size_t last = front.first == kNoRecord ? first : step_of(history.of(i), front.last);
  return std::max(first, last) + 1;
}

}  // namespace frtrace
