// running_job.hpp - a running job, by the rings of its ranks on this node: how far each group and each
// rank is at the moment. It reads counters and a few records; the ranks notice nothing.
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

// All groups of one description, by the ranks of this node.
struct GroupNow {
  std::string label;        // description, else name
  std::size_t groups = 0;   // of that description
  std::size_t ranks = 0;    // memberships
  std::uint64_t front = 0;  // highest number of a collective
  std::string at;           // the operation there: "all_reduce #45"
  std::uint64_t lag = 0;  // collectives by which the last member of one of them is behind its first
  std::vector<Rank> behind;       // the members that are that far behind
  std::size_t in_flight = 0;      // memberships with an operation in flight
  std::optional<double> per_s;    // operations a second of a member; none at the first look
  std::optional<double> still_s;  // since a member last issued or ended one; none: nobody ever did
};

struct RankNow {
  Rank rank = -1;  // -1: it does not know it yet
  int pid = 0;
  bool alive = false;
  std::optional<std::int64_t> step;
  std::string group;      // where it is behind most
  std::uint64_t lag = 0;  // there
  std::string last;       // operation that it issued last; "" none is kept
  double last_s = 0;      // since then
};

struct JobNow {
  std::string job;
  int attempt = 0, world = 0;
  std::size_t ranks = 0, alive = 0, expected = 0;  // of this node
  double up_s = 0;                                 // since its first rank here was started
  std::optional<std::int64_t> first_step, last_step;
  std::optional<double> steps_per_min;  // of the rank that has made fewest
  std::vector<GroupNow> groups;         // those that stand still with work in flight first
  std::vector<RankNow> behind;          // dead ones first, then by how far
  bool stuck = false;  // something in flight, and nothing moved for as long as is worth a warning
};

// Steps of the last minute.
class Steps {
 public:
  void tell(JobNow&, Time now);  // from first_step

 private:
  std::deque<std::pair<Time, std::int64_t>> steps_;
};

// How many a second of a member; issued: by all members, of all groups of the label.
void finish_group(GroupNow&, std::map<std::string, std::pair<Time, double>>& issued_before,
                  double issued, Time now);
bool is_stuck(const GroupNow&, Time stuck);
void sort_groups(std::vector<GroupNow>&);
void sort_ranks(std::vector<RankNow>&);

class RunningJob {
 public:
  // `stuck`: how long nothing may move, ns.
  RunningJob(std::string shm_dir, std::string job, Time stuck)
      : shm_dir_(std::move(shm_dir)), job_(std::move(job)), stuck_(stuck) {}

  JobNow look(Time now);                                     // unix time, ns
  std::vector<std::string> rings() const;                    // paths, of the last attempt
  const std::string& dump_dir() const { return dump_dir_; }  // of a rank, "" never seen one
  Time started() const { return started_; }                  // its first rank here, unix time

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
