// lines.hpp - the state of this node's rings as lines of JSON for a remote reader; each line has
// only the changes since the line before. Costs the ranks nothing: their rings are mapped for
// reading.
//
//   {"frtrace": "lines/1", "node": "n1-26", "job": "j", "attempt": 0, "at": 1760000000.123,
//    "groups": {"0": {"name": "0", "desc": "default_pg", "instance": 1, "n_ranks": 16}},
//    "ranks": {"3": {"pid": 4242, "alive": true, "step": 17,
//                    "groups": {"0": [57, 57, 56, 1760000000.0, 1759999999.1, 4, 4]}}}}
//
// The row of a group: operations issued, started and completed, times of the last issue and the
// last completion, sends and receives issued and ended. Group keys are valid on this node only. If
// nothing changes, a line without groups and ranks comes every 5 s. A job's last line has "end":
// true.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "live/mapped_ring.hpp"

namespace frtrace::reduce {

class NodeLines {
 public:
  static constexpr std::size_t kLineBytes = 4096;
  static constexpr Time kSign = 5 * kSecond;

  // job "": each.
  NodeLines(std::string shm_dir, std::string node, std::string job);
  // Lines of at most kLineBytes, line ends included; "": nothing changed. Once no rank of any job
  // lives, `is_over()`.
  std::string look(Time now);
  bool is_over() const { return jobs_.empty(); }

 private:
  struct Rank {
    std::unique_ptr<MappedRing> ring;
    std::map<std::string, std::string> said;  // by key
  };
  struct Job {
    std::string name;
    int attempt = 0;
    Time said_at = 0;
    std::map<std::string, Rank> ranks;          // by file
    std::map<std::string, std::string> said;    // groups, by their number
    std::map<std::string, std::string> groups;  // numbers, by name and instance
  };

  void find();
  std::string lines_of(Job& job, Time now);
  std::string group_number(Job& job, const fr::View& view, const fr::GroupRow& row);

  std::string dir_, node_, only_;
  std::map<std::pair<std::string, int>, Job> jobs_;  // by name and attempt
  std::set<std::string> over_;                       // files of jobs that have ended
};

}  // namespace frtrace::reduce
