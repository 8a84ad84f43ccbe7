// series.hpp - the pattern of a series of calls at one place: late since some call, always,
// increasingly, or now and then; and changes of the step time. Numbers only, no evidence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace frtrace {

// One call of one rank. Seconds above the median of the other members; below 0: less.
struct LateCall {
  std::uint32_t record = 0;
  float late = 0;              // without the lateness that other ranks cause
  float most = 0;              // of the latest member
  float order = 0.5F;          // share of the other members that came before it
  float host = 0, device = 0;  // of the time before it: until issued, then until begun
  bool last = false;           // no member came later
};

enum class LatePattern : std::uint8_t { kAlways, kGrowing, kNowAndThen };

struct LateSeries {
  LatePattern pattern = LatePattern::kAlways;
  std::size_t since = 0;  // first of the calls that count
  int late = 0, of = 0, last = 0;
  double typical_s = 0, worst_s = 0, lost_s = 0;
  double host_s = 0, device_s = 0;     // of the late calls
  std::vector<std::uint32_t> records;  // of the late calls
};

// Late by more than floor_s in most calls, at least since some call. nullopt: it is not.
std::optional<LateSeries> late_mostly(const std::vector<LateCall>&, double floor_s);
// Late by more than floor_s in some calls. nullopt: chance can explain that.
std::optional<LateSeries> late_now_and_then(const std::vector<LateCall>&, double floor_s,
                                            std::size_t round, std::size_t members);
// Upper bound of the logarithm of the probability that a rank like the other members comes as late,
// over the calls from `since` on in which a member was late by more than floor_s. The calls of a
// round, of that many records, count once: the cause of one late call makes others late.
double log_chance(const std::vector<LateCall>&, std::size_t since, double floor_s,
                  std::size_t round, std::size_t members);
// The distance at which a sequence repeats itself.
std::size_t period(const std::vector<std::uint64_t>&);

// A change of the level of a series from `at` on. Levels are medians.
struct Change {
  std::size_t at = 0;
  double before = 0, after = 0;
};
std::vector<Change> changes(const std::vector<double>&);

// For each value, the median of the others.
std::vector<double> medians_but(const std::vector<double>& values);

}  // namespace frtrace
