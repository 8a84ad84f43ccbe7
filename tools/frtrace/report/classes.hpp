// classes.hpp - per group, the ranks with equal history: what each issued and how far that got.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "facts/slots.hpp"
#include "model/case.hpp"
#include "report/render.hpp"

namespace frtrace {

// What a rank issued, with its call site, and how far it got. Without the first the rank did not
// issue it, or the evidence does not show it.
struct TableCell {
  std::string what, state;
  auto operator<=>(const TableCell&) const = default;
};

// Ranks whose column would read the same.
struct TableColumn {
  std::vector<std::size_t> members;
  std::vector<Rank> ranks;
  std::vector<TableCell> cells;
};

// A group's columns, or those of groups that read the same but for their ranks.
struct GroupTable {
  std::string desc, backend;
  std::vector<std::string> names;
  std::vector<Rank> ranks;
  std::size_t size = 0;  // members of one group
  std::uint64_t first = 0, last = 0;
  std::vector<int> groups;  // in Case::groups
  bool differs = false;     // its ranks did not do the same
  bool in_flight = false;   // something of it is
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

// Of the groups that the filter takes; those that read the same but for their ranks are one.
// Without TableFilter::full from `before` rows before the first that differs, else before the first
// in flight.
std::vector<GroupTable> group_tables(const Case&, const std::vector<Slots>&, const TableFilter&,
                                     std::size_t before = 5);
// What all ranks that issued an operation there issued, for each row; "" where they differ.
std::vector<std::string> common_operations(const GroupTable&);
// "group 0 default_pg, ranks 0-3, gloo"; at most half of `width` of it the group's name.
std::string table_title(const GroupTable&, std::size_t width);

}  // namespace frtrace
