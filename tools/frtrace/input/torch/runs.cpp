// runs.cpp - finds the PyTorch dumps in one directory that are of one run of the job.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "input/torch/naming.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// Minimum time between the last operation of a run and the first kept one of the next. A restart by
// the launcher alone takes longer, and clocks of the hosts of a run never differ by as much.
constexpr Time kApart = 60 * kSecond;
// A clock that is off shifts all times equally; two runs never agree to this precision.
constexpr Time kAlike = kSecond / 20;
constexpr std::size_t kFewest = 5;

struct Span {
  RankEvidence* e;
  Time oldest, newest;
};

Span span_of(RankEvidence* e) {
  Span s{e, 0, 0};
  for (const Record& r : e->records) {
    if (r.time != 0) {
      s.oldest = s.oldest == 0 ? r.time : std::min(s.oldest, r.time);
      s.newest = std::max(s.newest, r.time);
    }
  }
  return s;
}

// A group's name and members: groups of different ranks may share a name.
using GroupKey = std::pair<std::string_view, std::vector<RankRange>>;
using Slot = std::pair<GroupKey, std::uint64_t>;  // group, seq

std::vector<GroupKey> keys_of(const RankEvidence& e, bool by_name = false) {
  std::vector<GroupKey> out;
  for (const GroupEvidence& g : e.groups) {
    out.emplace_back(e.text(g.name), by_name ? std::vector<RankRange>() : g.ranks);
  }
  return out;
}

// The times of issue of operations that no rank leaves before all have come.
std::map<Slot, Time> meetings(const RankEvidence& e) {
  std::map<Slot, Time> out;
  const std::vector<GroupKey> keys = keys_of(e);
  for (const Record& r : e.records) {
    if (r.kind == Kind::kCollective && r.state == State::kCompleted && r.time != 0 &&
        r.group < e.groups.size() && meets_all(e.text(r.op))) {
      out.emplace(Slot(keys[r.group], r.seq), r.time);
    }
  }
  return out;
}

// The size of the group of all ranks; 0: not listed.
std::int32_t size_of_all(const RankEvidence& e) {
  const auto all = std::find_if(e.groups.begin(), e.groups.end(), [&](const GroupEvidence& g) {
    return e.text(g.desc) == "default_pg";
  });
  return all != e.groups.end() ? all->n_ranks : 0;
}

// The same operations at a constant difference of times: one run, seen by clocks that differ.
bool same_run_by_another_clock(const std::vector<Span>& files, std::size_t cut) {
  for (std::size_t i = cut; i-- > 0;) {
    const std::map<Slot, Time> old = meetings(*files[i].e);
    for (std::size_t j = cut; j < files.size(); ++j) {
      std::vector<std::int64_t> apart;
      for (const auto& [slot, time] : meetings(*files[j].e)) {
        if (const auto it = old.find(slot); it != old.end()) {
          apart.push_back(static_cast<std::int64_t>(time - it->second));
        }
      }
      if (apart.size() >= kFewest) {
        const auto [least, most] = std::minmax_element(apart.begin(), apart.end());
        return *most - *least <= static_cast<std::int64_t>(kAlike);
      }
    }
  }
  return false;
}

// The progress in one group that the older and the newer files show.
struct Reached {
  std::uint64_t least_issued = UINT64_MAX, most_issued = 0;
  std::uint64_t least_met = UINT64_MAX, most_ended = 0;  // of operations that meet all members
  std::set<std::uint64_t> awaited[2];  // the first such operation in flight, of each rank
  bool in[2] = {false, false};         // older, newer
  bool is_in_both() const { return in[0] && in[1]; }
};

void add_to(std::map<GroupKey, Reached>& fronts, const RankEvidence& e, bool newer, bool by_name) {
  const std::vector<GroupKey> keys = keys_of(e, by_name);
  struct Own {
    std::uint64_t issued = 0, met = 0, ended = 0, awaited = UINT64_MAX;
  };
  std::map<std::uint32_t, Own> own;
  for (const Record& r : e.records) {
    if (r.kind != Kind::kCollective || r.group >= e.groups.size()) {
      continue;
    }
    Own& o = own[r.group];
    o.issued = std::max(o.issued, r.seq);
    if (meets_all(e.text(r.op))) {
      o.met = std::max(o.met, r.seq);
      o.ended = std::max(o.ended, r.state == State::kCompleted ? r.seq : 0);
      o.awaited = std::min(o.awaited, r.state == State::kCompleted ? UINT64_MAX : r.seq);
    }
  }
  for (const auto& [group, o] : own) {
    Reached& f = fronts[keys[group]];
    f.in[newer] = true;
    f.least_issued = std::min(f.least_issued, o.issued);
    f.most_issued = std::max(f.most_issued, o.issued);
    f.least_met = std::min(f.least_met, o.met != 0 ? o.met : UINT64_MAX);
    f.most_ended = std::max(f.most_ended, o.ended);
    if (o.awaited != UINT64_MAX) {
      f.awaited[newer].insert(o.awaited);
    }
  }
}

