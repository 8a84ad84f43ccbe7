// Devices that are behind, stalled or failed, and the network between them.
//
// What an error reported first names its rank. Else it is where the waits of devices end
// (facts/device_chain.cpp): few that hold themselves up are blamed, between two ranks it is the
// network. Where devices tell nothing below an operation, whoever did not start or end what others'
// devices did is blamed, if it is not one of many and nothing may be owed to it.
#include <algorithm>
#include <map>
#include <set>

#include "causes/rules.hpp"
#include "facts/pending.hpp"
#include "model/contains.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

Why why_of(StalledDevice::Why why) {
  static constexpr Why kWhy[] = {Why::kNeverLaunched,      Why::kInLaunch,      Why::kNotStarted,
                                 Why::kChannelsNotStarted, Why::kKernelStalled, Why::kKernelStalled,
                                 Why::kNetworkThread};
  static_assert(std::size(kWhy) == StalledDevice::kNetworkThread + 1);
  return kWhy[why];
}

// Where the waits end that begin with the device operations of those who wait in it.
DeviceChain chain_from(const Facts& f, const Pending& p) {
  std::vector<RecordAt> from;
  for (const Wait& w : p.waits) {
    from.emplace_back(w.evidence, w.record);
  }
  return f.devices.follow(from);
}

// The same from the first operation that each of these ranks waits in.
DeviceChain chain_of(const Facts& f, const std::vector<int>& who) {
  std::vector<RecordAt> from;
  for (const int i : who) {
    from.emplace_back(i, first_in_flight(f.ev(i)));
  }
  return f.devices.follow(from);
}

std::vector<int> stalled_ranks(const DeviceChain& chain) {
  std::set<int> out;
  for (const StalledDevice& s : chain.stalled) {
    out.insert(s.at.evidence);
  }
  return {out.begin(), out.end()};
}

void finish_chain(const Facts& f, Cause& c) {
  if (c.chain.open) {
    c.assume(Assume::kChainOpen);
  }
  std::vector<int> lost;
  for (const OnDevice& at : c.chain.visited) {
    if (f.devices.lost_any(at.evidence)) {
      lost.push_back(at.evidence);
    }
  }
  if (!lost.empty()) {
    c.assume(Assume::kDeviceRowsLost, f.ranks(lost));
  }
}

Cause undecided(Cause c, Rule rule, std::vector<int> others) {
  c.rule = rule;
  c.verdict = Verdict::kUndecided;
  c.others = std::move(others);
  return c;
}

void blame_stalled(Cause& c, const Facts& f, const std::set<int>& who) {
  c.rule = Rule::kDeviceStalled;
  c.verdict = Verdict::kDevice;
  bool thread = false;
  std::set<int> seen;
  for (const StalledDevice& s : c.chain.stalled) {
    if (who.contains(s.at.evidence) && seen.insert(s.at.evidence).second) {
      thread = thread || s.why == StalledDevice::kNetworkThread;
      c.stalled = seen.size() == 1 ? s.why : c.stalled;
      Guilty g = guilty_rank(f, s.at.evidence, why_of(s.why), c.pending);
      g.issued = record_of(f.ev(s.at.evidence), f.devices[s.at]);
      g.device = s.at;
      c.guilty.push_back(g);
    }
  }
  sort_by_rank(c.guilty);
  if (who.size() > 1) {
    c.assume(Assume::kOneStoppedOthers);
  }
  if (!c.chain.links.empty()) {
    c.assume(Assume::kNetworkToo);
  }
  if (thread) {
    c.assume(Assume::kNetworkThreadUnseen);
  }
}

