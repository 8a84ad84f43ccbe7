// arrivals.hpp - arrivals of the ranks at the operations of each call site.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "facts/slots.hpp"
#include "model/case.hpp"

namespace frtrace {

// The arrivals at the operations of one call site, over all groups of one kind.
struct Arrivals {
  std::string group, op;  // the group's description, else its name
  Site site;
  std::uint64_t slots = 0;  // operations that all members issued
  double sum_s = 0;         // lateness of the last member after the median of the others, summed
  // Number of operations by that lateness: below 1 us, 2 us, 4 us, ...; the last has the rest.
  static constexpr std::size_t kBuckets = 28;
  std::array<std::uint32_t, kBuckets> histogram{};
  struct Member {
    int evidence = -1;
    std::uint32_t last = 0;     // times that it came last by more than kLateLeast_s
    double sum_s = 0;           // its lateness in those
    std::vector<float> each_s;  // its lateness in all operations, in the order of its records
  };
  std::vector<Member> members;  // most often last first
};
// The call site with the largest sum_s first. `by_clocks` as in Stragglers.
std::vector<Arrivals> arrivals(const Case&, const std::vector<Slots>&, bool& by_clocks);

// Ranks are late in turn, by garbage collection, checkpoints or noisy neighbours.
struct LateInTurn {
  int evidence = -1;       // a member
  std::size_t record = 0;  // one of its operations at the call site
  std::size_t slots = 0;   // operations that all members issued there
  std::size_t pauses = 0;  // operations for which all members waited long for one member
  double typical_s = 0;    // median length of these waits
  double share = 0;        // share of the recorded time that these waits take
  struct Member {
    int evidence = -1;
    std::size_t pauses = 0;
  };
  std::vector<Member> members;  // members that paused, most often first
};
// The call site at which the pauses cost most. nullopt: they cost little, one member makes most of
// them, or only a comparison of clocks shows them.
std::optional<LateInTurn> late_in_turn(const Case&, const std::vector<Slots>&);

}  // namespace frtrace
