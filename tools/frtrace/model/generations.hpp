// generations.hpp - groups that a process destroyed and made again: restarts within the process.
#pragma once

#include <string>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// Numbers the generations of the process's groups (GroupEvidence::generation). Once a newer
// generation has begun, no operation of an older one counts as in flight or failed.
void settle_generations(RankEvidence&);

// The process destroyed its default group and made another one.
struct Restart {
  Time destroyed = 0;
  Time went_on = 0;    // time of the first operation issued after it; 0: none yet
  Time raised = 0;     // time of `caught`
  std::string caught;  // "RuntimeError at train.py:12 in step: bad batch"; "": unknown
  std::string failed;  // error of the first operation that failed; "": none
};
// In order of time.
std::vector<Restart> restarts_of(const RankEvidence&);

}  // namespace frtrace
