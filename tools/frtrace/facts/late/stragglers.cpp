// Finds ranks that are late repeatedly. If ends are recorded, arrival is measured on each rank's
// own clock: all members of a synchronising collective leave it together, so the member that waited
// least in it came last. The clocks of the ranks are compared only without ends.
#include "facts/late/stragglers.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "facts/limits.hpp"
#include "model/hash.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

constexpr double kUnknown = -1;

// Measurements of one record, in seconds; kUnknown: not known.
struct Call {
  double late = kUnknown;   // after the median of the other members
  double busy = kUnknown;   // from the end of the previous operation to this one
  double host = kUnknown;   // part of `busy` until it was issued
  std::uint64_t site = 0;   // hash of call site and operation
  std::uint64_t place = 0;  // hash of that and of the previous one
  Time end = 0;             // of the operation, on the rank's clock; 0 unknown
};

// The calls of one rank at one call site.
struct Tally {
  int group = -1;
  std::uint64_t site = 0;  // whatever operation came before
  std::size_t members = 0;
  bool alike = true;  // all members issued the same operations before
  bool starts = true;
  std::vector<LateCall> each;
};

using Tallies = std::unordered_map<std::uint64_t, Tally>;

// A member's own time before one call, in seconds, and the host's part of it.
struct Own {
  double busy = 0, host = 0;
  std::uint64_t did = 0;  // hash of the operations issued in that time
};

