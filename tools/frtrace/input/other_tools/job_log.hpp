// job_log.hpp - a job's own log of its hang: lines of PyTorch's NCCL watchdog, of its heartbeat
// monitor, and its desync report. For each rank named there: its last operations issued and
// completed in a group, the operation that timed out, and its stack if it is printed.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// Whether a text has a line that load_job_log() reads. Searches all of it.
bool is_job_log(std::span<const unsigned char> text);

// One piece of evidence for each rank that the log describes; `modified`: the file's modification
// time, which gives the year. Empty: nothing of use.
std::vector<std::unique_ptr<RankEvidence>> load_job_log(std::span<const unsigned char> text,
                                                        Time modified);

}  // namespace frtrace
