// faults.hpp - what the classes of cases are made of: a fault is planted in a job, and says of
// itself who is guilty.
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

// What a planted fault says of itself.
struct Plan {
  std::string kind;        // of the verdict
  std::vector<int> ranks;  // guilty
  std::string text;
  std::vector<std::string> also = {};     // kinds as right, same ranks
  std::vector<Answer> alternatives = {};  // as right
  std::vector<int> group = {};            // members of the operation's group
  bool needs_history = false;             // nothing but earlier iterations tell who is wrong
  bool torch_blind = false;               // PyTorch records nothing that tells
  bool needs_timing = false;
  bool between_two = false;  // without a file the other one is as suspect
  // Of faults below the host.
  std::vector<std::pair<int, int>> links = {};  // ranks between which the network may be blamed
  std::vector<int> suspects = {};               // who may be named, too
  bool undecided = false;                       // the evidence does not name it at its best
  bool kernels_tell = false;                    // nothing but kernel channels tell
};

struct Context {
  Job& job;
  Random& random;
  int step = 0;

  Program& program(int rank) { return job.programs[static_cast<std::size_t>(rank)]; }
  const Group& group(int g) const { return job.groups[static_cast<std::size_t>(g)]; }
  int size(const Op& op) const { return static_cast<int>(group(op.group).ranks.size()); }
  int any_rank() { return random.below(job.world); }

  // An operation of that rank in the fault's step, -1: none such.
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
  // What make(rank, i) plants at such an operation of some rank; nothing where that has none.
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
// Evidence of such a case, with the holes that its class is about.
void choose_evidence_below(Case&, const Plan&, Random&);

Op plain(What);  // that communicates nothing

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