enum class Place : std::uint8_t { kUnknown, kOther, kSame, kSameWait };

// Whether the files can be of one run: no file ended an operation that another file's rank never
// issued. In groups without operations that meet all members, all must have issued the same number.
Place place_of(const std::vector<Span>& files, std::size_t cut, bool by_name) {
  std::map<GroupKey, Reached> fronts;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (!files[i].e->holes.truncated) {
      add_to(fronts, *files[i].e, i >= cut, by_name);
    }
  }
  Place out = Place::kUnknown;
  for (const auto& [group, f] : fronts) {
    if (!f.is_in_both()) {
      continue;
    }
    if (f.least_met != UINT64_MAX && f.most_ended > f.least_met) {
      return Place::kOther;
    }
    if (f.least_met != UINT64_MAX || f.least_issued == f.most_issued) {
      const bool together = std::ranges::any_of(
          f.awaited[0], [&](std::uint64_t seq) { return f.awaited[1].contains(seq); });
      out = std::max(out, together ? Place::kSameWait : Place::kSame);
    }
  }
  return out;
}

// The same, from messages between ranks of both sets, if all are counted or the last are kept.
Place place_by_messages(const std::vector<Span>& files, std::size_t cut) {
  constexpr std::uint64_t kAhead = 2;  // an end may be so many messages ahead
  using End = std::tuple<GroupKey, std::int32_t, std::int32_t, bool>;  // from, to; sends
  std::map<End, const LaneEvidence*> older;
  Place out = Place::kUnknown;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const RankEvidence& e = *files[i].e;
    if (e.holes.truncated) {
      continue;
    }
    const std::vector<GroupKey> keys = keys_of(e);
    for (const LaneEvidence& lane : e.lanes) {
      const std::int32_t own = e.groups[lane.group].own_rank;
      const std::int32_t from = lane.send ? own : lane.peer, to = lane.send ? lane.peer : own;
      if (i < cut) {
        older.emplace(End(keys[lane.group], from, to, lane.send), &lane);
        continue;
      }
      const auto it = older.find(End(keys[lane.group], from, to, !lane.send));
      if (it == older.end()) {
        continue;
      }
      const LaneEvidence& other = *it->second;
      const auto [least, most] = std::minmax(lane.enqueued, other.enqueued);
      if (!lane.relative && !other.relative && most > least + kAhead) {
        return Place::kOther;
      }
      const bool many = !lane.relative && !other.relative && least >= kFewest;
      if (many || (lane.enqueued > lane.completed && other.enqueued > other.completed)) {
        out = Place::kSameWait;
      }
    }
  }
  return out;
}

// Whether the two sets are one run on nodes with different clocks, not two runs. An earlier run
// leaves files only of the few ranks that write none this time, and these hardly wait in the same
// operations as this run's ranks.
bool are_clocks(const std::vector<Span>& files, std::size_t cut) {
  std::set<std::int32_t> sizes;
  for (const Span& s : files) {
    sizes.insert(size_of_all(*s.e));
  }
  sizes.erase(0);
  if (sizes.size() > 1 || same_run_by_another_clock(files, cut)) {
    return sizes.size() <= 1;
  }
  Place place = place_of(files, cut, false);
  const Place by_messages = place_by_messages(files, cut);
  place = place == Place::kOther || by_messages == Place::kOther ? Place::kOther
                                                                 : std::max(place, by_messages);
  if (place == Place::kUnknown) {  // no group in common: matches groups by name
    place = std::min(place_of(files, cut, true), Place::kSame);
  }
  return place == Place::kSame ? 2 * cut >= files.size()
                               : place == Place::kSameWait && 4 * cut >= files.size();
}

}  // namespace

// PyTorch overwrites the files of an earlier run, except those of ranks that write none this time,
// such as a rank that was killed.
TorchSet newest_run(const TorchSet& set) {
  std::vector<Span> files;
  for (RankEvidence* e : set) {
    const Span s = span_of(e);
    if (s.newest != 0) {
      files.push_back(s);
    }
  }
  std::stable_sort(files.begin(), files.end(),
                   [](const Span& a, const Span& b) { return a.newest < b.newest; });
  std::size_t cut = 0;
  Time oldest = 0;
  for (std::size_t i = files.size(); i-- > 1 && cut == 0;) {
    oldest = oldest == 0 ? files[i].oldest : std::min(oldest, files[i].oldest);
    cut = oldest > files[i - 1].newest + kApart ? i : 0;
  }
  if (cut == 0 || are_clocks(files, cut)) {
    return set;
  }
  TorchSet newest;
  for (RankEvidence* e : set) {
    e->id.run = 2;
    e->holes.run_by_clock = true;
  }
  for (std::size_t i = 0; i < files.size(); ++i) {
    files[i].e->id.run = i < cut ? 1 : 2;
    files[i].e->id.start = files[i].oldest;
  }
  std::copy_if(set.begin(), set.end(), std::back_inserter(newest),
               [](const RankEvidence* e) { return e->id.run == 2; });
  return newest;
}

}  // namespace frtrace
