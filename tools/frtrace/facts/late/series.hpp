// series.hpp - what a series of calls at one place says: late since when, always, more and
// more, or now and then; and where the time of a step changed. Numbers only, no evidence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace frtrace {

// One call of one rank. Seconds by which it exceeds the median of the other members; below 0: less.
struct LateCall {
  std::uint32_t record = 0;
  float late = 0;              // that is no other rank's doing
  float most = 0;              // of all members
  float order = 0.5F;          // share of the others that came before it
  float host = 0, device = 0;  // of the time before it: until issued, then until begun
  bool last = false;           // nobody came later
};

enum class LatePattern : std::uint8_t { kAlways, kGrowing, kNowAndThen };

struct LateSeries {
  LatePattern pattern = LatePattern::kAlways;
  std::size_t since = 0;  // first of the calls that count
  int late = 0, of = 0, last = 0;
  double typical_s = 0, worst_s = 0, lost_s = 0;
  double host_s = 0, device_s = 0;     // of the late ones
  std::vector<std::uint32_t> records;  // of the late ones
};

// Late by more than floor_s most of the times, at least since some call.
std::optional<LateSeries> late_mostly(const std::vector<LateCall>&, double floor_s);
// Late by more than floor_s in some calls. No value: chance can make that.
std::optional<LateSeries> late_now_and_then(const std::vector<LateCall>&, double floor_s,
                                            std::size_t round, std::size_t members);
// How likely a rank that is like the other members comes as late: no less than its logarithm, over
// the calls from `since` on for which a member was late by more than floor_s. So many records are a
// round, whose calls count once: what makes one of them late makes others late.
double log_chance(const std::vector<LateCall>&, std::size_t since, double floor_s,
                  std::size_t round, std::size_t members);
// At which distance a sequence repeats itself.
std::size_t period(const std::vector<std::uint64_t>&);

// The level of a series changed: from `at` on, by medians.
struct Change {
  std::size_t at = 0;
  double before = 0, after = 0;
};
std::vector<Change> changes(const std::vector<double>&);

// Per value the median of the others.
std::vector<double> medians_but(const std::vector<double>& values);

}  // namespace frtrace
