// table.cpp - the table of operations: a row for each, a column per class of ranks that did the same.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "facts/slots.hpp"
#include "model/contains.hpp"
#include "model/operation.hpp"
#include "report/lines.hpp"
#include "report/render.hpp"

namespace frtrace {

namespace {

const char* state_word(State s) {
  return s == State::kUnknown ? "issued" : fr::word(s);
}

// What a rank issued, with its call site, and how far it got. Without the first the rank did not
// issue it, or the evidence does not show it.
struct Cell {
  std::string what, state;
  auto operator<=>(const Cell&) const = default;
  std::string text() const { return what.empty() ? state : what + ": " + state; }
};

// Ranks whose column would read the same.
struct Column {
  std::vector<std::size_t> members;
  std::vector<Rank> ranks;
  std::vector<Cell> cells;
};

// A group's columns, or those of groups that read the same but for their ranks.
struct Table {
  std::string desc, backend;
  std::vector<std::string> names;
  std::vector<Rank> ranks;
  std::size_t size = 0;  // members of one group
  std::uint64_t first = 0, last = 0;
  bool differs = false;  // its ranks did not do the same
  std::vector<Column> columns;

  bool alike(const Table& other) const {
    return desc == other.desc && !desc.empty() && backend == other.backend && size == other.size &&
           first == other.first && last == other.last &&
           std::equal(columns.begin(), columns.end(), other.columns.begin(), other.columns.end(),
                      [](const Column& a, const Column& b) {
                        return a.members == b.members && a.cells == b.cells;
                      });
  }
};

Cell cell_of(const Case& c, const Group& g, const Slots& slots, std::size_t m, std::uint64_t seq) {
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
  Cell out{printable(operation_text(e, *r)), state_word(r->state)};
  if (const Site s = user_site(e, r->stack); !s.file.empty()) {
    const std::size_t slash = s.file.rfind('/');
    out.what += fmt::format(
        " {}:{}", printable(slash == std::string::npos ? s.file : s.file.substr(slash + 1)),
        s.line);
  }
  return out;
}

// Cells that say nothing about what the rank did.
bool is_blank(const Cell& cell) {
  return cell.what.empty() && cell.state != "-";
}

// Ranks with equal cells from row `from` on share a column.
std::vector<Column> columns_of(const Group& g, const std::vector<std::size_t>& members,
                               const std::vector<std::vector<Cell>>& cells, std::size_t from) {
  std::map<std::vector<Cell>, Column> by_cells;
  for (std::size_t k = 0; k < members.size(); ++k) {
    std::vector<Cell> kept(cells[k].begin() + static_cast<std::ptrdiff_t>(from), cells[k].end());
    Column& column = by_cells[std::move(kept)];
    column.members.push_back(members[k]);
    column.ranks.push_back(g.ranks[members[k]]);
  }
  std::vector<Column> out;
  for (auto& [kept, column] : by_cells) {
    column.cells = kept;
    out.push_back(std::move(column));
  }
  std::sort(out.begin(), out.end(),
            [](const Column& a, const Column& b) { return a.members < b.members; });
  return out;
}

// The first row in which ranks differ; the number of rows: in none.
std::size_t first_difference(const std::vector<std::vector<Cell>>& cells) {
  const std::size_t rows = cells.empty() ? 0 : cells.front().size();
  for (std::size_t row = 0; row < rows; ++row) {
    const Cell* told = nullptr;
    for (const std::vector<Cell>& column : cells) {
      if (is_blank(column[row])) {
        continue;
      }
      if (told != nullptr && *told != column[row]) {
        return row;
      }
      told = &column[row];
    }
  }
  return rows;
}

// No columns: no member is wanted.
Table table_of(const Case& c, const Group& g, const Slots& slots, const TableFilter& filter) {
  Table t;
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
  constexpr std::uint64_t kWindow = 40;  // rows looked through for differences
  constexpr std::size_t kBefore = 5;     // rows shown before the first that differs
  t.first = t.last > kWindow ? t.last - kWindow + 1 : 1;
  for (std::size_t k = 0; filter.full && k < members.size(); ++k) {
    const GroupEvidence* e = c.member(g, members[k]);
    t.first = e != nullptr && e->kept != 0 ? std::min(t.first, e->first_kept) : t.first;
  }
  std::vector<std::vector<Cell>> cells(members.size());
  for (std::size_t k = 0; k < members.size(); ++k) {
    for (std::uint64_t seq = t.first; seq <= t.last; ++seq) {
      cells[k].push_back(cell_of(c, g, slots, members[k], seq));
    }
  }
  const std::size_t rows = t.last >= t.first ? t.last - t.first + 1 : 0;
  const std::size_t differs = first_difference(cells);
  t.differs = differs < rows;
  const std::size_t from = filter.full || differs < kBefore ? 0 : differs - kBefore;
  t.first += from;
  t.columns = columns_of(g, members, cells, from);
  return t;
}

// What all ranks that issued an operation there issued, for each row; "" where they differ.
std::vector<std::string> common_operations(const Table& t) {
  std::vector<std::string> out(t.last - t.first + 1);
  for (std::size_t row = 0; row < out.size(); ++row) {
    bool same = true;
    for (const Column& column : t.columns) {
      const std::string& what = column.cells[row].what;
      same = same && (what.empty() || out[row].empty() || what == out[row]);
      out[row] = what.empty() ? out[row] : what;
    }
    out[row] = same ? out[row] : std::string();
  }
  return out;
}

std::string title(const Table& t, std::size_t width) {
  const std::string head =
      t.names.size() == 1
          ? fmt::format("group {}{}{}", t.names.front(), t.desc.empty() ? "" : " ", t.desc)
          : fmt::format("{} groups {}: {}", t.names.size(), t.desc, fmt::join(t.names, ","));
  return fmt::format("{}, {}{}{}\n", shortened(printable(head), width / 2), ranks_words(t.ranks),
                     t.backend.empty() ? "" : ", " + printable(t.backend),
                     t.last == 0 ? ", no collectives" : "");
}

// The first `rows` rows, in as many blocks of columns as it takes.
void render(std::string& out, const Table& t, std::size_t width, std::size_t rows) {
  const std::uint64_t last = rows < t.last - t.first + 1 ? t.first + rows - 1 : t.last;
  out += title(t, width);
  if (t.last == 0) {
    return;
  }
  // Columns that cannot be compared are of no use below each other: they are cut until all fit side
  // by side, as long as each keeps kNarrow. Beyond that the rest comes below.
  constexpr std::size_t kSeqWidth = 8;
  constexpr std::size_t kNarrow = 14;  // "all_reduce ..."
  const std::vector<std::string> common = common_operations(t);
  std::size_t op_width = std::string_view("operation").size();
  for (const std::string& text : common) {
    op_width = std::max(op_width, text.size());
  }
  op_width = std::min(op_width, std::max<std::size_t>(width / 2, kSeqWidth + 32));
  const auto text_of = [&](const Column& column, std::size_t row) {
    const Cell& cell = column.cells[row];
    return common[row].empty() ? cell.text() : cell.state;
  };
  std::vector<std::size_t> natural;
  for (const Column& column : t.columns) {
    natural.push_back(ranks_words(column.ranks).size());
    for (std::size_t row = 0; row < column.cells.size(); ++row) {
      natural.back() = std::max(natural.back(), text_of(column, row).size());
    }
  }
  const auto total = [&](std::size_t op, std::size_t most) {
    std::size_t sum = kSeqWidth + 2 + op;
    for (const std::size_t w : natural) {
      sum += 2 + std::min(w, most);
    }
    return sum;
  };
  std::size_t widest = *std::max_element(natural.begin(), natural.end());
  while (total(op_width, widest) > width && (widest > kNarrow || op_width > kNarrow)) {
    --(widest > op_width || op_width <= kNarrow ? widest : op_width);
  }
  const std::size_t left = kSeqWidth + 2 + op_width;
  const auto row_head = [&](std::string seq, std::string op) {
    return fmt::format("{:>{}}  {:<{}}", seq, kSeqWidth, shortened(std::move(op), op_width),
                       op_width);
  };
  for (std::size_t from = 0; from < t.columns.size();) {
    std::vector<std::size_t> widths;
    std::size_t used = left, to = from;
    for (; to < t.columns.size(); ++to) {
      const std::size_t w = std::min(natural[to], widest);
      if (to > from && used + w + 2 > width) {
        break;
      }
      used += w + 2;
      widths.push_back(w);
    }
    std::string line = row_head("seq", "operation");
    const auto add_cell = [&](std::size_t k, std::string text) {
      line +=
          fmt::format("  {:<{}}", shortened(std::move(text), widths[k - from]), widths[k - from]);
    };
    const auto add_line = [&] {
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + '\n';
    };
    for (std::size_t k = from; k < to; ++k) {
      add_cell(k, ranks_words(t.columns[k].ranks));
    }
    add_line();
    for (std::uint64_t seq = t.first; seq <= last; ++seq) {
      line = row_head(std::to_string(seq), common[seq - t.first]);
      for (std::size_t k = from; k < to; ++k) {
        add_cell(k, text_of(t.columns[k], seq - t.first));
      }
      add_line();
    }
    from = to;
  }
}

// Ranks whose lanes read the same but for a constant distance to the peer are one line.
void render_lanes(std::string& out, const Case& c, const TableFilter& filter) {
  using Key = std::tuple<bool, bool, Rank, std::uint64_t, std::uint64_t>;
  std::map<Key, std::vector<Rank>> lines;
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    const RankEvidence& e = *c.ranks[i];
    if (!filter.ranks.empty() &&
        std::find(filter.ranks.begin(), filter.ranks.end(), e.id.rank) == filter.ranks.end()) {
      continue;
    }
    for (const LaneEvidence& lane : e.lanes) {
      const int g = lane.group < c.group_of[i].size() ? c.group_of[i][lane.group] : -1;
      if (g < 0 || lane.enqueued == 0) {
        continue;
      }
      const Group& group = c.groups[static_cast<std::size_t>(g)];
      const bool known = lane.peer >= 0 && lane.peer < static_cast<int>(group.ranks.size());
      const Rank distance =
          known ? group.ranks[static_cast<std::size_t>(lane.peer)] - e.id.rank : 0;
      lines[{lane.send, known, distance, lane.enqueued, lane.ended}].push_back(e.id.rank);
    }
  }
  for (const auto& [key, ranks] : lines) {
    const auto& [send, known, distance, enqueued, ended] = key;
    const std::string peer = !known              ? "any rank"
                             : ranks.size() == 1 ? fmt::format("rank {}", ranks.front() + distance)
                                                 : fmt::format("rank {:+}", distance);
    out += fmt::format("  {} {} {}: {} issued, {} ended\n", ranks_words(ranks),
                       ranks.size() == 1 ? (send ? "sends to" : "receives from")
                                         : (send ? "send to" : "receive from"),
                       peer, enqueued, ended);
  }
}

// A screen of 24 lines less the job's, that of what is left out, and those of point to point.
constexpr std::size_t kBodyLines = 20;

std::size_t lines_of(const std::string& s) {
  return static_cast<std::size_t>(std::count(s.begin(), s.end(), '\n'));
}

std::string whole(const Table& t, std::size_t width, std::size_t rows = SIZE_MAX) {
  std::string out = "\n";
  render(out, t, width, rows);
  return out;
}

// As many rows as fit, some after the first that differs in any case, then as many columns.
std::string on_screen(const Table& t, std::size_t width) {
  constexpr std::size_t kFewest = 7;
  std::string out = whole(t, width);
  if (lines_of(out) <= kBodyLines) {
    return out;
  }
  const std::size_t rows = t.last - t.first + 1;
  std::size_t kept = rows;
  do {
    --kept;
    out = whole(t, width, kept);
  } while (kept > kFewest && lines_of(out) >= kBodyLines);
  std::string more = fmt::format("and {} more rows: with -v\n", rows - kept);
  if (lines_of(out) >= kBodyLines) {
    std::size_t end = 0;
    for (std::size_t n = 1; n < kBodyLines; ++n) {
      end = out.find('\n', end) + 1;
    }
    out.resize(end);
    more = "and more ranks and rows: with -v\n";
  }
  return out + more;
}

}  // namespace

