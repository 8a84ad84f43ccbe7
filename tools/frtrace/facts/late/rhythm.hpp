// rhythm.hpp - jobs that are slow as a whole: steps that became longer on all ranks at once.
#pragma once

#include <cstdint>
#include <optional>

#include "model/case.hpp"

namespace frtrace {

struct SlowerSteps {
  double before_s = 0, after_s = 0;  // medians
  Time since = 0;
  std::optional<std::int64_t> step;  // the first slow step, if the program reports its steps
};
// By fr.step(), else by each rank's most frequent call site. nullopt: not on all ranks, not several
// times as long, or not until the end.
std::optional<SlowerSteps> slower_steps(const Case&);

}  // namespace frtrace
