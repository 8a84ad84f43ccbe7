// case.cpp - selects the evidence of one job, attempt and incident; matches groups across ranks.
#include "model/case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <tuple>

#include "model/groups.hpp"
#include "model/phrases.hpp"

namespace frtrace {

namespace {

constexpr int kMaxWorld = 1 << 22;
constexpr Time kClockSkew = 5'000'000'000;     // between hosts
constexpr Time kSameIncident = 3'000'000'000;  // incidents opened within it are one occasion

// The process could not move on after it: the evidence is valid for later incidents, too.
bool is_final(const RankEvidence& e) {
  return e.source != Source::kDump || e.process_gone || e.salvaged ||
         (e.exit.present && e.exit.state != fr::kExitNoted) || e.exit.kind == ExitBy::kException;
}

bool ends_with(std::string_view s, std::string_view end) {
  return s.size() >= end.size() && s.substr(s.size() - end.size()) == end;
}

// The file was written beside the rank's first dump of that incident; libfr/format/file_name.hpp.
bool is_beside(const RankEvidence& e) {
  return ends_with(e.file, ".later.fr") || ends_with(e.file, ".later.ring") ||
         ends_with(e.file, ".dead.fr") || ends_with(e.file, ".dead.ring");
}

bool says_went_on(const RankEvidence& e) {
  return e.trigger == Trigger::kWentOn;
}

bool is_hang(const std::vector<const RankEvidence*>& all, std::uint64_t incident) {
  return std::any_of(all.begin(), all.end(), [&](const RankEvidence* e) {
    return e->incident == incident && e->trigger == Trigger::kTimeout;
  });
}

// Prefers, for a hang, the first dump: later ones show how the hang was ended. Otherwise, and for
// an earlier incident, which the rank may have outlived, prefers the last one, which knows how the
// process ended. A ring is read later and may show actions on the job after the incident.
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

// The own dump of a rank that answered after a peer had written a dump for it. If nothing has
// changed since, it is better: it has all stacks.
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

// The first evidence of each rank in that incident.
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

// No rank made progress in between: the later incident is about the same hang, or about its end.
bool same_hang(const Best& first, const Best& later) {
  return std::all_of(later.begin(), later.end(), [&](const auto& entry) {
    const auto it = first.find(entry.first);
    return it != first.end() && same_process(*it->second, *entry.second) &&
           progress(*it->second) == progress(*entry.second);
  });
}

// The newest incident; of several about one hang the first, which was dumped before the hang was
// ended.
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

// The best evidence of each rank for the case's incident. `older`: ranks with evidence of an
// earlier incident that does not count.
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
  // A lone process that never learnt its rank is rank 0 of a world of one.
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

// The ranks of one run agree on its number. Without a number (no store, older files): processes of
// one run live at the same time, so a file written before another process began is of an earlier
// run. Exception: a process that failed at once, if the later one met it on their node.
bool is_of_earlier_run(const RankEvidence& e, const RankEvidence& youngest) {
  if (e.id.run != 0 && youngest.id.run != 0) {
    return e.id.run != youngest.id.run;
  }
  const bool same_host = e.id.host == youngest.id.host;
  return e.written != 0 && e.written + (same_host ? 0 : kClockSkew) < youngest.id.start &&
         std::ranges::none_of(
             youngest.peers,
             [&](const PeerEvidence& p) {
               return p.rank == e.id.rank && p.pid == e.id.pid && same_host;
             });
}

// A process on its host.
auto process_of(const RankEvidence& e) {
  return std::tuple(e.id.pid, e.id.start, std::string_view(e.id.host));
}

// The latest time at which the process can have joined its run.
Time joined(const RankEvidence& e) {
  Time out = e.id.start;
  for (const GroupEvidence& g : e.groups) {
    if (g.used && e.text(g.desc) == "default_pg") {
      out = std::max(out, g.created);
    }
  }
  return out;
}

// Evidence of earlier runs is not used; a note names its incidents once.
std::vector<const RankEvidence*> without_earlier_runs(Case& c,
                                                      const std::vector<const RankEvidence*>& all) {
  const auto age = [](const RankEvidence& e) {
    return std::tuple(joined(e), e.incident, e.written);
  };
  const RankEvidence* youngest = nullptr;
  for (const RankEvidence* e : all) {
    const bool counts = e->id.rank >= 0 && e->incident <= c.incident;
    if (counts && (youngest == nullptr || age(*e) > age(*youngest))) {
      youngest = e;
    }
  }
  if (youngest == nullptr) {
    return all;
  }
  // A process that made its groups anew has agreed on a new run number: its older files stay valid.
  std::map<decltype(process_of(*youngest)), Rank> now;
  for (const RankEvidence* e : all) {
    if (!is_of_earlier_run(*e, *youngest)) {
      now[process_of(*e)] = e->id.rank;
    }
  }
  std::vector<const RankEvidence*> used;
  std::vector<int> incidents;
  std::set<decltype(process_of(*youngest))> left;  // live, and in none of the new groups
  for (const RankEvidence* e : all) {
    const bool is_earlier = is_of_earlier_run(*e, *youngest);
    const auto own = now.find(process_of(*e));
    const bool lives_on = e->salvage != Salvage::kLeftOver && own != now.end();
    if (is_earlier && lives_on && own->second != e->id.rank) {
      continue;  // the process had another rank in the groups before
    }
    if (lives_on || !is_earlier) {
      used.push_back(e);
    } else if (e->id.host == youngest->id.host && e->written > joined(*youngest) && !e->salvaged &&
               !e->process_gone) {
      left.insert(process_of(*e));
    } else if (e->id.rank >= 0 && e->incident <= c.incident) {
      incidents.push_back(static_cast<int>(e->incident));
    }
  }
  for (const auto& [pid, start, host] : left) {
    c.notes.push_back(
        fmt::format("process {} on {} is in none of the groups that the others have "
                    "made since: its files are not used",
                    pid, host));
  }
  if (const std::size_t files = incidents.size(); files != 0) {
    c.notes.push_back(fmt::format("{} of an earlier run of this job {} not used: see --incident {}",
                                  counted(files, "file"), one_or(files, "is", "are"),
                                  fold_ranks(std::move(incidents))));
  }
  return used;
}

// Both processes lived when the later of them wrote its evidence.
bool lived_together(const RankEvidence& a, const RankEvidence& b) {
  const auto lives = [](const RankEvidence& e) {
    return e.format.empty() && e.threads_by.empty() && !e.salvaged && !e.process_gone &&
           e.id.pid != 0 && e.id.start != 0 && e.written != 0;
  };
  return lives(a) && lives(b) && a.written >= b.id.start && b.written >= a.id.start;
}

void find_twins(Case& c, const std::vector<const RankEvidence*>& all, const Best& best) {
  for (const RankEvidence* e : all) {
    const auto it = best.find(e->id.rank);
    if (it == best.end() || e->incident != it->second->incident) {
      continue;
    }
    const RankEvidence& chosen = *it->second;
    const bool one_run = e->id.run == chosen.id.run || e->id.run == 0 || chosen.id.run == 0;
    if (process_of(*e) == process_of(chosen) || !one_run || !lived_together(*e, chosen)) {
      continue;
    }
    auto& twins = c.twins[e->id.rank];
    if (twins.empty()) {
      twins.push_back(&chosen);
    }
    if (std::ranges::none_of(twins, [&](auto* x) { return process_of(*x) == process_of(*e); })) {
      twins.push_back(e);
    }
  }
  for (auto& [rank, twins] : c.twins) {
    std::ranges::sort(twins, {}, [](auto* x) { return process_of(*x); });
  }
}

// Sets aside ranks with stacks only, which may wait in an operation: no wait may end at them.
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
  const std::vector<const RankEvidence*> all = without_earlier_runs(c, without_waiting(c, given));
  const bool hang = is_hang(all, c.incident);
  std::set<Rank> older;
  Best best = best_of_ranks(c, all, hang, older);
  find_twins(c, all, best);
  std::map<Rank, std::vector<const RankEvidence*>> by_rank;  // avoids a search per rank
  for (const RankEvidence* e : all) {
    by_rank[e->id.rank].push_back(e);
  }
  int world = 0;
  std::map<int, std::size_t> told;  // world size -> number of fr's ranks that were told it
  for (auto& [rank, e] : best) {
    e = hang ? own_answer(*e, by_rank[e->id.rank]) : e;
    c.index.emplace(rank, static_cast<int>(c.ranks.size()));
    c.ranks.push_back(e);
    world = std::max(world, rank + 1);
    if (e->format.empty() && e->id.world_size > 0) {
      ++told[e->id.world_size];
    } else {  // a file of PyTorch's has a lower bound only, from the groups it lists
      world = std::max(world, e->id.world_size);
    }
  }
  // If the sizes differ, the launch command of some node was wrong: the most frequent size counts.
  const auto most = std::ranges::max_element(
      told, {}, [](const auto& x) { return std::pair(x.second, x.first); });
  world = most == told.end() ? world : std::max(world, most->first);
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
    match_groups(c);
    cases.push_back(std::move(c));
  }
  return cases;
}

}  // namespace frtrace
