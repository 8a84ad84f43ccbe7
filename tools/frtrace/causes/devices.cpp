// Devices that are behind, stalled or failed, and the network between them.
#include <algorithm>
#include <map>
#include <set>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "facts/pending.hpp"
#include "model/contains.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

Why why_of(StalledDevice::Why why) {
  static constexpr Why kWhys[] = {
      Why::kNeverLaunched, Why::kInLaunch,      Why::kNotStarted,   Why::kChannelsNotStarted,
      Why::kKernelStalled, Why::kKernelStalled, Why::kNetworkThread};
  return kWhys[why];
}

// The end of these waits, as the devices show it.
DeviceChain chain_from(const Facts& f, const std::vector<Wait>& waits) {
  std::vector<OnDevice> from;
  for (const Wait& w : waits) {
    if (const auto at = f.devices.of(w.evidence, w.record)) {
      from.push_back(*at);
    }
  }
  DeviceChain chain = f.devices.follow(from);
  chain.open = chain.open || from.size() < waits.size();
  return chain;
}

// The same for the first operation that each of these ranks waits in.
DeviceChain chain_of(const Facts& f, const std::vector<int>& who) {
  std::vector<Wait> waits(who.size());
  for (std::size_t k = 0; k < who.size(); ++k) {
    const auto& all = f.ev(who[k]).records;
    waits[k].evidence = who[k];
    waits[k].record = static_cast<std::size_t>(std::ranges::find_if(all, blocks) - all.begin());
  }
  return chain_from(f, waits);
}

// The rank's device may be running the operation.
bool may_run(const Facts& f, const Wait& w) {
  const Record* r = f.record(w);
  const auto at = f.devices.of(w.evidence, w.record);
  return r != nullptr && (r->state == State::kStarted || (at && f.devices.may_run(*at)));
}

// [group, sequence number] -> started on another device.
using Collectives = std::map<std::pair<const Group*, std::uint64_t>, bool>;

// Another member's device started the operation in which this device is stalled. `known`: a cache
// of earlier answers.
bool started_elsewhere(const Facts& f, const OnDevice& at, Collectives& known) {
  const RankEvidence& e = f.ev(at.evidence);
  const std::size_t index = record_of(e, f.devices[at]);
  if (index == kNoRecord || e.records[index].kind != Kind::kCollective) {
    return f.devices.started_elsewhere(at);
  }
  const Record& r = e.records[index];
  const auto [it, is_new] = known.try_emplace({f.group_of(at.evidence, r), r.seq}, false);
  it->second = is_new ? f.devices.started_elsewhere(at) : it->second;
  return it->second;
}

void add_losses(const Facts& f, Cause& c) {
  std::vector<int> lost;
  for (const OnDevice& at : c.chain.visited) {
    const DeviceEvidence& d = f.ev(at.evidence).device;
    if (d.comms_lost + d.ops_lost + d.phases_lost + d.unmatched + d.threads_lost != 0) {
      lost.push_back(at.evidence);
    }
  }
  if (!lost.empty()) {
    c.assume(Assume::kDeviceRowsLost, f.ranks(lost));
  }
}

