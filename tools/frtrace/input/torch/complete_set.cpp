// complete_set.cpp - conclusions from a set of PyTorch dumps that no single dump allows.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "input/torch/dump.hpp"
#include "input/torch/naming.hpp"
#include "input/torch/set.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

using Set = TorchSet;
using torch_set::Member;

bool is_gloo(const RankEvidence& e, const GroupEvidence& g) {
  return e.text(g.backend) == "gloo";
}

bool in_flight(const Record& r) {
  return r.state == State::kEnqueued || r.state == State::kStarted;
}

// gloo records the same end whether an operation succeeded or its peer died. With a rank missing, a
// job at rest may have failed.
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
      e->trigger = Trigger::kFailure;
      e->reason = "gloo does not record failures";
    }
  }
}

// The rows of all files that are one group.
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

// The longest time between a file's last operation and its writing, over the files that show it; 0
// unless most do. The files of one incident are written together.
Time age_that_most_tell(const Set& set) {
  Time age = 0;
  std::size_t telling = 0;
  for (const RankEvidence* e : set) {
    if (e->looked != 0) {
      const auto last = std::ranges::max_element(e->records, {}, &Record::time);
      age = std::max(age, e->looked - last->time);
      ++telling;
    }
  }
  return 2 * telling > set.size() ? age : 0;
}

// The longest timeout of an operation in flight: PyTorch's own reason to write a file.
Time timeout_of(const Set& set) {
  Time timeout = 0;
  for (const RankEvidence* e : set) {
    for (const Record& r : e->records) {
      timeout = in_flight(r) ? std::max(timeout, Time{r.timeout_ms} * 1'000'000) : timeout;
    }
  }
  return timeout != 0 ? timeout : 600 * kSecond;
}

// A file is older than its content if its host has a fast clock.
bool is_ahead(const RankEvidence* e) {
  constexpr Time kAhead = 5 * kSecond;
  return e->file_time + kAhead < e->newest;
}

// A dump shows its time of writing only if its writer found ended operations. Otherwise the
// modification time counts, unless the file was copied; then the timeout is the best guess.
void date(const Set& set) {
  Time newest = 0, longest_age = 0;
  for (const RankEvidence* e : set) {
    newest = std::max(newest, e->newest);
    longest_age = is_ahead(e) ? longest_age : std::max(longest_age, e->file_time - e->newest);
  }
  constexpr Time kSkew = 120 * kSecond;
  const Time timeout = timeout_of(set), told = age_that_most_tell(set);
  const Time longest = std::max(3 * timeout, 7200 * kSecond);
  const bool copied = std::any_of(set.begin(), set.end(), [&](const RankEvidence* e) {
    return e->file_time == 0 || e->file_time < e->newest - kSkew || e->file_time > newest + longest;
  });
  for (RankEvidence* e : set) {
    if (e->looked != 0) {
      e->written = e->looked;
      continue;
    }
    e->holes.written_guessed = copied || is_ahead(e);
    e->written = newest == 0           ? e->file_time  // no file has a time of its own
                 : copied && told != 0 ? e->newest + told
                 : copied              ? newest + timeout
                 : is_ahead(e)         ? e->newest + longest_age
                                       : std::max(e->file_time, e->newest);
  }
}

// A cut file's counters include operations with records, and times, behind the cut: nothing shows
// that these have lasted.
void date_the_cut(const Set& set) {
  for (RankEvidence* e : set) {
    for (GroupEvidence& g : e->groups) {
      if (e->holes.truncated && g.kept == 0) {
        g.enqueued_time = g.completed_time = e->written;
      }
    }
  }
}

// Finds files with active operations only that are in fact full rings: they hold as many entries as
// another rank's ring, with completed entries, has room for. Their completed entries were
// overwritten, not left out, and so may be operations in flight.
void find_full_rings(const Set& set) {
  const auto room = [](const RankEvidence* e) -> std::uint64_t {
    const bool full = !e->records.empty() && e->records.front().ticket > 1;
    return full ? e->id.n_records - e->records.front().ticket : 0;
  };
  std::set<std::uint64_t> rings;
  for (const RankEvidence* e : set) {
    if (!e->holes.only_active) {
      rings.insert(room(e));
    }
  }
  rings.erase(0);  // of complete files
  for (RankEvidence* e : set) {
    if (e->holes.only_active && rings.contains(room(e))) {
      e->holes.only_active = false;
      e->losses.lanes_lost += 1;
      for (const GroupEvidence& g : e->groups) {
        e->losses.overwritten += g.overwritten;
      }
    }
  }
}

// ---------------------------------------------------------------- frontiers

// When the operation was issued by which one rank finished more than another could have started, by
// its own file: the files were written while the job moved. 0: none.
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
        // A rank that lags in completions only has a slow device, or a slow observer of it.
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

// The number of files of ranks that had not yet issued an operation which another one has finished.
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

