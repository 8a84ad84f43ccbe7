// slots.hpp - what the members of a group issued as the operation of one number, and where they
// differ.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/case.hpp"
#include "model/operation.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

// Records of one group's collectives, per member by ascending seq.
struct Slots {
  std::vector<std::vector<std::uint32_t>> records;  // [member] -> records of its evidence
  // Record of that seq, nullptr when not kept or never issued.
  const Record* at(const Case&, const Group&, std::size_t member, std::uint64_t seq) const;
};
std::vector<Slots> make_slots(const Case&);  // one per group

// A field in which members differ: {kSize, "64", "4096"}: 64 where most have 4096. Of kSizes, which
// differ by right among the others too, the record has the values.
struct FieldDifference {
  SlotField field;
  std::string own, others;
};
// Rows that one rank sends to another in an all_to_all, and what that one expects.
struct SplitDifference {
  Rank from = -1, to = -1;
  std::uint64_t sent = 0, expected = 0;
};

struct Divergence {
  int group = -1;
  std::uint64_t seq = 0;
  Time time = 0;
  std::vector<std::vector<int>> classes;  // members (positions in the group), largest class first
  bool tie = false;
  bool past = false;  // all completed it, and more of the group since
  bool over = false;  // all that still hold it completed it
  bool strict = false;
  bool incomplete_vote = false;  // members without that record
  std::vector<FieldDifference> fields;
  std::optional<SplitDifference> splits;

  std::vector<int> apart() const;  // members that differ from most; all, if no class is largest
  // Sizes of one member do not fit the others', which differ by right.
  bool sizes_vary() const { return !fields.empty() && fields.front().field == SlotField::kSizes; }
};
// The earliest slot of every group in which members differ, by time; `past` ones only if there is
// no other.
std::vector<Divergence> divergences(const Case&, const std::vector<Slots>&);

// An operation that all members with evidence still hold and have completed.
struct WholeSlot {
  int group;
  std::vector<std::pair<int, std::size_t>> members;  // evidence, record
};
std::vector<WholeSlot> whole_slots(const Case&, const std::vector<Slots>&);

}  // namespace frtrace
