// node.hpp - what a node does when the collector asks it.
#pragma once

#include <string>
#include <vector>

#include "collect/package.hpp"

namespace frtrace::collect {

struct NodeQuestion {
  std::string what;  // summary (of the evidence), evidence (whole), dump, stacks
  std::string job;   // "": every job here
  std::string shm_dir;
  std::vector<int> ranks;   // evidence of these only; empty: of all
  bool dump_first = false;  // raise an incident, then gather
  int limit_s = 60;
};

Package answer(const NodeQuestion&);

}  // namespace frtrace::collect
