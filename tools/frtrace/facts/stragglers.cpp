// Who comes late, again and again. Arrival is measured on each rank's own clock wherever ends are
// recorded: all members of a synchronising collective leave it together, so who waited least in it
// came last. Only without ends the clocks of the ranks are compared.
#include "facts/stragglers.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <unordered_map>

#include "facts/limits.hpp"
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

// Median of the values but one.
class MedianOfOthers {
 public:
  explicit MedianOfOthers(const std::vector<double>& values) : sorted_(values) {
    std::sort(sorted_.begin(), sorted_.end());
  }
  double operator()(double own) const {
    const auto at = std::lower_bound(sorted_.begin(), sorted_.end(), own) - sorted_.begin();
    const std::size_t middle = (sorted_.size() - 1) / 2;
    return sorted_[middle < static_cast<std::size_t>(at) ? middle : middle + 1];
  }

 private:
  std::vector<double> sorted_;
};

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

// What a rank is later than the others by its own doing, at one call site.
struct Tally {
  int of = 0;
  double sum = 0;
  std::size_t record = 0;
  int group = -1;
  std::vector<double> each;
};

class Lateness {
 public:
  Lateness(const Case& c, const std::vector<Slots>& slots)
      : c_(c), whole_(whole_slots(c, slots)), ranks_(c.ranks.size()) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::vector<Record>& records = c.ranks[i]->records;
      ranks_[i].late.assign(records.size(), kUnknown);
      ranks_[i].busy.assign(records.size(), kUnknown);
      for (const Record& r : records) {
        ranks_[i].end.push_back(r.ended);
      }
    }
    for (const Slot& slot : whole_) {
      add_arrivals(slot);
    }
    add_busy_times();
    for (const Slot& slot : whole_) {
      add_tallies(slot);
    }
  }

  bool by_clocks() const { return by_clocks_; }

  std::vector<Arrivals> arrivals() {
    std::map<std::tuple<std::string, std::string, std::string>, std::size_t> known;
    std::vector<Arrivals> out;
    std::vector<std::unordered_map<int, std::size_t>> members;  // evidence -> place, of each
    for (const Slot& slot : whole_) {
      const Group& group = c_.groups[static_cast<std::size_t>(slot.group)];
      const Member& first = slot.members.front();
      const RankEvidence& e = c_.evidence_of(first.first);
      const Record& r = record(first);
      Arrivals one;
      one.group = group.desc.empty() ? group.name : group.desc;
      one.op = e.text(r.op);
      one.site = user_site(e, r.stack);
      const auto [at, fresh] =
          known.try_emplace({one.group, one.op, site_text(one.site)}, out.size());
      if (fresh) {
        out.push_back(std::move(one));
        members.emplace_back();
      }
      add(slot, out[at->second], members[at->second]);
    }
    for (Arrivals& a : out) {
      std::stable_sort(a.members.begin(), a.members.end(), [](const auto& x, const auto& y) {
        return x.last != y.last ? x.last > y.last : x.sum_s > y.sum_s;
      });
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Arrivals& a, const Arrivals& b) { return a.sum_s > b.sum_s; });
    return out;
  }

  std::vector<Straggler> stragglers() {
    std::vector<Straggler> out;
    const double share = by_clocks_ ? limits::kLateShareByClocks : limits::kLateShare;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Straggler s = sum_up(i);
      if (s.lost_s > share * s.span_s) {
        out.push_back(std::move(s));
      }
    }
    return out;
  }

 private:
  using Member = std::pair<int, std::size_t>;  // evidence, record
  struct OfRank : Times {
    std::unordered_map<std::uint64_t, Tally> tallies;  // per call site
    Time first = 0, last = 0;                          // of what is tallied
  };

  const Record& record(const Member& m) const { return c_.evidence_of(m.first).records[m.second]; }
  OfRank& own(const Member& m) { return ranks_[static_cast<std::size_t>(m.first)]; }

  void add(const Slot& slot, Arrivals& a, std::unordered_map<int, std::size_t>& places) {
    const Member* last = nullptr;
    double most = 0;
    for (const Member& m : slot.members) {
      const double late = own(m).late[m.second];
      const auto [at, fresh] = places.try_emplace(m.first, a.members.size());
      if (fresh) {
        a.members.emplace_back().evidence = m.first;
      }
      a.members[at->second].each_s.push_back(static_cast<float>(late));
      if (last == nullptr || late > most) {
        last = &m;
        most = late;
      }
    }
    ++a.slots;
    a.sum_s += most;
    std::size_t bucket = 0;
    for (double edge = 1e-6; bucket + 1 < Arrivals::kBuckets && most >= edge; edge *= 2) {
      ++bucket;
    }
    ++a.histogram[bucket];
    if (most > limits::kLateLeast_s) {
      Arrivals::Member& m = a.members[places.at(last->first)];
      ++m.last;
      m.sum_s += most;
    }
  }

  void add_arrivals(const Slot& slot) {
    bool ends = true, starts = true;
    for (const Member& m : slot.members) {
      const Record& r = record(m);
      ends = ends && r.ended >= r.time && r.ended != 0;
      starts = starts && r.started >= r.time && r.ended >= r.started;
    }
    std::vector<double> come;
    if (ends) {
      for (const Member& m : slot.members) {
        const Record& r = record(m);
        come.push_back(-seconds_between(starts ? r.started : r.time, r.ended));
      }
    } else {
      by_clocks_ = true;
      const Time zero = record(slot.members.front()).time;
      Time last = zero;
      for (const Member& m : slot.members) {
        come.push_back(seconds_between(zero, record(m).time));
        last = std::max(last, record(m).time);
      }
      for (const Member& m : slot.members) {
        own(m).end[m.second] = last;  // nobody leaves before the last has come
      }
    }
    const MedianOfOthers others(come);
    for (std::size_t k = 0; k < slot.members.size(); ++k) {
      own(slot.members[k]).late[slot.members[k].second] = come[k] - others(come[k]);
    }
  }

  using Message = std::tuple<int, Rank, Rank, std::uint64_t>;  // group, from, to, number
  Message message(std::size_t i, const Record& r) const {
    const int g = r.group < c_.group_of[i].size() ? c_.group_of[i][r.group] : -1;
    const Rank self = c_.ranks[i]->id.rank;
    Rank peer = -1;
    if (g >= 0) {
      const Group& group = c_.groups[static_cast<std::size_t>(g)];
      if (r.peer >= 0 && r.peer < static_cast<int>(group.ranks.size())) {
        peer = group.ranks[static_cast<std::size_t>(r.peer)];
      }
    }
    const bool send = r.kind == Kind::kSend;
    return {g, send ? self : peer, send ? peer : self, r.seq};
  }

  // A receive whose end is not recorded ends when its message was sent.
  void add_busy_times() {
    std::map<Message, Time> sent;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      for (const Record& r : c_.ranks[i]->records) {
        if (r.kind == Kind::kSend) {
          sent.emplace(message(i, r), r.time);
        }
      }
    }
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::vector<Record>& records = c_.ranks[i]->records;
      Time before = 0;
      for (std::size_t r = 0; r < records.size(); ++r) {
        const Record& one = records[r];
        if (one.kind != Kind::kCollective && one.kind != Kind::kSend && one.kind != Kind::kRecv) {
          continue;
        }
        const Time begin = one.started >= one.time ? one.started : one.time;
        if (before != 0) {
          ranks_[i].busy[r] = std::max(0.0, seconds_between(before, begin));
        }
        Time end = ranks_[i].end[r];
        if (end == 0 && one.kind == Kind::kRecv) {
          const auto it = sent.find(message(i, one));
          end = it == sent.end() ? 0 : it->second;
        }
        before = std::max({before, begin, end});
      }
    }
  }

  void add_tallies(const Slot& slot) {
    std::vector<double> busy;
    for (const Member& m : slot.members) {
      busy.push_back(own(m).busy[m.second]);
      if (busy.back() < 0) {
        return;
      }
    }
    const MedianOfOthers others(busy);
    for (std::size_t k = 0; k < slot.members.size(); ++k) {
      const Member& m = slot.members[k];
      const RankEvidence& e = c_.evidence_of(m.first);
      const Record& r = record(m);
      const double more_busy = busy[k] - others(busy[k]);
      const double late = own(m).late[m.second];
      const double excess = std::max(-std::abs(late), std::min(late, more_busy));
      const Site site = user_site(e, r.stack);
      const std::uint64_t key = mix(mix(mix(static_cast<std::uint64_t>(slot.group) + 3, site.file),
                                        static_cast<std::uint64_t>(site.line)),
                                    e.text(r.op));
      OfRank& rank = own(m);
      Tally& t = rank.tallies[key];
      ++t.of;
      t.sum += excess;
      t.record = m.second;
      t.group = slot.group;
      t.each.push_back(excess);
      rank.first = rank.first == 0 ? r.time : std::min(rank.first, r.time);
      rank.last = std::max(rank.last, r.time);
    }
  }

  // Over the call sites at which the rank is late most of the times; the worst one is shown.
  Straggler sum_up(std::size_t i) {
    OfRank& rank = ranks_[i];
    Straggler s;
    s.evidence = static_cast<int>(i);
    s.span_s = rank.first == 0 ? 0 : seconds_between(rank.first, rank.last);
    double worst = 0;
    for (auto& [key, t] : rank.tallies) {
      const double floor = std::max(limits::kLateLeast_s, limits::kLateOfStep * s.span_s / t.of);
      const int late = static_cast<int>(
          std::count_if(t.each.begin(), t.each.end(), [&](double x) { return x > floor; }));
      if (t.of < limits::kLateAgain || late < limits::kLateMostly * t.of || t.sum <= 0) {
        continue;
      }
      s.lost_s += t.sum;
      if (t.sum > worst) {
        worst = t.sum;
        s.late = late;
        s.of = t.of;
        s.record = t.record;
        s.group = t.group;
        std::nth_element(t.each.begin(), t.each.begin() + t.of / 2, t.each.end());
        s.typical_s = t.each[static_cast<std::size_t>(t.of / 2)];
      }
    }
    return s;
  }

  const Case& c_;
  std::vector<Slot> whole_;
  std::vector<OfRank> ranks_;
  bool by_clocks_ = false;
};

}  // namespace

std::vector<Straggler> stragglers(const Case& c, const std::vector<Slots>& slots, bool& by_clocks) {
  Lateness all(c, slots);
  by_clocks = all.by_clocks();
  return all.stragglers();
}

std::vector<Arrivals> arrivals(const Case& c, const std::vector<Slots>& slots, bool& by_clocks) {
  Lateness all(c, slots);
  by_clocks = all.by_clocks();
  return all.arrivals();
}

}  // namespace frtrace
