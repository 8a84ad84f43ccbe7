// idle.cpp - sentences about ranks that issue nothing: usual pace, present pause, place.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "facts/limits.hpp"
#include "model/hints.hpp"
#include "model/operation.hpp"
#include "words/words.hpp"

namespace frtrace {

std::string usual_gap_text(const RankEvidence& e) {
  std::vector<Time> gaps_ns;
  Time last = 0;
  for (const Record& r : e.records) {
    if (communicates(r)) {
      if (last != 0) {
        gaps_ns.push_back(r.time - last);
      }
      last = r.time;
    }
  }
  if (gaps_ns.size() < limits::kUsualWaitFewest) {
    return {};
  }
  const auto middle = gaps_ns.begin() + static_cast<std::ptrdiff_t>(gaps_ns.size() / 2);
  std::ranges::nth_element(gaps_ns, middle);
  return fmt::format(" (usually every {})", duration_text(static_cast<double>(*middle) * 1e-9));
}

std::string idle_text(const Facts& f, const std::vector<int>& idle) {
  double least_s = std::numeric_limits<double>::infinity();
  for (const int i : idle) {
    least_s = std::min(least_s, silent_s(f.ev(i)));
  }
  return duration_text(least_s);
}

std::string idle_place_text(const Facts& f, const std::vector<int>& idle) {
  const Site at = stopped_at(f.ev(idle.front()));
  return fmt::format("{} in {} at {}:{}", one_or(idle.size(), "it is", "all are"),
                     at.function.empty() ? "code" : at.function + "()", at.file, at.line);
}

}  // namespace frtrace
