// dump.hpp - dumps of PyTorch's own Flight Recorder: pickle and JSON, every layout since 2023.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "input/torch/naming.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

// On failure returns nullptr, and `why` is a short reason; it begins with "foreign" if the file is
// complete but not a dump.
std::unique_ptr<RankEvidence> load_torch_pickle(std::span<const unsigned char> bytes,
                                                std::string& why);
std::unique_ptr<RankEvidence> load_torch_json(std::span<const unsigned char> bytes,
                                              std::string& why);

// Call after all files are read. Adds data that needs several files: ranks, jobs and world size;
// members of groups that no file lists; times of writing; the pairing of sends and receives if a
// window does not begin with the first one; frontiers and failures inferred from other ranks.
// Evidence of other formats is not changed.
void settle_torch(std::vector<std::unique_ptr<RankEvidence>>& evidence);

}  // namespace frtrace
