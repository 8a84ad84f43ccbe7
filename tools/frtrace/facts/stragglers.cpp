// Who comes late, again and again. Arrival is measured on each rank's own clock wherever ends are
// recorded: all members of a synchronising collective leave it together, so who waited least in it
// came last. Only without ends the clocks of the ranks are compared.
#include "facts/stragglers.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "model/hash.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

constexpr double kUnknown = -1;

// Of one rank, parallel to its records. Seconds; kUnknown where not measured.
struct Times {
  std::vector<double> late;  // after the median of the other members
  std::vector<double> busy;  // host time between the end of what came before and this
  std::vector<Time> end;     // of the operation, on the rank's clock; 0 unknown
};

// Median of the values but one; values are few.
double median_but(std::vector<double> values, std::size_t skip) {
  values.erase(values.begin() + static_cast<std::ptrdiff_t>(skip));
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

struct Slot {
  int group;
  std::vector<std::pair<int, std::size_t>> members;  // evidence, record
};

// Slots that all members with evidence still hold and have completed.
std::vector<Slot> whole_slots(const Case& c, const std::vector<Slots>& slots) {
  std::vector<Slot> out;
  for (std::size_t g = 0; g < c.groups.size(); ++g) {
    const Group& group = c.groups[g];
    std::size_t present = 0, shortest = SIZE_MAX, shortest_member = 0;
    for (std::size_t m = 0; m < group.ranks.size(); ++m) {
      if (group.evidence[m] >= 0) {
        ++present;
        if (slots[g].records[m].size() < shortest) {
          shortest = slots[g].records[m].size();
          shortest_member = m;
        }
      }
    }
    if (present < 2 || shortest == 0) {
      continue;
    }
    const RankEvidence& e = c.evidence_of(group.evidence[shortest_member]);
    for (const std::size_t r : slots[g].records[shortest_member]) {
      Slot slot{static_cast<int>(g), {}};
      for (std::size_t m = 0; m < group.ranks.size(); ++m) {
        if (group.evidence[m] < 0) {
          continue;
        }
        const Record* record = slots[g].at(c, group, m, e.records[r].seq);
        const RankEvidence& own = c.evidence_of(group.evidence[m]);
        if (record == nullptr || record->time == 0 || !meets_all(own.text(record->op))) {
          break;
        }
        slot.members.emplace_back(group.evidence[m],
                                  static_cast<std::size_t>(record - own.records.data()));
      }
      if (slot.members.size() == present) {
        out.push_back(std::move(slot));
      }
    }
  }
  return out;
}

}  // namespace

