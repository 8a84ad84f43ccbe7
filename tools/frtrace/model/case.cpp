// case.cpp - one job, attempt and incident out of all files; groups matched across ranks.
#include "model/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>

namespace frtrace {

namespace {

constexpr int kMaxWorld = 1 << 22;
constexpr Time kClockSkew = 5'000'000'000;     // between hosts
constexpr Time kSameIncident = 3'000'000'000;  // ranks that open incidents at once are one occasion

// Evidence of a process that could not have moved on since: usable for later incidents too.
bool is_final(const RankEvidence& e) {
  return e.source != Source::kDump || e.process_gone || e.salvaged ||
         (e.exit.present && e.exit.state != "noted") || e.exit.kind == "exception";
}

bool ends_with(std::string_view s, std::string_view end) {
  return s.size() >= end.size() && s.substr(s.size() - end.size()) == end;
}

// Written beside the first dump of the rank in that incident; libfr/format/file_name.hpp.
bool is_beside(const RankEvidence& e) {
  return ends_with(e.file, ".later.fr") || ends_with(e.file, ".later.ring") ||
         ends_with(e.file, ".dead.fr") || ends_with(e.file, ".dead.ring");
}

bool says_went_on(const RankEvidence& e) {
  return e.trigger == "went_on";
}

bool is_hang(const std::vector<const RankEvidence*>& all, std::uint64_t incident) {
  return std::any_of(all.begin(), all.end(), [&](const RankEvidence* e) {
    return e->incident == incident && e->trigger == "timeout";
  });
}

// Of a hang the first dump tells how it was: what came later shows how it was ended. Of anything else
// the last one, which knows how the process ended; so too of an incident before this one, which the
// rank may have outlived. A ring, read later, may show what was done to the job after.
bool better(const RankEvidence& a, const RankEvidence& b, std::uint64_t incident, bool hang) {
  const auto order = [&](const RankEvidence& e) {
    const bool now = e.incident >= incident;
    const bool own_dump = e.source == Source::kDump && !e.salvaged;
    return std::tuple(e.incident, now ? !says_went_on(e) : is_final(e),
                      now && hang && !is_beside(e), now && own_dump, e.written, e.records.size(),
                      std::string_view(e.file));
  };
  return order(a) > order(b);
}

std::uint64_t progress(const RankEvidence& e) {
  std::uint64_t n = 0;
  for (const GroupEvidence& g : e.groups) {
    n += g.enqueued + g.p2p_enqueued + g.completed;
  }
  return n;
}

bool same_process(const RankEvidence& a, const RankEvidence& b) {
  return a.id.rank == b.id.rank && a.id.pid == b.id.pid && a.id.start == b.id.start;
}

// A rank that answered late, after a peer had written its dump for it: if nothing has changed since,
// its own dump says more, for it has all stacks.
const RankEvidence* own_answer(const RankEvidence& first,
                               const std::vector<const RankEvidence*>& all_of_rank) {
  for (const RankEvidence* e : all_of_rank) {
    if (first.salvaged && e->incident == first.incident && same_process(*e, first) &&
        e->source == Source::kDump && !e->salvaged && !says_went_on(*e) &&
        progress(*e) == progress(first) && !e->exit.present) {
      return e;
    }
  }
  return &first;
}

void add_later(Case& c, const std::vector<const RankEvidence*>& all) {
  c.later.resize(c.ranks.size());
  for (const RankEvidence* e : all) {
    const auto it = c.index.find(e->id.rank);
    if (it == c.index.end()) {
      continue;
    }
    const RankEvidence& chosen = c.evidence_of(it->second);
    if (e != &chosen && same_process(*e, chosen) && e->incident >= chosen.incident &&
        (e->written >= chosen.written || (is_beside(*e) && !is_beside(chosen)))) {
      c.later[static_cast<std::size_t>(it->second)].push_back(e);
    }
  }
  for (auto& later : c.later) {
    std::sort(later.begin(), later.end(), [](const RankEvidence* a, const RankEvidence* b) {
      return std::tie(a->written, a->file) < std::tie(b->written, b->file);
    });
  }
}

// One piece of evidence per rank.
using Best = std::map<Rank, const RankEvidence*>;

// First evidence of each rank in that incident.
Best first_of(const std::vector<const RankEvidence*>& all, std::uint64_t incident) {
  Best out;
  for (const RankEvidence* e : all) {
    if (e->incident == incident && !is_beside(*e)) {
      const RankEvidence*& slot = out[e->id.rank];
      slot = slot == nullptr || better(*e, *slot, incident, true) ? e : slot;
    }
  }
  return out;
}

// Nothing moved in between: the later incident is about the same hang, or about its end.
bool same_hang(const Best& first, const Best& later) {
  return std::all_of(later.begin(), later.end(), [&](const auto& entry) {
    const auto it = first.find(entry.first);
    return it != first.end() && same_process(*it->second, *entry.second) &&
           progress(*it->second) == progress(*entry.second);
  });
}

// The newest incident; of those about one hang the first, which was dumped before anybody ended it.
std::uint64_t newest_incident(const std::vector<const RankEvidence*>& all) {
  std::set<std::uint64_t> numbers;
  for (const RankEvidence* e : all) {
    numbers.insert(e->incident);
  }
  if (numbers.empty()) {
    return 0;
  }
  auto newest = numbers.rbegin();
  auto now = first_of(all, *newest);
  for (auto before = std::next(newest); before != numbers.rend(); ++before) {
    auto first = first_of(all, *before);
    if (!is_hang(all, *before) || !same_hang(first, now)) {
      break;
    }
    newest = before;
    now = std::move(first);
  }
  return *newest;
}

// The best evidence of each rank for the case's incident. `older`: ranks that left some of an
// earlier incident which does not count.
Best best_of_ranks(Case& c, const std::vector<const RankEvidence*>& all, bool hang,
                   std::set<Rank>& older) {
  Best best;
  std::vector<const RankEvidence*> nameless;
  Time first_written = 0;
  for (const RankEvidence* e : all) {
    if (e->incident == c.incident && (first_written == 0 || e->written < first_written)) {
      first_written = e->written;
    }
  }
  for (const RankEvidence* e : all) {
    if (e->id.rank < 0) {
      nameless.push_back(e);
      continue;
    }
    if (e->incident > c.incident) {
      continue;
    }
    if (e->incident < c.incident && !is_final(*e) &&
        (e->written == 0 || e->written + kSameIncident < first_written)) {
      older.insert(e->id.rank);
      continue;
    }
    const RankEvidence*& slot = best[e->id.rank];
    if (slot == nullptr || better(*e, *slot, c.incident, hang)) {
      slot = e;
    }
  }
  // A lone process that never learnt its rank is rank 0 of its own small world.
  if (best.empty() && nameless.size() == 1) {
    best[0] = nameless.front();
    nameless.clear();
  }
  if (!nameless.empty()) {
    c.notes.push_back(
        fmt::format("{} without a rank left out, first {}",
                    nameless.size() == 1 ? "1 file" : fmt::format("{} files", nameless.size()),
                    nameless.front()->file));
  }
  return best;
}

// The ranks of one run agree on its number. Where it is unknown (no store, older files): processes
// of one run live at the same time, so a file written before another process began is of an
// earlier one.
void drop_earlier_runs(Case& c, Best& best) {
  const RankEvidence* youngest = nullptr;
  for (const auto& [rank, e] : best) {
    if (youngest == nullptr || e->id.start > youngest->id.start) {
      youngest = e;
    }
  }
  for (auto it = best.begin(); it != best.end();) {
    const RankEvidence& e = *it->second;
    const Time slack = e.id.host == youngest->id.host ? 0 : kClockSkew;
    const bool is_told = e.id.run != 0 && youngest->id.run != 0;
    if (is_told ? e.id.run != youngest->id.run
                : e.written != 0 && e.written + slack < youngest->id.start) {
      c.notes.push_back(fmt::format("{} is of an earlier run of this job: left out", e.file));
      it = best.erase(it);
    } else {
      ++it;
    }
  }
}

// A rank whose stack may be in an operation, or wait for what it has issued, is no end of all waits.
std::vector<const RankEvidence*> without_waiting(Case& c,
                                                 const std::vector<const RankEvidence*>& all) {
  std::vector<const RankEvidence*> out;
  const bool only = std::all_of(all.begin(), all.end(),
                                [](const RankEvidence* e) { return e->holes.only_stacks; });
  for (const RankEvidence* e : all) {
    if (only || !e->holes.may_wait) {
      out.push_back(e);
      continue;
    }
    c.stacks[e->id.rank] = e;
    const ThreadStack* main = main_thread(e->threads, e->id.pid);
    c.notes.push_back(fmt::format(
        "rank {} is {}, by {}: it may wait itself, and no operation of it is known", e->id.rank,
        main != nullptr ? "in " + where_text(e->threads, *main) : "somewhere", e->threads_by));
  }
  return out;
}

void choose(Case& c, const std::vector<const RankEvidence*>& given) {
  const std::vector<const RankEvidence*> all = without_waiting(c, given);
  const bool hang = is_hang(all, c.incident);
  std::set<Rank> older;
  Best best = best_of_ranks(c, all, hang, older);
  drop_earlier_runs(c, best);
  std::map<Rank, std::vector<const RankEvidence*>> by_rank;  // or each rank looks at all files
  for (const RankEvidence* e : all) {
    by_rank[e->id.rank].push_back(e);
  }
  int world = 0;
  for (auto& [rank, e] : best) {
    e = hang ? own_answer(*e, by_rank[e->id.rank]) : e;
    c.index.emplace(rank, static_cast<int>(c.ranks.size()));
    c.ranks.push_back(e);
    world = std::max({world, e->id.world_size, rank + 1});
  }
  c.expected = std::min(world, kMaxWorld);
  for (const auto& [rank, e] : c.stacks) {
    c.expected = std::max(c.expected, std::min(std::max(e->id.world_size, rank + 1), kMaxWorld));
  }
  for (Rank r = 0; r < c.expected; ++r) {
    if (!c.index.contains(r)) {
      c.missing.push_back(r);
      if (older.contains(r)) {
        c.notes.push_back(fmt::format(
            "rank {} left evidence of an earlier incident only: not used, it has moved on since",
            r));
      }
    }
  }
  add_later(c, all);
}

// The framework's group that a communicator's own group works for; nullptr: none is known.
const GroupEvidence* framework_group(const RankEvidence& e, std::uint32_t row) {
  for (const CommEvidence& comm : e.device.comms) {
    if (comm.used && comm.group == row && comm.pg_group != 0 && comm.pg_group < e.groups.size() &&
        e.groups[comm.pg_group].used) {
      return &e.groups[comm.pg_group];
    }
  }
  return nullptr;
}

// Groups whose members nobody lists, placed by the rank that each says to have in them. Where none
// knows how many there are (NCCL up to 2.26), all of the job must have said theirs.
class OwnPlaces {
 public:
  explicit OwnPlaces(const Case& c)
      : expected_(c.expected), is_all_(static_cast<int>(c.ranks.size()) >= c.expected) {
    for (const RankEvidence* e : c.ranks) {
      for (const GroupEvidence& g : e->groups) {
        const bool sized = g.n_ranks > 0;
        if (!g.used || !g.ranks.empty() || g.own_rank < 0 || g.n_ranks > expected_ ||
            g.own_rank >= (sized     ? g.n_ranks
                           : is_all_ ? expected_
                                     : 0)) {
          continue;
        }
        Places& p = places_[{e->text(g.name), g.instance, g.n_ranks}];
        p.ranks.resize(
            std::max(p.ranks.size(), static_cast<std::size_t>(sized ? g.n_ranks : g.own_rank + 1)),
            -1);
        Rank& slot = p.ranks[static_cast<std::size_t>(g.own_rank)];
        p.several = p.several || (slot >= 0 && slot != e->id.rank);
        p.reordered = p.reordered || g.own_rank != e->id.rank;
        p.n += slot < 0 ? 1 : 0;
        slot = e->id.rank;
      }
    }
  }
  // Empty when they do not tell.
  std::vector<Rank> of(const RankEvidence& e, const GroupEvidence& g) const {
    const auto it = places_.find({e.text(g.name), g.instance, g.n_ranks});
    const Places none;
    const Places& p = it == places_.end() ? none : it->second;
    if (p.n != 0 && p.n == p.ranks.size() && !p.several) {
      return p.ranks;
    }
    std::vector<Rank> all;
    if (g.n_ranks > 0 && g.n_ranks == expected_ && !p.reordered) {
      all.resize(static_cast<std::size_t>(g.n_ranks));
      std::iota(all.begin(), all.end(), 0);
    }
    return all;
  }

