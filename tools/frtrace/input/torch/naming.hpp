// naming.hpp - finds the rank and the job that wrote a PyTorch dump: by its content, else by its
// path, as such a file names neither.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

using TorchSet = std::vector<RankEvidence*>;

// The parts of a dump's path. -1, "": unknown.
struct TorchName {
  int rank = -1;
  std::string host;
  std::string prefix;  // equal for all ranks of one job, as far as names show
};
TorchName torch_name(std::string_view path);

// names: of the same files, in the same order.
void name_ranks(const TorchSet& all, const std::vector<TorchName>& names);
// The files of each job by its name, which the evidence gets. Ranks must be known.
std::map<std::string, TorchSet> name_jobs(const TorchSet& all, const std::vector<TorchName>& names);

// The files of a job's last run; files of earlier runs get a different run number.
TorchSet newest_run(const TorchSet& job);

// Members in the order of their positions.
std::vector<RankRange> ranges(const std::vector<Rank>& members);
// The position of a rank in a group; -1 if it is not a member.
std::int32_t position(const std::vector<RankRange>& ranges, Rank rank);

}  // namespace frtrace
