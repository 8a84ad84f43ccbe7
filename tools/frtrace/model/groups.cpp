// groups.cpp - matches the rows of all ranks' tables to groups, and labels the groups.
#include "model/groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>

namespace frtrace {

namespace {

// The framework's group that a communicator's own group works for; nullptr: unknown.
const GroupEvidence* framework_group(const RankEvidence& e, std::uint32_t row) {
  for (const CommEvidence& comm : e.device.comms) {
    if (comm.used && comm.group == row && comm.pg_group != 0 && comm.pg_group < e.groups.size() &&
        e.groups[comm.pg_group].used) {
      return &e.groups[comm.pg_group];
    }
  }
  return nullptr;
}

// Finds the members of groups without a list of members from each member's own rank in the group.
// Without a size of the group (NCCL up to 2.26), all ranks of the job must have given theirs.
class OwnPlaces {
 public:
  explicit OwnPlaces(const Case& c)
      : expected_(c.expected), is_all_(static_cast<int>(c.ranks.size()) >= c.expected) {
    for (const RankEvidence* e : c.ranks) {
      for (const GroupEvidence& g : e->groups) {
        const bool sized = g.n_ranks > 0;
        if (!g.used || !g.ranks.empty() || g.own_rank < 0 || g.n_ranks > expected_ ||
            g.own_rank >= (sized     ? g.n_ranks
                           : is_all_ ? expected_
                                     : 0)) {
          continue;
        }
        Places& p = places_[{e->text(g.name), g.instance, g.n_ranks}];
        p.ranks.resize(
            std::max(p.ranks.size(), static_cast<std::size_t>(sized ? g.n_ranks : g.own_rank + 1)),
            -1);
        Rank& slot = p.ranks[static_cast<std::size_t>(g.own_rank)];
        p.several = p.several || (slot >= 0 && slot != e->id.rank);
        p.reordered = p.reordered || g.own_rank != e->id.rank;
        p.n += slot < 0 ? 1 : 0;
        slot = e->id.rank;
      }
    }
  }
  // The members in group order; empty: unknown.
  std::vector<Rank> of(const RankEvidence& e, const GroupEvidence& g) const {
    const auto it = places_.find({e.text(g.name), g.instance, g.n_ranks});
    const Places none;
    const Places& p = it == places_.end() ? none : it->second;
    if (p.n != 0 && p.n == p.ranks.size() && !p.several) {
      return p.ranks;
    }
    std::vector<Rank> all;
    if (g.n_ranks > 0 && g.n_ranks == expected_ && !p.reordered) {
      all.resize(static_cast<std::size_t>(g.n_ranks));
      std::iota(all.begin(), all.end(), 0);
    }
    return all;
  }

 private:
  struct Places {
    std::vector<Rank> ranks;
    std::size_t n = 0;
    bool several = false;    // several groups of one name
    bool reordered = false;  // not in the order of the job's ranks
  };
  int expected_;
  bool is_all_;  // every rank of the job has evidence
  std::map<std::tuple<std::string_view, std::uint32_t, std::int32_t>, Places> places_;
};

// Matches the rows of all ranks' group tables to the groups of the case.
class GroupMatcher {
 public:
  explicit GroupMatcher(Case& c) : c_(c), own_places_(c) {}

  void match() {
    c_.group_of.resize(c_.ranks.size());
    find_shared_names();
    for (const int i : c_.indices()) {
      const RankEvidence& e = c_.evidence_of(i);
      c_.group_of[static_cast<std::size_t>(i)].assign(e.groups.size(), -1);
      for (int row = 1; row < static_cast<int>(e.groups.size()); ++row) {
        if (e.groups[static_cast<std::size_t>(row)].used) {
          match_row({i, row});
        }
      }
    }
    for (const At& at : unplaced_) {
      join_by_name(at);
    }
    // A member without evidence stays -1. A member with evidence that never made the group keeps
    // row -1, but its evidence counts: its frontier is 0.
    for (Group& g : c_.groups) {
      for (std::size_t m = 0; m < g.ranks.size(); ++m) {
        if (const auto it = c_.index.find(g.ranks[m]); g.evidence[m] < 0 && it != c_.index.end()) {
          g.evidence[m] = it->second;
        }
      }
    }
  }

 private:
  // A row in one rank's table of groups.
  struct At {
    int evidence;
    int row;
  };
  using Ranges = std::vector<std::tuple<Rank, std::uint32_t, std::int32_t>>;

