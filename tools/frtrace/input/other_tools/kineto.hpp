// kineto.hpp - traces of torch.profiler (Kineto's Chrome JSON): when each rank issued, began and
// ended its collectives. They are written when a profile is over, so they say who comes late and
// nothing of a hang.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// Looks at the first bytes only: other programs write Chrome traces, too.
bool is_kineto(std::span<const unsigned char> begin);

// nullptr, and why: it is none, or it does not tell which group an operation is of.
std::unique_ptr<RankEvidence> load_kineto(std::span<const unsigned char> json, std::string& why);

// After all files are read: operations that not all members of their group have in their traces are
// left out, since profiles begin and end at different ones. Traces are dropped where there is other
// evidence: they add nothing to what that says of a hang.
void settle_kineto(std::vector<std::unique_ptr<RankEvidence>>& evidence);

}  // namespace frtrace
