// running_job.hpp - a running job, by the rings of its ranks on this node: the progress of each
// group and each rank. It reads counters and a few records; the ranks are not disturbed.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "live/mapped_ring.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

// All groups with one description, by the ranks of this node.
struct GroupNow {
  std::string label;            // description, else name
  std::size_t groups = 0;       // of that description
  std::size_t ranks = 0;        // memberships
  std::uint64_t front = 0;      // highest number of a collective
  std::string at;               // the operation at `front`: "all_reduce #45"
  std::uint64_t lag = 0;        // collectives from the last to the first member of a group, at most
  std::vector<Rank> behind;     // the members that are that far behind
  std::size_t in_flight = 0;    // memberships with an operation in flight
  std::optional<double> per_s;  // operations a second of a member; none at the first look
  std::optional<double> still_s;  // since a member last issued or completed one; nullopt: never
};

struct RankNow {
  Rank rank = -1;  // -1: not known yet
  int pid = 0;
  bool alive = false;
  std::optional<std::int64_t> step;
  std::string group;      // in which it is farthest behind
  std::uint64_t lag = 0;  // in `group`
  std::string last;       // operation issued last; "": not kept
  double last_s = 0;      // since `last`
};

struct JobNow {
  std::string job;
  int attempt = 0, world = 0;
  std::size_t ranks = 0, alive = 0, expected = 0;  // of this node
  double up_s = 0;                                 // since its first rank here was started
  std::optional<std::int64_t> first_step, last_step;
  std::optional<double> steps_per_min;  // of the slowest rank
  std::vector<GroupNow> groups;         // stalled groups with work in flight first
  std::vector<RankNow> behind;          // dead ranks first, then by lag
  bool stuck = false;                   // operations in flight, none moved for the `stuck` time
};

// Counts the steps of the last minute.
class Steps {
 public:
  void tell(JobNow&, Time now);  // from first_step

 private:
  std::deque<std::pair<Time, std::int64_t>> steps_;
};

// Computes the operations per second of a member. issued: by all members of all groups of the
// label.
void finish_group(GroupNow&, std::map<std::string, std::pair<Time, double>>& issued_before,
                  double issued, Time now);
bool is_stuck(const GroupNow&, Time stuck);
void sort_groups(std::vector<GroupNow>&);
void sort_ranks(std::vector<RankNow>&);

class RunningJob {
 public:
  // `stuck`: time in ns without progress after which the job counts as stuck.
  RunningJob(std::string shm_dir, std::string job, Time stuck)
      : shm_dir_(std::move(shm_dir)), job_(std::move(job)), stuck_(stuck) {}

  JobNow look(Time now);                                     // unix time, ns
  std::vector<std::string> rings() const;                    // paths, of the last attempt
  const std::string& dump_dir() const { return dump_dir_; }  // of a rank; "": none seen yet
  Time started() const { return started_; }  // start of its first rank here, unix time

 private:
  struct Ring {
    std::string path;
    std::unique_ptr<MappedRing> mapped;
    bool alive = false;
    const fr::View& view() const { return mapped->view(); }
    const fr::Header& header() const { return mapped->view().header(); }
  };
  using GroupKey = std::pair<std::string, std::uint32_t>;  // name, instance
  struct Member {
    const Ring* ring;
    std::uint32_t row;
  };

  void find_rings(Time now);
  void tell_steps(JobNow&, Time now);
  void tell_groups(JobNow&, Time now);
  void tell_group(GroupNow&, const std::vector<Member>&, Time now,
                  std::map<const Ring*, RankNow>& late);
  void tell_ranks(JobNow&, const std::map<const Ring*, RankNow>& late, Time now) const;

  std::string shm_dir_, job_;
  Time stuck_;
  std::map<std::pair<int, std::uint64_t>, Ring> rings_;  // by pid and start of the process
  std::string dump_dir_;
  Time started_ = 0;
  std::map<std::string, std::pair<Time, double>> issued_;  // by label, at the last look
  Steps steps_;
};

// Names of the jobs that have a ring on this node, with how many ranks live.
std::map<std::string, std::size_t> jobs_here(const std::string& shm_dir, Time now);

}  // namespace frtrace