class Lateness {
 public:
  Lateness(const Case& c, const std::vector<Slots>& slots)
      : c_(c), whole_(whole_slots(c, slots)), ranks_(c.ranks.size()) {
    keep_ended();
    starts_ = starts_tell();
    ends_within_ = ends_within();
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      add_calls(i);
    }
    for (const WholeSlot& slot : whole_) {
      add_arrivals(slot);
    }
    add_busy_times();
    std::vector<std::vector<std::size_t>> before(ranks_.size());  // per group, one past its last
    for (const WholeSlot& slot : whole_) {
      add_tallies(slot);
    }
    for (const WholeSlot& slot : whole_) {
      add_over_group(slot, before);
    }
    for (const OfRank& rank : ranks_) {
      series_ += static_cast<double>(rank.tallies.size() + rank.over_group.size());
    }
  }

  bool by_clocks() const { return by_clocks_; }
  double ends_within_s() const { return ends_within_; }
  std::vector<LateSlot> late_slots() {
    std::vector<LateSlot> out;
    for (const WholeSlot& slot : whole_) {
      LateSlot& one = out.emplace_back(slot);
      for (const Member& m : slot.members) {
        one.late_s.push_back(call(m).late);
      }
    }
    return out;
  }

  // With `over_group`: by the time since the previous operation of the same group. A node's ranks
  // are late together, so none of them is later than all others: a node needs no proof against
  // chance.
  std::vector<Straggler> late(bool over_group, bool proof = false) const {
    std::vector<Straggler> out;
    const double noticed_s = by_clocks_ ? limits::kLateByClocks_s : limits::kLate_s;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Straggler s = sum_up(i, over_group ? ranks_[i].over_group : ranks_[i].tallies, proof);
      if (s.sites.empty() || s.worst().typical_s < noticed_s) {
        continue;
      }
      const bool rare = s.worst().pattern == LatePattern::kNowAndThen;
      if (s.lost_s > (rare ? limits::kRareShare : limits::kLateShare) * s.span_s) {
        for (LateSite& site : s.sites) {
          add_step_changes(i, site);
        }
        out.push_back(std::move(s));
      }
    }
    return proof || out.empty() || !late_node(c_, out).empty() ? out : late(over_group, true);
  }

 private:
  using Member = std::pair<int, std::size_t>;  // evidence, record
  struct OfRank {
    std::vector<Call> calls;   // of its records
    Tallies tallies;           // by the time since the previous operation
    Tallies over_group;        // since the previous operation of the same group
    Time first = 0, last = 0;  // of the tallied operations
    std::size_t round = 1;     // records after which its operations repeat
  };

  const Record& record(const Member& m) const { return c_.evidence_of(m.first).records[m.second]; }
  Call& call(const Member& m) { return ranks_[idx(m.first)].calls[m.second]; }

  // In a running job a few operations have not ended yet: drops them. If most have no end, clocks
  // must do.
  void keep_ended() {
    const auto open = [&](const WholeSlot& slot) {
      return std::ranges::any_of(slot.members,
                                 [&](const Member& m) { return record(m).ended == 0; });
    };
    const auto n = std::ranges::count_if(whole_, open);
    if (2 * n < static_cast<std::ptrdiff_t>(whole_.size())) {
      std::erase_if(whole_, open);
    }
  }

  // PyTorch notices the start of an operation when it finds its end. Such starts tell nothing.
  bool starts_tell() const {
    std::ptrdiff_t told = 0;  // above 0: more starts tell than not
    for (const WholeSlot& slot : whole_) {
      for (const Member& m : slot.members) {
        told += record(m).started != 0 && record(m).started < record(m).ended ? 1 : -1;
      }
    }
    return told > 0;
  }
  // Accuracy of recorded ends. All members leave an operation together, so it shows in how the ends
  // on two ranks move against each other. A thread of PyTorch's looks for ends only now and then.
  double ends_within() const {
    std::map<std::pair<int, int>, double> before;  // per group and rank
    std::vector<double> off{0};
    for (const WholeSlot& slot : whole_) {
      const Time first = record(slot.members.front()).ended;
      for (const Member& m : slot.members) {
        const double apart = seconds_between(first, record(m).ended);
        double& last = before.try_emplace({slot.group, m.first}, apart).first->second;
        off.push_back(std::abs(apart - std::exchange(last, apart)));
      }
    }
    const auto at = off.begin() + static_cast<std::ptrdiff_t>(off.size() * 19 / 20);
    std::nth_element(off.begin(), at, off.end());
    return *at;
  }

  // A call site is distinguished by the operation before it: the first layer of an iteration, which
  // waits for its data, differs from the other layers.
  void add_calls(std::size_t i) {
    const RankEvidence& e = *c_.ranks[i];
    std::unordered_map<std::uint64_t, std::uint64_t> known;  // by stack and operation
    std::vector<std::uint64_t> sizes;
    std::uint64_t before = 0;
    ranks_[i].calls.reserve(e.records.size());
    for (const Record& r : e.records) {
      Call& one = ranks_[i].calls.emplace_back();
      one.end = r.ended;
      sizes.push_back(0);
      if (!communicates(r)) {
        continue;
      }
      const auto [it, fresh] = known.try_emplace(std::uint64_t{r.stack} << 32 | r.op, 0);
      if (fresh) {
        const Site site = user_site(e, r.stack);
        it->second =
            mix(mix(mix(7, site.file), static_cast<std::uint64_t>(site.line)), e.text(r.op));
      }
      one.site = it->second;
      one.place = mix(one.site, before);
      before = one.site;
      sizes.back() = mix(before, e.text(r.op).starts_with("all_to_all") ? 0 : r.in_numel);
    }
    ranks_[i].round = period(sizes);
  }

  void add_arrivals(const WholeSlot& slot) {
    bool ends = true, starts = starts_;
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
        call(m).end = last;  // no member leaves before the last has come
      }
    }
    const std::vector<double> usual = medians_but(come);
    for (std::size_t k = 0; k < slot.members.size(); ++k) {
      call(slot.members[k]).late = come[k] - usual[k];
    }
  }

  using Message = std::tuple<int, Rank, Rank, std::uint64_t>;  // group, from, to, number
  Message message(std::size_t i, const Record& r) const {
    const int g = c_.group_at(static_cast<int>(i), r.group);
    const Rank self = c_.ranks[i]->id.rank;
    const std::size_t members = g < 0 ? 0 : c_.groups[idx(g)].ranks.size();
    const bool known = r.peer >= 0 && r.peer < static_cast<int>(members);
    const Rank peer = known ? c_.groups[idx(g)].ranks[idx(r.peer)] : -1;
    const bool send = r.kind == Kind::kSend;
    return {g, send ? self : peer, send ? peer : self, r.seq};
  }

  // A receive without a recorded end ends when its message was sent.
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
        if (!communicates(one)) {
          continue;
        }
        Call& own = ranks_[i].calls[r];
        const Time begin = starts_ ? std::max(one.started, one.time) : one.time;
        if (before != 0) {
          own.busy = std::max(0.0, seconds_between(before, begin));
          own.host = std::max(0.0, seconds_between(before, one.time));
        }
        Time end = own.end;
        if (end == 0 && one.kind == Kind::kRecv) {
          const auto it = sent.find(message(i, one));
          end = it == sent.end() ? 0 : it->second;
        }
        before = std::max({before, begin, end});
      }
    }
  }

  void add_tallies(const WholeSlot& slot) {
    std::vector<Own> each;
    for (const Member& m : slot.members) {
      each.push_back({call(m).busy, call(m).host, call(m).place});
      if (each.back().busy < 0) {
        return;
      }
    }
    tally(slot, each, &OfRank::tallies);
  }

  // fr's rings keep collectives longer than sends and receives: time spent in an overwritten
  // message is not the rank's own. PyTorch's rings forget in order, and batches have numbers, too.
  bool none_lost(int evidence, std::size_t first, std::size_t last) const {
    const RankEvidence& e = c_.evidence_of(evidence);
    return !e.format.empty() || e.records[last].ticket - e.records[first].ticket == last - first;
  }

  // Ranks that are late together excuse each other in the groups that they share. The time that
  // each was busy since the group last met shows that it did not only wait.
  void add_over_group(const WholeSlot& slot, std::vector<std::vector<std::size_t>>& before) {
    std::vector<Own> each;
    bool whole = true;
    for (const Member& m : slot.members) {
      auto& last = before[idx(m.first)];
      last.resize(c_.groups.size(), 0);
      std::size_t& from = last[idx(slot.group)];
      Own sum;
      whole = whole && from != 0 && none_lost(m.first, from - 1, m.second);
      for (std::size_t r = from; r <= m.second; ++r) {
        const Call& one = call({m.first, r});
        sum.busy += std::max(0.0, one.busy);
        sum.host += std::max(0.0, one.host);
        sum.did = mix(sum.did, one.site);
      }
      each.push_back(sum);
      from = m.second + 1;
    }
    if (whole) {
      tally(slot, each, &OfRank::over_group);
    }
  }

  void tally(const WholeSlot& slot, const std::vector<Own>& each, Tallies OfRank::* where) {
    std::vector<double> busy, host, device, late, excess;
    bool starts = starts_, alike = true;
    for (std::size_t k = 0; k < each.size(); ++k) {
      const Member& m = slot.members[k];
      busy.push_back(each[k].busy);
      host.push_back(each[k].host);
      device.push_back(each[k].busy - each[k].host);
      late.push_back(call(m).late);
      alike = alike && each[k].did == each[0].did;
      starts = starts && record(m).started >= record(m).time;
    }
    const auto last = static_cast<std::size_t>(std::ranges::max_element(late) - late.begin());
    const std::vector<double> usual = medians_but(busy), usual_host = medians_but(host),
                              usual_device = medians_but(device);
    for (std::size_t k = 0; k < slot.members.size(); ++k) {
      const double own_s = busy[k] - usual[k];
      // All members had the same time since the group last met. While one member was busy for
      // longer, the others waited, perhaps in operations of other groups.
      excess.push_back(where == &OfRank::over_group
                           ? own_s
                           : std::max(-std::abs(late[k]), std::min(late[k], own_s)));
    }
    std::vector<double> order = excess;
    std::ranges::sort(order);
    const auto before = [&](double s) {
      return static_cast<float>(std::lower_bound(order.begin(), order.end(), s) - order.begin());
    };
    for (std::size_t k = 0; k < slot.members.size(); ++k) {
      const Member& m = slot.members[k];
      // A member that comes at the same time counts as half before and half after; the rank itself,
      // as neither.
      const float twice =
          before(excess[k] - limits::kLateLeast_s) + before(excess[k] + limits::kLateLeast_s) - 1;
      const Time t_at = at(idx(m.first), m.second);
      OfRank& own = ranks_[idx(m.first)];
      own.first = own.first == 0 ? t_at : std::min(own.first, t_at);
      own.last = std::max(own.last, t_at);
      const auto group = static_cast<std::uint64_t>(slot.group) + 3;
      Tally& t = (own.*where)[mix(call(m).place, group)];
      t.group = slot.group;
      t.site = mix(call(m).site, group);
      t.members = slot.members.size();
      t.alike = t.alike && alike;
      t.starts = t.starts && starts;
      t.each.push_back({static_cast<std::uint32_t>(m.second), static_cast<float>(excess[k]),
                        static_cast<float>(order.back()),
                        twice / static_cast<float>(2 * order.size() - 2),
                        static_cast<float>(host[k] - usual_host[k]),
                        static_cast<float>(device[k] - usual_device[k]), k == last && late[k] > 0});
    }
  }

  // Hosts run ahead of their devices, so an operation is dated by its start or end.
  Time at(std::size_t i, std::size_t r) const {
    const Record& one = c_.ranks[i]->records[r];
    return std::max({one.time, one.started, ranks_[i].calls[r].end});
  }
  double usual_gap(std::size_t i, std::size_t calls) const {
    return seconds_between(ranks_[i].first, ranks_[i].last) / static_cast<double>(calls);
  }

  // By call site alone: a rare delay may come after any operation.
  static Tallies by_site(const Tallies& tallies) {
    Tallies out;
    for (const auto& [key, t] : tallies) {
      Tally& all = out[t.site];
      all.each.insert(all.each.end(), t.each.begin(), t.each.end());
      all = {t.group, t.site, t.members, t.alike, t.starts, std::move(all.each)};
    }
    for (auto& [key, t] : out) {
      std::ranges::sort(t.each,
                        [](const LateCall& a, const LateCall& b) { return a.record < b.record; });
    }
    return out;
  }

  // Sums up the call sites at which the rank is late repeatedly.
  Straggler sum_up(std::size_t i, const Tallies& tallies, bool proof) const {
    std::vector<LateSite> mostly, rare;
    bool proven = !proof;
    for (const auto& [key, t] : tallies) {
      const double floor =
          std::max(limits::kLateLeast_s, limits::kLateOfStep * usual_gap(i, t.each.size()));
      if (const auto found = late_mostly(t.each, floor)) {
        proven = proven || !chance(i, t, found->since);
        mostly.push_back(site_of(t, *found));
      }
    }
    if (!mostly.empty() && proven) {
      return of_sites(i, std::move(mostly));
    }
    for (const auto& [key, t] : by_site(tallies)) {
      const double floor = std::max({limits::kLate_s, ends_within_, usual_gap(i, t.each.size())});
      if (const auto found = late_now_and_then(t.each, floor, ranks_[i].round, t.members)) {
        rare.push_back(site_of(t, *found));
      }
    }
    // Its rare pauses prove that the rank is late. The sites at which it is mostly late count if
    // they cost enough.
    Straggler s = of_sites(i, rare.empty() ? std::vector<LateSite>() : std::move(mostly));
    return s.lost_s > limits::kLateShare * s.span_s ? s : of_sites(i, std::move(rare));
  }

  Straggler of_sites(std::size_t i, std::vector<LateSite> sites) const {
    Straggler s;
    s.evidence = static_cast<int>(i);
    s.sites = std::move(sites);
    double host = 0, device = 0;
    std::unordered_map<int, double> lost;
    Time since = ranks_[i].last;
    for (const LateSite& site : s.sites) {
      host += site.host_s;
      device += site.device_s;
      // The same seconds are lost in other groups, too.
      lost[site.group] += site.lost_s;
      s.lost_s = std::max(s.lost_s, lost[site.group]);
      const bool all = site.since_kept || site.pattern == LatePattern::kNowAndThen;
      since = std::min(since, all ? ranks_[i].first : at(i, site.first));
    }
    s.span_s = seconds_between(since, ranks_[i].last);
    s.by = whose(host, device);
    std::ranges::sort(s.sites, [](const LateSite& a, const LateSite& b) {
      return std::tie(b.lost_s, a.record) < std::tie(a.lost_s, b.record);
    });
    return s;
  }

  // Among all series and their starts, chance may make some rank as late as this one.
  bool chance(std::size_t i, const Tally& t, std::size_t since) const {
    const double tries = series_ * static_cast<double>(since == 0 ? 1 : t.each.size());
    return !t.alike || log_chance(t.each, since, -1, ranks_[i].round, t.members) + std::log(tries) >
                           std::log(limits::kLateChance);
  }

  static LateSite site_of(const Tally& t, const LateSeries& found) {
    LateSite site;
    static_cast<LateSeries&>(site) = found;
    site.group = t.group;
    site.record = t.each.back().record;
    site.first = t.each[found.since].record;
    site.since_kept = found.since == 0;
    site.starts = t.starts;
    site.by = whose(found.host_s, found.device_s);
    return site;
  }

  static LateBy whose(double host, double device) {
    const double all = host + device;
    return all <= 0                             ? LateBy::kUnknown
           : host >= limits::kLateOfOne * all   ? LateBy::kHost
           : device >= limits::kLateOfOne * all ? LateBy::kDevice
                                                : LateBy::kUnknown;
  }

  // By the program's own steps if it reports them, else from call to call at the site.
  void add_step_changes(std::size_t i, LateSite& site) const {
    const std::vector<Record>& records = c_.ranks[i]->records;
    std::vector<std::size_t> at;
    for (std::size_t r = 0; r < records.size(); ++r) {
      if (records[r].kind == Kind::kStep) {
        at.push_back(r);
      }
    }
    if (at.size() < 2 * limits::kChangeFewest) {
      at.clear();
      const RankEvidence& e = *c_.ranks[i];
      const Record& there = records[site.record];
      const Site place = user_site(e, there.stack);
      for (std::size_t r = 0; r < records.size(); ++r) {
        const Record& one = records[r];
        if (one.kind == there.kind && one.group == there.group && one.op == there.op &&
            (one.stack == there.stack || user_site(e, one.stack) == place)) {
          at.push_back(r);
        }
      }
    }
    site.steps = step_changes(*c_.ranks[i], at);
  }

  const Case& c_;
  std::vector<WholeSlot> whole_;
  std::vector<OfRank> ranks_;
  bool by_clocks_ = false;
  bool starts_ = false;  // starts of operations on the devices are known
  double ends_within_ = 0;
  double series_ = 0;  // number of series that are compared
};

}  // namespace

