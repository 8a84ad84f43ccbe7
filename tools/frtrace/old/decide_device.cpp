#include "old/diagnosis.hpp"

namespace frtrace {

namespace {

const char* why_of(Standing::Why why) {
  switch (why) {
    case Standing::kUnlaunched:
      return "never_launched";
    case Standing::kInLaunch:
      return "in_launch";
    case Standing::kNotStarted:
      return "not_started";
    case Standing::kChannelsAbsent:
      return "channels_not_started";
    case Standing::kKernel:
      return "kernel_stands";
    case Standing::kNetworkThread:
      return "network_thread";
  }
  return "not_started";
}

// What "rank 1" or "ranks 1,2" did.
std::string standing_text(Standing::Why why, const std::string& operation, bool one) {
  const char* device = one ? "its device" : "their devices";
  switch (why) {
    case Standing::kUnlaunched:
      return fmt::format("issued {} and never launched it", operation);
    case Standing::kInLaunch:
      return fmt::format("{} in the launch of {}, which does not return", one ? "is" : "are",
                         operation);
    case Standing::kNotStarted:
      return fmt::format("launched {}, but {} did not get to it: earlier work there is unfinished",
                         operation, device);
    case Standing::kChannelsAbsent:
      return fmt::format("started {}, but {} did not get to all its channels", operation, device);
    case Standing::kKernel:
      return fmt::format("started {}, but the kernel on {} neither takes nor gives", operation,
                         device);
    case Standing::kNetworkThread:
      return fmt::format("started {}, but NCCL's network thread there has not begun with it",
                         operation);
  }
  return "";
}

}  // namespace

DeviceChain Diagnosis::chain_from(const Meeting& m, const std::set<int>& only) const {
  std::vector<OnDevice> from;
  for (const Wait& w : m.waits) {
    if (!only.empty() && !only.contains(w.evidence)) {
      continue;
    }
    if (const auto at = devices_.of(w.evidence, w.record)) {
      from.push_back(*at);
    }
  }
  DeviceChain chain = devices_.follow(from);
  chain.open =
      chain.open || (only.empty() ? from.size() < m.waits.size() : from.size() < only.size());
  return chain;
}

DeviceChain Diagnosis::chain_of(const std::set<int>& who) const {
  std::vector<OnDevice> from;
  for (const int i : who) {
    const auto& records = ev(i).records;
    const auto first = std::find_if(records.begin(), records.end(), blocks);
    if (const auto at = devices_.of(i, static_cast<std::size_t>(first - records.begin()))) {
      from.push_back(*at);
    }
  }
  DeviceChain chain = devices_.follow(from);
  chain.open = chain.open || from.size() < who.size();
  return chain;
}

bool Diagnosis::may_run(const Wait& w) const {
  if (w.record == SIZE_MAX) {
    return false;
  }
  const auto at = devices_.of(w.evidence, w.record);
  return ev(w.evidence).records[w.record].state == State::kStarted || (at && devices_.may_run(*at));
}

bool Diagnosis::moved(const Meeting& m, Rank who) const {
  return std::any_of(m.waits.begin(), m.waits.end(), [&](const Wait& w) {
    const auto at = devices_.of(w.evidence, w.record);
    if (!at) {
      return false;
    }
    const std::vector<DevicePhase> phases = devices_.phases(*at);
    return std::any_of(phases.begin(), phases.end(), [&](const DevicePhase& p) {
      return p.kind != PhaseKind::kKernel && devices_.peer(*at, p.peer) == who &&
             (p.step > 0 || p.wait == PhaseWait::kInFlight);
    });
  });
}

void Diagnosis::blame_standing(const Meeting& m, const std::vector<Standing>& standing) {
  r_.kind = Verdict::kDevice;
  std::set<int> blamed;
  std::set<Rank> waiting;
  for (const Standing& s : standing) {
    const int i = s.at.evidence;
    if (!blamed.insert(i).second) {
      continue;
    }
    Blamed& b = blame(i, why_of(s.why));
    fill_slot(b, m);
    if (const std::size_t index = record_of(ev(i), devices_[s.at]); index != SIZE_MAX) {
      const Record& record = ev(i).records[index];
      b.op = ev(i).text(record.op);
      b.seq = record.seq;
      if (const Group* g = group_of(i, record)) {
        b.group = g->name;
        b.desc = g->desc;
      }
      b.site = user_site(ev(i), record.stack);
      b.stack = stack_lines(i, record.stack);
    }
    b.evidence.insert(b.evidence.begin(), device_words(s.at));
  }
  for (const Meeting& each : graph_.meetings) {
    for (const Wait& w : each.waits) {
      if (!blamed.contains(w.evidence)) {
        waiting.insert(rank(w.evidence));
      }
    }
  }
  std::sort(r_.ranks.begin(), r_.ranks.end());
  const bool one = blamed.size() == 1;
  r_.summary =
      fmt::format("{} {}", ranks_words(r_.ranks),
                  standing_text(standing.front().why, device_title(standing.front().at), one));
  if (!waiting.empty()) {
    r_.summary += fmt::format("; {} {}", ranks_words({waiting.begin(), waiting.end()}),
                              waiting.size() == 1 ? "waits" : "wait");
  }
}

bool Diagnosis::chain_ends(const Meeting& m, int k, const DeviceChain& chain) {
  // Where nobody's device is known to have got to it, all may wait for the same.
  std::set<int> stand, queued;
  std::map<std::pair<const Group*, std::uint64_t>, bool> collectives;
  const auto got_there = [&](const OnDevice& where) {
    const RankEvidence& e = ev(where.evidence);
    const std::size_t index = record_of(e, devices_[where]);
    if (index == SIZE_MAX || e.records[index].kind != Kind::kCollective) {
      return devices_.started_elsewhere(where);
    }
    const Record& record = e.records[index];
    const auto [it, is_new] =
        collectives.try_emplace({group_of(where.evidence, record), record.seq}, false);
    it->second = is_new ? devices_.started_elsewhere(where) : it->second;
    return it->second;
  };
  for (const Standing& s : chain.standing) {
    const bool on_its_own = devices_[s.at].state == DeviceState::kStarted;
    (on_its_own || got_there(s.at) ? stand : queued).insert(s.at.evidence);
  }
  const std::size_t members = m.kind == Kind::kCollective ? group(m.group).ranks.size() : 2;
  if (stand.size() == 1 || (!stand.empty() && 2 * stand.size() < members)) {
    std::vector<Standing> standing = chain.standing;
    std::erase_if(standing, [&](const Standing& s) { return !stand.contains(s.at.evidence); });
    blame_standing(m, standing);
    if (stand.size() > 1) {
      lower(Confidence::kLikely, "several devices stand, and one may have stopped the others");
    }
    if (!chain.links.empty()) {
      lower(Confidence::kLikely, "the network holds something back, too");
    }
    const bool thread = std::any_of(standing.begin(), standing.end(), [](const Standing& s) {
      return s.why == Standing::kNetworkThread;
    });
    if (thread) {
      lower(Confidence::kLikely, "why a network thread does not go on is not seen");
    }
  } else if (!stand.empty() || !queued.empty()) {
    r_.kind = Verdict::kUndecided;
    stand.merge(queued);
    const std::vector<Rank> who = ranks({stand.begin(), stand.end()});
    r_.summary = fmt::format(
        "{} does not get on, on the devices of {}, behind work that fr does not see: the evidence "
        "does not tell whose device holds up the others",
        meeting_text(m), ranks_words(who));
  } else if (!chain.links.empty()) {
    r_.kind = Verdict::kTransport;
    const Link& l = chain.links.front();
    r_.summary =
        fmt::format("{} is stuck in the network, {}", meeting_text(m),
                    l.from == l.to ? fmt::format("between card and device of rank {}", l.from)
                                   : fmt::format("from rank {} to rank {}", l.from, l.to));
    if (chain.links.size() > 1) {
      r_.summary += fmt::format(" and on {} more way{}", chain.links.size() - 1,
                                chain.links.size() == 2 ? "" : "s");
    }
  } else if (!chain.busy.empty()) {
    std::vector<Rank> who;
    for (const OnDevice& at : chain.busy) {
      who.push_back(rank(at.evidence));
    }
    std::sort(who.begin(), who.end());
    who.erase(std::unique(who.begin(), who.end()), who.end());
    r_.kind = Verdict::kUndecided;
    r_.summary = fmt::format(
        "{} does not get on: the kernel of {} runs and neither takes nor gives though it could; it "
        "may wait for a rank of its node that it reaches without the network, which is not seen",
        meeting_text(m), ranks_words(who));
  } else {
    return false;
  }
  if (chain.open) {
    lower(Confidence::kLikely, "not all waits of the devices could be followed");
  }
  tell_devices(chain);
  std::set<int> blamed;
  if (r_.kind == Verdict::kDevice) {
    blamed = stand;
    explain_waits(blamed);
  }
  add_all_waiting(k, blamed);
  return true;
}

bool Diagnosis::device_behind() {
  // Waits end at ranks that never issued something, too: then the hosts decide, except where the
  // same rank's device is behind in what it did issue. A device that stands makes the host stand.
  std::set<int> blamed;
  for (const int s : graph_.sinks) {
    if (!graph_.device[at(s)]) {
      return false;
    }
    blamed.insert(s);
  }
  if (blamed.empty()) {
    return false;
  }
  int k = -1;
  const auto behind = [&](const Meeting& m) {
    return std::any_of(m.device.begin(), m.device.end(), [&](int b) { return blamed.contains(b); });
  };
  for (std::size_t j = 0; j < graph_.meetings.size(); ++j) {
    const Meeting& m = graph_.meetings[j];
    if (behind(m) && (k < 0 || m.since < graph_.meetings[at(k)].since)) {
      k = static_cast<int>(j);
    }
  }
  // Of one that stands in several, what it issued first: the others are queued behind that.
  std::size_t first = SIZE_MAX;
  for (std::size_t j = 0; blamed.size() == 1 && j < graph_.meetings.size(); ++j) {
    for (const Wait& w : graph_.meetings[j].waits) {
      if (blamed.contains(w.evidence) && w.record < first && behind(graph_.meetings[j])) {
        first = w.record;
        k = static_cast<int>(j);
      }
    }
  }
  const Meeting& m = graph_.meetings[at(k)];
  // What holds them may be elsewhere: on another stream, at a peer, in the network.
  const DeviceChain chain = chain_of(blamed);
  std::set<int> stand;
  for (const Standing& s : chain.standing) {
    stand.insert(s.at.evidence);
  }
  if (stand != blamed && chain_ends(m, k, chain)) {
    return true;
  }
  // Several that stand: a whole side of a group, or with evidence lost, may only wait for another.
  if (blamed.size() > 1 && (m.kind != Kind::kCollective || !c_.missing.empty() ||
                            2 * m.device.size() >= group(m.group).ranks.size())) {
    r_.kind = Verdict::kUndecided;
    r_.summary = fmt::format(
        "{} issued {} and did not get to it on the device, but the evidence does not tell whose "
        "device holds up the others",
        ranks_words(ranks({blamed.begin(), blamed.end()})), meeting_text(m));
    add_all_waiting(k, {});
    return true;
  }
  // One that runs it, as far as is known, may be owed something by the others, though these have
  // finished.
  std::set<int> running;
  for (const Meeting& each : graph_.meetings) {
    for (const Wait& w : each.waits) {
      if (blamed.contains(w.evidence) && !stand.contains(w.evidence) && may_run(w)) {
        running.insert(w.evidence);
      }
    }
  }
  if (!running.empty()) {
    r_.kind = Verdict::kUndecided;
    r_.summary = fmt::format(
        "{} issued {} and did not finish it, though others started or finished it: the evidence "
        "does not tell its device from what the network owes it",
        ranks_words(ranks({running.begin(), running.end()})), meeting_text(m));
    add_all_waiting(k, {});
    return true;
  }
  r_.kind = Verdict::kDevice;
  for (const int i : blamed) {
    const Meeting* own = &m;
    if (std::find(m.device.begin(), m.device.end(), i) == m.device.end()) {
      own = &*std::find_if(graph_.meetings.begin(), graph_.meetings.end(), [&](const Meeting& x) {
        return std::find(x.device.begin(), x.device.end(), i) != x.device.end();
      });
    }
    Blamed& b = blame(i, own->devices_seen ? "not_started" : "not_finished");
    fill_slot(b, *own);
    for (const Wait& w : own->waits) {
      if (w.evidence == i && w.record != SIZE_MAX) {
        const Record& record = ev(i).records[w.record];
        b.site = user_site(ev(i), record.stack);
        b.stack = stack_lines(i, record.stack);
        b.evidence.insert(b.evidence.begin(),
                          fmt::format("issued {}{} {} before its dump; its device has not {} it",
                                      meeting_text(*own), at_site(i, record.stack),
                                      duration_text(seconds_between(record.time, ev(i).written)),
                                      record.state == State::kStarted ? "finished" : "started"));
        if (const auto on_device = devices_.of(i, w.record)) {
          b.evidence.insert(b.evidence.begin() + 1, device_words(*on_device));
        }
      }
    }
    for (const Standing& s : chain.standing) {
      b.why = s.at.evidence == i && own->devices_seen ? why_of(s.why) : b.why;
    }
  }
  std::sort(r_.ranks.begin(), r_.ranks.end());
  std::vector<Rank> others = group(m.group).ranks;
  std::sort(others.begin(), others.end());
  drop_blamed(others);
  const bool one = r_.ranks.size() == 1;
  const bool told = m.devices_seen && !chain.standing.empty() && stand == blamed;
  r_.summary = fmt::format(
      "{} {}; {} {}", ranks_words(r_.ranks),
      told ? standing_text(chain.standing.front().why, meeting_text(m), one)
           : fmt::format("issued {}, but {} not get to it: earlier work there is unfinished",
                         meeting_text(m), one ? "its device did" : "their devices did"),
      ranks_words(others),
      m.devices_seen ? (others.size() == 1 ? "started it and waits" : "started it and wait")
                     : "finished it");
  say("why",
      fmt::format("all members issued {}: the hosts are not late, the device{} of {} {}",
                  meeting_text(m), one ? "" : "s", ranks_words(r_.ranks), one ? "is" : "are"));
  if (blamed.size() > 1) {
    lower(Confidence::kLikely, "several devices stand, and one may have stopped the others");
  }
  if (!chain.visited.empty()) {
    if (chain.open) {
      lower(Confidence::kLikely, "what is before it on the device is not all told");
    }
    tell_devices(chain_from(m, {}));
  }
  explain_waits(blamed);
  add_all_waiting(k, blamed);
  return true;
}

bool Diagnosis::everybody_came() {
  if (graph_.complete.empty()) {
    return false;
  }
  const int k = *std::min_element(
      graph_.complete.begin(), graph_.complete.end(),
      [&](int a, int b) { return graph_.meetings[at(a)].since < graph_.meetings[at(b)].since; });
  const Meeting& m = graph_.meetings[at(k)];
  const Group& g = group(m.group);
  std::set<int> blamed;
  for (const int i : g.evidence) {
    if (i >= 0 && ev(i).salvage_why == "unresponsive") {
      blamed.insert(i);
    }
  }
  if (!blamed.empty()) {
    r_.kind = Verdict::kDevice;
    for (const int i : blamed) {
      fill_slot(blame(i, "unresponsive"), m);
    }
    r_.summary =
        fmt::format("{} issued {} and no longer respond{}; the others wait there",
                    ranks_words(r_.ranks), meeting_text(m), r_.ranks.size() == 1 ? "s" : "");
    add_all_waiting(k, blamed);
    return true;
  }
  std::vector<int> by_age = graph_.complete;
  std::stable_sort(by_age.begin(), by_age.end(), [&](int a, int b) {
    return graph_.meetings[at(a)].since < graph_.meetings[at(b)].since;
  });
  for (const int each : by_age) {
    const Meeting& stuck = graph_.meetings[at(each)];
    if (chain_ends(stuck, each, chain_from(stuck, {}))) {
      return true;
    }
  }
  bool all_started = m.kind == Kind::kCollective && m.waits.size() == g.ranks.size();
  bool failed = false;
  for (const Wait& w : m.waits) {
    all_started = all_started && w.record != SIZE_MAX &&
                  ev(w.evidence).records[w.record].state == State::kStarted;
    failed = failed || w.failed;
  }
  if (!all_started && !failed) {
    // Sends and receives are matched by their order: one too many or too few makes others meet.
    std::set<int> stuck;
    for (const Meeting& each : graph_.meetings) {
      for (const Wait& w : each.waits) {
        stuck.insert(w.evidence);
      }
    }
    if (stuck.size() > 1 && blame_anomalies(stuck, false)) {
      return true;
    }
  }
  add_all_waiting(k, {});
  if (all_started) {
    r_.kind = Verdict::kTransport;
    r_.summary = fmt::format("all members started {} and none finished", meeting_text(m));
    lower(Confidence::kLikely, "the layer below is not seen");
    return true;
  }
  r_.kind = Verdict::kUndecided;
  r_.summary = failed ? fmt::format(
                            "{} failed though all its members issued it; nobody's process ended "
                            "before, so the evidence does not name who caused it",
                            meeting_text(m))
                      : fmt::format(
                            "all members issued {} and it does not end on {}; what happens below "
                            "the host is not in the evidence",
                            meeting_text(m), ranks_words(waiting_ranks(m)));
  return true;
}

}  // namespace frtrace
