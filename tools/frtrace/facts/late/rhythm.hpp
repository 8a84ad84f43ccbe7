// rhythm.hpp - jobs that are slow as a whole: steps that became longer on all ranks at once, and ranks
// that come late in turn, so that none of them stands out.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "facts/slots.hpp"
#include "model/case.hpp"

namespace frtrace {

struct SlowerSteps {
  double before_s = 0, after_s = 0;  // medians
  Time since = 0;
  std::optional<std::int64_t> step;  // the first slow one, where the program tells its steps
};
// By fr.step(), else by the call site that each rank comes to most often. nullopt: not on all ranks, not
// several times as long, or not until the end.
std::optional<SlowerSteps> slower_steps(const Case&);

struct LateTurns {
  std::size_t late = 0, of = 0;  // operations that one rank came late to, of those that all came to
  std::size_t ranks = 0;         // that were the last of them
  double each_s = 0;             // how late, on average
  double share = 0;              // of the time that the operations span
};
std::optional<LateTurns> late_in_turn(const Case&, const std::vector<Slots>&);

}  // namespace frtrace