void blame_stalled(Cause& c, const Facts& f, const std::set<int>& who) {
  c.set(Rule::kDeviceStalled, Verdict::kDevice);
  bool thread = false;
  std::set<int> seen;
  for (const StalledDevice& s : c.chain.stalled) {
    if (!who.contains(s.at.evidence)) {
      continue;
    }
    thread = thread || s.why == StalledDevice::kNetworkThread;
    if (seen.insert(s.at.evidence).second) {
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

// The cause at the end of the devices' waits; nullopt: none.
std::optional<Cause> end_of_chain(const Facts& f, int k, DeviceChain chain) {
  const Pending& p = f.graph[k];
  // Data that the network holds back is enough of a reason for a kernel that no file tells of.
  if (!chain.links.empty()) {
    std::erase_if(chain.stalled,
                  [](const StalledDevice& s) { return s.why == StalledDevice::kUnseenKernel; });
  }
  // If no device is known to have started the operation, all may wait for the same thing.
  std::set<int> stalled, queued;
  Collectives known;
  for (const StalledDevice& s : chain.stalled) {
    const bool by_itself = f.devices[s.at].state == DeviceState::kStarted;
    (by_itself || started_elsewhere(f, s.at, known) ? stalled : queued).insert(s.at.evidence);
  }
  const std::size_t members = p.kind == Kind::kCollective ? f.group(p.group).ranks.size() : 2;
  Cause c;
  c.pending = k;
  c.chain = std::move(chain);
  c.explains = f.graph.leading_to({}, {k});
  if (stalled.size() == 1 || (!stalled.empty() && 2 * stalled.size() < members)) {
    blame_stalled(c, f, stalled);
  } else if (!stalled.empty() || !queued.empty()) {
    c.set(Rule::kOpenDevices, Verdict::kUndecided);
    stalled.merge(queued);
    c.others.assign(stalled.begin(), stalled.end());
  } else if (!c.chain.links.empty()) {
    c.set(Rule::kNetwork, Verdict::kTransport);
  } else if (!c.chain.busy.empty()) {
    c.set(Rule::kOpenKernel, Verdict::kUndecided);
    for (const OnDevice& at : c.chain.busy) {
      c.others.push_back(at.evidence);
    }
  } else {
    return std::nullopt;
  }
  if (c.chain.open) {
    c.assume(Assume::kChainOpen);
  }
  add_losses(f, c);
  return c;
}

std::set<int> stalled_ranks(const DeviceChain& chain) {
  std::set<int> out;
  for (const StalledDevice& s : chain.stalled) {
    out.insert(s.at.evidence);
  }
  return out;
}

// The earliest operation that the ranks are behind in; for a single rank, the operation that it
// issued first.
int behind_in(const Facts& f, const std::vector<int>& who) {
  const std::vector<int> behind = f.graph.those([&](const Pending& p) {
    return std::ranges::any_of(p.lagging, [&](int i) { return contains(who, i); });
  });
  const auto issued = [&](int k) {
    std::size_t first = kNoRecord;
    for (const Wait& w : f.graph[k].waits) {
      first = w.evidence == who.front() ? std::min(first, w.record) : first;
    }
    return first;
  };
  const auto since = [&](int k) { return f.graph[k].since; };
  const auto first = who.size() > 1 ? std::ranges::min_element(behind, {}, since)
                                    : std::ranges::min_element(behind, {}, issued);
  return first == behind.end() ? -1 : *first;
}

// By its ring and its counters, no operation that the rank has in flight is overwritten, except a
// collective that all others ended.
bool keeps_what_is_in_flight(const Facts& f, int i) {
  const RankEvidence& e = f.ev(i);
  const Front& front = f.graph.fronts[idx(i)];
  const auto lags_in = [&](const GroupEvidence& g) {
    const int group = f.c.group_at(i, static_cast<std::uint32_t>(&g - e.groups.data()));
    return std::ranges::any_of(f.graph.pending, [&](const Pending& p) {
      return p.group == group && p.seq == g.completed + 1 && contains(p.lagging, i);
    });
  };
  const bool collectives = std::ranges::all_of(e.groups, [&](const GroupEvidence& g) {
    return g.overwritten == 0 || g.enqueued <= std::max(g.ended, g.completed) ||
           (g.kept != 0 && g.completed + 1 >= g.first_kept) || lags_in(g);
  });
  // If counters of messages were lost, a kept record must precede the first operation in flight.
  const bool seen = e.holes.only_active || e.lanes.empty() || e.losses.lanes_lost == 0;
  return collectives && (seen || front.first != 0) &&
         std::ranges::all_of(e.lanes, [&](const LaneEvidence& lane) {
           const auto kept = std::ranges::count_if(e.records, [&](const Record& r) {
             return r.state != State::kCompleted && r.state != State::kFailed &&
                    r.group == lane.group && r.peer == lane.peer &&
                    r.kind == (lane.send ? Kind::kSend : Kind::kRecv);
           });
           return lane.relative || e.groups[lane.group].untracked != 0 ||
                  lane.enqueued <= lane.ended + static_cast<std::uint64_t>(kept);
         });
}

// Recorded starts show that the rank's device did not start its first operation in flight: no other
// rank holds that up.
bool holds_itself_up(const Facts& f, int i) {
  return std::ranges::all_of(
      f.graph.pending, [&](const Pending& p) { return !contains(p.lagging, i) || p.starts_seen; });
}

// Recorded starts of earlier operations show that the rank's device did not start its first
// operation in flight. A start needs no peer.
bool is_unstarted(const Facts& f, int i) {
  const Front& front = f.graph.fronts[idx(i)];
  const RankEvidence& e = f.ev(i);
  return f.graph.waits(i) && !f.stale[idx(i)] && front.first != kNoRecord && !is_at_store(f, i) &&
         keeps_what_is_in_flight(f, i) && e.records[front.first].state == State::kEnqueued &&
         seconds_between(e.records[front.first].time, e.written) >= limits::kLag_s &&
         !e.holes.written_guessed && !e.holes.only_active &&
         std::any_of(e.records.begin(), e.records.begin() + front.first,
                     [](const Record& r) { return r.started != 0; });
}

Cause unstarted(const Facts& f, const std::vector<int>& who, int k) {
  Cause c(Rule::kDeviceBehind, Verdict::kDevice);
  c.pending = k;
  for (const int i : who) {
    c.guilty.push_back(guilty_rank(f, i, Why::kNotStarted, k));
    c.guilty.back().issued = f.graph.fronts[idx(i)].first;
  }
  sort_by_rank(c.guilty);
  c.others = who;
  c.explains = f.graph.leading_to(who);
  c.independent = true;
  return c;
}

// Further devices that stall beside a device that is known to stall.
std::vector<Cause> unstarted_beside(const Facts& f, const std::vector<int>& who) {
  std::vector<Cause> out;
  for (const int i : f.c.indices()) {
    if (contains(who, i) || !is_unstarted(f, i)) {
      continue;
    }
    const auto& in = f.graph.waits_in[idx(i)];
    const auto own = std::ranges::find_if(in, [&](int k) {
      return std::ranges::any_of(f.graph[k].waits, [&](const Wait& w) {
        return w.evidence == i && w.record == f.graph.fronts[idx(i)].first;
      });
    });
    if (own != in.end()) {
      out.push_back(unstarted(f, {i}, *own));
    }
  }
  return out;
}

// Both ends of a message are the first operation that their ranks have in flight, and neither
// device started it, though another rank's device did start its first operation in flight. Two
// devices do not both compute for so long. (Members of a group that compute in step may.)
std::optional<Cause> both_unstarted(const Facts& f, int k) {
  const Pending& p = f.graph[k];
  const Group& g = f.group(p.group);
  if (p.kind == Kind::kCollective || p.seconds() < limits::kBothCompute_s) {
    return std::nullopt;
  }
  std::vector<int> who;
  for (const auto& [rank, other] : {std::pair(p.from, p.to), std::pair(p.to, p.from)}) {
    const int i = g.at(rank) < 0 ? -1 : g.evidence[idx(g.at(rank))];
    if (i < 0 || !is_unstarted(f, i)) {
      return std::nullopt;
    }
    const Record& r = f.ev(i).records[f.graph.fronts[idx(i)].first];
    if (!is_p2p(r) || f.c.group_at(i, r.group) != p.group || r.peer != g.at(other)) {
      return std::nullopt;
    }
    who.push_back(i);
  }
  const auto runs = [&](int i) {
    const std::size_t first = f.graph.fronts[idx(i)].first;
    return first != kNoRecord && f.ev(i).records[first].state == State::kStarted;
  };
  return ranks_that(f, runs).empty() ? std::nullopt : std::optional(unstarted(f, who, k));
}

// An operation that the rank's device is behind in; `main` if it is among them or there is none.
int lags_in(const Facts& f, int i, int main) {
  const auto all = f.graph.those([&](const Pending& p) { return contains(p.lagging, i); });
  return all.empty() || contains(all, main) ? main : all.front();
}

// Blames the devices that are behind in `k`, each with the reason for its stall.
void blame_devices(const Facts& f, const std::vector<int>& who, int k, Cause& c) {
  c.set(Rule::kDeviceBehind, Verdict::kDevice);
  for (const int i : who) {
    const int own = lags_in(f, i, k);
    Guilty g =
        guilty_rank(f, i, f.graph[own].starts_seen ? Why::kNotStarted : Why::kNotFinished, own);
    for (const Wait& w : f.graph[own].waits) {
      g.issued = w.evidence == i ? w.record : g.issued;
    }
    for (const StalledDevice& s : c.chain.stalled) {
      if (s.at.evidence == i && f.graph[own].starts_seen) {
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
  if (!c.chain.visited.empty() && c.chain.open) {
    c.assume(Assume::kChainOpen);
  }
  if (!c.chain.visited.empty()) {
    DeviceChain whole = chain_from(f, f.graph[k].waits);
    whole.stalled = std::move(c.chain.stalled);
    c.chain = std::move(whole);
    add_losses(f, c);
  }
}

// A member may end a broadcast that does not reach the next member.
bool is_broadcast_behind(const Facts& f, const Pending& p) {
  return p.kind == Kind::kCollective && !p.starts_seen &&
         std::ranges::any_of(p.waits, [&](const Wait& w) {
           const Record* r = f.record(w);
           return r != nullptr && contains(p.lagging, w.evidence) &&
                  !meets_all(f.ev(w.evidence).text(r->op));
         });
}

}  // namespace

std::vector<Cause> device_behind(const Facts& f) {
  std::vector<int> who = problem_ranks(f, Problem::kLagging);
  // NCCL makes a communicator in its first operation: the rank is still inside that call.
  std::erase_if(who, [&](int i) { return is_at_store(f, i); });
  const int k = who.empty() ? -1 : behind_in(f, who);
  if (k < 0) {
    return {};
  }
  // They may be held up elsewhere: on another stream, at a peer, in the network.
  const DeviceChain chain = chain_of(f, who);
  const std::set<int> stalled = stalled_ranks(chain), all(who.begin(), who.end());
  const std::vector<int> explains = f.graph.leading_to(who, {k});
  if (stalled != all) {
    if (auto c = end_of_chain(f, k, chain)) {
      c->explains = explains;
      return {*c};
    }
  }
  Cause c;
  c.pending = k;
  c.chain = chain;
  c.explains = explains;
  c.others = who;
  // If kernels are not recorded, a kernel that waits for another looks as if it did not run.
  const bool unseen = std::ranges::any_of(
      chain.stalled, [](const auto& s) { return s.why == StalledDevice::kUnseenKernel; });
  const bool told = std::ranges::all_of(who, [&](int i) { return holds_itself_up(f, i); });
  // Half of all devices do not stall independently of each other.
  const bool many = who.size() > 2 && 2 * who.size() >= f.c.ranks.size();
  const bool kept = std::ranges::all_of(who, [&](int i) { return keeps_what_is_in_flight(f, i); });
  if (!kept || (who.size() > 1 && (unseen || many || !told))) {
    c.set(Rule::kOpenBehind, Verdict::kUndecided);
    return {c};
  }
  // The others may owe data to a rank that may be running it, though they have finished.
  std::vector<int> running;
  bool unobserved = false;
  for (const Pending& p : f.graph.pending) {
    unobserved = unobserved || is_broadcast_behind(f, p);
    for (const Wait& w : p.waits) {
      if (!all.contains(w.evidence) || stalled.contains(w.evidence) || !may_run(f, w)) {
        continue;
      }
      if (f.ev(w.evidence).format.empty()) {
        running.push_back(w.evidence);
      } else {
        unobserved = true;  // PyTorch's files have nothing below the host
      }
    }
  }
  if (!running.empty()) {
    c.set(Rule::kOpenRunning, Verdict::kUndecided);
    c.others = running;
    return {c};
  }
  blame_devices(f, who, k, c);
  if (unobserved) {
    c.assume(Assume::kLowerLayer);
  }
  // It is the rank's first operation in flight, and others' devices started it: nothing else holds
  // it up.
  c.independent = who.size() == 1;
  std::vector<Cause> out = told ? unstarted_beside(f, who) : std::vector<Cause>{};
  out.insert(out.begin(), std::move(c));
  return out;
}

// Operations that every member issued and that do not end.
std::vector<Cause> complete(const Facts& f) {
  std::vector<Cause> out;
  for (const Problem& problem : f.graph.problems) {
    if (problem.kind != Problem::kComplete) {
      continue;
    }
    for (const int k : problem.pending) {
      const Pending& p = f.graph[k];
      Cause c;
      c.pending = k;
      c.explains = problem.explains;
      for (const int i : f.group(p.group).evidence) {
        if (i >= 0 && f.ev(i).salvage == Salvage::kUnresponsive) {
          c.set(Rule::kUnresponsive, Verdict::kDevice);
          c.guilty.push_back(guilty_rank(f, i, Why::kUnresponsive, k));
        }
      }
      if (!c.guilty.empty()) {
        out.push_back(std::move(c));
      } else if (auto end = end_of_chain(f, k, chain_from(f, p.waits))) {
        end->explains = problem.explains;
        out.push_back(std::move(*end));
      } else if (auto both = both_unstarted(f, k)) {
        both->assume(Assume::kLowerLayer);
        out.push_back(std::move(*both));
      }
    }
  }
  // A member is without evidence: the others' devices may show the cause, or that the member issued
  // the operation.
  for (std::size_t k = 0; k < f.graph.pending.size() && out.empty(); ++k) {
    const Pending& p = f.graph.pending[k];
    if (p.unknown.empty() || !p.absent.empty()) {
      continue;
    }
    const DeviceChain chain = chain_from(f, p.waits);
    // If most ranks with evidence are stalled, the rank that they all lack is the likelier cause.
    const bool most = 2 * chain.stalled.size() > p.waits.size();
    const bool shown = !chain.links.empty() ||
                       (!most && std::ranges::any_of(chain.stalled, [&](const StalledDevice& s) {
                         return f.devices[s.at].state == DeviceState::kStarted ||
                                f.devices.started_elsewhere(s.at);
                       }));
    if (auto end = shown ? end_of_chain(f, static_cast<int>(k), chain) : std::nullopt) {
      end->assume(Assume::kRankWithoutEvidence, f.c.missing);
      out.push_back(std::move(*end));
    }
  }
  return out;
}

namespace {

// Members issued it from different lines of the program.
bool is_from_several_lines(const Facts& f, const Pending& p) {
  std::set<std::pair<std::string, std::uint32_t>> lines;
  for (const Wait& w : p.waits) {
    const Record* r = f.record(w);
    const Site site = r == nullptr ? Site() : user_site(f.ev(w.evidence), r->stack);
    if (!site.file.empty()) {  // an unknown line is no different line
      lines.emplace(site.file, site.line);
    }
  }
  return p.kind == Kind::kCollective && lines.size() > 1;
}

// The other end of a message, if it is pending as well; -1: it is not.
int pending_other_end(const Facts& f, const Pending& p) {
  const std::vector<int> ends = f.graph.those([&](const Pending& q) {
    return q.kind != p.kind && q.kind != Kind::kCollective && q.group == p.group &&
           q.seq == p.seq && q.from == p.from && q.to == p.to;
  });
  return ends.empty() ? -1 : ends.front();
}

// Members of the failed operation that had issued it and exited with status 0: messages that they
// had not waited for were lost with them.
std::vector<int> left_it(const Facts& f, const Pending& p) {
  std::vector<int> out;
  for (const int i : f.group(p.group).evidence) {
    const bool end =
        p.kind == Kind::kCollective || (i >= 0 && (f.rank(i) == p.from || f.rank(i) == p.to));
    if (i >= 0 && end && f.has_left(i) && !p.waits_here(i)) {
      out.push_back(i);
    }
  }
  return out;
}

}  // namespace

std::vector<Cause> complete_open(const Facts& f) {
  std::vector<Cause> out;
  for (const Problem& problem : f.graph.problems) {
    if (problem.kind != Problem::kComplete) {
      continue;
    }
    const int k =
        *std::ranges::min_element(problem.pending, {}, [&](int at) { return f.graph[at].since; });
    const Pending& p = f.graph[k];
    const int other =
        p.kind == Kind::kCollective || p.numbers_guessed ? -1 : pending_other_end(f, p);
    const bool started = p.kind == Kind::kCollective ? all_started(f, p)
                                                     : other >= 0 && who_wait_started(f, p) &&
                                                           who_wait_started(f, f.graph[other]);
    const bool failed = std::ranges::any_of(p.waits, [](const Wait& w) { return w.failed; });
    // After an operation too many or too few, later operations are matched with the wrong ones.
    const bool several_lines = is_from_several_lines(f, p);
    const bool may_be_shifted = !failed && (!started || several_lines);
    const std::vector<int> stuck =
        ranks_that(f, [&](int i) { return may_be_shifted && f.graph.waits(i); });
    auto left = stuck.size() > 1 ? left_order(f, stuck, several_lines) : std::nullopt;
    // A rank that takes no part in the stuck operations shifted nothing in them.
    const auto takes_part = [&](const Guilty& g) {
      return std::ranges::any_of(problem.pending,
                                 [&](int at) { return f.graph[at].waits_here(g.evidence); });
    };
    if (left && std::ranges::none_of(left->guilty, takes_part)) {
      left.reset();
    }
    if (left) {
      out.push_back(std::move(*left));
      continue;
    }
    Cause c;
    c.pending = k;
    if (const std::vector<int> gone = failed ? left_it(f, p) : std::vector<int>(); !gone.empty()) {
      c.set(Rule::kExited, Verdict::kExited);
      for (const int i : gone) {
        c.guilty.push_back(guilty_rank(f, i, Why::kLeftEarly, k));
      }
      c.explains = problem.explains;
      out.push_back(std::move(c));
      continue;
    }
    c.explains = started && other >= 0 ? f.graph.leading_to({}, {k, other}) : problem.explains;
    c.set(started  ? Rule::kAllStarted
          : failed ? Rule::kOpenFailed
                   : Rule::kOpenComplete,
          started ? Verdict::kTransport : Verdict::kUndecided);
    if (started) {
      c.assume(Assume::kLowerLayer);
    }
    if (started && p.root_unknown(f.c)) {
      c.assume(Assume::kRootUnknown);
    }
    out.push_back(std::move(c));
  }
  return out;
}

}  // namespace frtrace
