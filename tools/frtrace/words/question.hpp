// question.hpp - which whole dumps to fetch after a verdict on summaries.
#pragma once

#include <vector>

#include "facts/facts.hpp"
#include "words/report.hpp"

namespace frtrace {

inline constexpr std::size_t kMostInQuestion = 64;

// Ranks read from summaries whose whole dumps may change the verdict or say more of it: those it names,
// then of each wait one who waits and those waited for, then who is furthest and last in each of their
// groups; the first ones matter most. Empty: nothing is left out of the evidence, or nothing is stuck.
std::vector<Rank> ranks_in_question(const Facts& f, const Report& r);

}  // namespace frtrace
