// page_waits.cpp - the wait graph by classes of ranks in the same situation, and the last
// operations of one rank of each class, by time.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "model/contains.hpp"
#include "model/operation.hpp"
#include "report/page_pool.hpp"
#include "words/report.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

using WaitJson = nlohmann::json;

enum WaitRole { kWaits, kAbsent, kUnknownRank, kStaleRank, kBusy, kLaggingRank, kDiffers };
using Standing = std::vector<std::pair<std::size_t, int>>;  // (slot, WaitRole), sorted

// An operation that ranks wait in, or the same operation of all groups with one description. All
// sends of such groups are one slot, and all receives: a pipeline has many at a time.
struct WaitSlot {
  std::string text;
  std::string op, title, family;               // title: of the first of `groups`
  std::uint64_t first = UINT64_MAX, last = 0;  // seq
  int group = -1;
  std::set<int> groups;
  double seconds = 0;
  std::size_t waits = 0, operations = 0;

  std::string words() const {
    const std::string& of = groups.size() == 1 ? title : family;
    return operations == 1 ? text
           : first == last ? fmt::format("{} #{} of {}", op, first, of)
                           : fmt::format("{} #{}-{} of {}", op, first, last, of);
  }
};

struct WaitClasses {
  std::vector<WaitSlot> slots;
  std::vector<std::pair<Standing, std::vector<Rank>>> classes;  // blamed, then largest first
};

// The members issued different operations there.
bool differ(const Facts& f, const Pending& p) {
  return p.kind == Kind::kCollective &&
         std::any_of(f.divergences.begin(), f.divergences.end(),
                     [&](const Divergence& d) { return d.group == p.group && d.seq == p.seq; });
}

std::map<Rank, Standing> standings(const Facts& f, const Report& report,
                                   std::vector<WaitSlot>& slots) {
  const Names names(f);
  std::map<std::tuple<std::string, std::string, std::uint64_t, int>, std::size_t> known;
  std::map<Rank, Standing> out;
  for (const Pending& p : f.graph.pending) {
    if (p.passed) {
      continue;
    }
    const Group& g = f.group(p.group);
    const std::string op = names.op(p);
    const std::string family = g.desc.empty() ? g.name : g.desc;
    const bool collective = p.kind == Kind::kCollective;
    const auto [at, fresh] =
        known.try_emplace({op, family, collective ? p.seq : 0, collective ? 0 : 1}, slots.size());
    if (fresh) {
      slots.emplace_back();
      slots.back().text = names.pending(p);
      slots.back().op = op;
      slots.back().title = g.title();
      slots.back().family = family;
      slots.back().group = p.group;
    }
    WaitSlot& slot = slots[at->second];
    slot.first = std::min(slot.first, p.seq);
    slot.last = std::max(slot.last, p.seq);
    ++slot.operations;
    slot.groups.insert(p.group);
    slot.seconds = std::max(slot.seconds, p.seconds());
    slot.waits += p.waits.size();
    const auto stand = [&](Rank rank, WaitRole role) { out[rank].emplace_back(at->second, role); };
    const bool differing = differ(f, p);
    for (const Wait& w : p.waits) {
      const Rank rank = f.rank(w.evidence);
      if (contains(p.busy, w.evidence)) {
        continue;  // only the operation that it waits in first counts
      }
      stand(rank, differing && contains(report.ranks, rank) ? kDiffers : kWaits);
    }
    for (const auto& [list, role] :
         {std::pair{&p.absent, kAbsent}, std::pair{&p.stale, kStaleRank}, std::pair{&p.busy, kBusy},
          std::pair{&p.lagging, kLaggingRank}}) {
      for (const int i : *list) {
        stand(f.rank(i), role);
      }
    }
    for (const Rank rank : p.unknown) {
      stand(rank, kUnknownRank);
    }
  }
  return out;
}

WaitClasses wait_classes(const Facts& f, const Report& r) {
  WaitClasses out;
  std::map<std::pair<bool, Standing>, std::vector<Rank>> classes;
  for (auto& [rank, standing] : standings(f, r, out.slots)) {
    std::sort(standing.begin(), standing.end());
    standing.erase(std::unique(standing.begin(), standing.end()), standing.end());
    classes[{!contains(r.ranks, rank), standing}].push_back(rank);
  }
  for (auto& [key, ranks] : classes) {
    out.classes.emplace_back(key.second, std::move(ranks));
  }
  std::stable_sort(out.classes.begin(), out.classes.end(), [&](const auto& a, const auto& b) {
    const bool first = contains(r.ranks, a.second.front()),
               second = contains(r.ranks, b.second.front());
    return first != second ? first : a.second.size() > b.second.size();
  });
  return out;
}

WaitJson graph_json(const WaitClasses& all, PagePool& pool) {
  constexpr std::size_t kClasses = 24, kSlots = 16;
  std::vector<std::size_t> order(all.slots.size());
  for (std::size_t k = 0; k < order.size(); ++k) {
    order[k] = k;
  }
  // Operations related to the first classes, those of blamed ranks, come first.
  std::vector<std::size_t> near(all.slots.size(), SIZE_MAX);
  for (std::size_t k = 0; k < all.classes.size(); ++k) {
    for (const auto& [slot, role] : all.classes[k].first) {
      near[slot] = std::min(near[slot], std::min<std::size_t>(k, 3));
    }
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return near[a] != near[b] ? near[a] < near[b] : all.slots[a].waits > all.slots[b].waits;
  });
  std::map<std::size_t, std::size_t> place;
  WaitJson slots = WaitJson::array(), classes = WaitJson::array(), edges = WaitJson::array();
  for (std::size_t k = 0; k < order.size() && k < kSlots; ++k) {
    const WaitSlot& s = all.slots[order[k]];
    place[order[k]] = k;
    slots.push_back({{"t", pool.text(s.words())},
                     {"n", s.groups.size()},
                     {"of", s.operations},
                     {"g", s.group},
                     {"s", s.seconds}});
  }
  for (std::size_t k = 0; k < all.classes.size() && k < kClasses; ++k) {
    classes.push_back({pool.ranks(all.classes[k].second), all.classes[k].second.size()});
    for (const auto& [slot, role] : all.classes[k].first) {
      if (const auto at = place.find(slot); at != place.end()) {
        edges.push_back({k, at->second, role});
      }
    }
  }
  return {{"slots", std::move(slots)},
          {"classes", std::move(classes)},
          {"edges", std::move(edges)},
          {"all_slots", all.slots.size()},
          {"all_classes", all.classes.size()}};
}