// What the end of the devices' waits says; nullopt: nothing.
std::optional<Cause> end_of_chain(const Facts& f, int k, DeviceChain chain) {
  const Pending& p = f.graph[k];
  // Another member's device got to what this one is stalled in. Of large groups all may be stalled.
  std::map<std::pair<const Group*, std::uint64_t>, bool> known;
  const auto started_elsewhere = [&](const OnDevice& at) {
    const std::size_t index = record_of(f.ev(at.evidence), f.devices[at]);
    if (index == kNoRecord || f.ev(at.evidence).records[index].kind != Kind::kCollective) {
      return f.devices.started_elsewhere(at);
    }
    const Record& r = f.ev(at.evidence).records[index];
    const auto [it, added] = known.try_emplace({f.group_of(at.evidence, r), r.seq}, false);
    it->second = added ? f.devices.started_elsewhere(at) : it->second;
    return it->second;
  };
  // Where no device is known to have got to it, all may wait for the same.
  std::set<int> stalled;
  for (const StalledDevice& s : chain.stalled) {
    if (f.devices[s.at].state == DeviceState::kStarted || started_elsewhere(s.at)) {
      stalled.insert(s.at.evidence);
    }
  }
  const std::size_t members = p.kind == Kind::kCollective ? f.group(p.group).ranks.size() : 2;
  Cause c;
  c.pending = k;
  c.chain = std::move(chain);
  c.explains = f.graph.leading_to({}, {k});
  if (stalled.size() == 1 || (!stalled.empty() && 2 * stalled.size() < members)) {
    blame_stalled(c, f, stalled);
  } else if (!c.chain.stalled.empty()) {
    const std::vector<int> others = stalled_ranks(c.chain);
    c = undecided(std::move(c), Rule::kOpenDevices, others);
  } else if (!c.chain.links.empty()) {
    c.rule = Rule::kNetwork;
    c.verdict = Verdict::kTransport;
  } else if (!c.chain.busy.empty()) {
    std::vector<int> others;
    for (const OnDevice& at : c.chain.busy) {
      others.push_back(at.evidence);
    }
    c = undecided(std::move(c), Rule::kOpenKernel, others);
  } else {
    return std::nullopt;
  }
  finish_chain(f, c);
  return c;
}

// The earliest operation that the ranks are behind in; -1: none.
int behind_in(const Facts& f, const std::vector<int>& who) {
  int best = -1;
  for (int k = 0; k < static_cast<int>(f.graph.pending.size()); ++k) {
    const std::vector<int>& behind = f.graph[k].lagging;
    if (std::any_of(behind.begin(), behind.end(), [&](int i) { return contains(who, i); }) &&
        (best < 0 || f.graph[k].since < f.graph[best].since)) {
      best = k;
    }
  }
  return best;
}

// Nothing that the rank has in flight is overwritten, as far as its ring and its counters tell.
bool keeps_what_is_in_flight(const RankEvidence& e, const Front& front) {
  const bool collectives =
      std::all_of(e.groups.begin(), e.groups.end(), [](const GroupEvidence& g) {
        return g.overwritten == 0 || g.enqueued <= std::max(g.ended, g.completed) ||
               (g.kept != 0 && g.completed + 1 >= g.first_kept);
      });
  // Where messages are counted from what a ring holds, a done one must be before the first.
  const bool seen = e.holes.only_active || e.lanes.empty() || e.losses.lanes_lost == 0;
  return collectives && (seen || front.first != 0) &&
         std::all_of(e.lanes.begin(), e.lanes.end(), [&](const LaneEvidence& lane) {
           const auto kept =
               std::count_if(e.records.begin(), e.records.end(), [&](const Record& r) {
                 return r.state != State::kCompleted && r.state != State::kFailed &&
                        r.group == lane.group && r.peer == lane.peer &&
                        r.kind == (lane.send ? Kind::kSend : Kind::kRecv);
               });
           return lane.relative || e.groups[lane.group].untracked != 0 ||
                  lane.enqueued <= lane.ended + static_cast<std::uint64_t>(kept);
         });
}

