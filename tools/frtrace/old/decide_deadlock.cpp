#include <fmt/ranges.h>

#include "old/diagnosis.hpp"

namespace frtrace {

bool Diagnosis::cycle() {
  if (graph_.cycles.empty()) {
    return false;
  }
  std::set<int> suspects;
  for (const std::vector<int>& members : graph_.cycles) {
    suspects.insert(members.begin(), members.end());
  }
  if (blame_anomalies(suspects, true)) {
    return true;
  }
  struct Deviant {
    int evidence;
    int meeting;
    Deviation how;
    bool foreign;  // what it issued instead is new: another order, not one left out
  };
  std::vector<Deviant> deviants;
  std::set<int> on_cycle;
  std::set<int> cycle_meetings;
  bool all_explained = true;
  for (const std::vector<int>& members : graph_.cycles) {
    std::size_t before = deviants.size();
    const std::set<int> in(members.begin(), members.end());
    on_cycle.insert(in.begin(), in.end());
    for (std::size_t k = 0; k < graph_.meetings.size(); ++k) {
      const Meeting& m = graph_.meetings[k];
      const bool inner = std::any_of(m.waits.begin(), m.waits.end(),
                                     [&](const Wait& w) { return in.contains(w.evidence); });
      if (!inner) {
        continue;
      }
      cycle_meetings.insert(static_cast<int>(k));
      for (const int a : m.absent) {
        if (!in.contains(a)) {
          continue;
        }
        const std::vector<Step>& steps = history_.of(a);
        if (const auto how = deviation(steps, m.group)) {
          bool foreign = true;
          for (std::size_t j = 0; j < how->issued && foreign; ++j) {
            foreign = steps[j].key != steps[how->issued].key;
          }
          deviants.push_back({a, static_cast<int>(k), *how, foreign});
        }
      }
    }
    std::set<int> distinct;
    for (std::size_t d = before; d < deviants.size(); ++d) {
      distinct.insert(deviants[d].evidence);
    }
    if (2 * distinct.size() > in.size()) {
      deviants.resize(before);  // when most deviate nobody does
    }
    all_explained = all_explained && deviants.size() > before;
  }
  if (all_explained) {
    std::set<int> blamed;
    const bool order =
        std::all_of(deviants.begin(), deviants.end(), [](const Deviant& d) { return d.foreign; });
    r_.kind = order ? Verdict::kDeadlock : Verdict::kMissing;
    for (const Deviant& d : deviants) {
      if (!blamed.insert(d.evidence).second) {
        continue;
      }
      Blamed& b = blame(d.evidence, order ? "other_order" : "never_issued");
      fill_slot(b, graph_.meetings[at(d.meeting)]);
      if (const auto words = usual_words(d.evidence, graph_.meetings[at(d.meeting)].group)) {
        b.evidence.push_back(*words);
      }
    }
    std::sort(r_.ranks.begin(), r_.ranks.end());
    const int k = deviants.front().meeting;
    const Meeting& m = graph_.meetings[at(k)];
    r_.summary =
        order ? fmt::format("{} took another order: {} did not come before it; {}",
                            ranks_words(r_.ranks), meeting_text(m), wait_words(waiting_ranks(m)))
              : fmt::format("{} never issued {}; {}", ranks_words(r_.ranks), meeting_text(m),
                            wait_words(waiting_ranks(m)));
    say("why",
        "the ranks wait for each other in a circle; only the blamed left the order of "
        "their earlier iterations");
    explain_waits(blamed);
    add_all_waiting(k, {});
    lower(Confidence::kLikely, "the order of earlier iterations decides");
    return true;
  }
  return deadlock(on_cycle, cycle_meetings);
}

bool Diagnosis::deadlock(const std::set<int>& on_cycle, const std::set<int>& meetings) {
  // Most members of both groups took them in one order: the few others are wrong.
  std::set<int> guilty = on_cycle;
  if (meetings.size() == 2) {
    const int a = *meetings.begin(), b = *meetings.rbegin();
    const Meeting& ma = graph_.meetings[at(a)];
    const Meeting& mb = graph_.meetings[at(b)];
    std::set<int> in_a, in_b;
    for (const int i : on_cycle) {
      const Rank who = rank(i);
      if (group(ma.group).position.contains(who) && group(mb.group).position.contains(who)) {
        const auto waits = [&](const Meeting& m) {
          return std::any_of(m.waits.begin(), m.waits.end(),
                             [&](const Wait& w) { return w.evidence == i; });
        };
        (waits(ma) ? in_a : in_b).insert(i);
      }
    }
    if (!in_a.empty() && !in_b.empty() && in_a.size() != in_b.size()) {
      guilty = in_a.size() < in_b.size() ? in_a : in_b;
      lower(Confidence::kLikely, "the order of most members is taken for the right one");
    }
  }
  const bool everybody = guilty == on_cycle;
  if (everybody && c_.missing.empty()) {
    lower(Confidence::kLikely, "nobody's earlier iterations tell which order is right");
  } else if (everybody) {
    lower(Confidence::kPossible, "nobody's earlier iterations tell which order is right");
  }
  r_.kind = Verdict::kDeadlock;
  std::vector<std::string> parts;
  int first = -1;
  for (const int k : meetings) {
    const Meeting& m = graph_.meetings[at(k)];
    first = first < 0 ? k : first;
    if (parts.size() < 4) {
      parts.push_back(fmt::format("{} in {}", ranks_words(waiting_ranks(m)), meeting_text(m)));
    }
  }
  for (const int i : guilty) {
    Blamed& b = blame(i, everybody ? "on_cycle" : "other_order");
    if (!graph_.waits_in[at(i)].empty()) {
      fill_slot(b, graph_.meetings[at(graph_.waits_in[at(i)].front())]);
    }
  }
  std::sort(r_.ranks.begin(), r_.ranks.end());
  r_.summary = everybody ? fmt::format("{} wait for each other: {}", ranks_words(r_.ranks),
                                       fmt::join(parts, "; "))
                         : fmt::format("{} took another order than the others: {}",
                                       ranks_words(r_.ranks), fmt::join(parts, "; "));
  add_all_waiting(first, {});
  return true;
}

}  // namespace frtrace
