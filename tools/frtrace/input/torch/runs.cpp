// runs.cpp - which PyTorch dumps of one directory are of one run of the job.
#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "input/torch/naming.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// Between the last operation of a run and the first that is kept of the next: the launcher's
// restart alone takes longer, the hosts of a run are never so far ahead of each other.
constexpr Time kApart = 60 * kSecond;
// One clock that is off shifts all times alike; two runs are never alike to this.
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

using Slot = std::pair<std::string_view, std::uint64_t>;  // group, seq

// When the operations that no rank leaves before all have come were issued.
std::map<Slot, Time> meetings(const RankEvidence& e) {
  std::map<Slot, Time> out;
  for (const Record& r : e.records) {
    if (r.kind == Kind::kCollective && r.state == State::kCompleted && r.time != 0 &&
        r.group < e.groups.size() && meets_all(e.text(r.op))) {
      out.emplace(Slot(e.text(e.groups[r.group].name), r.seq), r.time);
    }
  }
  return out;
}

// How many ranks are in the group of all ranks; 0: not listed.
std::int32_t size_of_all(const RankEvidence& e) {
  const auto all = std::find_if(e.groups.begin(), e.groups.end(), [&](const GroupEvidence& g) {
    return e.text(g.desc) == "default_pg";
  });
  return all != e.groups.end() ? all->n_ranks : 0;
}

// The same operations at times that differ by the same: one run, seen by clocks that are apart.
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

// No file ended what another one's rank never issued: the job of all of them can have stood at one
// place, as one run does. Of groups in which nothing meets all members, all have issued equally much.
bool stand_at_one_place(const std::vector<Span>& files, std::size_t cut) {
  struct Front {
    std::uint64_t least_issued = UINT64_MAX, most_issued = 0, most_ended = 0;
    bool older = false, newer = false;
  };
  std::map<std::string_view, Front> groups, meeting;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const RankEvidence& e = *files[i].e;
    std::map<std::string_view, std::uint64_t> issued, met;
    for (const Record& r : e.records) {
      if (r.kind != Kind::kCollective || r.group >= e.groups.size()) {
        continue;
      }
      const std::string_view name = e.text(e.groups[r.group].name);
      issued[name] = std::max(issued[name], r.seq);
      if (meets_all(e.text(r.op))) {
        met[name] = std::max(met[name], r.seq);
        Front& f = meeting[name];
        f.most_ended = std::max(f.most_ended, r.state == State::kCompleted ? r.seq : 0);
      }
    }
    const auto add = [&](std::map<std::string_view, Front>& to, auto& last_of) {
      for (const auto& [name, last] : last_of) {
        Front& f = to[name];
        f.least_issued = std::min(f.least_issued, last);
        f.most_issued = std::max(f.most_issued, last);
        (i < cut ? f.older : f.newer) = true;
      }
    };
    add(groups, issued);
    add(meeting, met);
  }
  const auto is_in_both = [](const auto& x) { return x.second.older && x.second.newer; };
  if (std::ranges::any_of(meeting, [&](const auto& x) {
        return is_in_both(x) && x.second.most_ended > x.second.least_issued;
      })) {
    return false;
  }
  return std::ranges::any_of(meeting, is_in_both) ||
         std::ranges::any_of(groups, [&](const auto& x) {
           return is_in_both(x) && x.second.least_issued == x.second.most_issued;
         });
}

// Clocks of nodes that are apart, rather than runs: an earlier run leaves the files of the few ranks
// that write none this time.
bool are_clocks(const std::vector<Span>& files, std::size_t cut) {
  std::set<std::int32_t> sizes;
  for (const Span& s : files) {
    sizes.insert(size_of_all(*s.e));
  }
  sizes.erase(0);
  return sizes.size() <= 1 && (same_run_by_another_clock(files, cut) ||
                               (2 * cut >= files.size() && stand_at_one_place(files, cut)));
}

}  // namespace

// PyTorch writes over the files of an earlier run, but for those of ranks that write none this
// time: the rank that was killed.
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
