// page_data.cpp - the data that the page draws: frontiers, classes of equal history, stacks,
// arrivals, input.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "facts/late/arrivals.hpp"
#include "model/contains.hpp"
#include "report/classes.hpp"
#include "report/page.hpp"
#include "report/page_pool.hpp"

namespace frtrace {

namespace {

using PageJson = nlohmann::json;

// [value, count, value, count, ...]
PageJson run_lengths(const std::vector<std::int64_t>& values) {
  PageJson out = PageJson::array();
  for (std::size_t i = 0; i < values.size();) {
    std::size_t end = i + 1;
    while (end < values.size() && values[end] == values[i]) {
      ++end;
    }
    out.push_back(values[i]);
    out.push_back(end - i);
    i = end;
  }
  return out;
}

// For each group, the counters enqueued, started, completed of its members by rank; -1 without
// evidence.
PageJson frontiers(const Case& c) {
  PageJson out = PageJson::array();
  for (const Group& g : c.groups) {
    std::vector<std::size_t> order(g.ranks.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(),
              [&](std::size_t a, std::size_t b) { return g.ranks[a] < g.ranks[b]; });
    std::vector<std::int64_t> enqueued, started, completed;
    for (const std::size_t m : order) {
      const GroupEvidence* e = c.member(g, m);
      const auto value = [&](std::uint64_t v) {
        return e == nullptr ? -1 : static_cast<std::int64_t>(std::min(v, std::uint64_t{1} << 53));
      };
      enqueued.push_back(value(e == nullptr ? 0 : e->enqueued));
      started.push_back(value(e == nullptr ? 0 : std::max(e->started, e->completed)));
      completed.push_back(value(e == nullptr ? 0 : e->completed));
    }
    out.push_back({run_lengths(enqueued), run_lengths(started), run_lengths(completed)});
  }
  return out;
}

// How closely a table is related to the verdict.
int nearness(const GroupTable& t, const Case& c, const Report& r) {
  const auto has_blamed = [&](const TableColumn& column) {
    return std::any_of(r.ranks.begin(), r.ranks.end(),
                       [&](Rank rank) { return contains(column.ranks, rank); });
  };
  const bool blamed = std::any_of(t.columns.begin(), t.columns.end(), has_blamed);
  const bool named = std::any_of(r.blamed.begin(), r.blamed.end(), [&](const Blamed& b) {
    return contains(t.names, b.group) && t.desc == b.desc;
  });
  const bool waits = std::any_of(r.waiting.begin(), r.waiting.end(), [&](const Waiting& w) {
    return std::any_of(t.groups.begin(), t.groups.end(), [&](int g) {
      return c.groups[idx(g)].title() == w.title && !w.title.empty();
    });
  });
  return (blamed && named ? 8 : 0) + (blamed && t.differs ? 4 : 0) + (waits ? 2 : 0) +
         (t.differs ? 1 : 0);
}

PageJson table_json(const GroupTable& t, const Report& r, PagePool& pool) {
  constexpr std::size_t kColumns = 48;
  PageJson out{{"t", pool.text(table_title(t, 120))},
               {"r", pool.ranks(t.ranks)},
               {"f", t.first},
               {"d", t.differs},
               {"names", t.names.size()}};
  PageJson groups = PageJson::array();
  for (const int g : t.groups) {
    groups.push_back(g);
  }
  out["g"] = std::move(groups);
  if (t.last == 0) {
    return out;
  }
  const std::vector<std::string> common = common_operations(t);
  for (const std::string& op : common) {
    out["o"].push_back(pool.text(op));
  }
  // Columns of blamed ranks first, then columns of few ranks.
  std::vector<const TableColumn*> columns;
  for (const TableColumn& column : t.columns) {
    columns.push_back(&column);
  }
  const auto blamed = [&](const TableColumn& column) {
    return std::any_of(column.ranks.begin(), column.ranks.end(),
                       [&](Rank rank) { return contains(r.ranks, rank); });
  };
  const auto all_blamed = [&](const TableColumn& column) {
    return std::all_of(column.ranks.begin(), column.ranks.end(),
                       [&](Rank rank) { return contains(r.ranks, rank); });
  };
  std::stable_sort(columns.begin(), columns.end(), [&](const TableColumn* a, const TableColumn* b) {
    const bool first = blamed(*a), second = blamed(*b);
    return first != second ? first : a->ranks.size() < b->ranks.size();
  });
  for (std::size_t k = 0; k < columns.size() && k < kColumns; ++k) {
    PageJson cells = PageJson::array();
    for (std::size_t row = 0; row < columns[k]->cells.size(); ++row) {
      const TableCell& cell = columns[k]->cells[row];
      cells.push_back(!cell.what.empty() && cell.what == common[row]
                          ? -1
                          : static_cast<int>(pool.text(cell.what)));
      cells.push_back(pool.text(cell.state));
    }
    out["c"].push_back({{"r", pool.ranks(columns[k]->ranks)},
                        {"n", columns[k]->ranks.size()},
                        {"b", all_blamed(*columns[k])},
                        {"x", std::move(cells)}});
  }
  out["more"] = columns.size() > kColumns ? columns.size() - kColumns : 0;
  return out;
}

PageJson tables_json(const Facts& f, const Report& r, PagePool& pool) {
  constexpr std::size_t kTables = 24, kBefore = 8;
  std::vector<GroupTable> tables = group_tables(f.c, f.slots, {}, kBefore);
  std::vector<std::pair<int, const GroupTable*>> order;
  for (const GroupTable& t : tables) {
    order.emplace_back(nearness(t, f.c, r), &t);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second->last > b.second->last;
  });
  PageJson out{{"all", order.size()}, {"shown", PageJson::array()}};
  for (std::size_t k = 0; k < order.size() && k < kTables; ++k) {
    out["shown"].push_back(table_json(*order[k].second, r, pool));
  }
  return out;
}

PageJson stacks_json(const StackTree& tree, PagePool& pool) {
  PageJson nodes = PageJson::array(), classes = PageJson::array(), roles = PageJson::array();
  for (const StackNode& n : tree.nodes) {
    nodes.push_back({n.frame == 0 ? 0 : pool.text(short_frame(tree.frames[n.frame])), n.children,
                     n.classes, pool.ranks(n.ranks), n.ranks.size()});
  }
  for (const StackClass& c : tree.classes) {
    PageJson where = PageJson::array();
    for (const std::string& line : c.where) {
      where.push_back(pool.text(line));
    }
    classes.push_back({pool.ranks(c.ranks), c.ranks.size(), c.threads,
                       pool.text(contains(c.where, c.doing) ? "" : c.doing), pool.text(c.frontier),
                       std::move(where)});
  }
  for (const StackTree::Role& role : tree.roles) {
    roles.push_back({pool.text(role.name), role.root, role.ranks});
  }
  std::map<std::string, std::vector<Rank>> remarks;
  for (const StackTree::Look& l : tree.looks) {
    if (!l.not_asked.empty()) {
      remarks["threads were not sampled: " + l.not_asked].push_back(l.rank);
    }
    if (l.lost != 0) {
      remarks["threads, frames or files found no room"].push_back(l.rank);
    }
    if (!l.holes.empty()) {
      remarks[l.holes].push_back(l.rank);
    }
  }
  PageJson told = PageJson::array();
  for (const auto& [text, ranks] : remarks) {
    told.push_back({pool.text(text), pool.ranks(ranks)});
  }
  return {{"nodes", std::move(nodes)}, {"classes", std::move(classes)}, {"roles", std::move(roles)},
          {"told", std::move(told)},   {"without", tree.without},       {"ranks", tree.n_ranks}};
}

std::int64_t microseconds(double seconds) {
  return std::llround(std::clamp(seconds, -1e6, 1e6) * 1e6);
}

// A rank's mean lateness in each of up to `most` equal parts of its operations.
PageJson heat(const std::vector<float>& each, std::size_t most) {
  std::vector<std::int64_t> out;
  const std::size_t parts = std::min(most, each.size());
  for (std::size_t p = 0; p < parts; ++p) {
    const std::size_t from = p * each.size() / parts, to = (p + 1) * each.size() / parts;
    double sum = 0;
    for (std::size_t i = from; i < to; ++i) {
      sum += each[i];
    }
    out.push_back(microseconds(sum / static_cast<double>(to - from)));
  }
  return out;
}

PageJson arrivals_json(const Facts& f, PagePool& pool) {
  constexpr std::size_t kSites = 12, kMembers = 24, kParts = 64;
  bool by_clocks = false;
  const std::vector<Arrivals> all = arrivals(f.c, f.slots, by_clocks);
  PageJson sites = PageJson::array();
  for (std::size_t s = 0; s < all.size() && s < kSites; ++s) {
    const Arrivals& a = all[s];
    PageJson members = PageJson::array();
    for (std::size_t m = 0; m < a.members.size() && m < kMembers; ++m) {
      const Arrivals::Member& one = a.members[m];
      members.push_back({f.rank(one.evidence), one.last, microseconds(one.sum_s), one.each_s.size(),
                         heat(one.each_s, kParts)});
    }
    sites.push_back({{"group", pool.text(a.group)},
                     {"op", pool.text(a.op)},
                     {"site", pool.text(site_text(a.site))},
                     {"slots", a.slots},
                     {"sum", microseconds(a.sum_s)},
                     {"histogram", a.histogram},
                     {"n", a.members.size()},
                     {"members", std::move(members)}});
  }
  return {{"by_clocks", by_clocks}, {"all", all.size()}, {"sites", std::move(sites)}};
}

// Settings of the processes: name, and the ranks that have each value.
PageJson settings_json(const Case& c, PagePool& pool,
                       std::vector<std::pair<std::string, std::string>> RankEvidence::* list) {
  std::map<std::string, std::map<std::string, std::vector<Rank>>> all;
  for (const RankEvidence* e : c.ranks) {
    for (const auto& [name, value] : e->*list) {
      all[name][value].push_back(e->id.rank);
    }
  }
  constexpr std::size_t kValues = 8;
  PageJson out = PageJson::array();
  for (const auto& [name, values] : all) {
    std::vector<std::pair<std::string, std::vector<Rank>>> order(values.begin(), values.end());
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
      return a.second.size() > b.second.size();
    });
    PageJson told = PageJson::array();
    for (std::size_t k = 0; k < order.size() && k < kValues; ++k) {
      told.push_back({pool.text(order[k].first), pool.ranks(order[k].second)});
    }
    out.push_back({pool.text(name), std::move(told), order.size()});
  }
  return out;
}

