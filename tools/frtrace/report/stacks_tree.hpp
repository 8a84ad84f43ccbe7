// stacks_tree.hpp - the stacks of all ranks as one tree: what is equal is shown once,
// with the ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/case.hpp"
#include "model/hints.hpp"
#include "model/rank_data.hpp"
#include "model/threads.hpp"

namespace frtrace {

struct StackInput {
  Rank rank = -1;
  int pid = 0;
  std::string cwd;
  const ThreadsEvidence* threads = nullptr;
  std::string frontier;  // beside the main thread: "all_reduce #41 of default_pg, in flight"
  const RankEvidence* evidence = nullptr;  // for variables and hints; may be missing
};

// Threads with the same role, stack and (main threads) frontier.
struct StackClass {
  std::string role;  // "main", or the thread's name
  std::string frontier;
  std::vector<std::uint32_t> frames;  // into StackTree::frames, outermost first
  std::vector<Rank> ranks;            // sorted
  std::size_t threads = 0;
  std::string doing;               // of the first one
  std::vector<std::string> where;  // likewise, main threads: where_lines()
  LockWait lock;                   // likewise
};

struct StackNode {
  std::uint32_t frame = 0;
  std::vector<std::uint32_t> children;  // into StackTree::nodes, rarest first
  std::vector<std::uint32_t> classes;   // that end here
  std::vector<Rank> ranks;              // sorted
};

struct StackTree {
  std::vector<std::string> frames;
  std::vector<StackClass> classes;  // per role, smallest first; main threads before the others
  std::vector<StackNode> nodes;     // 0: nothing; its children are the roles' roots
  struct Role {
    std::string name;
    std::uint32_t root = 0;  // node
    std::size_t ranks = 0;
  };
  std::vector<Role> roles;
  // How the threads of each rank were looked at.
  struct Look {
    Rank rank = -1;
    double took_ms = 0, asking_ms = 0;
    std::size_t threads = 0, answered = 0;
    std::uint32_t median_us = 0, slowest_us = 0;
    std::uint64_t lost = 0;  // threads, frames and files that found no room
    std::string not_asked;
    std::string holes;  // what the recorder cannot see
  };
  std::vector<Look> looks;
  std::size_t n_ranks = 0;
  std::size_t without = 0;  // ranks whose evidence has no stacks
};

struct StackStyle {
  bool all_threads = true;
  bool plumbing = false;  // also frames of the interpreter and fr
};

// Of the ranks of a case, or of some of them; the case must outlive it.
std::vector<StackInput> stack_inputs(const Case&, const std::vector<Rank>& only);
StackTree merge_stacks(const std::vector<StackInput>&, const StackStyle& = {});
std::string render_stacks_text(const StackTree&);
std::string render_stacks_json(const StackTree&);  // schema frtrace.stacks/1

}  // namespace frtrace
