#include "words/nodes.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace frtrace {

namespace {

constexpr std::size_t kMostNamed = 8;

// "n3, n7 and 12 others did not answer (n3: Connection refused)"
std::string silent_words(const std::vector<const NodeRow*>& silent) {
  std::string out;
  for (std::size_t i = 0; i < std::min(silent.size(), kMostNamed); ++i) {
    out += (i == 0 ? "" : ", ") + silent[i]->node;
  }
  if (silent.size() > kMostNamed) {
    out += fmt::format(" and {} others", silent.size() - kMostNamed);
  }
  const NodeRow& first = *silent.front();
  return fmt::format("node{} {} did not answer{}", silent.size() == 1 ? "" : "s", out,
                     first.why.empty()    ? ""
                     : silent.size() == 1 ? fmt::format(" ({})", first.why)
                                          : fmt::format(" ({}: {})", first.node, first.why));
}

bool lacks_evidence(const Report& r, Rank rank) {
  return std::find(r.missing_ranks.begin(), r.missing_ranks.end(), rank) != r.missing_ranks.end();
}

}  // namespace

void weigh_silent_nodes(Report& r, const std::vector<NodeRow>& nodes) {
  std::vector<const NodeRow*> silent;
  for (const NodeRow& row : nodes) {
    if (!row.answered) {
      silent.push_back(&row);
    }
  }
  if (silent.empty() || r.missing_ranks.empty()) {
    return;
  }
  const std::string words = silent_words(silent);
  const bool blamed = std::any_of(r.ranks.begin(), r.ranks.end(),
                                  [&](Rank rank) { return lacks_evidence(r, rank); });
  if (blamed) {
    r.confidence = Confidence::kPossible;
  }
  r.findings.push_back({"node", words + (blamed ? ": what its ranks do is not known" : "")});
}

}  // namespace frtrace
