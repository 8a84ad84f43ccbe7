// faults.hpp - the classes of cases. Each class plants a fault in a job and returns the ranks that
// are guilty of it.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "case.hpp"

namespace hangsim {

enum class Outcome { kHang, kRuns };

// The expected verdict on a planted fault.
struct Plan {
  std::string kind;        // of the verdict
  std::vector<int> ranks;  // guilty
  std::string text;
  std::vector<std::string> also = {};     // equally right kinds, same ranks
  std::vector<Answer> alternatives = {};  // equally right answers
  std::vector<int> group = {};            // members of the operation's group
  bool needs_history = false;             // only earlier iterations tell the guilty rank
  bool torch_blind = false;               // PyTorch records no evidence of it
  bool needs_timing = false;
  bool between_two = false;  // without its file the other rank is as suspect
  // For faults below the host.
  std::vector<std::pair<int, int>> links = {};  // ranks between which the network may be blamed
  std::vector<int> suspects = {};               // ranks that may be named, too
  bool undecided = false;                       // even complete evidence does not name it
  bool kernels_tell = false;                    // only kernel channels show it
};

struct Context {
  Job& job;
  Random& random;
  int step = 0;

  Program& program(int rank) { return job.programs[static_cast<std::size_t>(rank)]; }
  const Group& group(int g) const { return job.groups[static_cast<std::size_t>(g)]; }
  int size(const Op& op) const { return static_cast<int>(group(op.group).ranks.size()); }
  int any_rank() { return random.below(job.world); }

  // Index of such an operation of the rank in the fault's step; -1: none.
  int find(int rank, const std::function<bool(const Op&)>& wanted) {
    std::vector<int> found;
    const Program& p = program(rank);
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (p[i].step == step && wanted(p[i])) {
        found.push_back(static_cast<int>(i));
      }
    }
    return found.empty() ? -1 : random.pick(found);
  }
  // Plants a fault by make(rank, i) at such an operation of a random rank; nullopt: it has none.
  template <class Make>
  std::optional<Plan> at_some(const std::function<bool(const Op&)>& wanted, Make make) {
    const int r = any_rank();
    const int i = find(r, wanted);
    return i < 0 ? std::nullopt : std::optional<Plan>(make(r, i));
  }
  Op& at(int rank, int i) { return program(rank)[static_cast<std::size_t>(i)]; }
  void insert(int rank, int i, Op op) {
    op.step = step;
    program(rank).insert(program(rank).begin() + i, std::move(op));
  }
  std::string words(const Op& op) const {
    return fmt::format("{} of {} ({}) in step {}", op.name, group(op.group).name,
                       group(op.group).desc, step);
  }
};

struct Recipe {
  Class cls;
  std::optional<Plan> (*plant)(Context&);
  Outcome outcome;
  std::vector<std::string> jobs;
};

const std::vector<Recipe>& recipes();
// Faults below the host: devices, the network, asynchronous errors.
const std::vector<Recipe>& recipes_below();
Truth truth_below(const Case&, const Plan&);
// Chooses the evidence of such a case, with the gaps that its class defines.
void choose_evidence_below(Case&, const Plan&, Random&);

Op plain(What);  // an operation without communication

inline bool collective(const Op& op) {
  return op.what == What::kCollective;
}
inline bool communicates(const Op& op) {
  return op.communicates();
}
inline bool exchange(const Op& op) {
  return op.is_p2p() || op.what == What::kBatch;
}

}  // namespace hangsim
