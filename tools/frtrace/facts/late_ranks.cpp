// Which of the ranks that are late stand for themselves: a node, one rank beside its followers, none
// where only clocks differ.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "facts/limits.hpp"
#include "facts/stragglers.hpp"

namespace frtrace {

namespace {

// When the rank was late, by its node's clock.
std::vector<Time> late_times(const Case& c, const Straggler& s) {
  const RankEvidence& e = c.evidence_of(s.evidence);
  std::vector<Time> out;
  for (const LateSite& site : s.sites) {
    out.push_back(e.records[site.first].time);
    out.push_back(e.records[site.record].time);
  }
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace

// Most ranks of one node are late, over the same time, and none of another node is.
std::string late_node(const Case& c, const std::vector<Straggler>& late) {
  if (late.size() < 2) {
    return "";
  }
  const std::string& node = c.evidence_of(late.front().evidence).id.host;
  std::size_t there = 0, elsewhere = 0;
  for (const RankEvidence* e : c.ranks) {
    ++(e->id.host == node ? there : elsewhere);
  }
  Time begin = 0, end = 0;
  for (const Straggler& s : late) {
    if (c.evidence_of(s.evidence).id.host != node) {
      return "";
    }
    const std::vector<Time> times = late_times(c, s);
    begin = std::max(begin, times.front());
    end = end == 0 ? times.back() : std::min(end, times.back());
    if (begin >= end) {
      return "";
    }
  }
  return elsewhere != 0 && 2 * late.size() > there ? node : "";
}

// Of those whose own time is longer only when whole rounds of a group are compared: who stands out,
// one rank or a node. What others cannot hide behind the waits for such a rank counts little.
std::vector<Straggler> standing_out(const Case& c, std::vector<Straggler> late) {
  double most = 0;
  for (const Straggler& s : late) {
    most = std::max(most, s.lost_s);
  }
  std::erase_if(late, [&](const Straggler& s) { return s.lost_s < limits::kStandsOut * most; });
  return late.size() == 1 || !late_node(c, late).empty() ? late : std::vector<Straggler>{};
}

// Where clocks are compared, a node whose clock is off looks like a late one.
void drop_late_clocks(const Case& c, std::vector<Straggler>& late) {
  const auto node = [](const RankEvidence& e) {  // PyTorch's files do not name theirs
    return e.id.host.empty() ? std::to_string(e.id.rank / limits::kNodeSizes[0]) : e.id.host;
  };
  std::map<std::string, std::pair<std::size_t, std::size_t>> nodes;  // late, all
  for (const RankEvidence* e : c.ranks) {
    ++nodes[node(*e)].second;
  }
  for (const Straggler& s : late) {
    ++nodes[node(c.evidence_of(s.evidence))].first;
  }
  std::erase_if(late, [&](const Straggler& s) {
    const auto& [n, of] = nodes[node(c.evidence_of(s.evidence))];
    return n > 1 && 2 * n > of && of < c.ranks.size();
  });
}

}  // namespace frtrace
