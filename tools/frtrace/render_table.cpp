#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "facts.hpp"
#include "render.hpp"

namespace frtrace {

namespace {

const char* state_word(State s) {
  switch (s) {
    case State::kEnqueued:
      return "enqueued";
    case State::kStarted:
      return "started";
    case State::kWaiting:
      return "waiting";
    case State::kIdle:
      return "idle";
    case State::kCompleted:
      return "completed";
    case State::kFailed:
      return "failed";
    case State::kReleased:
      return "released";
    case State::kUnknown:
      break;
  }
  return "issued";
}

// Ranks whose column would read the same.
struct Column {
  std::vector<Rank> ranks;
  std::vector<std::string> cells;
};

void render_group(std::string& out, const Case& c, const Group& g, const Slots& slots,
                  const TableFilter& filter) {
  std::uint64_t last = 0;
  std::vector<std::size_t> members;
  for (std::size_t m = 0; m < g.ranks.size(); ++m) {
    if (filter.ranks.empty() ||
        std::find(filter.ranks.begin(), filter.ranks.end(), g.ranks[m]) != filter.ranks.end()) {
      members.push_back(m);
      if (const GroupEvidence* e = c.member(g, m)) {
        last = std::max(last, e->enqueued);
      }
    }
  }
  if (members.empty()) {
    return;
  }
  const std::uint64_t first = last > filter.rows ? last - filter.rows + 1 : 1;
  out += fmt::format("group {}{}, ranks {}{}{}\n", g.name, g.desc.empty() ? "" : " " + g.desc,
                     fold_ranks(g.ranks), g.backend.empty() ? "" : ", " + g.backend,
                     last == 0 ? ", no collectives" : "");
  if (last == 0) {
    return;
  }
  std::map<std::vector<std::string>, std::vector<Rank>> by_cells;
  for (const std::size_t m : members) {
    std::vector<std::string> cells;
    const GroupEvidence* e = c.member(g, m);
    for (std::uint64_t seq = first; seq <= last; ++seq) {
      const Record* r = slots.at(c, g, m, seq);
      if (g.evidence[m] < 0) {
        cells.emplace_back("no evidence");
      } else if (r != nullptr) {
        const RankEvidence& ev = c.evidence_of(g.evidence[m]);
        cells.push_back(fmt::format("{}: {}", operation_text(ev, *r), state_word(r->state)));
        if (const Site s = user_site(ev, r->stack); !s.file.empty()) {
          const std::size_t slash = s.file.rfind('/');
          cells.back() += fmt::format(
              " {}:{}", slash == std::string::npos ? s.file : s.file.substr(slash + 1), s.line);
        }
      } else {
        cells.emplace_back(e != nullptr && seq <= e->enqueued ? "overwritten" : "-");
      }
    }
    by_cells[cells].push_back(g.ranks[m]);
  }
  std::vector<Column> columns;
  for (auto& [cells, ranks] : by_cells) {
    columns.push_back({ranks, cells});
  }
  std::sort(columns.begin(), columns.end(),
            [](const Column& a, const Column& b) { return a.ranks.front() < b.ranks.front(); });
  // As many columns side by side as fit; the rest below.
  constexpr std::size_t kSeqWidth = 8;
  for (std::size_t from = 0; from < columns.size();) {
    std::vector<std::size_t> widths;
    std::size_t used = kSeqWidth, to = from;
    for (; to < columns.size(); ++to) {
      std::size_t w = 5 + fold_ranks(columns[to].ranks).size();
      for (const std::string& cell : columns[to].cells) {
        w = std::max(w, cell.size());
      }
      if (to > from && used + w + 2 > filter.width) {
        break;
      }
      used += w + 2;
      widths.push_back(w);
    }
    std::string line = fmt::format("{:>{}}", "seq", kSeqWidth);
    for (std::size_t k = from; k < to; ++k) {
      line += fmt::format("  {:<{}}", ranks_words(columns[k].ranks), widths[k - from]);
    }
    const auto add = [&out](std::string text) {
      text.erase(text.find_last_not_of(' ') + 1);
      out += text + '\n';
    };
    add(std::move(line));
    for (std::uint64_t seq = first; seq <= last; ++seq) {
      line = fmt::format("{:>{}}", seq, kSeqWidth);
      for (std::size_t k = from; k < to; ++k) {
        line += fmt::format("  {:<{}}", columns[k].cells[seq - first], widths[k - from]);
      }
      add(std::move(line));
    }
    from = to;
  }
}

void render_lanes(std::string& out, const Case& c, const TableFilter& filter) {
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
      const std::string peer =
          lane.peer >= 0 && lane.peer < static_cast<int>(group.ranks.size())
              ? fmt::format("rank {}", group.ranks[static_cast<std::size_t>(lane.peer)])
              : "any rank";
      out += fmt::format("  rank {} {} {}: {} issued, {} ended\n", e.id.rank,
                         lane.send ? "sends to" : "receives from", peer, lane.enqueued, lane.ended);
    }
  }
}

}  // namespace

std::string render_table(const std::vector<Case>& cases, const TableFilter& filter) {
  std::string out;
  for (const Case& c : cases) {
    out += fmt::format("job {}, attempt {}, incident {}\n", c.job, c.attempt, c.incident);
    const std::vector<Slots> slots = make_slots(c);
    for (std::size_t g = 0; g < c.groups.size(); ++g) {
      const Group& group = c.groups[g];
      const bool wanted =
          filter.groups.empty() ||
          std::any_of(filter.groups.begin(), filter.groups.end(), [&](const std::string& name) {
            return name == group.name || name == group.desc;
          });
      if (wanted) {
        out += '\n';
        render_group(out, c, group, slots[g], filter);
      }
    }
    std::string lanes;
    render_lanes(lanes, c, filter);
    if (!lanes.empty()) {
      out += "\npoint to point\n" + lanes;
    }
  }
  return out;
}

}  // namespace frtrace
