// What a set of PyTorch dumps says together that none of them says alone.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "input/torch/dump.hpp"
#include "input/torch/naming.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

using Set = TorchSet;

bool is_gloo(const RankEvidence& e, const GroupEvidence& g) {
  return e.text(g.backend) == "gloo";
}

bool in_flight(const Record& r) {
  return r.state == State::kEnqueued || r.state == State::kStarted;
}

// ---------------------------------------------------------------- groups

// Groups that no file lists have the members that appear in them, and those that cannot: ranks
// without a file belong where the sister groups (same description, all of one size) leave a gap.
void fill_gaps(std::map<std::string, std::vector<std::set<Rank>*>>& sisters,
               const std::map<std::string, std::size_t>& sizes, const std::set<Rank>& absent) {
  for (auto& [d, groups] : sisters) {
    const std::size_t size = sizes.at(d);
    std::set<Rank> free = absent;
    const std::set<Rank>* full = nullptr;
    for (const std::set<Rank>* g : groups) {
      full = g->size() == size ? g : full;
      for (const Rank r : *g) {
        free.erase(r);
      }
    }
    if (size < 2 || free.empty()) {
      continue;
    }
    if (full == nullptr) {
      // None is whole: only a single gap as large as what is free has one way to be filled.
      if (groups.size() == 1 && groups.front()->size() + free.size() == size) {
        groups.front()->insert(free.begin(), free.end());
      }
      continue;
    }
    const Rank stride = *std::next(full->begin()) - *full->begin();
    const auto even = [&](const std::set<Rank>& g) {
      for (auto it = g.begin(); std::next(it) != g.end(); ++it) {
        if (*std::next(it) - *it != stride) {
          return false;
        }
      }
      return true;
    };
    const bool regular = even(*full);
    for (std::set<Rank>* g : groups) {
      const std::size_t gap = size - g->size();
      if (gap == 0 || gap > free.size()) {
        continue;
      }
      std::set<Rank> with = *g;
      if (!regular) {
        if (gap == free.size()) {
          with.insert(free.begin(), free.end());
        }
      } else {
        // The one even row of that length that holds the members and free ranks only.
        int rows = 0;
        for (std::size_t before = 0; before <= gap; ++before) {
          std::set<Rank> row;
          for (std::size_t k = 0; k < size; ++k) {
            row.insert(*g->begin() + (static_cast<Rank>(k) - static_cast<Rank>(before)) * stride);
          }
          const bool fits =
              std::all_of(row.begin(), row.end(),
                          [&](Rank r) { return g->contains(r) || free.contains(r); }) &&
              std::all_of(g->begin(), g->end(), [&](Rank r) { return row.contains(r); });
          if (fits) {
            with = row;
            ++rows;
          }
        }
        if (rows != 1) {
          continue;
        }
      }
      for (const Rank r : with) {
        free.erase(r);
      }
      *g = with;
    }
  }
}

// How many members a group has by what its gathers gather; 0: it has none.
std::size_t size_by_gathers(const RankEvidence& e, std::uint32_t row) {
  for (const Record& r : e.records) {
    if (r.group != row || r.kind != Kind::kCollective || r.in_numel == 0 || r.out_numel == 0) {
      continue;
    }
    const std::string op = canonical_op(e.text(r.op));
    const bool gather = op == "allgather" || op == "allgatherbase" || op == "allgatherintotensor";
    const bool scatter = op == "reducescatterbase" || op == "reducescattertensor";
    const std::uint64_t whole = gather ? r.out_numel : r.in_numel;
    const std::uint64_t part = gather ? r.in_numel : r.out_numel;
    if ((gather || scatter) && whole > part && whole % part == 0 && whole / part < 1 << 20) {
      return static_cast<std::size_t>(whole / part);
    }
  }
  return 0;
}

