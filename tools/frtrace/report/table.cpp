// table.cpp - the table of operations as text: a row per operation, a column per class of ranks
// with equal history.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "report/classes.hpp"
#include "report/lines.hpp"
#include "report/render.hpp"

namespace frtrace {

namespace {

// The part of a row that its ranks share goes into the column of operations: the whole text, or,
// for the same operation with other arguments, the words before and after the difference.
struct RowHead {
  std::string op;
  std::size_t before = 0, after = 0;  // bytes of a cell's text that `op` has

  std::string rest_of(const TableCell& cell) const {
    const bool has_rest = cell.what.size() > before + after;
    return !has_rest
               ? cell.state
               : cell.what.substr(before, cell.what.size() - before - after) + ": " + cell.state;
  }
};

std::vector<RowHead> row_heads(const GroupTable& t) {
  const std::vector<std::string> common = common_operations(t);
  std::vector<RowHead> out;
  for (std::size_t row = 0; row < common.size(); ++row) {
    RowHead& head = out.emplace_back(RowHead{common[row], common[row].size()});
    const std::string* first = nullptr;
    for (const TableColumn& column : t.columns) {
      const std::string& what = column.cells[row].what;
      if (!common[row].empty() || what.empty()) {
        continue;
      }
      if (first == nullptr) {
        first = &what;
        head.before = head.after = what.size();
        continue;
      }
      const std::size_t most = std::min(what.size(), first->size());
      std::size_t n = 0, m = 0;
      while (n < std::min(most, head.before) && what[n] == (*first)[n]) {
        ++n;
      }
      while (m < std::min(most - n, head.after) && what.end()[-1 - m] == first->end()[-1 - m]) {
        ++m;
      }
      head.before = n;
      head.after = m;
    }
    if (first != nullptr) {  // whole words
      head.before = first->rfind(' ', head.before == 0 ? 0 : head.before - 1) + 1;
      const std::size_t space = first->find(' ', first->size() - head.after);
      head.after = head.before == 0 || space == std::string::npos ? 0 : first->size() - space;
      if (head.before != 0) {
        head.op = first->substr(0, head.before) + "..." + first->substr(first->size() - head.after);
      }
    }
  }
  return out;
}

// Renders the first `rows` rows, in as many blocks of columns as necessary.
void render(std::string& out, const GroupTable& t, std::size_t width, std::size_t rows) {
  const std::uint64_t last = rows < t.last - t.first + 1 ? t.first + rows - 1 : t.last;
  out += table_title(t, width) + '\n';
  if (t.last == 0) {
    return;
  }
  // Columns are hard to compare across blocks: they are cut until all fit side by side, but to no
  // less than kNarrow. The rest goes into further blocks.
  constexpr std::size_t kSeqWidth = 8;
  constexpr std::size_t kNarrow = 14;  // "all_reduce ..."
  const std::vector<RowHead> heads = row_heads(t);
  std::size_t op_width = std::string_view("operation").size();
  for (const RowHead& head : heads) {
    op_width = std::max(op_width, head.op.size());
  }
  op_width = std::min(op_width, std::max<std::size_t>(width / 2, kSeqWidth + 32));
  const auto text_of = [&](const TableColumn& column, std::size_t row) {
    return heads[row].rest_of(column.cells[row]);
  };
  std::vector<std::size_t> natural;
  for (const TableColumn& column : t.columns) {
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
      line = row_head(std::to_string(seq), heads[seq - t.first].op);
      for (std::size_t k = from; k < to; ++k) {
        add_cell(k, text_of(t.columns[k], seq - t.first));
      }
      add_line();
    }
    from = to;
  }
}

// Ranks that differ only by a constant distance to the peer share a line.
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

// A screen of 24 lines, less the lines for the job, for what is left out, and for point to point.
constexpr std::size_t kBodyLines = 20;

std::size_t lines_of(const std::string& s) {
  return static_cast<std::size_t>(std::count(s.begin(), s.end(), '\n'));
}

std::string whole(const GroupTable& t, std::size_t width, std::size_t rows = SIZE_MAX) {
  std::string out = "\n";
  render(out, t, width, rows);
  return out;
}

// As many rows as fit, but at least some after the first difference; then as many columns as fit.
std::string on_screen(const GroupTable& t, std::size_t width) {
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
    std::vector<GroupTable> tables = group_tables(c, make_slots(c), filter);
    // On a screen: first the groups with differing ranks, then groups with operations in flight.
    // Only whole groups are shown, as long as there is room.
    const bool all = filter.full || !filter.groups.empty();
    if (!all) {
      std::stable_sort(tables.begin(), tables.end(), [](const GroupTable& a, const GroupTable& b) {
        return std::tuple(b.differs, b.in_flight, b.last) <
               std::tuple(a.differs, a.in_flight, a.last);
      });
    }
    std::string body;
    std::size_t shown = 0, left = 0;
    for (const GroupTable& t : tables) {
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
