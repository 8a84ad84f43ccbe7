// generations.hpp - groups that a process destroyed and made anew: restarts within the process.
#pragma once

#include <string>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// Numbers the generations of the process's groups (GroupEvidence::generation). Where the process has
// begun another generation since, nothing of an earlier one is in flight or failed any more.
void settle_generations(RankEvidence&);

// The process destroyed its default group and made another one.
struct Restart {
  Time destroyed = 0;
  Time went_on = 0;    // issued its first operation since; 0: not yet
  Time raised = 0;     // of `caught`
  std::string caught;  // "RuntimeError at train.py:12 in step: bad batch"; "" nothing tells
  std::string failed;  // error of the first operation that failed; ""
};
// In the order of time.
std::vector<Restart> restarts_of(const RankEvidence&);

}  // namespace frtrace
