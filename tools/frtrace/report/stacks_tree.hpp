// stacks_tree.hpp - the stacks of all ranks as one tree: equal frames are shown once, with their
// ranks.
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
  const RankEvidence* evidence = nullptr;  // for variables and hints; may be null
};

// Threads with the same role, stack and (main threads) frontier.
struct StackClass {
  std::string role;  // "main", or the thread's name
  std::string frontier;
  std::vector<std::uint32_t> frames;  // into StackTree::frames, outermost first
  std::vector<Rank> ranks;            // sorted
  std::size_t threads = 0;
  std::string doing;               // of the first thread
  std::vector<std::string> where;  // of the first main thread: where_lines()
  LockWait lock;                   // of the first main thread
};

struct StackNode {
  std::uint32_t frame = 0;
  std::vector<std::uint32_t> children;  // into StackTree::nodes, rarest first
  std::vector<std::uint32_t> classes;   // stacks that end here
  std::vector<Rank> ranks;              // sorted
};

struct StackTree {
  std::vector<std::string> frames;
  std::vector<StackClass> classes;  // per role, smallest first; main threads before the others
  std::vector<StackNode> nodes;     // 0: an empty node; its children are the roots of the roles
  struct Role {
    std::string name;
    std::uint32_t root = 0;  // node
    std::size_t ranks = 0;
  };
  std::vector<Role> roles;
  // How the threads of each rank were observed.
  struct Look {
    Rank rank = -1;
    double took_ms = 0, asking_ms = 0;
    std::size_t threads = 0, answered = 0;
    std::uint32_t median_us = 0, slowest_us = 0;
    std::uint64_t lost = 0;  // threads, frames and files without room in the dump
    std::string not_asked;
    std::string holes;  // limits of the recorder
  };
  std::vector<Look> looks;
  std::size_t n_ranks = 0;
  std::size_t without = 0;  // the number of ranks without stacks
};

struct StackStyle {
  bool all_threads = true;
  bool plumbing = false;  // include frames of the interpreter and of fr
};

// The inputs for all ranks of a case, or those in `only`; the case must outlive the result.
std::vector<StackInput> stack_inputs(const Case&, const std::vector<Rank>& only);
StackTree merge_stacks(const std::vector<StackInput>&, const StackStyle& = {});
std::string render_stacks_text(const StackTree&);
std::string render_stacks_json(const StackTree&);  // schema frtrace.stacks/1

}  // namespace frtrace