// Dates the dump of a rank no later than the end of an operation that it had not issued.
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
  std::map<std::uint64_t, Time> finished;  // seq that some rank never issued -> when others had it
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

// The dump was taken during an operation that all had issued together and others have left.
bool is_amid(const Member& late, std::uint64_t seq, const std::vector<Member>& members) {
  const auto last = [&](const Member& m) -> const Record* {
    const auto it = std::find_if(m.e->records.rbegin(), m.e->records.rend(), [&](const Record& r) {
      return r.group == m.row && r.kind == Kind::kCollective && r.seq == seq;
    });
    return it == m.e->records.rend() ? nullptr : &*it;
  };
  const Record* own = last(late);
  return own != nullptr && in_flight(*own) &&
         std::any_of(members.begin(), members.end(), [&](const Member& m) {
           const Record* r = last(m);
           return r != nullptr && r->state == State::kCompleted && own->time < r->time + kSecond;
         });
}

// gloo retires failed operations like successful ones. An operation that needs all members, retired
// although a member never issued it, has failed. A rank that went on from there only proves that
// the absent rank's dump is old.
void find_failures(const std::vector<Member>& members, bool moves) {
  std::uint64_t least = UINT64_MAX;
  bool amid = false;
  const RankEvidence* absent = nullptr;
  for (const Member& m : members) {
    const GroupEvidence& g = m.e->groups[m.row];
    if (g.used && m.e->holes.frontiers_at_least) {
      return;  // it may have issued the operation
    }
    if (g.used && g.enqueued < least) {
      least = g.enqueued;
      absent = m.e;
      amid = is_amid(m, least, members);
    }
  }
  if (absent == nullptr || amid) {
    return;
  }
  // One member's end without another's ends it for all, and no member leaves an operation it waits
  // in.
  moves = moves || std::any_of(members.begin(), members.end(), [&](const Member& m) {
            return std::any_of(m.e->records.begin(), m.e->records.end(), [&](const Record& r) {
              return r.group == m.row && in_flight(r) && (r.seq > least || m.e == absent);
            });
          });
  for (const Member& m : members) {
    GroupEvidence& g = m.e->groups[m.row];
    if (!g.used || !is_gloo(*m.e, g) || g.enqueued <= least) {
      continue;
    }
    // The rank's last operations: one, or several of the group issued together.
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
    // The absent rank's dump was taken long after this operation was due, or at about the same
    // time.
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
      m.e->strings.push_back("timeout, or connection closed (inferred: not all members took part)");
      g.completed = std::min(g.completed, least);
      g.ended = std::min(g.ended, least);
      ++g.failed;
      m.e->holes.failure_inferred = true;
    }
  }
}

// Only operations in flight were dumped, and the group has none: the rank has not issued the
// operation that others still wait for, and all earlier ones are done.
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

// A collective that needs all members has not completed while one of them has not issued it,
// whatever the backend reports.
void find_unfinished(const std::vector<Member>& members) {
  std::uint64_t least = UINT64_MAX;
  for (const Member& m : members) {
    const GroupEvidence& g = m.e->groups[m.row];
    if (!g.used || m.e->holes.frontiers_at_least) {
      return;  // it may have issued more
    }
    least = std::min(least, g.enqueued);
  }
  for (const Member& m : members) {
    GroupEvidence& g = m.e->groups[m.row];
    for (Record& r : m.e->records) {
      if (r.group == m.row && r.kind == Kind::kCollective && r.seq > least &&
          (r.flags & kUntracked) != 0 && meets_all(m.e->text(r.op))) {
        r.state = State::kEnqueued;
        r.flags &= static_cast<std::uint16_t>(~kUntracked);
        --g.untracked;
      }
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
    torch_set::complete_groups(set);
    doubt_the_missing(set);
    find_full_rings(set);
    date(set);
    const std::vector<std::vector<Member>> groups = groups_of(set);
    for (const std::vector<Member>& members : groups) {
      find_unfinished(members);
    }
    // A modification time after a proof of movement, on a rank that was behind then, is that of a
    // copy.
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
    // A single old file, or a few of many, does not prove that the job moves.
    const std::size_t old = lie && moves ? count_old(groups) : 0;
    if (old > 1 && 4 * old > set.size()) {
      for (RankEvidence* e : set) {
        e->written = e->newest;
      }
    }
    const bool relative = std::any_of(set.begin(), set.end(),
                                      [](const RankEvidence* e) { return e->holes.relative_p2p; });
    const torch_set::EndedOf ended =
        relative ? torch_set::ended_collectives(groups) : torch_set::EndedOf();
    for (const std::vector<Member>& members : groups) {
      find_failures(members, moves);
      find_old_dumps(members);
      infer_frontiers(members);
      torch_set::pair_lanes(members, ended);
    }
  }
}

}  // namespace frtrace
