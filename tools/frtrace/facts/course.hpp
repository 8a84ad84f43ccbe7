// course.hpp - where the course of a rank through its program parted from its peers', even where
// nothing was stuck there: how often each passed a call site, and the first operation left out or
// added.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "facts/order.hpp"
#include "model/case.hpp"

namespace frtrace {

// Operations of one group from one call site, counted from the first number that all compared ranks
// still have.
struct SiteCount {
  std::string op;
  Site site;
  std::uint64_t own = 0, least = 0, most = 0;  // of the others
  bool whole = true;                           // counted from the first operation of the group
};
// Where the rank's count is below, or above, that of every other one; as the others came there.
std::vector<SiteCount> site_counts(const Case&, int group, int evidence,
                                   const std::vector<int>& others);

// The first place where a rank left out an operation that its peers issued, or added one.
struct Parting {
  bool left_out = true;
  std::string op;
  Site site;
  int group = -1;                    // of the rank, or of the peer where it was left out
  std::uint64_t before = 0;          // times that the rank had passed that place
  std::size_t issued = 0;            // its step there
  std::optional<std::int64_t> step;  // of the program, where it tells that
  bool wrong_since = false;  // later operations of the rank in that group ended with others' of
                             // another iteration
};
std::optional<Parting> parting(const Case&, const History&, const Anomalies&, int evidence,
                               const std::vector<int>& peers);

}  // namespace frtrace
