// to_torch.hpp - evidence as dumps of PyTorch's Flight Recorder, for the tools that read those.
#pragma once

#include <string>
#include <vector>

#include "model/case.hpp"

namespace frtrace {

// One rank as a pickle of layout 2.10. What the layout has no place for (notes, exits, losses,
// reduce operations) is left out.
std::string torch_pickle(const RankEvidence&);

// <dir>/fr_trace_rank_<N> for every rank of a case; of several cases each in a directory of its own
// named by the job, since those tools take one job a directory. The number of files, or -1 and why.
int save_torch(const std::vector<Case>&, const std::string& dir, std::string& why);

}  // namespace frtrace
