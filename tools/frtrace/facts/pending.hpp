// pending.hpp - pending operations and the members that issued them. Only for waits.cpp.
#pragma once

#include <utility>
#include <vector>

#include "facts/waits.hpp"

namespace frtrace {

// Every operation in which a rank waits or that failed, sorted by group, kind, sequence number,
// sender and receiver.
std::vector<Pending> pending_operations(const Case&, const std::vector<HiddenFailure>&);

// Counters of the messages that the rank sent to `other` in the group, or received from it;
// nullptr: none. `row`: the group's row in the rank's evidence.
const LaneEvidence* lane_of(const RankEvidence&, const Group&, int row, bool send, Rank other);

// gloo runs the operations of a communicator side by side; all others run them in order.
bool runs_in_order(const Case&, const Pending&);

// The rank's file was written after one of the waits began, and long before the file of the rank
// that waits. That rank would not wait if this rank had issued the operation since.
bool is_early(const Case&, const std::vector<Slots>&, const Pending&, int evidence);

// Decides which members issued a pending operation.
class Attendance {
 public:
  Attendance(const Case& c, const std::vector<Slots>& slots, const std::vector<Exit>& exits,
             const std::vector<bool>& stale, const std::vector<Front>& fronts, double threshold_s)
      : c_(c),
        slots_(slots),
        exits_(exits),
        stale_(stale),
        fronts_(fronts),
        threshold_s_(threshold_s),
        told_(told_to_end(exits)) {}
  // Fills absent, unknown, stale, busy and lagging. `earlier`: members that wait in an earlier
  // operation of the same communicator. False: the wait is too short to mean anything, or comes
  // from evidence of different instants.
  bool fill(Pending&, const std::vector<int>& earlier) const;

 private:
  struct Seen {
    int evidence;
    const Record* record;
  };
  struct Reached {  // waiting members, by whether their device started the operation
    std::vector<Seen> queued, started;
    void add(int evidence, const Record& r) {
      (r.state == State::kStarted ? started : queued).push_back({evidence, &r});
    }
  };
  bool came_all(Pending&, const std::vector<int>& earlier) const;
  void meet_other_end(Pending&, Reached&, bool in_order) const;
  bool lagging_starts(Pending&, const Reached&) const;
  // The member has completed the operation. Sets `when` to its end if that is dated.
  bool has_left(const Pending&, const Group&, std::size_t member, Time& when) const;
  void lags_beside_unknown(Pending&) const;
  void lags_overwritten(Pending&) const;
  void add_queued(Pending&) const;
  bool lagging_ends(Pending&, const std::vector<Seen>& all) const;
  bool was_entered_by_all(const Pending&) const;
  void compare_ends(Pending&, std::size_t other, const Record& its) const;
  bool tells_starts(int evidence) const;
  bool is_first(const Seen&) const;
  bool is_late(const Seen&, Time since) const;
  bool is_late_after(const Seen&, int other, Time then) const;
  bool is_after(const Seen&, const std::pair<int, Time>& end) const;
  bool ended_lately(const Seen&) const;

  const Case& c_;
  const std::vector<Slots>& slots_;
  const std::vector<Exit>& exits_;
  const std::vector<bool>& stale_;
  const std::vector<Front>& fronts_;
  double threshold_s_;
  Time told_;
};

}  // namespace frtrace
