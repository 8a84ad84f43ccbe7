// stragglers.hpp - ranks that come late again and again.
#pragma once

#include <vector>

#include "facts/slots.hpp"
#include "model/case.hpp"

namespace frtrace {

// A rank that comes later than the other members by its own host time: not because what it waited
// for before ended late.
struct Straggler {
  int evidence = -1;
  int group = -1;          // of the call site where it loses most
  std::size_t record = 0;  // its last operation there
  int late = 0, of = 0;    // there
  double typical_s = 0;    // median lateness there
  double lost_s = 0;       // at all such call sites
  double span_s = 0;       // of the records
};
// `by_clocks`: ends are not recorded, the ranks' clocks had to be compared.
std::vector<Straggler> stragglers(const Case&, const std::vector<Slots>&, bool& by_clocks);

}  // namespace frtrace
