// stragglers.hpp - ranks that come late again and again.
#pragma once

#include <array>
#include <cstdint>
#include <string>
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

// How the ranks came to the operations of one call site, over all groups of one kind.
struct Arrivals {
  std::string group, op;  // the groups' description, else the name
  Site site;
  std::uint64_t slots = 0;  // that all members came to
  double sum_s = 0;         // by which the last of each came after the median of the others
  // Of slots, by that lateness: below 1 us, 2 us, 4 us, ... the last: all that is more.
  static constexpr std::size_t kBuckets = 28;
  std::array<std::uint32_t, kBuckets> histogram{};
  struct Member {
    int evidence = -1;
    std::uint32_t last = 0;     // times that it came last, by more than hosts differ
    double sum_s = 0;           // by which it was late then
    std::vector<float> each_s;  // after the median of the others, in the order of its records
  };
  std::vector<Member> members;  // who came last most often first
};
// Call sites that were waited for longest first. `by_clocks` as above.
std::vector<Arrivals> arrivals(const Case&, const std::vector<Slots>&, bool& by_clocks);

}  // namespace frtrace
