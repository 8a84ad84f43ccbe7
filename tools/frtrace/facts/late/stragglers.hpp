// stragglers.hpp - ranks that come late again and again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "facts/late/series.hpp"
#include "facts/slots.hpp"
#include "model/case.hpp"

namespace frtrace {

// The source of the time that makes a rank late.
enum class LateBy : std::uint8_t { kUnknown, kHost, kDevice, kNode };

// One rank at one call site.
struct LateSite : LateSeries {
  int group = -1;
  std::size_t record = 0;   // its last operation there
  std::size_t first = 0;    // its first late operation there
  bool since_kept = false;  // late since the ring's oldest record, maybe longer
  bool starts = false;      // starts of operations on the devices are recorded
  LateBy by = LateBy::kUnknown;
  std::vector<Change> steps;  // changes of its step time; `at` is a record
};

// A rank that comes later than the other members by its own time, not because an earlier operation
// ended late.
struct Straggler {
  int evidence = -1;
  std::vector<LateSite> sites;  // the largest loss first
  LateBy by = LateBy::kUnknown;
  double lost_s = 0;           // at all such call sites
  double span_s = 0;           // of the records since it is late
  std::vector<int> followers;  // evidence of ranks that are late because of this rank
  const LateSite& worst() const { return sites.front(); }
};

struct Stragglers {
  std::vector<Straggler> ranks;
  bool by_clocks = false;  // ends are not recorded, so the ranks' clocks were compared
  std::string node;        // as late_node(); "": none
};
// Changes of the time between these records of a rank; `at` is a record.
std::vector<Change> step_changes(const RankEvidence&, const std::vector<std::size_t>& at);
Stragglers stragglers(const Case&, const std::vector<Slots>&);
// The node that has all these ranks, if they are most of its ranks; "": none.
std::string late_node(const Case&, const std::vector<Straggler>&);
bool takes_in(const Case&, const std::vector<Straggler>& node, const std::vector<Straggler>& some);
std::vector<Straggler> standing_out(const Case&, std::vector<Straggler>);
// Folds a rank that is late only after another rank into that rank, if its file may lack messages.
void fold_followers(const Case&, std::vector<Straggler>&);
void drop_late_clocks(const Case&, std::vector<Straggler>&);

// An operation that all members of its group issued.
struct LateSlot : WholeSlot {
  std::vector<double> late_s;  // per member: after the median of the others; below 0: before it
};
struct LateSlots {
  std::vector<LateSlot> all;
  bool by_clocks = false;    // as in Stragglers
  double ends_within_s = 0;  // accuracy of the recorded ends
};
LateSlots late_slots(const Case&, const std::vector<Slots>&);

}  // namespace frtrace