 private:
  struct Places {
    std::vector<Rank> ranks;
    std::size_t n = 0;
    bool several = false;    // groups of one name
    bool reordered = false;  // not in the order of the job's ranks
  };
  int expected_;
  bool is_all_;  // every rank of the job has evidence
  std::map<std::tuple<std::string_view, std::uint32_t, std::int32_t>, Places> places_;
};

// Rows of all ranks' group tables to the groups of the case.
class GroupMatcher {
 public:
  explicit GroupMatcher(Case& c) : c_(c), own_places_(c) {}

  void match() {
    c_.group_of.resize(c_.ranks.size());
    for (int i = 0; i < static_cast<int>(c_.ranks.size()); ++i) {
      const RankEvidence& e = c_.evidence_of(i);
      c_.group_of[static_cast<std::size_t>(i)].assign(e.groups.size(), -1);
      for (int row = 1; row < static_cast<int>(e.groups.size()); ++row) {
        if (e.groups[static_cast<std::size_t>(row)].used) {
          match_row({i, row});
        }
      }
    }
    for (const At& at : unplaced_) {
      join_by_name(at);
    }
    // Members without evidence stay -1; members with evidence that never made the group too, but
    // their evidence counts: their frontier is 0.
    for (Group& g : c_.groups) {
      for (std::size_t m = 0; m < g.ranks.size(); ++m) {
        if (const auto it = c_.index.find(g.ranks[m]); g.evidence[m] < 0 && it != c_.index.end()) {
          g.evidence[m] = it->second;
        }
      }
    }
  }