void complete_groups(const Set& set) {
  std::set<Rank> present;
  int world = 0;
  for (const RankEvidence* e : set) {
    world = std::max({world, e->id.world_size, e->id.rank + 1});
    present.insert(e->id.rank);
  }
  std::map<std::string, std::set<Rank>> seen;  // of groups that no file lists
  std::map<std::string, std::string> desc;
  std::map<std::string, std::size_t> sizes;  // by description
  for (const RankEvidence* e : set) {
    for (std::uint32_t row = 1; row < e->groups.size(); ++row) {
      const GroupEvidence& g = e->groups[row];
      if (g.ranks.empty() && g.used && e->id.rank >= 0) {
        const std::string name(e->text(g.name)), d(e->text(g.desc));
        seen[name].insert(e->id.rank);
        desc[name] = d;
        std::size_t& size = sizes[d];
        size = std::max({size, seen[name].size(), size_by_gathers(*e, row)});
      }
    }
  }
  std::map<std::string, std::vector<std::set<Rank>*>> sisters;
  for (auto& [name, members] : seen) {
    const std::string& d = desc[name];
    if (d == "default_pg") {
      world = std::max(world, static_cast<int>(sizes[d]));
    } else if (!d.empty()) {
      sisters[d].push_back(&members);
    }
  }
  // Sister groups that every rank is in: together they are the world.
  for (const auto& [d, groups] : sisters) {
    std::set<Rank> covered;
    for (const std::set<Rank>* g : groups) {
      covered.insert(g->begin(), g->end());
    }
    const std::size_t all = groups.size() * sizes[d];
    if (groups.size() > 1 && covered == present && all <= 2 * present.size()) {
      world = std::max(world, static_cast<int>(all));
    }
  }
  std::set<Rank> absent;
  for (Rank r = 0; r < world; ++r) {
    if (!present.contains(r)) {
      absent.insert(r);
    }
  }
  // So is a group that every rank is in.
  for (auto& [name, members] : seen) {
    if (members == present && present.size() > 1) {
      members.insert(absent.begin(), absent.end());
    }
  }
  fill_gaps(sisters, sizes, absent);
  for (RankEvidence* e : set) {
    e->id.world_size = world;
    for (std::size_t row = 1; row < e->groups.size(); ++row) {
      GroupEvidence& g = e->groups[row];
      if (g.ranks.empty() && g.used && e->id.rank >= 0) {
        e->holes.no_members = true;
        if (e->text(g.desc) == "default_pg") {
          g.ranks = {{0, static_cast<std::uint32_t>(world), 1}};
          g.n_ranks = world;
        } else {
          for (const Rank r : seen[std::string(e->text(g.name))]) {
            g.ranks.push_back({r, 1, 1});
          }
          // More than are known: some left no file, and nothing tells which.
          g.n_ranks = static_cast<std::int32_t>(
              std::max(g.ranks.size(), sizes[std::string(e->text(g.desc))]));
        }
      }
      g.own_rank = e->id.rank < 0 ? -1 : position(g.ranks, e->id.rank);
    }
  }
}

// gloo's records end alike whether an operation succeeded or its peer died. With a rank missing, a
// job at rest may be a job that broke.
void doubt_the_missing(const Set& set) {
  std::set<Rank> present;
  int world = 0;
  bool gloo = false;
  for (const RankEvidence* e : set) {
    present.insert(e->id.rank);
    world = std::max(world, e->id.world_size);
    for (const GroupEvidence& g : e->groups) {
      gloo = gloo || (g.used && is_gloo(*e, g));
    }
  }
  if (gloo && static_cast<int>(present.size()) < world) {
    for (RankEvidence* e : set) {
      e->trigger = "failure";
      e->reason = "gloo does not record failures";
    }
  }
}

// Rows of all files that are one group.
struct Member {
  RankEvidence* e;
  std::uint32_t row;
};
std::vector<std::vector<Member>> groups_of(const Set& set) {
  std::map<std::string, std::vector<Member>> by_key;
  for (RankEvidence* e : set) {
    for (std::uint32_t row = 1; row < e->groups.size(); ++row) {
      const GroupEvidence& g = e->groups[row];
      if (g.own_rank < 0) {
        continue;
      }
      std::string key(e->text(g.name));
      for (const RankRange& r : g.ranks) {
        key += fmt::format(" {},{},{}", r.first, r.count, r.stride);
      }
      by_key[std::move(key)].push_back({e, row});
    }
  }
  std::vector<std::vector<Member>> out;
  for (auto& [key, members] : by_key) {
    out.push_back(std::move(members));
  }
  return out;
}

// ---------------------------------------------------------------- times

