// node.hpp - a node's answer to the collector.
#pragma once

#include <string>
#include <vector>

#include "collect/package.hpp"

namespace frtrace::collect {

struct NodeQuestion {
  std::string what;  // summary (of the evidence), evidence (whole), dump, stacks
  std::string job;   // "": every job here
  std::string shm_dir;
  std::vector<int> ranks;   // only these ranks' evidence; empty: all ranks
  bool dump_first = false;  // raise an incident, then gather
  int limit_s = 60;
};

Package answer(const NodeQuestion&);

}  // namespace frtrace::collect