std::vector<Straggler> stragglers(const Case& c, const std::vector<Slots>& slots, bool& by_clocks) {
  by_clocks = false;
  std::vector<Times> times(c.ranks.size());
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    const std::size_t n = c.ranks[i]->records.size();
    times[i].late.assign(n, kUnknown);
    times[i].busy.assign(n, kUnknown);
    times[i].end.assign(n, 0);
    for (std::size_t r = 0; r < n; ++r) {
      times[i].end[r] = c.ranks[i]->records[r].ended;
    }
  }
  const std::vector<Slot> whole = whole_slots(c, slots);
  const auto of = [&](const std::pair<int, std::size_t>& m) -> const Record& {
    return c.evidence_of(m.first).records[m.second];
  };
  const auto own = [&](const std::pair<int, std::size_t>& m) -> Times& {
    return times[static_cast<std::size_t>(m.first)];
  };

  // Arrival in each slot.
  std::vector<double> come;
  for (const Slot& slot : whole) {
    bool ends = true, starts = true;
    for (const auto& m : slot.members) {
      const Record& r = of(m);
      ends = ends && r.ended >= r.time && r.ended != 0;
      starts = starts && r.started >= r.time && r.ended >= r.started;
    }
    come.clear();
    if (ends) {
      for (const auto& m : slot.members) {
        const Record& r = of(m);
        come.push_back(-seconds_between(starts ? r.started : r.time, r.ended));
      }
    } else {
      by_clocks = true;
      const Time zero = of(slot.members.front()).time;
      Time last = zero;
      for (const auto& m : slot.members) {
        come.push_back(seconds_between(zero, of(m).time));
        last = std::max(last, of(m).time);
      }
      for (const auto& m : slot.members) {
        own(m).end[m.second] = last;  // nobody leaves before the last has come
      }
    }
    for (std::size_t k = 0; k < slot.members.size(); ++k) {
      own(slot.members[k]).late[slot.members[k].second] = come[k] - median_but(come, k);
    }
  }

  // A receive whose end is not recorded ends when its message was sent.
  std::map<std::tuple<int, Rank, Rank, std::uint64_t>, Time> sent;
  const auto message = [&](std::size_t i, const Record& r) {
    const int g = r.group < c.group_of[i].size() ? c.group_of[i][r.group] : -1;
    const Rank self = c.ranks[i]->id.rank;
    Rank peer = -1;
    if (g >= 0) {
      const Group& group = c.groups[static_cast<std::size_t>(g)];
      if (r.peer >= 0 && r.peer < static_cast<int>(group.ranks.size())) {
        peer = group.ranks[static_cast<std::size_t>(r.peer)];
      }
    }
    const bool send = r.kind == Kind::kSend;
    return std::tuple(g, send ? self : peer, send ? peer : self, r.seq);
  };
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    for (const Record& r : c.ranks[i]->records) {
      if (r.kind == Kind::kSend) {
        sent.emplace(message(i, r), r.time);
      }
    }
  }
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    const RankEvidence& e = *c.ranks[i];
    Time before = 0;
    for (std::size_t r = 0; r < e.records.size(); ++r) {
      const Record& record = e.records[r];
      if (record.kind != Kind::kCollective && record.kind != Kind::kSend &&
          record.kind != Kind::kRecv) {
        continue;
      }
      const Time begin = record.started >= record.time ? record.started : record.time;
      if (before != 0) {
        times[i].busy[r] = std::max(0.0, seconds_between(before, begin));
      }
      Time end = times[i].end[r];
      if (end == 0 && record.kind == Kind::kRecv) {
        const auto it = sent.find(message(i, record));
        end = it == sent.end() ? 0 : it->second;
      }
      before = std::max({before, begin, end});
    }
  }

  // What a rank is later than the others by its own doing, per call site.
  struct Tally {
    int of = 0, late = 0;
    double sum = 0;
    std::size_t record = 0;
    int group = -1;
    std::vector<double> each;
  };
  std::vector<std::unordered_map<std::uint64_t, Tally>> tallies(c.ranks.size());
  std::vector<Time> first(c.ranks.size(), 0), last(c.ranks.size(), 0);
  std::vector<double> busy;
  for (const Slot& slot : whole) {
    busy.clear();
    bool known = true;
    for (const auto& m : slot.members) {
      busy.push_back(own(m).busy[m.second]);
      known = known && busy.back() >= 0;
    }
    if (!known) {
      continue;
    }
    for (std::size_t k = 0; k < slot.members.size(); ++k) {
      const auto& m = slot.members[k];
      const std::size_t i = static_cast<std::size_t>(m.first);
      const Record& r = of(m);
      const double more_busy = busy[k] - median_but(busy, k);
      const double late = own(m).late[m.second];
      const double excess = std::max(-std::abs(late), std::min(late, more_busy));
      const Site site = user_site(*c.ranks[i], r.stack);
      const std::uint64_t key = mix(mix(mix(static_cast<std::uint64_t>(slot.group) + 3, site.file),
                                        static_cast<std::uint64_t>(site.line)),
                                    c.ranks[i]->text(r.op));
      Tally& t = tallies[i][key];
      ++t.of;
      t.sum += excess;
      t.record = m.second;
      t.group = slot.group;
      t.each.push_back(excess);
      first[i] = first[i] == 0 ? r.time : std::min(first[i], r.time);
      last[i] = std::max(last[i], r.time);
    }
  }
  constexpr int kAgain = 5;
  constexpr double kMostly = 0.6, kLeast_s = 0.001, kShare = 0.1, kShareByClocks = 0.15;
  std::vector<Straggler> out;
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    const double span = first[i] == 0 ? 0 : seconds_between(first[i], last[i]);
    if (span <= 0) {
      continue;
    }
    Straggler s;
    s.evidence = static_cast<int>(i);
    s.span_s = span;
    double worst = 0;
    for (auto& [key, t] : tallies[i]) {
      const double floor = std::max(kLeast_s, 0.02 * span / t.of);
      t.late = static_cast<int>(
          std::count_if(t.each.begin(), t.each.end(), [&](double x) { return x > floor; }));
      if (t.of < kAgain || t.late < kMostly * t.of || t.sum <= 0) {
        continue;
      }
      s.lost_s += t.sum;
      if (t.sum > worst) {
        worst = t.sum;
        s.late = t.late;
        s.of = t.of;
        s.record = t.record;
        s.group = t.group;
        std::nth_element(t.each.begin(), t.each.begin() + t.of / 2, t.each.end());
        s.typical_s = t.each[static_cast<std::size_t>(t.of / 2)];
      }
    }
    if (s.lost_s > (by_clocks ? kShareByClocks : kShare) * span) {
      out.push_back(s);
    }
  }
  return out;
}

}  // namespace frtrace
