// facts.hpp - all statements on a case that need no judgement. Computed once, never changed; a pure
// function of the case: the same evidence gives the same facts on any machine at any time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <vector>

#include "facts/device/devices.hpp"
#include "facts/exits.hpp"
#include "facts/order/order.hpp"
#include "facts/slots.hpp"
#include "facts/waits.hpp"
#include "model/case.hpp"

namespace frtrace {

// The order of the hang and the ends of processes.
enum class Scene : std::uint8_t {
  kRunning,        // no process ended by its own fault
  kExits,          // a process ended, and the waits of the others began with that
  kHangThenEnd,    // the hang had lasted longer than the timeout when the first process ended
  kHangThenKills,  // or far longer than the job's usual waits when the first process was killed
  kAllKilled,      // all processes are gone without a trace, after a hang that their rings show
  kOneKilled       // one process alone was told to end, and the others' waits began with that
};

struct Facts {
  explicit Facts(const Case&);

  const RankEvidence& ev(int i) const { return c.evidence_of(i); }
  Rank rank(int i) const { return ev(i).id.rank; }
  const Group& group(int g) const { return c.groups[idx(g)]; }
  const Exit& exit(int i) const { return exits[idx(i)]; }
  const Record* record(const Wait&) const;  // nullptr: overwritten
  // The group of that rank's record; nullptr: none.
  const Group* group_of(int i, const Record&) const;
  std::vector<Rank> ranks(const std::vector<int>& evidence) const;  // sorted
  // The last operation, else the last call that makes or destroys groups; nullptr: none is kept.
  const Record* last_operation(int i) const;
  // The call in which the rank is now, if it makes or destroys a group; nullptr: none.
  const Record* lifecycle_in_flight(int i) const;
  // The rank ended with status 0, or destroyed its groups and issued nothing since.
  bool is_leaving(int i) const;
  // The rank ended with status 0, or its script is over and it runs Python's exit hooks.
  bool has_left(int i) const;
  // First step that the rank is stuck in; the number of its steps: none.
  std::size_t stuck_step(int i) const;
  // One past the last step that the rank is stuck in: later operations are no reason for the wait.
  std::size_t stuck_end(int i) const;

  const Case& c;
  std::vector<Slots> slots;  // per group
  History history;
  Anomalies anomalies;
  Devices devices;
  std::vector<DeviceError> device_errors;
  std::vector<Divergence> divergences;
  std::vector<Exit> exits, missing_exits;
  std::vector<int> primary;          // evidence of processes that ended by their own fault
  std::vector<int> missing_primary;  // indices in Case::missing
  std::vector<HiddenFailure> hidden;
  std::vector<bool> stale;    // per evidence
  double threshold_s = 0;     // shorter waits are work in progress
  bool alarmed = false;       // a rank had a reason to write a dump
  bool timed_out = false;     // a timeout was the reason
  bool p2p_unseen = false;    // sends and receives happened that the files do not record
  bool records_less = false;  // some ranks recorded only Python calls, others all operations
  Scene scene = Scene::kRunning;
  WaitGraph settled;  // waits of threshold_s or more
  WaitGraph graph;    // the waits that count in this scene
  int killed = -1;    // evidence, of Scene::kOneKilled

 private:
  WaitGraph waits_if(const std::vector<Exit>& ends, double young_s) const;
  double young_in_torch_s() const;
  double usual_wait_s(std::size_t fewest) const;  // 0: unknown, with fewer gaps than that
  void find_scene();
  Scene what_came_first(const WaitGraph& without_ends) const;
  bool aborted_by_data(int evidence) const;
  bool find_one_killed();
};

// Evidence of the ranks that satisfy `is`.
template <typename Is>
std::vector<int> ranks_that(const Facts& f, const Is& is) {
  std::vector<int> out;
  std::ranges::copy_if(f.c.indices(), std::back_inserter(out), is);
  return out;
}

}  // namespace frtrace
