#include "words/question.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "words/words.hpp"

namespace frtrace {

namespace {

class Question {
 public:
  explicit Question(const Case& c) : c_(c) {}
  void add(Rank rank) {
    const auto it = c_.index.find(rank);
    if (ranks_.size() < kMostInQuestion && it != c_.index.end() &&
        c_.evidence_of(it->second).holes.reduced && known_.insert(rank).second) {
      ranks_.push_back(rank);
    }
  }
  // Adds the members that compare best with the others: those that issued most and least.
  void add_ends(const Group& g) {
    int most = -1, least = -1;
    const auto issued = [&](int m) {
      const GroupEvidence* row = c_.member(g, static_cast<std::size_t>(m));
      return row == nullptr ? 0 : row->enqueued;
    };
    for (int m = 0; m < static_cast<int>(g.ranks.size()); ++m) {
      if (g.evidence[static_cast<std::size_t>(m)] >= 0) {
        most = most < 0 || issued(m) > issued(most) ? m : most;
        least = least < 0 || issued(m) < issued(least) ? m : least;
      }
    }
    for (const int m : {most, least}) {
      if (m >= 0) {
        add(g.ranks[static_cast<std::size_t>(m)]);
      }
    }
  }
  std::vector<Rank> take() { return std::move(ranks_); }

 private:
  const Case& c_;
  std::set<Rank> known_;
  std::vector<Rank> ranks_;
};

bool lacks_times(const Case& c) {
  return std::any_of(c.ranks.begin(), c.ranks.end(), [](const RankEvidence* e) {
    return e->holes.reduced &&
           (e->losses.trimmed != 0 || std::any_of(e->records.begin(), e->records.end(),
                                                  [](const Record& r) { return r.time == 0; }));
  });
}

}  // namespace

std::vector<Rank> ranks_in_question(const Facts& f, const Report& r) {
  Question all(f.c);
  for (const Rank rank : r.ranks) {
    all.add(rank);
  }
  for (const Link& link : r.links) {
    all.add(link.from), all.add(link.to);
  }
  for (const DeviceReport& d : r.devices) {
    all.add(d.rank);
  }
  for (const Waiting& w : r.waiting) {
    if (!w.ranks.empty()) {
      all.add(w.ranks.front());
    }
  }
  constexpr std::size_t kOfWait = 8;
  for (const Pending& p : f.graph.pending) {
    for (const auto* waited_for : {&p.absent, &p.busy, &p.lagging}) {
      for (std::size_t i = 0; i < std::min(waited_for->size(), kOfWait); ++i) {
        all.add(f.rank((*waited_for)[i]));
      }
    }
  }
  for (const Pending& p : f.graph.pending) {
    if (p.group >= 0) {
      all.add_ends(f.group(p.group));
    }
  }
  return all.take();
}

void add_reduced(const Facts& f, Report& r) {
  r.reduced = static_cast<int>(std::count_if(f.c.ranks.begin(), f.c.ranks.end(),
                                             [](const auto* e) { return e->holes.reduced; }));
  if (r.reduced == 0) {
    return;
  }
  r.in_question = ranks_in_question(f, r);
  std::string text = fmt::format(
      "{} of {} ranks are read from summaries, which lack variables, and times of "
      "older operations",
      r.reduced, r.read);
  if (r.kind == Verdict::kOk && lacks_times(f.c)) {
    text += ": whether ranks come late repeatedly takes whole dumps of all";
    r.confidence = r.confidence == Confidence::kCertain ? Confidence::kLikely : r.confidence;
  } else if (!r.in_question.empty()) {
    text += "; more would tell: whole dumps of " + ranks_words(r.in_question);
  }
  say(r, "reduced", std::move(text));
}

}  // namespace frtrace
