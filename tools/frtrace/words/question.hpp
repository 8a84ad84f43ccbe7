// question.hpp - which whole dumps to fetch after a verdict on summaries.
#pragma once

#include <vector>

#include "facts/facts.hpp"
#include "words/report.hpp"

namespace frtrace {

inline constexpr std::size_t kMostInQuestion = 64;

// Ranks read from summaries for which a whole dump may change the verdict or add to it, the most
// important first: the ranks that the verdict names, then for each wait a waiting rank and the
// awaited ranks, then the first and the last member of each of their groups. Empty: the evidence
// lacks nothing, or nothing is stuck.
std::vector<Rank> ranks_in_question(const Facts& f, const Report& r);

}  // namespace frtrace
