// device_jobs.hpp - what the cases about devices share: a job that NCCL's plugin saw, and questions
// to its report.
#pragma once

#include <algorithm>
#include <set>

#include "catch.hpp"
#include "device_builder.hpp"
#include "jobs.hpp"

namespace frtest {

inline constexpr std::uint64_t kStream = 0x700, kOther = 0x900;

inline bool says(const Report& r, Rank who, const std::string& part) {
  return std::any_of(r.blamed.begin(), r.blamed.end(),
                     [&](const Blamed& b) { return b.rank == who && frtest::says(b, part); });
}

inline Op to(const Op& op, int peer) {
  Op out = op;
  out.peer = peer;
  return out;
}

inline DeviceJob job(int world, std::uint32_t n_nodes = 0) {
  DeviceJob j(world);
  Ranks all;
  for (Rank r = 0; r < world; ++r) {
    all.push_back(r);
  }
  j.comm(kWorld, all, n_nodes);
  j.all(5, kWorld, kGrads);
  return j;
}

// Evidence of devices only adds to a verdict: every rank that is blamed without it is also blamed
// with it.
inline void check_weaker(const DeviceJob& j, const Report& with) {
  const std::set<Rank> blamed(with.ranks.begin(), with.ranks.end());
  for (const Rank r : j.without().ranks) {
    CHECK(blamed.contains(r));
  }
}

}  // namespace frtest