 private:
  // A row of the groups of one rank.
  struct At {
    int evidence;
    int row;
  };
  using Ranges = std::vector<std::tuple<Rank, std::uint32_t, std::int32_t>>;

  const GroupEvidence& group_at(const At& at) const {
    return c_.evidence_of(at.evidence).groups[static_cast<std::size_t>(at.row)];
  }

  void match_row(const At& at) {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    const GroupEvidence& g = group_at(at);
    Ranges ranges;
    for (const RankRange& r : g.ranks) {
      ranges.emplace_back(r.first, r.count, r.stride);
    }
    auto& written = by_ranges_[{e.text(g.name), g.instance, ranges.size()}];
    const auto same = std::find_if(written.begin(), written.end(),
                                   [&](const auto& w) { return w.first == ranges; });
    if (same != written.end() && !ranges.empty()) {
      place(same->second, at);
      return;
    }
    std::vector<Rank> ranks = members_of(at);
    if (ranks.empty()) {
      unplaced_.push_back(at);
      return;
    }
    const auto [it, added] = by_key_.try_emplace({std::string(e.text(g.name)), g.instance, ranks});
    if (added) {
      it->second = new_group(at, std::move(ranks), true);
    }
    place(it->second, at);
    written.emplace_back(std::move(ranges), it->second);
  }