// Its device did not start what it issued first of all that it has in flight, and nothing before it
// failed: that does not take a peer.
bool does_not_start(const Facts& f, const Wait& w) {
  const RankEvidence& e = f.ev(w.evidence);
  const Front& front = f.graph.fronts[idx(w.evidence)];
  if (w.record == kNoRecord || w.record != front.first ||
      e.records[w.record].state != State::kEnqueued || e.holes.written_guessed ||
      e.holes.only_active || !keeps_what_is_in_flight(e, front)) {
    return false;
  }
  const auto at = f.devices.of(w.evidence, w.record);
  const auto end = e.records.begin() + static_cast<std::ptrdiff_t>(w.record);
  return !(at && f.devices.may_run(*at)) &&
         std::any_of(e.records.begin(), end, [](const Record& r) { return r.started != 0; }) &&
         std::none_of(e.records.begin(), end,
                      [](const Record& r) { return r.state == State::kFailed; });
}

// Beside a device that is known to stall: others that did not start what they issued first.
void add_unstarted(const Facts& f, const std::vector<int>& who, std::vector<Cause>& out) {
  for (int k = 0; k < static_cast<int>(f.graph.pending.size()); ++k) {
    for (const Wait& w : f.graph[k].waits) {
      if (!contains(who, w.evidence) && does_not_start(f, w)) {
        Cause c;
        c.rule = Rule::kDeviceBehind;
        c.verdict = Verdict::kDevice;
        c.pending = k;
        c.guilty = {guilty_rank(f, w.evidence, Why::kNotStarted, k)};
        c.guilty.front().issued = w.record;
        c.others = {w.evidence};
        c.explains = f.graph.leading_to({w.evidence});
        c.independent = true;
        out.push_back(std::move(c));
      }
    }
  }
}

// The devices that are behind, in `main` or in what else they lag in, each with what stalls it.
void blame_devices(const Facts& f, const std::vector<int>& who, int main, Cause& c) {
  c.rule = Rule::kDeviceBehind;
  c.verdict = Verdict::kDevice;
  for (const int i : who) {
    int own = main;
    for (int k = 0;
         k < static_cast<int>(f.graph.pending.size()) && !contains(f.graph[own].lagging, i); ++k) {
      own = contains(f.graph[k].lagging, i) ? k : own;
    }
    const bool starts = f.graph[own].starts_seen;
    Guilty g = guilty_rank(f, i, starts ? Why::kNotStarted : Why::kNotFinished, own);
    for (const Wait& w : f.graph[own].waits) {
      g.issued = w.evidence == i ? w.record : g.issued;
    }
    for (const StalledDevice& s : c.chain.stalled) {
      if (s.at.evidence == i && starts) {
        g.why = why_of(s.why);
        c.stalled = s.why;
      }
    }
    c.guilty.push_back(g);
  }
  sort_by_rank(c.guilty);
  if (who.size() > 1) {
    c.assume(Assume::kOneStoppedOthers);
  }
  if (!c.chain.visited.empty()) {
    c.chain.visited = chain_from(f, f.graph[main]).visited;  // all whose losses matter
    finish_chain(f, c);
  }
}

// Of these, those that run it, as far as is known: the others may owe them something, though these
// have finished.
std::vector<int> may_be_owed(const Facts& f, const std::vector<int>& who) {
  std::vector<int> out;
  for (const Pending& p : f.graph.pending) {
    for (const Wait& w : p.waits) {
      if (w.record == kNoRecord || !contains(who, w.evidence) ||
          !f.ev(w.evidence).format.empty()) {  // PyTorch's have nothing below the host
        continue;
      }
      const auto at = f.devices.of(w.evidence, w.record);
      if (f.ev(w.evidence).records[w.record].state == State::kStarted ||
          (at && f.devices.may_run(*at))) {
        out.push_back(w.evidence);
      }
    }
  }
  return out;
}

}  // namespace

