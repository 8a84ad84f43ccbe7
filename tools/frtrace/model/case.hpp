// case.hpp - sorts evidence into cases: one job, attempt and incident, one piece of evidence per
// rank, and the process groups matched across ranks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// Indices that may be -1 are signed.
inline std::size_t idx(int i) {
  return static_cast<std::size_t>(i);
}

// Groups of one kind: equal size and description, made by the same call. Each rank is in one of
// them.
using GroupKind = std::tuple<std::size_t, std::string_view, int>;

// A process group as its members know it: same name, instance and members.
struct Group {
  std::string name, desc, backend;
  std::uint32_t instance = 1;
  std::vector<Rank> ranks;  // in group order
  bool ranks_known = true;  // false: `ranks` has only members with evidence
  // Per member: index in Case::ranks and row in its groups; -1: none.
  std::vector<int> evidence;
  std::vector<int> row;
  std::unordered_map<Rank, int> position;

  // For a numbered group without a description: which call made it, counting calls that make a
  // group for each rank; -1: unknown.
  int made_by = -1;
  GroupKind kind() const { return {ranks.size(), desc, made_by}; }

  // The name shown to users. Unique in the case, except that a communicator's own group has the
  // label of the framework's group that it works for.
  std::string label;
  bool described_by_other = false;  // a communicator's group with such a label
  // Also true with several backends of which gloo is one.
  bool is_gloo() const { return backend.find("gloo") != std::string::npos; }
  // Position of a member; -1: the rank is not a member.
  int at(Rank rank) const {
    const auto it = position.find(rank);
    return it == position.end() ? -1 : it->second;
  }
  const std::string& title() const { return label; }
};

struct Case {
  std::string job;
  int attempt = 0;
  std::uint64_t incident = 0;
  std::vector<const RankEvidence*> ranks;  // sorted by rank, one each
  std::unordered_map<Rank, int> index;     // rank -> index in ranks
  int expected = 0;                        // world size
  std::vector<Rank> missing;               // expected ranks without evidence
  std::vector<Group> groups;
  std::vector<std::vector<int>> group_of;  // [index in ranks][row] -> index in groups, -1: none
  // The same for any row; -1 for a row that a damaged file does not describe.
  int group_at(int evidence, std::uint32_t row) const {
    const std::vector<int>& rows = group_of[idx(evidence)];
    return row < rows.size() ? rows[row] : -1;
  }
  std::vector<std::string> notes;  // what was left out, and why
  // Per rank: evidence that the same process wrote or left after the chosen one; oldest first.
  std::vector<std::vector<const RankEvidence*>> later;
  // Ranks claimed by several processes that lived at the same time: evidence of each process.
  std::map<Rank, std::vector<const RankEvidence*>> twins;
  // Evidence with stacks only, of missing ranks that may be in an operation.
  std::unordered_map<Rank, const RankEvidence*> stacks;
  bool asked_for = false;  // the incident was named, not chosen as the newest

  auto indices() const { return std::views::iota(0, static_cast<int>(ranks.size())); }  // in ranks
  const RankEvidence& evidence_of(int i) const { return *ranks[idx(i)]; }
  const GroupEvidence* member(const Group& g, std::size_t m) const;
};

struct Selection {
  std::optional<std::string> job;
  std::optional<int> attempt;
  std::optional<std::uint64_t> incident;
};

// One case per job, sorted by name. The evidence must outlive the cases.
std::vector<Case> make_cases(const std::vector<std::unique_ptr<RankEvidence>>& evidence,
                             const Selection& selection);

}  // namespace frtrace
