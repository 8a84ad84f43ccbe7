// Selects the late ranks that stand for themselves: a node, or one rank beside its followers; none
// if only clocks differ.
#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "facts/late/stragglers.hpp"
#include "facts/limits.hpp"
#include "model/contains.hpp"

namespace frtrace {

namespace {

// The largest group that has both ranks: its operations divide time into rounds. -1: none.
int common_group(const Case& c, int a, int b) {
  int out = -1;
  std::size_t most = 0;
  for (std::size_t g = 0; g < c.groups.size(); ++g) {
    const std::vector<int>& members = c.groups[g].evidence;
    if (members.size() > most && contains(members, a) && contains(members, b)) {
      out = static_cast<int>(g);
      most = members.size();
    }
  }
  return out;
}

// From the operation before the late one to the late one.
struct Gap {
  Time begin = 0, end = 0;
};

// The first gap of each round in which the rank is late.
std::map<std::uint64_t, Gap> late_rounds(const Case& c, const Straggler& s, int group) {
  const RankEvidence& e = c.evidence_of(s.evidence);
  std::vector<std::uint64_t> round(e.records.size());
  std::uint64_t now = 0;
  for (std::size_t r = 0; r < e.records.size(); ++r) {
    const Record& one = e.records[r];
    round[r] = now;
    if (one.kind == Kind::kCollective && c.group_at(s.evidence, one.group) == group) {
      now = one.seq;
    }
  }
  std::map<std::uint64_t, Gap> out;
  for (const LateSite& site : s.sites) {
    for (const std::uint32_t r : site.records) {
      const Gap gap{r == 0 ? e.records[r].time : e.records[r - 1].time, e.records[r].time};
      const auto [it, added] = out.try_emplace(round[r], gap);
      it->second = gap.end < it->second.end ? gap : it->second;
    }
  }
  return out;
}

// The gap is not before the other, as far as clocks tell, and later on the whole.
bool comes_after(const Gap& gap, const Gap& other) {
  const Time unsure = static_cast<Time>(limits::kLateByClocks_s * 1e9);
  return other.begin <= gap.begin + unsure && other.end <= gap.end + unsure &&
         (other.begin - gap.begin) + (other.end - gap.end) < 0;
}

// In most rounds in which the rank is late, the other rank was late before it.
bool follows(const Case& c, const Straggler& s, const Straggler& other) {
  const int group = common_group(c, s.evidence, other.evidence);
  if (group < 0) {
    return false;
  }
  const std::map<std::uint64_t, Gap> own = late_rounds(c, s, group),
                                     before = late_rounds(c, other, group);
  const auto n = std::ranges::count_if(own, [&](const auto& one) {
    const auto it = before.find(one.first);
    return it != before.end() && comes_after(one.second, it->second);
  });
  return static_cast<double>(n) >= limits::kFollows * static_cast<double>(own.size());
}

// PyTorch's files of gloo jobs lack sends and receives: a rank that waits in one seems to be busy.
bool may_lack_messages(const RankEvidence& e) {
  return !e.format.empty() &&
         std::ranges::any_of(e.groups, [&](const auto& g) { return e.text(g.backend) == "gloo"; });
}

}  // namespace

void fold_followers(const Case& c, std::vector<Straggler>& late) {
  std::vector<bool> gone(late.size(), false);
  for (std::size_t i = 0; i < late.size(); ++i) {
    if (!may_lack_messages(c.evidence_of(late[i].evidence))) {
      continue;
    }
    for (std::size_t k = 0; k < late.size() && !gone[i]; ++k) {
      if (k != i && !gone[k] && follows(c, late[i], late[k])) {
        gone[i] = true;
        late[k].followers.push_back(late[i].evidence);
        std::move(late[i].followers.begin(), late[i].followers.end(),
                  std::back_inserter(late[k].followers));
      }
    }
  }
  std::size_t i = 0;
  std::erase_if(late, [&](const Straggler&) { return gone[i++]; });
}

// The late ranks are most ranks of one node, and they are late over the same time.
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
    Time first = 0, last = 0;  // by its node's clock
    for (const LateSite& site : s.sites) {
      for (const std::size_t r : {site.first, site.record}) {
        const Time late_at = c.evidence_of(s.evidence).records[r].time;
        first = first == 0 ? late_at : std::min(first, late_at);
        last = std::max(last, late_at);
      }
    }
    begin = std::max(begin, first);
    end = end == 0 ? last : std::min(end, last);
    if (begin >= end) {
      return "";
    }
  }
  return elsewhere != 0 && 2 * late.size() > there ? node : "";
}

// `node` is a late node and has all ranks of `some`, which were found to be late before.
bool takes_in(const Case& c, const std::vector<Straggler>& node,
              const std::vector<Straggler>& some) {
  return !late_node(c, node).empty() && std::ranges::all_of(some, [&](const Straggler& s) {
    return std::ranges::any_of(node,
                               [&](const Straggler& of) { return of.evidence == s.evidence; });
  });
}

// Ranks with more time of their own only over whole rounds of a group: keeps those that stand out,
// if they are one rank or a node. Work that others cannot hide behind waits for such a rank counts
// little.
std::vector<Straggler> standing_out(const Case& c, std::vector<Straggler> late) {
  double most = 0;
  for (const Straggler& s : late) {
    most = std::max(most, s.lost_s);
  }
  std::erase_if(late, [&](const Straggler& s) { return s.lost_s < limits::kStandsOut * most; });
  return late.size() == 1 || !late_node(c, late).empty() ? late : std::vector<Straggler>{};
}

// If clocks are compared, a node with a wrong clock looks like a late node.
void drop_late_clocks(const Case& c, std::vector<Straggler>& late) {
  const auto node = [](const RankEvidence& e) {  // PyTorch's files do not name their node
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
