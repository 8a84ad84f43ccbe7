#include "diagnosis.hpp"

namespace frtrace {

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
  const Meeting& m = graph_.meetings[at(k)];
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
      }
    }
  }
  std::sort(r_.ranks.begin(), r_.ranks.end());
  std::vector<Rank> others = group(m.group).ranks;
  std::sort(others.begin(), others.end());
  drop_blamed(others);
  const bool one = r_.ranks.size() == 1;
  r_.summary = fmt::format(
      "{} issued {}, but {} not get to it: earlier work there is unfinished; {} {}",
      ranks_words(r_.ranks), meeting_text(m), one ? "its device did" : "their devices did",
      ranks_words(others),
      m.devices_seen ? (others.size() == 1 ? "started it and waits" : "started it and wait")
                     : "finished it");
  say("why",
      fmt::format("all members issued {}: the hosts are not late, the device{} of {} {}",
                  meeting_text(m), one ? "" : "s", ranks_words(r_.ranks), one ? "is" : "are"));
  if (blamed.size() > 1) {
    lower(Confidence::kLikely, "several devices stand, and one may have stopped the others");
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