// A dump does not say when it was written. Its modification time does, unless the file was copied
// since; then PyTorch's own reason to write one, the timeout, is as good a guess as any.
void date(const Set& set) {
  Time newest = 0, timeout = 600 * kSecond;
  bool known = false;
  for (const RankEvidence* e : set) {
    newest = std::max(newest, e->newest);
    for (const Record& r : e->records) {
      if (in_flight(r) && r.timeout_ms != 0) {
        const Time t = Time{r.timeout_ms} * 1'000'000;
        timeout = known ? std::max(timeout, t) : t;
        known = true;
      }
    }
  }
  constexpr Time kSkew = 120 * kSecond;
  const Time longest = std::max(3 * timeout, 7200 * kSecond);
  const bool guess = std::any_of(set.begin(), set.end(), [&](const RankEvidence* e) {
    return e->file_time == 0 || e->file_time < e->newest - kSkew || e->file_time > newest + longest;
  });
  for (RankEvidence* e : set) {
    e->holes.written_guessed = guess;
    e->written = newest == 0 ? e->file_time  // no file has a time of its own
                 : guess     ? newest + timeout
                             : std::max(e->file_time, e->newest);
  }
}

// A cut file's counters tell of operations whose records, and times, are behind the cut: nothing
// says that they have lasted.
void date_the_cut(const Set& set) {
  for (RankEvidence* e : set) {
    for (GroupEvidence& g : e->groups) {
      if (e->holes.truncated && g.kept == 0) {
        g.enqueued_time = g.completed_time = e->written;
      }
    }
  }
}

// ---------------------------------------------------------------- frontiers

// One rank finished what another, by its own file, could not even have started: the files were
// written while the job moved. Answers when that operation was issued, 0 if there is none.
Time moving(const std::vector<Member>& members) {
  std::uint64_t issued = UINT64_MAX;
  for (const Member& m : members) {
    const GroupEvidence& g = m.e->groups[m.row];
    if (g.used && !m.e->holes.truncated) {
      issued = std::min(issued, g.enqueued);
    }
  }
  if (issued == UINT64_MAX) {
    return 0;
  }
  // gloo's failures look like ends: a few operations issued together prove nothing.
  constexpr std::size_t kTogether = 32;
  constexpr Time kTogether_ns = kSecond / 10;
  for (const Member& m : members) {
    const bool gloo = is_gloo(*m.e, m.e->groups[m.row]);
    const std::vector<Record>& records = m.e->records;
    std::size_t ahead = 0;
    for (std::size_t i = records.size(); i-- > 0;) {
      const Record& r = records[i];
      ++ahead;
      if (r.group != m.row || r.kind != Kind::kCollective || r.state != State::kCompleted ||
          !meets_all(m.e->text(r.op))) {
        continue;
      }
      if (!gloo) {
        // What lags in its completions only is behind with its device, or with what observes it.
        if (r.seq > issued) {
          return r.time;
        }
        break;
      }
      if (r.seq <= issued) {
        break;
      }
      if (ahead > kTogether || records.back().time > r.time + kTogether_ns) {
        return r.time;
      }
    }
  }
  return 0;
}

// Files of ranks that had not yet issued what another one has finished.
std::size_t count_old(const std::vector<std::vector<Member>>& groups) {
  std::set<const RankEvidence*> old;
  for (const std::vector<Member>& members : groups) {
    std::uint64_t furthest = 0;
    for (const Member& m : members) {
      for (auto r = m.e->records.rbegin(); r != m.e->records.rend(); ++r) {
        if (r->group == m.row && r->kind == Kind::kCollective && r->state == State::kCompleted &&
            meets_all(m.e->text(r->op))) {
          furthest = std::max(furthest, r->seq);
          break;
        }
      }
    }
    for (const Member& m : members) {
      const GroupEvidence& g = m.e->groups[m.row];
      if (g.used && !m.e->holes.frontiers_at_least && g.enqueued < furthest) {
        old.insert(m.e);
      }
    }
  }
  return old.size();
}

