// job_log.hpp - what a job's own log says of its hang: the lines of PyTorch's NCCL watchdog, of its
// heartbeat monitor, and its desync report. Of each rank that is named: the last operation that it
// issued and completed in a group, the one that timed out, and its stack where it is printed.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// Whether a text has a line that is read here. Looks at all of it.
bool is_job_log(std::span<const unsigned char> text);

// One piece of evidence for each rank that the log says something of; `modified`: when the file was
// written last, which gives the year. Empty: nothing of use.
std::vector<std::unique_ptr<RankEvidence>> load_job_log(std::span<const unsigned char> text,
                                                        Time modified);

}  // namespace frtrace
