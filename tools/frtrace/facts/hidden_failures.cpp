// PyTorch dumps record the end of a gloo operation alike whether it succeeded or a peer was gone.
// The last operation of a rank may be such a failure if it needed a member that left no file and no
// other member went on from there.
#include <algorithm>
#include <set>

#include "facts/limits.hpp"
#include "facts/waits.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// The rank stopped inside an iteration: its last operation was always followed by another operation
// than the first of an iteration.
bool amid_iteration(const RankEvidence& e, const std::vector<Step>& steps) {
  if (e.losses.overwritten != 0 || steps.size() < 4) {
    return false;
  }
  const auto next = usual_next(steps, steps.size());
  if (!next) {
    return false;
  }
  const std::size_t first = first_repeated(steps);
  return first < steps.size() && steps[*next].key != steps[first].key;
}

}  // namespace

bool stopped_amid(const Case& c, const History& history, int evidence) {
  const RankEvidence& e = c.evidence_of(evidence);
  const std::vector<Step>& steps = history.of(evidence);
  if (steps.empty() || !amid_iteration(e, steps)) {
    return false;
  }
  const Time last = e.records[steps.back().record].time;
  return e.holes.written_guessed || seconds_between(last, e.written) >= limits::kAtRest_s;
}

std::vector<HiddenFailure> hidden_failures(const Case& c, const History& history) {
  std::vector<HiddenFailure> found;
  if (c.missing.empty()) {
    return found;
  }
  const std::set<Rank> missing(c.missing.begin(), c.missing.end());
  bool broken = false, waited = false;
  for (const RankEvidence* e : c.ranks) {
    broken = broken || e->holes.failure_inferred;
    for (const Record& r : e->records) {
      waited = waited || (r.kind == Kind::kCollective &&
                          (r.state == State::kEnqueued || r.state == State::kStarted));
    }
  }
  for (std::size_t k = 0; k < c.groups.size(); ++k) {
    const Group& g = c.groups[k];
    const int members = static_cast<int>(g.ranks.size());
    bool lost = false;
    for (std::size_t m = 0; m < g.ranks.size(); ++m) {
      const GroupEvidence* e = c.member(g, m);
      lost = lost || missing.contains(g.ranks[m]) || (e != nullptr && e->n_ranks > members);
    }
    if (g.backend != "gloo" || !lost) {
      continue;
    }
    // Each member's last operation, if that belongs to the group.
    std::vector<const Record*> last(g.ranks.size(), nullptr);
    for (std::size_t m = 0; m < g.ranks.size(); ++m) {
      const int i = g.evidence[m];
      const std::vector<Step>* steps = i < 0 ? nullptr : &history.of(i);
      if (steps != nullptr && !steps->empty() && steps->back().group == static_cast<int>(k)) {
        last[m] = &history.record(i, steps->size() - 1);
      }
    }
    for (std::size_t m = 0; m < g.ranks.size(); ++m) {
      if (last[m] == nullptr || last[m]->state != State::kCompleted ||
          c.evidence_of(g.evidence[m]).format.empty()) {
        continue;
      }
      const RankEvidence& e = c.evidence_of(g.evidence[m]);
      bool went_on = false;  // another member issued more
      for (std::size_t o = 0; o < g.ranks.size() && meets_all(e.text(last[m]->op)); ++o) {
        const GroupEvidence* other = c.member(g, o);
        went_on =
            went_on || (last[o] != nullptr ? last[o]->seq > last[m]->seq
                                           : other != nullptr && other->enqueued >= last[m]->seq);
      }
      if (!went_on) {
        found.push_back({g.evidence[m], e.index_of(*last[m]), false});
      }
    }
  }
  // A job at rest looks the same, so another sign must show that it broke.
  const bool amid = std::ranges::all_of(
      found, [&](const HiddenFailure& f) { return stopped_amid(c, history, f.evidence); });
  if (!broken && !(found.size() > 1 && waited) && !amid) {
    if (found.size() != 1 || !waited) {
      return {};
    }
    found.front().doubtful = true;  // it failed, or it stopped by itself
  }
  return found;
}

}  // namespace frtrace