  const GroupEvidence& group_at(const At& at) const {
    return c_.evidence_of(at.evidence).groups[static_cast<std::size_t>(at.row)];
  }

  // Finds names that several groups of one rank share over the same ranks: only their descriptions
  // distinguish them.
  void find_shared_names() {
    for (const RankEvidence* e : c_.ranks) {
      for (std::size_t a = 1; a < e->groups.size(); ++a) {
        for (std::size_t b = a + 1; b < e->groups.size(); ++b) {
          const GroupEvidence &x = e->groups[a], &y = e->groups[b];
          if (x.name == y.name && x.instance == y.instance && x.desc != y.desc &&
              !x.ranks.empty() && x.ranks == y.ranks) {
            shared_names_.insert(std::string(e->text(x.name)));
          }
        }
      }
    }
  }

  std::string_view name_of(const At& at) {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    const GroupEvidence& g = group_at(at);
    const std::string_view name = e.text(g.name);
    return shared_names_.contains(name)
               ? *full_names_.insert(fmt::format("{} {}", name, e.text(g.desc))).first
               : name;
  }

  void match_row(const At& at) {
    const GroupEvidence& g = group_at(at);
    Ranges ranges;
    for (const RankRange& r : g.ranks) {
      ranges.emplace_back(r.first, r.count, r.stride);
    }
    auto& written = by_ranges_[{name_of(at), g.instance, ranges.size()}];
    const auto same = std::find_if(written.begin(), written.end(),
                                   [&](const auto& w) { return w.first == ranges; });
    if (same != written.end() && !ranges.empty()) {
      place(same->second, at);
      return;
    }
    std::vector<Rank> ranks = members_of(at);
    if (ranks.empty()) {
      unplaced_.push_back(at);
      return;
    }
    const auto [it, added] = by_key_.try_emplace({std::string(name_of(at)), g.instance, ranks});
    if (added) {
      it->second = new_group(at, std::move(ranks), true);
    }
    place(it->second, at);
    written.emplace_back(std::move(ranges), it->second);
  }

  // Empty: unknown.
  std::vector<Rank> members_of(const At& at) const {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    const GroupEvidence& g = group_at(at);
    std::vector<Rank> ranks = expand(g.ranks);
    if (const GroupEvidence* pg =
            ranks.empty() ? framework_group(e, static_cast<std::uint32_t>(at.row)) : nullptr;
        pg != nullptr && pg->n_ranks == g.n_ranks) {
      ranks = expand(pg->ranks);
    }
    return ranks.empty() ? own_places_.of(e, g) : ranks;
  }

  // Places a member that does not know the other members: in the group of that name that may have
  // it, else in a new group of the members that are seen.
  void join_by_name(const At& at) {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    const GroupEvidence& g = group_at(at);
    const auto [first, last] = by_name_.equal_range({std::string(e.text(g.name)), g.instance});
    const auto it = std::find_if(first, last, [&](const auto& named) {
      const Group& other = c_.groups[static_cast<std::size_t>(named.second)];
      return !other.ranks_known || other.position.contains(e.id.rank);
    });
    const int found = it != last ? it->second : new_group(at, {}, false);
    Group& group = c_.groups[static_cast<std::size_t>(found)];
    if (!group.ranks_known && !group.position.contains(e.id.rank)) {
      group.position.emplace(e.id.rank, static_cast<int>(group.ranks.size()));
      group.ranks.push_back(e.id.rank);
      group.evidence.push_back(-1);
      group.row.push_back(-1);
    }
    place(found, at);
  }

  int new_group(const At& at, std::vector<Rank> ranks, bool known) {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    const GroupEvidence& g = group_at(at);
    Group out;
    out.name = e.text(g.name);
    out.desc = e.text(g.desc);
    out.backend = e.text(g.backend);
    out.instance = g.instance;
    out.ranks = std::move(ranks);
    out.ranks_known = known;
    out.evidence.assign(out.ranks.size(), -1);
    out.row.assign(out.ranks.size(), -1);
    for (std::size_t m = 0; m < out.ranks.size(); ++m) {
      out.position.emplace(out.ranks[m], static_cast<int>(m));
    }
    const int index = static_cast<int>(c_.groups.size());
    by_name_.emplace(std::pair(out.name, out.instance), index);
    c_.groups.push_back(std::move(out));
    return index;
  }

