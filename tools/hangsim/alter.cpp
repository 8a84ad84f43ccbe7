// alter.cpp - the same case with other names, clocks and rings.
#include "alter.hpp"

#include <algorithm>
#include <utility>

namespace hangsim {

namespace {

std::vector<int> shuffled(int n, Random& random) {
  std::vector<int> out(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) {
    out[static_cast<std::size_t>(i)] = i;
  }
  for (int i = n; i > 1; --i) {
    std::swap(out[static_cast<std::size_t>(i - 1)], out[static_cast<std::size_t>(random.below(i))]);
  }
  return out;
}

// New numbers of the ranks: the ranks of a node stay together, and a node that is not full stays
// last.
std::vector<int> new_ranks(const Job& job, Random& random) {
  const int full = job.world / job.ranks_per_node;
  const std::vector<int> nodes = shuffled(full, random);
  std::vector<int> out;
  for (int n = 0; n * job.ranks_per_node < job.world; ++n) {
    const int first = n * job.ranks_per_node;
    const std::vector<int> within =
        shuffled(std::min(job.ranks_per_node, job.world - first), random);
    const int to = n < full ? nodes[static_cast<std::size_t>(n)] : n;
    for (const int place : within) {
      out.push_back(to * job.ranks_per_node + place);
    }
  }
  return out;
}

class Renamer {
 public:
  Renamer(Case& c, std::vector<int> to) : c_(c), to_(std::move(to)) {}

  void run() {
    for (Group& g : c_.job.groups) {
      places_.push_back(rename(g));
    }
    for (Program& p : c_.job.programs) {
      for (Op& op : p) {
        rename(op);
      }
    }
    reorder(c_.job.programs);  // the operations stay where they are, the run points to them
    reorder(c_.run.ranks);
    for (Evidence* e : {&c_.fr, &c_.torch}) {
      reorder(e->at);
      reorder(e->clock);
      if (!e->versions.empty()) {
        reorder(e->versions);
      }
      rename(e->lost);
      rename(e->truncated);
      e->stale = e->stale < 0 ? -1 : of(e->stale);
    }
    for (Truth* t : {&c_.fr_truth, &c_.torch_truth}) {
      rename(t->answer.ranks);
      rename(t->faulty);
      for (Answer& a : t->also) {
        rename(a.ranks);
      }
    }
  }

 private:
  int of(int rank) const { return to_[static_cast<std::size_t>(rank)]; }
  void rename(std::vector<int>& ranks) const {
    for (int& r : ranks) {
      r = of(r);
    }
    std::sort(ranks.begin(), ranks.end());
  }
  // New positions of the members in their groups.
  std::vector<int> rename(Group& g) const {
    const std::vector<int> before = g.ranks;
    rename(g.ranks);
    std::vector<int> out;
    for (const int r : before) {
      out.push_back(g.position(of(r)));
    }
    return out;
  }
  void rename(Op& op) const {
    if (!op.communicates()) {
      return;
    }
    const std::vector<int>& place = places_[static_cast<std::size_t>(op.group)];
    op.peer = op.peer < 0 ? op.peer : place[static_cast<std::size_t>(op.peer)];
    for (auto* splits : {&op.in_splits, &op.out_splits}) {
      const std::vector<std::int64_t> before = *splits;
      for (std::size_t i = 0; i < before.size() && before.size() == place.size(); ++i) {
        (*splits)[static_cast<std::size_t>(place[i])] = before[i];
      }
    }
    for (Op& part : op.parts) {
      rename(part);
    }
  }
  template <class T>
  void reorder(std::vector<T>& of_ranks) const {
    std::vector<T> out(of_ranks.size());
    for (std::size_t r = 0; r < of_ranks.size(); ++r) {
      out[static_cast<std::size_t>(to_[r])] = std::move(of_ranks[r]);
    }
    of_ranks = std::move(out);
  }

  Case& c_;
  const std::vector<int> to_;
  std::vector<std::vector<int>> places_;  // by group
};

// Groups that share a name still share one afterwards.
void rename_groups(Job& job, Random& random) {
  std::vector<std::string> names;
  for (std::size_t g = 1; g < job.groups.size(); ++g) {
    if (std::find(names.begin(), names.end(), job.groups[g].name) == names.end()) {
      names.push_back(job.groups[g].name);
    }
  }
  const std::vector<int> to = shuffled(static_cast<int>(names.size()), random);
  for (std::size_t g = 1; g < job.groups.size(); ++g) {
    const auto at = std::find(names.begin(), names.end(), job.groups[g].name) - names.begin();
    job.groups[g].name = names[static_cast<std::size_t>(to[static_cast<std::size_t>(at)])];
  }
}

}  // namespace

void rename_all(Case& c, std::uint64_t seed) {
  Random random(scramble(seed, 5));
  c.renamed = new_ranks(c.job, random);
  Renamer(c, c.renamed).run();
  rename_groups(c.job, random);
}

void shift_clock(Case& c, int node, Ns by) {
  for (Evidence* e : {&c.fr, &c.torch}) {
    for (int r = 0; r < c.job.world; ++r) {
      e->clock[static_cast<std::size_t>(r)] += c.job.node(r) == node ? by : 0;
    }
  }
}

void cut_rings(Case& c, int records) {
  c.fr.ring = std::min(c.fr.ring, records);
  c.torch.ring = std::min(c.torch.ring, records);
}

}  // namespace hangsim
