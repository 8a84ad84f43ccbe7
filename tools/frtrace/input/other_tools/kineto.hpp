// kineto.hpp - traces of torch.profiler (Kineto's Chrome JSON): when each rank issued, began and
// ended its collectives. They are written at the end of a profile, so they show late ranks, but no
// hang.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// Looks at the first bytes only: other programs write Chrome traces, too.
bool is_kineto(std::span<const unsigned char> begin);

// nullptr, and `why`: not such a trace, or the groups of its operations are unknown.
std::unique_ptr<RankEvidence> load_kineto(std::span<const unsigned char> json, std::string& why);

// Call after all files are read. Drops operations that some member of the group lacks, since
// profiles begin and end at different operations. Drops traces if there is other evidence: they add
// nothing to it about a hang.
void settle_kineto(std::vector<std::unique_ptr<RankEvidence>>& evidence);

}  // namespace frtrace
