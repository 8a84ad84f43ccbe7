// nodes.hpp - nodes.json: the nodes asked, their answers, and failures (schema frtrace.nodes/1).
#pragma once

#include <string>
#include <vector>

namespace frtrace {

struct NodeRow {
  std::string node;
  bool answered = false;
  int exit = -1;  // of the command there; -1: unknown
  double seconds = 0;
  std::vector<int> ranks;  // ranks with evidence there
  std::string host, boot_id;
  std::string said;  // output of the node
  std::string why;   // why it did not answer
};

struct NodesFile {
  std::string job, launcher;
  std::vector<NodeRow> nodes;
};

inline constexpr char kNodesFile[] = "nodes.json";

std::string nodes_json(const NodesFile&);
// False: the text is not such a file. A value of the wrong type reads as absent.
bool parse_nodes(const std::string& text, NodesFile&);

}  // namespace frtrace