PageJson losses_json(const Case& c, PagePool& pool) {
  constexpr std::pair<const char*, std::uint64_t Losses::*> kFields[] = {
      {"records dropped, as the ring had no room", &Losses::dropped},
      {"older records overwritten", &Losses::overwritten},
      {"records torn while they were written", &Losses::torn},
      {"states lost", &Losses::status_lost},
      {"names lost", &Losses::strings_lost},
      {"call stacks lost", &Losses::stacks_lost},
      {"groups without a row", &Losses::groups_lost},
      {"lanes of sends and receives without a row", &Losses::lanes_lost},
      {"records of groups without a row", &Losses::no_group},
      {"groups destroyed and forgotten", &Losses::groups_forgotten},
      {"records behind the end of a file that was cut", &Losses::cut},
      {"records not kept in memory by frtrace", &Losses::trimmed}};
  PageJson out = PageJson::array();
  for (const auto& [name, field] : kFields) {
    std::uint64_t sum = 0;
    std::vector<Rank> ranks;
    for (const RankEvidence* e : c.ranks) {
      if (e->losses.*field != 0) {
        sum += e->losses.*field;
        ranks.push_back(e->id.rank);
      }
    }
    if (sum != 0) {
      out.push_back({pool.text(name), sum, pool.ranks(ranks)});
    }
  }
  return out;
}

