// dump.hpp - dumps of PyTorch's own Flight Recorder: pickle and JSON, every layout since
// 2023.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "input/torch/naming.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

// On failure nullptr, and `why` says in a few words what is wrong; it begins with "foreign" where
// the file is whole but no dump.
std::unique_ptr<RankEvidence> load_torch_pickle(std::span<const unsigned char> bytes,
                                                std::string& why);
std::unique_ptr<RankEvidence> load_torch_json(std::span<const unsigned char> bytes,
                                              std::string& why);

// After all files are read: what one file alone cannot say. Ranks, jobs and world size; members of
// groups that no file lists; when the dumps were written; sends paired with receives where the
// windows do not begin at the first; frontiers and failures that follow from the other ranks.
// Evidence of other formats stays as it is.
void settle_torch(std::vector<std::unique_ptr<RankEvidence>>& evidence);

}  // namespace frtrace
