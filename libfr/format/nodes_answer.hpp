// nodes_answer.hpp - which nodes of the job were told of an incident and answered, as plain data:
// net/endpoint.* tells them, the encoder writes it into a dump.
#pragma once

#include "format/layout.hpp"

namespace fr {

struct NodesAnswer {
  struct Node {
    char host[sizeof(NodeRow::host)];
    i32 first_rank;
    u32 n_ranks;
    u32 stride;  // 0: its ranks are no such row
  };
  static constexpr u32 kNamed = 64;

  u32 nodes = 0;
  u32 asked = 0;
  u32 answered = 0;
  u64 took_ns = 0;
  u32 n_named = 0;
  Node named[kNamed];  // of those that did not answer
};

}  // namespace fr
