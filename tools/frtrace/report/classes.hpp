// classes.hpp - per group, the classes of ranks with equal history: operations issued and their
// state.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "facts/slots.hpp"
#include "model/case.hpp"
#include "report/render.hpp"

namespace frtrace {

// An operation of a rank with its call site, and its state. `what` is empty if the rank did not
// issue it, or the evidence does not show it.
struct TableCell {
  std::string what, state;
  auto operator<=>(const TableCell&) const = default;
};

// Ranks with equal cells.
struct TableColumn {
  std::vector<std::size_t> members;
  std::vector<Rank> ranks;
  std::vector<TableCell> cells;
};

// The columns of a group, or of several groups that differ in their ranks only.
struct GroupTable {
  std::string desc, backend;
  std::vector<std::string> names;
  std::vector<Rank> ranks;
  std::size_t size = 0;  // members of one group
  std::uint64_t first = 0, last = 0;
  std::vector<int> groups;  // in Case::groups
  bool differs = false;     // its ranks have different histories
  bool in_flight = false;   // it has an operation in flight
  std::vector<TableColumn> columns;

  bool alike(const GroupTable& other) const {
    return desc == other.desc && !desc.empty() && backend == other.backend && size == other.size &&
           first == other.first && last == other.last &&
           std::equal(columns.begin(), columns.end(), other.columns.begin(), other.columns.end(),
                      [](const TableColumn& a, const TableColumn& b) {
                        return a.members == b.members && a.cells == b.cells;
                      });
  }
};

// Tables of the groups that the filter takes; groups that differ in their ranks only share one.
// Unless TableFilter::full, a table starts `before` rows before the first difference, or else
// before the first operation in flight.
std::vector<GroupTable> group_tables(const Case&, const std::vector<Slots>&, const TableFilter&,
                                     std::size_t before = 5);
// For each row, the operation that all ranks issued there, ranks without one left out; "" where
// they differ.
std::vector<std::string> common_operations(const GroupTable&);
// "group 0 default_pg, ranks 0-3, gloo"; the group's name takes at most half of `width`.
std::string table_title(const GroupTable&, std::size_t width);

}  // namespace frtrace
