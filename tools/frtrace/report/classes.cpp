// classes.cpp - which ranks of a group have equal history.
#include "report/classes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "model/contains.hpp"
#include "model/operation.hpp"
#include "report/lines.hpp"

namespace frtrace {

namespace {

const char* state_word(State s) {
  return s == State::kUnknown ? "issued" : fr::word(s);
}

TableCell cell_of(const Case& c, const Group& g, const Slots& slots, std::size_t m,
                  std::uint64_t seq, bool sizes = true) {
  if (g.evidence[m] < 0) {
    return {"", "no evidence"};
  }
  const Record* r = slots.at(c, g, m, seq);
  if (r == nullptr) {
    const GroupEvidence* e = c.member(g, m);
    const bool trimmed = c.evidence_of(g.evidence[m]).losses.trimmed != 0 && e != nullptr &&
                         e->kept != 0 && seq >= e->first_kept;
    return {"", e == nullptr || seq > e->enqueued ? "-" : trimmed ? "not loaded" : "overwritten"};
  }
  const RankEvidence& e = c.evidence_of(g.evidence[m]);
  TableCell out{printable(sizes ? operation_text(e, *r) : std::string(e.text(r->op))),
                state_word(r->state)};
  if (const Site s = user_site(e, r->stack); !s.file.empty()) {
    const std::size_t slash = s.file.rfind('/');
    out.what += fmt::format(
        " {}:{}", printable(slash == std::string::npos ? s.file : s.file.substr(slash + 1)),
        s.line);
  }
  return out;
}

// Cells that say nothing about what the rank did.
bool is_blank(const TableCell& cell) {
  return cell.what.empty() && cell.state != "-";
}

// Index of the first row with an operation in flight; the number of rows if there is none.
std::size_t first_open(const std::vector<std::vector<TableCell>>& cells) {
  const std::size_t rows = cells.empty() ? 0 : cells.front().size();
  const auto is_open = [](const TableCell& cell) {
    return !cell.what.empty() &&
           (cell.state == fr::word(State::kEnqueued) || cell.state == fr::word(State::kStarted) ||
            cell.state == fr::word(State::kWaiting));
  };
  for (std::size_t row = 0; row < rows; ++row) {
    if (std::any_of(cells.begin(), cells.end(),
                    [&](const auto& column) { return is_open(column[row]); })) {
      return row;
    }
  }
  return rows;
}

// Ranks with equal cells from row `from` on share a column.
std::vector<TableColumn> columns_of(const Group& g, const std::vector<std::size_t>& members,
                                    const std::vector<std::vector<TableCell>>& cells,
                                    std::size_t from) {
  std::map<std::vector<TableCell>, TableColumn> by_cells;
  for (std::size_t k = 0; k < members.size(); ++k) {
    std::vector<TableCell> kept(cells[k].begin() + static_cast<std::ptrdiff_t>(from),
                                cells[k].end());
    TableColumn& column = by_cells[std::move(kept)];
    column.members.push_back(members[k]);
    column.ranks.push_back(g.ranks[members[k]]);
  }
  std::vector<TableColumn> out;
  for (auto& [kept, column] : by_cells) {
    column.cells = kept;
    out.push_back(std::move(column));
  }
  std::sort(out.begin(), out.end(),
            [](const TableColumn& a, const TableColumn& b) { return a.members < b.members; });
  return out;
}

bool differs_in(std::size_t row, const std::vector<std::vector<TableCell>>& cells) {
  const TableCell* known = nullptr;
  for (const std::vector<TableCell>& column : cells) {
    if (is_blank(column[row])) {
      continue;
    }
    if (known != nullptr && *known != column[row]) {
      return true;
    }
    known = &column[row];
  }
  return false;
}

// In a completed slot with equal signatures, sizes may differ by member, as in an all_to_all.
bool is_over_and_legal(const Case& c, const Group& g, const Slots& slots, std::uint64_t seq) {
  std::optional<std::uint64_t> signature;
  for (std::size_t m = 0; m < g.ranks.size(); ++m) {
    const Record* r = g.evidence[m] < 0 ? nullptr : slots.at(c, g, m, seq);
    if (r != nullptr) {
      const std::uint64_t own = signature_hash(c.evidence_of(g.evidence[m]), *r);
      if (r->state != State::kCompleted || signature.value_or(own) != own) {
        return false;
      }
      signature = own;
    }
  }
  return true;
}

// Index of the first row in which ranks differ; the number of rows if there is none.
std::size_t first_difference(const std::vector<std::vector<TableCell>>& cells) {
  const std::size_t rows = cells.empty() ? 0 : cells.front().size();
  std::size_t row = 0;
  while (row < rows && !differs_in(row, cells)) {
    ++row;
  }
  return row;
}

// The result has no columns if the filter takes no member.
GroupTable table_of(const Case& c, const Group& g, const Slots& slots, const TableFilter& filter,
                    std::size_t before) {
  GroupTable t;
  t.desc = g.desc;
  t.backend = g.backend;
  t.names = {g.name};
  t.ranks = g.ranks;
  t.size = g.ranks.size();
  std::vector<std::size_t> members;
  for (std::size_t m = 0; m < g.ranks.size(); ++m) {
    if (filter.ranks.empty() || contains(filter.ranks, g.ranks[m])) {
      members.push_back(m);
      if (const GroupEvidence* e = c.member(g, m)) {
        t.last = std::max(t.last, std::min(e->enqueued, std::uint64_t{1} << 62));
      }
    }
  }
  constexpr std::uint64_t kWindow = 40;  // rows searched for differences
  t.first = t.last > kWindow ? t.last - kWindow + 1 : 1;
  for (std::size_t k = 0; filter.full && k < members.size(); ++k) {
    const GroupEvidence* e = c.member(g, members[k]);
    t.first = e != nullptr && e->kept != 0 ? std::min(t.first, e->first_kept) : t.first;
  }
  std::vector<std::vector<TableCell>> cells(members.size());
  for (std::size_t k = 0; k < members.size(); ++k) {
    for (std::uint64_t seq = t.first; seq <= t.last; ++seq) {
      cells[k].push_back(cell_of(c, g, slots, members[k], seq));
    }
  }
  const std::size_t rows = t.last >= t.first ? t.last - t.first + 1 : 0;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::uint64_t seq = t.first + row;
    if (differs_in(row, cells) && is_over_and_legal(c, g, slots, seq)) {
      for (std::size_t k = 0; k < members.size(); ++k) {
        cells[k][row] = cell_of(c, g, slots, members[k], seq, false);
      }
    }
  }
  const std::size_t differs = first_difference(cells);
  t.differs = differs < rows;
  const std::size_t open = first_open(cells);
  t.in_flight = open < rows;
  const std::size_t of_note = t.differs ? differs : open;
  const std::size_t from = filter.full || of_note < before ? 0 : of_note - before;
  t.first += from;
  t.columns = columns_of(g, members, cells, from);
  return t;
}

}  // namespace

