#include "diagnosis.hpp"

namespace frtrace {

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