// A rank that had not yet issued what another one has finished was looked at before that.
void find_old_dumps(const std::vector<Member>& members) {
  std::uint64_t furthest = 0;
  for (const Member& m : members) {
    const GroupEvidence& g = m.e->groups[m.row];
    furthest = g.used ? std::max(furthest, g.completed) : furthest;
  }
  const auto behind = [&](const Member& m) {
    const GroupEvidence& g = m.e->groups[m.row];
    return g.used && !m.e->holes.frontiers_at_least && g.enqueued < furthest;
  };
  std::map<std::uint64_t, Time> finished;  // seq that somebody never issued -> when others had it
  for (const Member& m : members) {
    const GroupEvidence& g = m.e->groups[m.row];
    if (behind(m) && m.e->holes.written_guessed) {
      finished.emplace(g.enqueued + 1, 0);
    }
  }
  if (finished.empty()) {
    return;
  }
  for (const Member& m : members) {
    for (const Record& r : m.e->records) {
      if (r.group != m.row || r.kind != Kind::kCollective || r.state != State::kCompleted) {
        continue;
      }
      if (const auto it = finished.find(r.seq);
          it != finished.end() && meets_all(m.e->text(r.op))) {
        const Time then = r.ended != 0 ? r.ended : r.time;
        it->second = it->second == 0 ? then : std::min(it->second, then);
      }
    }
  }
  for (const Member& m : members) {
    const GroupEvidence& g = m.e->groups[m.row];
    if (const auto it = finished.find(g.enqueued + 1);
        behind(m) && it != finished.end() && it->second != 0) {
      m.e->written = std::min(m.e->written, std::max(it->second, m.e->newest));
    }
  }
}

// gloo retires what failed like what succeeded. An operation that needs all members, retired where
// one of them never came, has failed: whoever got on from there only proves an old dump.
void find_failures(const std::vector<Member>& members, bool moves) {
  std::uint64_t least = UINT64_MAX;
  const RankEvidence* absent = nullptr;
  for (const Member& m : members) {
    const GroupEvidence& g = m.e->groups[m.row];
    if (g.used && m.e->holes.frontiers_at_least) {
      return;  // it may have come
    }
    if (g.used && g.enqueued < least) {
      least = g.enqueued;
      absent = m.e;
    }
  }
  if (absent == nullptr) {
    return;
  }
  // An end without the other one ends it for all, and nobody leaves what it waits in.
  moves = moves || std::any_of(members.begin(), members.end(), [&](const Member& m) {
            return std::any_of(m.e->records.begin(), m.e->records.end(), [&](const Record& r) {
              return r.group == m.row && in_flight(r) && (r.seq == least + 1 || m.e == absent);
            });
          });
  for (const Member& m : members) {
    GroupEvidence& g = m.e->groups[m.row];
    if (!g.used || !is_gloo(*m.e, g) || g.enqueued <= least) {
      continue;
    }
    // What the rank issued last: one operation, or several of the group together.
    std::vector<Record>& records = m.e->records;
    std::size_t first = records.size();
    while (first > 0 && records[first - 1].group == m.row &&
           records[first - 1].kind == Kind::kCollective && records[first - 1].seq > least) {
      --first;
    }
    if (first == records.size() || records[first].seq != least + 1 ||
        records.back().time > records[first].time + kSecond) {
      continue;
    }
    // The other one was looked at when this was long due, or at about the same time.
    const bool same_time = m.e->holes.written_guessed ||
                           (!moves && absent->written >= records[first].time &&
                            absent->written + kSecond >= m.e->written) ||
                           absent->written >= records[first].time + kSecond;
    for (std::size_t i = first; i < records.size() && same_time; ++i) {
      Record& r = records[i];
      if (r.state != State::kCompleted || !meets_all(m.e->text(r.op))) {
        continue;
      }
      r.state = State::kFailed;
      r.error = static_cast<Id>(m.e->strings.size());
      m.e->strings.push_back(fmt::format(
          "ended without rank {}: it timed out, or a connection closed", absent->id.rank));
      g.completed = std::min(g.completed, least);
      g.ended = std::min(g.ended, least);
      ++g.failed;
      m.e->holes.failure_inferred = true;
    }
  }
}