std::vector<Cause> device_behind(const Facts& f) {
  const std::vector<int> who = problem_ranks(f, Problem::kLagging);
  const int k = who.empty() ? -1 : behind_in(f, who);
  if (k < 0) {
    return {};
  }
  Cause c;
  c.pending = k;
  c.chain = chain_of(f, who);  // what holds them may be elsewhere
  c.explains = f.graph.leading_to(who, {k});
  c.others = who;
  const std::vector<int> stalled = stalled_ranks(c.chain);
  if (stalled != who) {
    if (auto end = end_of_chain(f, k, c.chain)) {
      end->explains = c.explains;
      return {*end};
    }
  }
  // Starts tell that what a rank issued first did not start: no other rank holds that up.
  const bool told = std::all_of(who.begin(), who.end(), [&](int i) {
    return std::all_of(f.graph.pending.begin(), f.graph.pending.end(),
                       [&](const Pending& p) { return !contains(p.lagging, i) || p.starts_seen; });
  });
  // Where kernels are not told of, one that waits for another looks as if it did not run. Half of
  // all devices do not stall each by itself.
  const bool unseen =
      std::any_of(c.chain.stalled.begin(), c.chain.stalled.end(),
                  [](const auto& s) { return s.why == StalledDevice::kUnseenKernel; });
  const bool many = who.size() > 2 && 2 * who.size() >= f.c.ranks.size();
  const bool kept = std::all_of(who.begin(), who.end(), [&](int i) {
    return keeps_what_is_in_flight(f.ev(i), f.graph.fronts[idx(i)]);
  });
  if (!kept || (who.size() > 1 && (unseen || many || !told))) {
    return {undecided(std::move(c), Rule::kOpenBehind, who)};
  }
  std::vector<int> unstalled;
  std::set_difference(who.begin(), who.end(), stalled.begin(), stalled.end(),
                      std::back_inserter(unstalled));
  if (std::vector<int> owed = may_be_owed(f, unstalled); !owed.empty()) {
    return {undecided(std::move(c), Rule::kOpenRunning, std::move(owed))};
  }
  blame_devices(f, who, k, c);
  // Its first operation in flight, which others' devices started: nothing else holds it up.
  c.independent = who.size() == 1;
  std::vector<Cause> out{std::move(c)};
  if (told) {
    add_unstarted(f, who, out);
  }
  return out;
}

// Operations that every member issued and that do not end.
std::vector<Cause> complete(const Facts& f) {
  std::vector<Cause> out;
  for (const Problem& problem : f.graph.problems) {
    for (std::size_t n = 0; problem.kind == Problem::kComplete && n < problem.pending.size(); ++n) {
      const int k = problem.pending[n];
      std::optional<Cause> c(std::in_place);
      for (const int i : f.group(f.graph[k].group).evidence) {
        if (i >= 0 && f.ev(i).salvage == Salvage::kUnresponsive) {
          c->rule = Rule::kUnresponsive;
          c->verdict = Verdict::kDevice;
          c->pending = k;
          c->guilty.push_back(guilty_rank(f, i, Why::kUnresponsive, k));
        }
      }
      c = c->guilty.empty() ? end_of_chain(f, k, chain_from(f, f.graph[k])) : std::move(c);
      if (c) {
        c->explains = problem.explains;
        out.push_back(std::move(*c));
      }
    }
  }
  // Without evidence of a rank, what the others' devices show may be the cause, or that it came.
  for (int k = 0; k < static_cast<int>(f.graph.pending.size()) && out.empty(); ++k) {
    const Pending& p = f.graph[k];
    if (p.unknown.empty() || !p.absent.empty()) {
      continue;
    }
    auto end = end_of_chain(f, k, chain_from(f, p));
    if (end && (end->names() || end->rule == Rule::kOpenDevices)) {
      end->assume(Assume::kRankWithoutEvidence, f.c.missing);
      out.push_back(std::move(*end));
    }
  }
  return out;
}