std::vector<Change> step_changes(const RankEvidence& e, const std::vector<std::size_t>& at) {
  std::vector<double> gaps_s;
  for (std::size_t k = 1; k < at.size(); ++k) {
    gaps_s.push_back(seconds_between(e.records[at[k - 1]].time, e.records[at[k]].time));
  }
  std::vector<Change> out = changes(gaps_s);
  for (Change& one : out) {
    one.at = at[one.at];
  }
  return out;
}

Stragglers stragglers(const Case& c, const std::vector<Slots>& slots) {
  const Lateness all(c, slots);
  Stragglers out;
  out.by_clocks = all.by_clocks();
  out.ranks = all.late(false);
  fold_followers(c, out.ranks);
  if (out.by_clocks) {
    drop_late_clocks(c, out.ranks);
    return out;
  }
  std::vector<Straggler> own = standing_out(c, all.late(true));
  if (out.ranks.empty() || (out.ranks.size() > 1 && takes_in(c, own, out.ranks))) {
    out.ranks = std::move(own);
  }
  out.node = late_node(c, out.ranks);
  for (Straggler& s : out.ranks) {
    s.by = out.node.empty() ? s.by : LateBy::kNode;
  }
  return out;
}

LateSlots late_slots(const Case& c, const std::vector<Slots>& slots) {
  Lateness all(c, slots);
  return {all.late_slots(), all.by_clocks(), all.ends_within_s()};
}

}  // namespace frtrace
