// naming.hpp - which rank of which job wrote a PyTorch dump: by what it says of itself, else by its
// path, as such a file names neither.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

using TorchSet = std::vector<RankEvidence*>;

// What a dump's path tells. -1, "": nothing.
struct TorchName {
  int rank = -1;
  std::string host;
  std::string prefix;  // equal for all ranks of one job, as far as a name can tell
};
TorchName torch_name(std::string_view path);

// names: of the same files, in the same order.
void name_ranks(const TorchSet& all, const std::vector<TorchName>& names);
// By the name of the job, which becomes the evidence's. Ranks are known.
std::map<std::string, TorchSet> name_jobs(const TorchSet& all, const std::vector<TorchName>& names);

// Those of one job that its last run wrote; files of runs before get another number of their run.
TorchSet newest_run(const TorchSet& job);

// Members in the order of their places.
std::vector<RankRange> ranges(const std::vector<Rank>& members);
// The place of a rank in a group; -1 when it is no member.
std::int32_t position(const std::vector<RankRange>& ranges, Rank rank);

}  // namespace frtrace
