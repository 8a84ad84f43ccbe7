// members.cpp - members of groups that no PyTorch dump lists.
#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "input/torch/set.hpp"
#include "model/operation.hpp"

namespace frtrace::torch_set {

namespace {

// A group that no file lists has the members with evidence of it. Ranks without a file belong where
// the sister groups (same description, all of one size) leave a gap.
void fill_gaps(std::map<std::string, std::vector<std::set<Rank>*>>& sisters,
               const std::map<std::string, std::size_t>& sizes, const std::set<Rank>& absent) {
  for (auto& [d, groups] : sisters) {
    const std::size_t size = sizes.at(d);
    std::set<Rank> free = absent;
    const std::set<Rank>* full = nullptr;
    for (const std::set<Rank>* g : groups) {
      full = g->size() == size ? g : full;
      for (const Rank r : *g) {
        free.erase(r);
      }
    }
    if (size < 2 || free.empty()) {
      continue;
    }
    if (full == nullptr) {
      // None is complete: only a single gap of the size of the free ranks can be filled.
      if (groups.size() == 1 && groups.front()->size() + free.size() == size) {
        groups.front()->insert(free.begin(), free.end());
      }
      continue;
    }
    const Rank stride = *std::next(full->begin()) - *full->begin();
    const auto even = [&](const std::set<Rank>& g) {
      for (auto it = g.begin(); std::next(it) != g.end(); ++it) {
        if (*std::next(it) - *it != stride) {
          return false;
        }
      }
      return true;
    };
    const bool regular = even(*full);
    for (std::set<Rank>* g : groups) {
      const std::size_t gap = size - g->size();
      if (gap == 0 || gap > free.size()) {
        continue;
      }
      std::set<Rank> with = *g;
      if (!regular) {
        if (gap == free.size()) {
          with.insert(free.begin(), free.end());
        }
      } else {
        // The only evenly spaced row of that length with the members and free ranks only.
        int rows = 0;
        for (std::size_t before = 0; before <= gap; ++before) {
          std::set<Rank> row;
          for (std::size_t k = 0; k < size; ++k) {
            row.insert(*g->begin() + (static_cast<Rank>(k) - static_cast<Rank>(before)) * stride);
          }
          const bool fits =
              std::all_of(row.begin(), row.end(),
                          [&](Rank r) { return g->contains(r) || free.contains(r); }) &&
              std::all_of(g->begin(), g->end(), [&](Rank r) { return row.contains(r); });
          if (fits) {
            with = row;
            ++rows;
          }
        }
        if (rows != 1) {
          continue;
        }
      }
      for (const Rank r : with) {
        free.erase(r);
      }
      *g = with;
    }
  }
}

// The size of a group by the sizes of its gathers; 0: none.
std::size_t size_by_gathers(const RankEvidence& e, std::uint32_t row) {
  for (const Record& r : e.records) {
    if (r.group != row || r.kind != Kind::kCollective || r.in_numel == 0 || r.out_numel == 0) {
      continue;
    }
    const std::string op = canonical_op(e.text(r.op));
    const bool gather = op == "allgather" || op == "allgatherbase" || op == "allgatherintotensor";
    const bool scatter = op == "reducescatterbase" || op == "reducescattertensor";
    const std::uint64_t whole = gather ? r.out_numel : r.in_numel;
    const std::uint64_t part = gather ? r.in_numel : r.out_numel;
    if ((gather || scatter) && whole > part && whole % part == 0 && whole / part < 1 << 20) {
      return static_cast<std::size_t>(whole / part);
    }
  }
  return 0;
}

}  // namespace

void complete_groups(const TorchSet& set) {
  std::set<Rank> present;
  int world = 0;
  for (const RankEvidence* e : set) {
    world = std::max({world, e->id.world_size, e->id.rank + 1});
    present.insert(e->id.rank);
  }
  std::map<std::string, std::set<Rank>> seen;  // of groups that no file lists
  std::map<std::string, std::string> desc;
  std::map<std::string, std::size_t> sizes;  // by description
  for (const RankEvidence* e : set) {
    for (std::uint32_t row = 1; row < e->groups.size(); ++row) {
      const GroupEvidence& g = e->groups[row];
      if (g.ranks.empty() && g.used && e->id.rank >= 0) {
        const std::string name(e->text(g.name)), d(e->text(g.desc));
        seen[name].insert(e->id.rank);
        desc[name] = d;
        std::size_t& size = sizes[d];
        size = std::max({size, seen[name].size(), size_by_gathers(*e, row)});
      }
    }
  }
  std::map<std::string, std::vector<std::set<Rank>*>> sisters;
  for (auto& [name, members] : seen) {
    const std::string& d = desc[name];
    if (d == "default_pg") {
      world = std::max(world, static_cast<int>(sizes[d]));
    } else if (!d.empty()) {
      sisters[d].push_back(&members);
    }
  }
  // Sister groups that together have every rank: they are the world.
  for (const auto& [d, groups] : sisters) {
    std::set<Rank> covered;
    for (const std::set<Rank>* g : groups) {
      covered.insert(g->begin(), g->end());
    }
    const std::size_t all = groups.size() * sizes[d];
    if (groups.size() > 1 && covered == present && all <= 2 * present.size()) {
      world = std::max(world, static_cast<int>(all));
    }
  }
  std::set<Rank> absent;
  for (Rank r = 0; r < world; ++r) {
    if (!present.contains(r)) {
      absent.insert(r);
    }
  }
  // A group that every rank is in is the world, too.
  for (auto& [name, members] : seen) {
    if (members == present && present.size() > 1) {
      members.insert(absent.begin(), absent.end());
    }
  }
  fill_gaps(sisters, sizes, absent);
  for (RankEvidence* e : set) {
    e->id.world_size = world;
    for (std::size_t row = 1; row < e->groups.size(); ++row) {
      GroupEvidence& g = e->groups[row];
      if (g.ranks.empty() && g.used && e->id.rank >= 0) {
        e->holes.no_members = true;
        if (e->text(g.desc) == "default_pg") {
          g.ranks = {{0, static_cast<std::uint32_t>(world), 1}};
          g.n_ranks = world;
        } else {
          for (const Rank r : seen[std::string(e->text(g.name))]) {
            g.ranks.push_back({r, 1, 1});
          }
          // Some members are unknown: they left no file, and nothing identifies them.
          g.n_ranks = static_cast<std::int32_t>(
              std::max(g.ranks.size(), sizes[std::string(e->text(g.desc))]));
        }
      }
      g.own_rank = e->id.rank < 0 ? -1 : position(g.ranks, e->id.rank);
    }
  }
}

}  // namespace frtrace::torch_set