// Only what is in flight was dumped, and nothing of the group is: what others still wait for has
// not been issued here, and all before is done.
void infer_frontiers(const std::vector<Member>& members) {
  if (std::all_of(members.begin(), members.end(),
                  [](const Member& m) { return m.e->groups[m.row].used; })) {
    return;
  }
  std::uint64_t waiting = UINT64_MAX;
  for (const Member& m : members) {
    for (const Record& r : m.e->records) {
      if (r.group == m.row && r.kind == Kind::kCollective && in_flight(r) &&
          meets_all(m.e->text(r.op))) {
        waiting = std::min(waiting, r.seq);
      }
    }
  }
  if (waiting == UINT64_MAX || waiting == 0) {
    return;
  }
  for (const Member& m : members) {
    GroupEvidence& g = m.e->groups[m.row];
    if (!g.used && !m.e->holes.frontiers_at_least &&
        (m.e->holes.only_active || m.e->records.empty())) {
      g.used = true;
      g.enqueued = g.started = g.completed = g.ended = waiting - 1;
      m.e->holes.frontier_inferred = true;
    }
  }
}

// ---------------------------------------------------------------- sends and receives

struct LaneEnd {
  RankEvidence* e = nullptr;
  std::size_t lane = 0;
};

std::vector<std::size_t> records_of(const LaneEnd& end) {
  const LaneEvidence& lane = end.e->lanes[end.lane];
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < end.e->records.size(); ++i) {
    const Record& r = end.e->records[i];
    if (r.group == lane.group && r.peer == lane.peer &&
        r.kind == (lane.send ? Kind::kSend : Kind::kRecv)) {
      out.push_back(i);
    }
  }
  return out;
}

// All that the lane has completed, less what it completed later: the oldest may not be in memory.
std::int64_t completed_until(const LaneEnd& end, const std::vector<std::size_t>& records, Time t) {
  auto n = static_cast<std::int64_t>(end.e->lanes[end.lane].completed);
  for (const std::size_t i : records) {
    const Record& r = end.e->records[i];
    n -= r.state == State::kCompleted && r.ended > t ? 1 : 0;
  }
  return n;
}

void shift(const LaneEnd& end, const std::vector<std::size_t>& records, std::int64_t by) {
  const auto add = [by](std::uint64_t& n) {
    n = static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + by);
  };
  for (const std::size_t i : records) {
    add(end.e->records[i].seq);
  }
  LaneEvidence& lane = end.e->lanes[end.lane];
  for (std::uint64_t* n : {&lane.enqueued, &lane.started, &lane.completed, &lane.ended}) {
    add(*n);
  }
}

// Records of the collectives that a rank has ended, by group (index in groups_of) and number.
using Ended = std::map<std::pair<std::size_t, std::uint64_t>, std::size_t>;
using EndedOf = std::map<const RankEvidence*, Ended>;

EndedOf ended_collectives(const std::vector<std::vector<Member>>& groups) {
  EndedOf out;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const Member& m : groups[g]) {
      if (m.e->lanes.empty()) {
        continue;
      }
      for (std::size_t i = 0; i < m.e->records.size(); ++i) {
        const Record& r = m.e->records[i];
        if (r.group == m.row && r.kind == Kind::kCollective && r.state == State::kCompleted) {
          out[m.e][{g, r.seq}] = i;
        }
      }
    }
  }
  return out;
}