  void place(int group, const At& at) {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    Group& g = c_.groups[static_cast<std::size_t>(group)];
    const auto it = g.position.find(e.id.rank);
    if (it == g.position.end()) {
      return;  // the rank knows of the group but is not a member
    }
    g.evidence[static_cast<std::size_t>(it->second)] = at.evidence;
    g.row[static_cast<std::size_t>(it->second)] = at.row;
    if (const GroupEvidence* pg =
            g.desc.empty() ? framework_group(e, static_cast<std::uint32_t>(at.row)) : nullptr) {
      g.desc = e.text(pg->desc != 0 ? pg->desc : pg->name);
      g.described_by_other = true;
    }
    c_.group_of[static_cast<std::size_t>(at.evidence)][static_cast<std::size_t>(at.row)] = group;
  }

  Case& c_;
  const OwnPlaces own_places_;
  std::map<std::tuple<std::string, std::uint32_t, std::vector<Rank>>, int> by_key_;
  // The same by ranges as written, which are almost always equal: avoids a list of all ranks for
  // each row.
  std::map<std::tuple<std::string_view, std::uint32_t, std::size_t>,
           std::vector<std::pair<Ranges, int>>>
      by_ranges_;
  std::multimap<std::pair<std::string, std::uint32_t>, int> by_name_;
  std::set<std::string, std::less<>> shared_names_, full_names_;
  std::vector<At> unplaced_;
};

// "0-3,8", "0,4,...,60"
std::string members_text(const std::vector<Rank>& ranks) {
  constexpr int kMost = 5;
  std::string all = fold_ranks(ranks);
  if (std::count(all.begin(), all.end(), ',') < kMost) {
    return all;
  }
  std::vector<Rank> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  return fmt::format("{},{},...,{}", sorted[0], sorted[1], sorted.back());
}

bool is_number(std::string_view s) {
  return !s.empty() && s.find_first_not_of("0123456789") == std::string_view::npos;
}

// Groups with equal descriptions are labelled with their members. A group without a description is
// labelled with its name, or with its members if the name is a mere number.
void name_groups(Case& c) {
  std::map<std::string, std::set<std::vector<Rank>>> members;
  const auto nameless = [](const Group& g) {
    return g.desc == "undefined" || (g.desc.empty() && (g.name.empty() || is_number(g.name)));
  };
  for (Group& g : c.groups) {
    g.label = nameless(g) ? "group" : g.desc.empty() ? g.name : g.desc;
    members[g.label].insert(g.ranks);
  }
  std::map<std::string, int> uses;
  for (Group& g : c.groups) {
    if (nameless(g)) {
      g.label += g.ranks_known ? fmt::format(" {{{}}}", members_text(g.ranks))
                               : fmt::format(" {}", g.name);
    } else if (members[g.label].size() > 1) {
      g.label += fmt::format("{{{}}}", members_text(g.ranks));
    }
    uses[g.label] += g.described_by_other ? 0 : 1;
  }
  for (Group& g : c.groups) {
    if (uses[g.label] > 1) {
      g.label += g.instance > 1 ? fmt::format(" (pg {}, instance {})", g.name, g.instance)
                                : fmt::format(" (pg {})", g.name);
    }
  }
}

// All ranks make groups in the same order, which the numeric names show. One call makes groups of
// one size with disjoint ranks.
void find_kinds(Case& c) {
  std::vector<Group*> groups;
  for (Group& g : c.groups) {
    if (g.desc.empty() && g.ranks_known && is_number(g.name)) {
      groups.push_back(&g);
    }
  }
  std::ranges::stable_sort(
      groups, {}, [](const Group* g) { return std::tuple(g->name.size(), g->name, g->instance); });
  std::set<Rank> in_call;
  for (std::size_t k = 0; k < groups.size(); ++k) {
    Group& g = *groups[k];
    const bool same = k != 0 && g.ranks.size() == groups[k - 1]->ranks.size() &&
                      std::ranges::none_of(g.ranks, [&](Rank r) { return in_call.contains(r); });
    g.made_by = (k == 0 ? 0 : groups[k - 1]->made_by) + (same ? 0 : 1);
    if (!same) {
      in_call.clear();
    }
    in_call.insert(g.ranks.begin(), g.ranks.end());
  }
}

}  // namespace

void match_groups(Case& c) {
  GroupMatcher(c).match();
  find_kinds(c);
  name_groups(c);
}

}  // namespace frtrace
