// set.hpp - PyTorch dumps of one job, completed with data from each other.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "input/torch/naming.hpp"
#include "model/rank_data.hpp"

namespace frtrace::torch_set {

// One row of a group in one file.
struct Member {
  RankEvidence* e;
  std::uint32_t row;
};

// Sets the world size, and the members of groups that no file lists: ranks with evidence of them,
// and ranks without a file if only one place is left for them.
void complete_groups(const TorchSet&);

// Records of the collectives that a rank has ended, by group (index of all) and number.
using Ended = std::map<std::pair<std::size_t, std::uint64_t>, std::size_t>;
using EndedOf = std::map<const RankEvidence*, Ended>;
EndedOf ended_collectives(const std::vector<std::vector<Member>>& groups);

// Numbers the sends and receives of a group so that a message has the same number at both ends.
void pair_lanes(const std::vector<Member>& members, const EndedOf& ended);

}  // namespace frtrace::torch_set
