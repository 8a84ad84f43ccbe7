// set.hpp - PyTorch dumps of one job, completed by what they say together.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "input/torch/naming.hpp"
#include "model/rank_data.hpp"

namespace frtrace::torch_set {

// Rows of all files that are one group.
struct Member {
  RankEvidence* e;
  std::uint32_t row;
};

// World size, and the members of groups that no file lists: those that appear in them, and ranks
// without a file where only one place is left for them.
void complete_groups(const TorchSet&);

// Records of the collectives that a rank has ended, by group (index of all) and number.
using Ended = std::map<std::pair<std::size_t, std::uint64_t>, std::size_t>;
using EndedOf = std::map<const RankEvidence*, Ended>;
EndedOf ended_collectives(const std::vector<std::vector<Member>>& groups);

// Numbers the sends and receives of one group so that both ends of a message have the same.
void pair_lanes(const std::vector<Member>& members, const EndedOf& ended);

}  // namespace frtrace::torch_set