std::string render_table(const std::vector<Case>& cases, const TableFilter& filter) {
  std::string out;
  for (const Case& c : cases) {
    out +=
        fmt::format("job {}, attempt {}, incident {}\n", printable(c.job), c.attempt, c.incident);
    const std::vector<Slots> slots = make_slots(c);
    std::vector<Table> tables;
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
      Table t = table_of(c, group, slots[g], filter);
      if (t.columns.empty()) {
        continue;
      }
      std::vector<std::size_t>& candidates = sisters[{t.desc, t.size, t.last}];
      const auto same = std::find_if(candidates.begin(), candidates.end(),
                                     [&](std::size_t k) { return tables[k].alike(t); });
      if (same == candidates.end()) {
        candidates.push_back(tables.size());
        tables.push_back(std::move(t));
        continue;
      }
      Table& folded = tables[*same];
      folded.names.push_back(group.name);
      folded.ranks.insert(folded.ranks.end(), t.ranks.begin(), t.ranks.end());
      for (std::size_t k = 0; k < t.columns.size(); ++k) {
        std::vector<Rank>& ranks = folded.columns[k].ranks;
        ranks.insert(ranks.end(), t.columns[k].ranks.begin(), t.columns[k].ranks.end());
      }
    }
    // On a screen: first the groups whose ranks differ, and whole groups as long as there is room.
    const bool all = filter.full || !filter.groups.empty();
    if (!all) {
      std::stable_sort(tables.begin(), tables.end(), [](const Table& a, const Table& b) {
        return a.differs != b.differs ? a.differs : a.last > b.last;
      });
    }
    std::string body;
    std::size_t shown = 0, left = 0;
    for (const Table& t : tables) {
      const std::string text = all ? whole(t, filter.width) : on_screen(t, filter.width);
      if (all || shown == 0 || lines_of(body) + lines_of(text) <= kBodyLines) {
        body += text;
        ++shown;
      } else {
        left += t.names.size();
      }
    }
    std::string lanes;
    render_lanes(lanes, c, filter);
    if (!lanes.empty()) {
      body += all || lines_of(lanes) + lines_of(body) <= kBodyLines ? "\npoint to point\n" + lanes
                                                                    : "\npoint to point: with -v\n";
    }
    out += body;
    if (left != 0) {
      out += fmt::format("and {} more group{}: with -v, or --groups NAME\n", left,
                         left == 1 ? "" : "s");
    }
  }
  return out;
}

}  // namespace frtrace
