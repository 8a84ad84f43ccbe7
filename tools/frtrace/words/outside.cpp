// outside.cpp - sentences about waits outside of operations: writes to the store, loops, file
// locks.
#include <fmt/ranges.h>

#include <map>

#include "model/hints.hpp"
#include "words/words.hpp"

namespace frtrace {

std::string owed_text(const Facts& f, const Cause& c) {
  const OwedWrite& w = *c.owed;
  const std::vector<Rank> owing = ranks_of(c.guilty), waiting = f.ranks(c.others);
  const std::string at = led(" at ", site_text(w.site));
  if (w.awaited_after == 0) {
    return fmt::format("{} for key {} of the ranks' store, which {} wrote before ({}{})",
                       wait_verb(waiting), w.call.substr(w.call.find(' ') + 1), ranks_words(owing),
                       counted(w.made, "time"), at);
  }
  return fmt::format("{} called {}{} {}, {} {}; {} for {} there", ranks_words(owing), w.call, at,
                     counted(w.made, "time"), ranks_words(waiting),
                     counted(w.awaited_after, "time"), wait_verb(waiting),
                     one_or(owing.size(), "it", "them"));
}

std::string reached_store_text(const Facts& f, const Cause& c) {
  for (const int i : c.others) {
    for (const ThreadStack& t : f.ev(i).threads.threads) {
      const std::size_t to = t.syscall_on.find(" -> ");
      if (t.tid == f.ev(i).id.pid && t.syscall_on.starts_with("socket ") &&
          to != std::string::npos) {
        return fmt::format("{} {} connected to the store at {}", ranks_words(f.ranks(c.others)),
                           one_or(c.others.size(), "is", "are"), t.syscall_on.substr(to + 4));
      }
    }
  }
  return {};
}

std::string polled_text(const Facts& f, const Cause& c) {
  const std::string place = site_text(now_at(f.ev(c.others.front())));
  return place.empty() ? "that place" : place;
}

std::string locks_text(const Facts& f, const Cause& c) {
  std::map<int, std::vector<int>> waiters;  // by holder
  for (const Guilty& g : c.guilty) {
    if (const int holder = f.graph.lock_holders[idx(g.evidence)]; holder >= 0) {
      waiters[holder].push_back(g.evidence);
    }
  }
  const Names names(f);
  std::vector<std::string> parts;
  for (const auto& [holder, who] : waiters) {
    const RankEvidence& e = f.ev(who.front());
    parts.push_back(fmt::format("rank {} holds the lock of {}, which {} for", f.rank(holder),
                                short_file(file_lock_wait(e).file, e.id.cwd),
                                wait_verb(f.ranks(who))));
    if (f.graph.waits(holder)) {
      parts.back() += fmt::format(", and waits for {} in {}", one_or(who.size(), "it", "them"),
                                  names.pending(f.graph[f.graph.waits_in[idx(holder)].front()]));
    }
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace frtrace