// For each row, the operation that all ranks issued there, ranks without one left out; "" where
// they differ.
std::vector<std::string> common_operations(const GroupTable& t) {
  std::vector<std::string> out(t.last - t.first + 1);
  for (std::size_t row = 0; row < out.size(); ++row) {
    bool same = true;
    for (const TableColumn& column : t.columns) {
      const std::string& what = column.cells[row].what;
      same = same && (what.empty() || out[row].empty() || what == out[row]);
      out[row] = what.empty() ? out[row] : what;
    }
    out[row] = same ? out[row] : std::string();
  }
  return out;
}

std::string table_title(const GroupTable& t, std::size_t width) {
  const std::string head =
      t.names.size() == 1
          ? fmt::format("group {}{}{}", t.names.front(), t.desc.empty() ? "" : " ", t.desc)
          : fmt::format("{} groups {}", t.names.size(), t.desc);
  return shortened(
      fmt::format("{}, {}{}{}", shortened(printable(head), width / 2), ranks_words(t.ranks),
                  t.backend.empty() ? "" : ", " + printable(t.backend),
                  t.last == 0 ? ", no collectives" : ""),
      width);
}

std::vector<GroupTable> group_tables(const Case& c, const std::vector<Slots>& slots,
                                     const TableFilter& filter, std::size_t before) {
  std::vector<GroupTable> tables;
  std::map<std::tuple<std::string, std::size_t, std::uint64_t>, std::vector<std::size_t>> sisters;
  for (std::size_t g = 0; g < c.groups.size(); ++g) {
    const Group& group = c.groups[g];
    const bool wanted =
        filter.groups.empty() ||
        std::any_of(filter.groups.begin(), filter.groups.end(), [&](const std::string& name) {
          return name == group.name || name == group.desc;
        });
    if (!wanted) {
      continue;
    }
    GroupTable t = table_of(c, group, slots[g], filter, before);
    if (t.columns.empty()) {
      continue;
    }
    t.groups = {static_cast<int>(g)};
    std::vector<std::size_t>& candidates = sisters[{t.desc, t.size, t.last}];
    const auto same = std::find_if(candidates.begin(), candidates.end(),
                                   [&](std::size_t k) { return tables[k].alike(t); });
    if (same == candidates.end()) {
      candidates.push_back(tables.size());
      tables.push_back(std::move(t));
      continue;
    }
    GroupTable& folded = tables[*same];
    folded.names.push_back(group.name);
    folded.groups.push_back(static_cast<int>(g));
    folded.ranks.insert(folded.ranks.end(), t.ranks.begin(), t.ranks.end());
    for (std::size_t k = 0; k < t.columns.size(); ++k) {
      std::vector<Rank>& ranks = folded.columns[k].ranks;
      ranks.insert(ranks.end(), t.columns[k].ranks.begin(), t.columns[k].ranks.end());
    }
  }
  return tables;
}

}  // namespace frtrace
