// settle.hpp - other tools' evidence finds its job and its rank.
#pragma once

#include <memory>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// After all files are read and PyTorch's dumps are settled. Stacks go to the evidence of the same
// rank, by process id, else by the rank in the file's name or folder, where that has none of its
// own; else they stand for a rank of which nothing else is known. A log's lines stand for ranks
// without a dump. Both belong to the job that the other files are of; without any, to one named
// after their directory.
void settle_tools(std::vector<std::unique_ptr<RankEvidence>>& evidence);

}  // namespace frtrace
