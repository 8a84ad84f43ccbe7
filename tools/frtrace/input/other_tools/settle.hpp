// settle.hpp - assigns evidence of other tools to its job and its rank.
#pragma once

#include <memory>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// Call after all files are read and PyTorch's dumps are settled. Stacks go to the evidence of the
// same rank, by process id, else by the rank in the file's name or folder, if that evidence has no
// stacks; else they stand for a rank without other evidence. A log's lines stand for ranks without
// a dump. Both belong to the job of the other files; without any, to a job named after their
// directory.
void settle_tools(std::vector<std::unique_ptr<RankEvidence>>& evidence);

}  // namespace frtrace