// The longest time that each call site took before, over all ranks.
PageJson deadlines_json(const Case& c, PagePool& pool) {
  constexpr std::size_t kSites = 40;
  std::map<std::string, LearnedSite> all;
  const auto add = [&](const RankEvidence* e) {
    for (const LearnedSite& one : e->deadlines) {
      LearnedSite& s = all[one.site];
      s.visits = std::max(s.visits, one.visits);
      s.absent_ms = std::max(s.absent_ms, one.absent_ms);
      s.asleep_ms = std::max(s.asleep_ms, one.asleep_ms);
      s.together_ms = std::max(s.together_ms, one.together_ms);
      s.false_warnings = std::max(s.false_warnings, one.false_warnings);
      s.false_dumps = std::max(s.false_dumps, one.false_dumps);
      s.doublings = std::max(s.doublings, one.doublings);
    }
  };
  std::for_each(c.ranks.begin(), c.ranks.end(), add);
  for (const auto& later : c.later) {  // later evidence knows that the alarm was false
    std::for_each(later.begin(), later.end(), add);
  }
  std::vector<std::pair<std::string, LearnedSite>> order(all.begin(), all.end());
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    const auto longest = [](const LearnedSite& s) { return std::max(s.absent_ms, s.together_ms); };
    return longest(a.second) > longest(b.second);
  });
  PageJson shown = PageJson::array();
  for (std::size_t i = 0; i < order.size() && i < kSites; ++i) {
    const LearnedSite& s = order[i].second;
    shown.push_back({pool.text(order[i].first), s.visits, s.absent_ms, s.asleep_ms, s.together_ms,
                     s.false_warnings, s.false_dumps, s.doublings});
  }
  return {{"all", order.size()}, {"shown", std::move(shown)}};
}

