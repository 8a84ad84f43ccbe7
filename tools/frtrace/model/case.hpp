// case.hpp - sorts evidence into cases: one job, one attempt, one incident, one piece of evidence
// per rank, and the process groups matched across ranks.
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

// Of as many ranks and of one description, or made by one call: for each rank its own one.
using GroupKind = std::tuple<std::size_t, std::string_view, int>;

// A process group as its members know it: same name, instance and members.
struct Group {
  std::string name, desc, backend;
  std::uint32_t instance = 1;
  std::vector<Rank> ranks;  // in group order
  bool ranks_known = true;  // false: only those members are listed whose evidence was read
  // Per member: index in Case::ranks and row in its groups; -1 where there is none.
  std::vector<int> evidence;
  std::vector<int> row;
  std::unordered_map<Rank, int> position;

  // Of a numbered group without a description: which of the calls made it that make a group for each
  // rank; -1: unknown.
  int made_by = -1;
  GroupKind kind() const { return {ranks.size(), desc, made_by}; }

  // For people: no other group of the case has it, but for a communicator's own group, which has
  // that of the framework's group that it works for.
  std::string label;
  bool described_by_other = false;  // such a communicator's
  // Or of several backends, one of which is gloo.
  bool is_gloo() const { return backend.find("gloo") != std::string::npos; }
  // Position of a member; -1: the rank is none.
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
  std::vector<std::vector<int>> group_of;  // [index in ranks][row] -> index in groups, -1 none
  // The same of any row, also one that a damaged file does not describe.
  int group_at(int evidence, std::uint32_t row) const {
    const std::vector<int>& rows = group_of[idx(evidence)];
    return row < rows.size() ? rows[row] : -1;
  }
  std::vector<std::string> notes;  // what was left out, and why
  // Per rank: what the same process wrote, or left, after the evidence that was chosen; oldest first.
  std::vector<std::vector<const RankEvidence*>> later;
  // Ranks that several processes, which lived at the same time, say they are: evidence of each.
  std::map<Rank, std::vector<const RankEvidence*>> twins;
  // Stacks of ranks among the missing, which may be in an operation themselves.
  std::unordered_map<Rank, const RankEvidence*> stacks;
  bool asked_for = false;  // the incident was named, not the newest taken

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