  // Empty: unknown.
  std::vector<Rank> members_of(const At& at) const {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    const GroupEvidence& g = group_at(at);
    std::vector<Rank> ranks = expand(g.ranks);
    if (const GroupEvidence* pg =
            ranks.empty() ? framework_group(e, static_cast<std::uint32_t>(at.row)) : nullptr;
        pg != nullptr && pg->n_ranks == g.n_ranks) {
      ranks = expand(pg->ranks);
    }
    return ranks.empty() ? own_places_.of(e, g) : ranks;
  }

  // Members that did not learn who the others are: join the group of that name, if it is the only
  // one that has them; else they are a group by what is seen of it.
  void join_by_name(const At& at) {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    const GroupEvidence& g = group_at(at);
    const auto [first, last] = by_name_.equal_range({std::string(e.text(g.name)), g.instance});
    const auto it = std::find_if(first, last, [&](const auto& named) {
      const Group& other = c_.groups[static_cast<std::size_t>(named.second)];
      return !other.ranks_known || other.position.contains(e.id.rank);
    });
    const int found = it != last ? it->second : new_group(at, {}, false);
    Group& group = c_.groups[static_cast<std::size_t>(found)];
    if (!group.ranks_known && !group.position.contains(e.id.rank)) {
      group.position.emplace(e.id.rank, static_cast<int>(group.ranks.size()));
      group.ranks.push_back(e.id.rank);
      group.evidence.push_back(-1);
      group.row.push_back(-1);
    }
    place(found, at);
  }

  int new_group(const At& at, std::vector<Rank> ranks, bool known) {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    const GroupEvidence& g = group_at(at);
    Group out;
    out.name = e.text(g.name);
    out.desc = e.text(g.desc);
    out.backend = e.text(g.backend);
    out.instance = g.instance;
    out.ranks = std::move(ranks);
    out.ranks_known = known;
    out.evidence.assign(out.ranks.size(), -1);
    out.row.assign(out.ranks.size(), -1);
    for (std::size_t m = 0; m < out.ranks.size(); ++m) {
      out.position.emplace(out.ranks[m], static_cast<int>(m));
    }
    const int index = static_cast<int>(c_.groups.size());
    by_name_.emplace(std::pair(out.name, out.instance), index);
    c_.groups.push_back(std::move(out));
    return index;
  }