// How far each host's clock is ahead of the first rank's, where operations show it.
PageJson clocks_json(const Facts& f, PagePool& pool) {
  constexpr std::size_t kHosts = 256;
  std::map<std::string, int> hosts;
  for (const int i : f.c.indices()) {
    hosts.try_emplace(f.ev(i).id.host, i);
  }
  PageJson shown = PageJson::array();
  for (const auto& [host, i] : hosts) {
    if (shown.size() < kHosts && i != 0) {
      const Offset o = clock_offset(f.c, f.slots, 0, i);
      shown.push_back({pool.text(host), f.rank(i), o.error < kUnmeasured ? o.ns / 1000 : 0,
                       o.error < kUnmeasured ? o.error / 1000 : -1});
    }
  }
  return {{"hosts", hosts.size()}, {"shown", std::move(shown)}};
}

}  // namespace

std::string page_data(const Facts& f, const Report& r, const StackTree& tree) {
  PagePool pool;
  PageJson out{{"frontiers", frontiers(f.c)},
               {"tables", tables_json(f, r, pool)},
               {"waits", page_waits(f, r, pool)},
               {"stacks", stacks_json(tree, pool)},
               {"arrivals", arrivals_json(f, pool)},
               {"options", settings_json(f.c, pool, &RankEvidence::options)},
               {"layers", settings_json(f.c, pool, &RankEvidence::layers)},
               {"losses", losses_json(f.c, pool)},
               {"deadlines", deadlines_json(f.c, pool)},
               {"clocks", clocks_json(f, pool)}};
  out["s"] = pool.take();
  return out.dump(-1, ' ', true, PageJson::error_handler_t::replace);
}

}  // namespace frtrace