// Ranks that have a row in the timeline, each with the ranks that it represents.
std::vector<std::pair<Rank, std::vector<Rank>>> drawn(const Facts& f, const Report& r,
                                                      const WaitClasses& all) {
  constexpr std::size_t kBlamed = 8, kRows = 32, kSpread = 8;
  std::vector<std::pair<Rank, std::vector<Rank>>> out;
  std::set<Rank> there;
  const auto add = [&](Rank rank, const std::vector<Rank>& for_ranks) {
    if (out.size() < kRows && f.c.index.contains(rank) && there.insert(rank).second) {
      out.emplace_back(rank, for_ranks);
    }
  };
  for (std::size_t k = 0; k < r.ranks.size() && k < kBlamed; ++k) {
    add(r.ranks[k], {r.ranks[k]});
  }
  for (const auto& [standing, ranks] : all.classes) {
    for (const Rank rank : ranks) {
      if (f.c.index.contains(rank)) {
        add(rank, ranks);
        break;
      }
    }
  }
  const std::size_t n = f.c.ranks.size();
  for (std::size_t k = 0; all.classes.empty() && k < kSpread && n != 0; ++k) {
    const Rank rank = f.c.ranks[k * n / kSpread]->id.rank;
    add(rank, {rank});
  }
  return out;
}

bool is_over(State s) {
  return s == State::kCompleted || s == State::kFailed || s == State::kReleased;
}

WaitJson row_json(const Facts& f, int i, Time shift, Time zero, PagePool& pool) {
  constexpr std::size_t kRecords = 160;
  const RankEvidence& e = f.ev(i);
  std::vector<const Record*> last;
  for (auto r = e.records.rbegin(); r != e.records.rend() && last.size() < kRecords; ++r) {
    if (communicates(*r) && plausible(r->time) != 0) {
      last.push_back(&*r);
    }
  }
  WaitJson out = WaitJson::array();
  for (auto at = last.rbegin(); at != last.rend(); ++at) {
    const Record& r = **at;
    const int g = r.group < f.c.group_of[idx(i)].size() ? f.c.group_of[idx(i)][r.group] : -1;
    // -1: not over; -2: over at an unknown time
    const Time length = plausible(r.ended) >= r.time ? (r.ended - r.time) / 1000
                        : is_over(r.state)           ? -2
                                                     : -1;
    const Time begin = plausible(r.started) >= r.time ? (r.started - r.time) / 1000 : -1;
    out.push_back({(r.time - shift - zero) / 1000, length, begin, pool.text(e.text(r.op)), g, r.seq,
                   pool.text(fr::word(r.state)), pool.text(site_text(user_site(e, r.stack)))});
  }
  return out;
}

WaitJson timeline_json(const Facts& f, const Report& r, const WaitClasses& all, PagePool& pool) {
  const auto rows = drawn(f, r, all);
  WaitJson out = WaitJson::array();
  Time zero = 0;
  std::vector<Time> shifts;
  const int reference = rows.empty() ? -1 : f.c.index.at(rows.front().first);
  for (const auto& [rank, for_ranks] : rows) {
    const int i = f.c.index.at(rank);
    const bool other = f.ev(i).id.host != f.ev(reference).id.host;
    const Offset o = other ? clock_offset(f.c, f.slots, reference, i) : Offset{};
    constexpr Time kMost = Time{1} << 60;  // of a clock that was never set: sums must not overflow
    shifts.push_back(o.error < kUnmeasured && o.ns < kMost && o.ns > -kMost ? o.ns : 0);
    for (const Record& record : f.ev(i).records) {
      const Time t = plausible(record.time);
      zero = t != 0 && (zero == 0 || t - shifts.back() < zero) ? t - shifts.back() : zero;
    }
  }
  for (std::size_t k = 0; k < rows.size(); ++k) {
    const int i = f.c.index.at(rows[k].first);
    Time written = plausible(f.ev(i).written), ended = plausible(f.exit(i).time);
    if (f.ev(i).process_gone && ended == 0) {  // no exit was recorded: the last sign of life
      std::swap(written, ended);
    }
    const auto mark = [&](Time t) { return t == 0 ? -1 : (t - shifts[k] - zero) / 1000; };
    out.push_back({{"rank", rows[k].first},
                   {"for", pool.ranks(rows[k].second)},
                   {"n", rows[k].second.size()},
                   {"warn", mark(plausible(f.ev(i).id.warned))},
                   {"dump", mark(written)},
                   {"exit", mark(ended)},
                   {"ops", row_json(f, i, shifts[k], zero, pool)}});
  }
  return {{"zero_us", zero / 1000}, {"rows", std::move(out)}};
}

}  // namespace

nlohmann::json page_waits(const Facts& f, const Report& r, PagePool& pool) {
  const WaitClasses all = wait_classes(f, r);
  return {{"graph", graph_json(all, pool)}, {"timeline", timeline_json(f, r, all, pool)}};
}

}  // namespace frtrace