// How many more sends than receives of one lane the windows hold before a collective that both ends
// have left: by then every message had passed. nullopt: they kept no such collective.
std::optional<std::int64_t> ahead_by_collectives(const LaneEnd& send, const LaneEnd& recv,
                                                 const EndedOf& ended) {
  const auto at_send = ended.find(send.e), at_recv = ended.find(recv.e);
  if (at_send == ended.end() || at_recv == ended.end()) {
    return std::nullopt;
  }
  std::vector<std::pair<std::size_t, std::size_t>> met;
  for (const auto& [key, i] : at_send->second) {
    if (const auto it = at_recv->second.find(key); it != at_recv->second.end()) {
      met.emplace_back(i, it->second);
    }
  }
  const std::vector<std::size_t> sends = records_of(send), recvs = records_of(recv);
  const auto before = [](const std::vector<std::size_t>& records, std::size_t record) {
    return std::lower_bound(records.begin(), records.end(), record) - records.begin();
  };
  std::map<std::int64_t, std::size_t> votes;
  for (const auto& [s, r] : met) {
    ++votes[before(sends, s) - before(recvs, r)];
  }
  const auto most = std::max_element(
      votes.begin(), votes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == votes.end() ? std::nullopt : std::optional(most->first);
}

// Where a window begins in the middle, only its end can be counted from: from a collective that
// both ends left, or else what both ends have completed by the moment of the earlier dump is the
// same message.
void align(const LaneEnd& send, const LaneEnd& recv, const EndedOf& ended) {
  const bool send_relative = send.e->lanes[send.lane].relative;
  const bool recv_relative = recv.e->lanes[recv.lane].relative;
  if (!send_relative && !recv_relative) {
    return;
  }
  const Time until = std::min(send.e->newest, recv.e->newest);
  const std::vector<std::size_t> sends = records_of(send), recvs = records_of(recv);
  const auto met = ahead_by_collectives(send, recv, ended);
  send.e->lanes[send.lane].guessed = recv.e->lanes[recv.lane].guessed = !met;
  const std::int64_t ahead =
      met ? *met : completed_until(send, sends, until) - completed_until(recv, recvs, until);
  const std::int64_t send_by = std::max<std::int64_t>(0, -ahead);
  const std::int64_t recv_by = std::max<std::int64_t>(0, ahead);
  if ((send_by > 0 && !send_relative) || (recv_by > 0 && !recv_relative)) {
    // The end with the whole history keeps its numbers; it has sent what the other has lost.
    return;
  }
  shift(send, sends, send_by);
  shift(recv, recvs, recv_by);
}

void pair_lanes(const std::vector<Member>& members, const EndedOf& ended) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::pair<LaneEnd, LaneEnd>> pairs;
  for (const Member& m : members) {
    const std::int32_t own = m.e->groups[m.row].own_rank;
    for (std::size_t i = 0; i < m.e->lanes.size(); ++i) {
      const LaneEvidence& lane = m.e->lanes[i];
      if (lane.group != m.row) {
        continue;
      }
      if (lane.send) {
        pairs[{own, lane.peer}].first = {m.e, i};
      } else {
        pairs[{lane.peer, own}].second = {m.e, i};
      }
    }
  }
  for (const auto& [key, ends] : pairs) {
    if (ends.first.e != nullptr && ends.second.e != nullptr && !ends.first.e->holes.truncated &&
        !ends.second.e->holes.truncated) {
      align(ends.first, ends.second, ended);
    }
  }
}

}  // namespace

void settle_torch(std::vector<std::unique_ptr<RankEvidence>>& evidence) {
  Set all;
  std::vector<TorchName> names;
  for (const auto& e : evidence) {
    if (!e->format.empty()) {
      all.push_back(e.get());
      names.push_back(torch_name(e->file));
    }
  }
  if (all.empty()) {
    return;
  }
  name_ranks(all, names);
  for (const auto& [job, files] : name_jobs(all, names)) {
    const Set set = newest_run(files);
    complete_groups(set);
    doubt_the_missing(set);
    date(set);
    const std::vector<std::vector<Member>> groups = groups_of(set);
    // Modification times later than that for ranks that had not come so far are those of copies.
    bool moves = false, lie = set.front()->holes.written_guessed;
    date_the_cut(set);
    for (const std::vector<Member>& members : groups) {
      const Time proof = moving(members);
      moves = moves || proof != 0;
      for (const Member& m : members) {
        const GroupEvidence& g = m.e->groups[m.row];
        const auto further = [&](const Member& o) {
          return o.e->groups[o.row].completed > g.completed + 1;
        };
        lie = lie || (proof != 0 && m.e->written > proof + kSecond &&
                      std::any_of(members.begin(), members.end(), further));
      }
    }
    // Some files that are older than the others' are no reason to take the job for a moving one.
    if (lie && moves && 4 * count_old(groups) > set.size()) {
      for (RankEvidence* e : set) {
        e->written = e->newest;
      }
    }
    const bool relative = std::any_of(set.begin(), set.end(),
                                      [](const RankEvidence* e) { return e->holes.relative_p2p; });
    const EndedOf ended = relative ? ended_collectives(groups) : EndedOf();
    for (const std::vector<Member>& members : groups) {
      find_failures(members, moves);
      find_old_dumps(members);
      infer_frontiers(members);
      pair_lanes(members, ended);
    }
  }
}

}  // namespace frtrace
