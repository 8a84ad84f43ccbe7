// facts.hpp - all that can be said of a case without judging. Computed once, never changed; a pure
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

// What came first, the hang or the ends of processes.
enum class Scene : std::uint8_t {
  kRunning,        // no process ended by its own fault
  kExits,          // a process ended, and what the others wait for began with that
  kHangThenEnd,    // the hang had lasted longer than the timeout when the first process ended
  kHangThenKills,  // or far longer than the job's usual waits when the first one was killed
  kAllKilled,      // all processes are gone without a word, after a hang that their rings show
  kOneKilled       // one process alone was told to end, and the others' waits began with that
};

struct Facts {
  explicit Facts(const Case&);

  const RankEvidence& ev(int i) const { return c.evidence_of(i); }
  Rank rank(int i) const { return ev(i).id.rank; }
  const Group& group(int g) const { return c.groups[idx(g)]; }
  const Exit& exit(int i) const { return exits[idx(i)]; }
  const Record* record(const Wait&) const;  // nullptr: overwritten
  // The group that a record of that rank is of; nullptr: none.
  const Group* group_of(int i, const Record&) const;
  std::vector<Rank> ranks(const std::vector<int>& evidence) const;  // sorted
  // Last operation, or call that makes or destroys groups; nullptr: none is kept.
  const Record* last_operation(int i) const;
  // The call that makes or destroys a group in which the rank is now; nullptr: none.
  const Record* lifecycle_in_flight(int i) const;
  // It ended with status 0, or destroyed its groups and issued nothing since.
  bool is_leaving(int i) const;
  // It ended with status 0, or its script is over: it runs what Python runs at exit.
  bool has_left(int i) const;
  // A blocking operation's own place in the rank's history; its size: none.
  std::size_t stuck_step(int i) const;
  // One past the steps that it is stuck in: what it issued later is no reason for that.
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
  std::vector<int> missing_primary;  // in Case::missing
  std::vector<HiddenFailure> hidden;
  std::vector<bool> stale;    // per evidence
  double threshold_s = 0;     // younger operations are work in progress
  bool alarmed = false;       // somebody had a reason to write a dump
  bool timed_out = false;     // a timeout was the reason
  bool p2p_unseen = false;    // files do not record the sends and receives there were
  bool records_less = false;  // some ranks recorded calls of Python only, others all operations
  Scene scene = Scene::kRunning;
  WaitGraph settled;  // with the threshold
  WaitGraph graph;    // the one that counts in this scene
  int killed = -1;    // evidence, of Scene::kOneKilled

 private:
  WaitGraph waits_if(const std::vector<Exit>& ends, double young_s) const;
  double young_in_torch_s() const;
  double usual_wait_s(std::size_t fewest) const;  // 0: of fewer gaps, unknown
  void find_scene();
  Scene what_came_first(const WaitGraph& without_ends) const;
  bool aborted_by_data(int evidence) const;
  bool find_one_killed();
};

// Evidence of the ranks that are so.
template <typename Is>
std::vector<int> ranks_that(const Facts& f, const Is& is) {
  std::vector<int> out;
  std::ranges::copy_if(f.c.indices(), std::back_inserter(out), is);
  return out;
}

}  // namespace frtrace