std::vector<Cause> complete_open(const Facts& f) {
  std::vector<Cause> out;
  for (const Problem& problem : f.graph.problems) {
    if (problem.kind != Problem::kComplete) {
      continue;
    }
    const int k =
        *std::min_element(problem.pending.begin(), problem.pending.end(),
                          [&](int a, int b) { return f.graph[a].since < f.graph[b].since; });
    const Pending& p = f.graph[k];
    std::vector<Wait> waits = p.waits;
    bool started = waits.size() == f.group(p.group).ranks.size();
    if (p.kind != Kind::kCollective) {  // both ends
      started = problem.pending.size() > 1;
      for (const int other : problem.pending) {
        waits.insert(waits.end(), f.graph[other].waits.begin(), f.graph[other].waits.end());
      }
    }
    started = started && std::all_of(waits.begin(), waits.end(), [&](const Wait& w) {
                return w.record != kNoRecord &&
                       f.ev(w.evidence).records[w.record].state == State::kStarted;
              });
    const bool failed =
        std::any_of(p.waits.begin(), p.waits.end(), [](const Wait& w) { return w.failed; });
    // Sends and receives are matched by their order: one too many or too few makes others meet.
    std::vector<int> stuck;
    for (int i = 0; !started && !failed && i < static_cast<int>(f.c.ranks.size()); ++i) {
      if (f.graph.waits(i)) {
        stuck.push_back(i);
      }
    }
    if (auto c = stuck.size() > 1 ? left_order(f, stuck, false) : std::nullopt) {
      out.push_back(std::move(*c));
      continue;
    }
    Cause c;
    c.pending = k;
    c.explains = problem.explains;
    c.rule = started ? Rule::kAllStarted : failed ? Rule::kOpenFailed : Rule::kOpenComplete;
    c.verdict = started ? Verdict::kTransport : Verdict::kUndecided;
    if (started) {
      c.assume(Assume::kLowerLayer);
    }
    out.push_back(std::move(c));
  }
  return out;
}

namespace {

// The waits may end at this rank: it is idle or behind; or nobody is idle, and it owes something to
// one that is behind, or there is none and it waits where the waits end.
bool may_hold_up(const Facts& f, int i) {
  bool idle = false, lagging = false, owes = false, waits = false;
  for (const Problem& p : f.graph.problems) {
    const bool own = contains(p.evidence, i);
    if (own && (p.kind == Problem::kIdle || p.kind == Problem::kLagging)) {
      return true;
    }
    idle = idle || p.kind == Problem::kIdle;
    waits = waits || (own && p.kind == Problem::kCycle);
    for (const int k : p.pending) {
      const Pending& at = f.graph[k];
      if (p.kind == Problem::kLagging) {
        lagging = true;
        owes = owes || (!at.starts_seen && contains(f.group(at.group).evidence, i));
      }
      waits = waits || (p.kind == Problem::kComplete && at.waits_here(i));
    }
  }
  return !idle && (lagging ? owes : waits);
}

}  // namespace

std::vector<Cause> device_error(const Facts& f) {
  std::vector<DeviceError> own = f.device_errors;
  std::erase_if(own, [](const DeviceError& e) { return e.consequence; });
  if (own.empty() || f.graph.pending.empty()) {
    return {};
  }
  Cause c;
  const auto [first, unmeasured] = first_errors(f.c, f.slots, own);
  for (const DeviceError& e : first) {
    if (!may_hold_up(f, e.evidence)) {
      return {};
    }
    Guilty g = guilty_rank(f, e.evidence, e.cuda ? Why::kCudaError : Why::kNcclError);
    g.issued = e.record;
    c.guilty.push_back(g);
  }
  c.errors = first;
  const std::vector<int> who = evidence_of(c.guilty);
  c.explains = f.graph.leading_to(who, f.graph.waits_in[idx(who.front())]);
  const auto earliest =
      std::min_element(f.graph.pending.begin(), f.graph.pending.end(),
                       [](const Pending& a, const Pending& b) { return a.since < b.since; });
  c.pending = static_cast<int>(earliest - f.graph.pending.begin());
  if (first.size() > 1 && unmeasured) {
    c.guilty.clear();
    return {undecided(std::move(c), Rule::kOpenErrors, who)};
  }
  c.rule = Rule::kDeviceError;
  c.verdict = Verdict::kDevice;
  for (Guilty& g : c.guilty) {
    g.pending = c.pending;
  }
  sort_by_rank(c.guilty);
  if (first.size() > 1) {
    c.assume(Assume::kErrorsAtOnce);
  }
  return {c};
}

}  // namespace frtrace
