// job_lines.hpp - a running job over several nodes, from the lines of each node
// (commands/lines.hpp).
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "live/running_job.hpp"

namespace frtrace {

class JobLines {
 public:
  // `stuck`: as of RunningJob.
  explicit JobLines(Time stuck) : stuck_(stuck) {}

  // Reads a line of that node; false: not such a line.
  bool add(const std::string& node, std::string_view line);
  JobNow look(Time now);

 private:
  struct Row {  // of a rank in a group
    double issued = 0, completed = 0, p2p_issued = 0, p2p_ended = 0;
    double moved = 0;  // when last, unix time, s
  };
  struct Rank {
    RankNow now;
    std::map<std::string, Row> rows;  // by the node's key of the group
  };
  struct GroupNames {
    std::string name, label;
    int instance = 0, n_ranks = 0;
  };
  struct Node {
    std::string job;
    int attempt = 0;
    std::map<std::string, GroupNames> groups;  // by its key
    std::map<int, Rank> ranks;
  };
  struct Member {
    Rank* rank;
    const Row* row;
  };

  void tell_group(GroupNow& of, const std::vector<Member>& members, Time now);

  Time stuck_;
  std::map<std::string, Node> nodes_;
  std::map<std::string, std::pair<Time, double>> issued_;  // by label, at the last look
  Steps steps_;
};

}  // namespace frtrace
