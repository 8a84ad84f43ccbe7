// Ranks that hold locks of files which other ranks wait for.
#include "facts/file_locks.hpp"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "model/hints.hpp"

namespace frtrace {

namespace {

bool holds(const RankEvidence& e, const std::string& file) {
  return std::ranges::any_of(e.threads.locks,
                             [&](const FileLock& l) { return !l.waits && l.file == file; });
}

using Machine = std::pair<std::string_view, std::string_view>;  // host, boot

Machine machine_of(const RankEvidence& e) {
  return {e.id.host, e.id.boot_id};
}

// The one rank of that machine that holds it: by the process that the kernel named, else by its own
// list of locks. -1: none, or several.
int holder_of(const Case& c, int waiter, const FileLockWait& wait, const std::vector<int>& ranks) {
  int found = -1;
  for (const int i : ranks) {
    const RankEvidence& e = c.evidence_of(i);
    if (wait.holder > 0 ? e.id.pid != wait.holder : !holds(e, wait.file)) {
      continue;
    }
    if (found >= 0) {
      return -1;
    }
    found = i;
  }
  return found == waiter ? -1 : found;
}

}  // namespace

std::vector<int> lock_holders(const Case& c, const std::vector<Exit>& exits) {
  std::vector<int> out(c.ranks.size(), -1);
  std::map<Machine, std::vector<int>> ranks;
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    ranks[machine_of(*c.ranks[i])].push_back(static_cast<int>(i));
  }
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    const FileLockWait wait = file_lock_wait(*c.ranks[i]);
    if (wait.file.empty() || exits[i].ended()) {
      continue;
    }
    const int holder = holder_of(c, static_cast<int>(i), wait, ranks[machine_of(*c.ranks[i])]);
    out[i] = holder < 0 || exits[idx(holder)].ended() ? -1 : holder;
  }
  return out;
}

}  // namespace frtrace
