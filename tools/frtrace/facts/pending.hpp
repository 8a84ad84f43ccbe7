// pending.hpp - which operations are pending, and which of their members came. Only for waits.cpp.
#pragma once

#include <utility>
#include <vector>

#include "facts/waits.hpp"

namespace frtrace {

// Every operation in which a rank waits or that failed, sorted by group, kind, number and ends.
std::vector<Pending> pending_operations(const Case&, const std::vector<HiddenFailure>&);

// What the member in that row of its groups sent to, or received from, another one.
const LaneEvidence* lane_of(const RankEvidence&, const Group&, int row, bool send, Rank other);

// Communicators of gloo run their operations side by side, all others one after the other.
bool runs_in_order(const Case&, const Pending&);

// Its file was written after one of those waits began, and long before that rank's file. Had it come
// since, that one would not wait.
bool is_early(const Case&, const std::vector<Slots>&, const Pending&, int evidence);

// Decides who came to a pending operation.
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
  // operation of the same communicator. False: too young to mean anything.
  bool fill(Pending&, const std::vector<int>& earlier) const;

 private:
  struct Seen {
    int evidence;
    const Record* record;
  };
  struct Reached {  // of those who wait: that did not get to it, and that did
    std::vector<Seen> queued, started;
    void add(int evidence, const Record& r) {
      (r.state == State::kStarted ? started : queued).push_back({evidence, &r});
    }
  };
  bool came_all(Pending&, const std::vector<int>& earlier) const;
  void meet_other_end(Pending&, Reached&, bool in_order) const;
  bool lagging_starts(Pending&, const Reached&) const;
  // The member is through with it; when, where that is dated.
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
