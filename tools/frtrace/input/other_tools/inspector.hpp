// inspector.hpp - what NCCL's Inspector plugin logs: per process and communicator the collectives that
// completed, each with its number and how long its kernel ran. It says who lagged behind, or who
// came last, and never what is in flight: a witness beside other evidence, no verdict.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

bool is_inspector(std::span<const unsigned char> text);

// nullptr: no collective in it. Its records are completed operations, a group for each communicator
// and function, since numbers count per function; `started` and `ended` are as long apart as the
// kernel ran.
std::unique_ptr<RankEvidence> load_inspector(std::span<const unsigned char> text);

// After all files are read: what they say together becomes sentences (RankEvidence::witness) of the
// first other evidence, else of the first of them; their records go.
void settle_inspector(std::vector<std::unique_ptr<RankEvidence>>& evidence);

}  // namespace frtrace