  void place(int group, const At& at) {
    const RankEvidence& e = c_.evidence_of(at.evidence);
    Group& g = c_.groups[static_cast<std::size_t>(group)];
    const auto it = g.position.find(e.id.rank);
    if (it == g.position.end()) {
      return;  // a rank that knows of the group without being in it
    }
    g.evidence[static_cast<std::size_t>(it->second)] = at.evidence;
    g.row[static_cast<std::size_t>(it->second)] = at.row;
    if (const GroupEvidence* pg =
            g.desc.empty() ? framework_group(e, static_cast<std::uint32_t>(at.row)) : nullptr) {
      g.desc = e.text(pg->desc != 0 ? pg->desc : pg->name);
      g.described_by_other = true;
    }
    c_.group_of[static_cast<std::size_t>(at.evidence)][static_cast<std::size_t>(at.row)] = group;
  }

  Case& c_;
  const OwnPlaces own_places_;
  std::map<std::tuple<std::string, std::uint32_t, std::vector<Rank>>, int> by_key_;
  // The same by the ranges as written, which nearly always are equal: no list of all ranks is made
  // for each of them.
  std::map<std::tuple<std::string_view, std::uint32_t, std::size_t>,
           std::vector<std::pair<Ranges, int>>>
      by_ranges_;
  std::multimap<std::pair<std::string, std::uint32_t>, int> by_name_;
  std::vector<At> unplaced_;
};

// "0-3,8", "0,4,...,60"
std::string members_text(const std::vector<Rank>& ranks) {
  constexpr int kMost = 5;
  std::string all = fold_ranks(ranks);
  if (std::count(all.begin(), all.end(), ',') < kMost) {
    return all;
  }
  std::vector<Rank> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  return fmt::format("{},{},...,{}", sorted[0], sorted[1], sorted.back());
}

bool is_number(std::string_view s) {
  return !s.empty() && s.find_first_not_of("0123456789") == std::string_view::npos;
}

// Groups of one description are told apart by their members; one without description is known by
// its name, or by its members where the name is a mere number.
void name_groups(Case& c) {
  std::map<std::string, std::set<std::vector<Rank>>> members;
  const auto nameless = [](const Group& g) {
    return g.desc == "undefined" || (g.desc.empty() && (g.name.empty() || is_number(g.name)));
  };
  for (Group& g : c.groups) {
    g.label = nameless(g) ? "group" : g.desc.empty() ? g.name : g.desc;
    members[g.label].insert(g.ranks);
  }
  std::map<std::string, int> uses;
  for (Group& g : c.groups) {
    if (nameless(g)) {
      g.label += g.ranks_known ? " {" + members_text(g.ranks) + "}" : " " + g.name;
    } else if (members[g.label].size() > 1) {
      g.label += "{" + members_text(g.ranks) + "}";
    }
    uses[g.label] += g.described_by_other ? 0 : 1;
  }
  for (Group& g : c.groups) {
    if (uses[g.label] > 1) {
      g.label += g.instance > 1 ? fmt::format(" ({}, instance {})", g.name, g.instance)
                                : fmt::format(" ({})", g.name);
    }
  }
}

}  // namespace

const GroupEvidence* Case::member(const Group& g, std::size_t m) const {
  if (g.evidence[m] < 0 || g.row[m] < 0) {
    return nullptr;
  }
  return &evidence_of(g.evidence[m]).groups[static_cast<std::size_t>(g.row[m])];
}

std::vector<Case> make_cases(const std::vector<std::unique_ptr<RankEvidence>>& evidence,
                             const Selection& selection) {
  std::map<std::string, std::vector<const RankEvidence*>> jobs;
  for (const auto& e : evidence) {
    if (!selection.job || e->id.job == *selection.job) {
      jobs[e->id.job].push_back(e.get());
    }
  }
  std::vector<Case> cases;
  for (auto& [job, all] : jobs) {
    Case c;
    c.job = job;
    c.attempt = selection.attempt.value_or(0);
    if (!selection.attempt) {
      for (const RankEvidence* e : all) {
        c.attempt = std::max(c.attempt, e->id.attempt);
      }
    }
    std::erase_if(all, [&](const RankEvidence* e) { return e->id.attempt != c.attempt; });
    if (selection.incident) {
      c.asked_for = true;
      c.incident = *selection.incident;
      if (std::none_of(all.begin(), all.end(),
                       [&](const RankEvidence* e) { return e->incident == c.incident; })) {
        continue;
      }
    } else {
      c.incident = newest_incident(all);
    }
    choose(c, all);
    if (c.ranks.empty()) {
      continue;
    }
    GroupMatcher(c).match();
    name_groups(c);
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace frtrace
