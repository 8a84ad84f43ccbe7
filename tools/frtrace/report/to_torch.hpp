// to_torch.hpp - evidence as dumps of PyTorch's Flight Recorder, for the tools that read those.
#pragma once

#include <string>
#include <vector>

#include "model/case.hpp"

namespace frtrace {

// One rank as a pickle of layout 2.10. Data without a place in the layout (notes, exits, losses,
// reduce operations) is left out.
std::string torch_pickle(const RankEvidence&);

// Writes <dir>/fr_trace_rank_<N> for every rank of a case. Each of several cases gets its own
// directory named by the job, since those tools take one job per directory. Returns the number of
// files, or -1 and sets `why`.
int save_torch(const std::vector<Case>&, const std::string& dir, std::string& why);

}  // namespace frtrace
