// inspector.hpp - logs of NCCL's Inspector plugin: per process and communicator the completed
// collectives, each with its number and the duration of its kernel. They show ranks that lagged
// behind or came last, but never operations in flight: a witness beside other evidence, no verdict.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

bool is_inspector(std::span<const unsigned char> text);

// nullptr: no collective in it. The records are completed operations, with a group for each
// communicator and function, since numbers count per function; `ended` - `started` is the duration
// of the kernel.
std::unique_ptr<RankEvidence> load_inspector(std::span<const unsigned char> text);

// Call after all files are read. Conclusions from all logs together become sentences
// (RankEvidence::witness) of the first other evidence, else of the first log; the logs' records are
// dropped.
void settle_inspector(std::vector<std::unique_ptr<RankEvidence>>& evidence);

}  // namespace frtrace
