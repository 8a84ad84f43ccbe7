// slots.hpp - the operations that the members of a group issued under one sequence number, and the
// differences between them.
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
  // The record with that seq; nullptr: not kept, or never issued.
  const Record* at(const Case&, const Group&, std::size_t member, std::uint64_t seq) const;
};
std::vector<Slots> make_slots(const Case&);  // one per group

// A field in which members differ. {kSize, "64", "4096"}: this member has 64, most have 4096. Empty
// texts for kSizes: the others' sizes differ legitimately too, and the record has the values.
struct FieldDifference {
  SlotField field;
  std::string own, others;
};
// Rows that one rank sends to another in an all_to_all, and rows that the other expects.
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
  bool past = false;  // all completed it, and later operations of the group
  bool over = false;  // all members that still hold it completed it
  bool strict = false;
  bool incomplete_vote = false;  // some members have no record of it
  std::vector<FieldDifference> fields;
  std::optional<SplitDifference> splits;

  std::vector<int> apart() const;  // members outside the largest class; all, if no class is largest
  // The sizes of one member do not fit those of the others, which differ legitimately.
  bool sizes_vary() const { return !fields.empty() && fields.front().field == SlotField::kSizes; }
};
// The earliest slot of every group in which members differ, sorted by time. `past` slots only if
// there is no other.
std::vector<Divergence> divergences(const Case&, const std::vector<Slots>&);

// A collective that no member leaves before all have entered it, and that all members with evidence
// still hold.
struct WholeSlot {
  int group;
  std::vector<std::pair<int, std::size_t>> members;  // evidence, record
};
std::vector<WholeSlot> whole_slots(const Case&, const std::vector<Slots>&);

}  // namespace frtrace
