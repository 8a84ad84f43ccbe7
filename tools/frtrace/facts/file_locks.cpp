// Ranks that hold locks of files which other ranks wait for.
#include "facts/file_locks.hpp"

#include <algorithm>

#include "model/hints.hpp"

namespace frtrace {

namespace {

bool holds(const RankEvidence& e, const std::string& file) {
  return std::any_of(e.threads.locks.begin(), e.threads.locks.end(),
                     [&](const FileLock& l) { return !l.waits && l.file == file; });
}

// The one rank of that machine that holds it: by the process that the kernel named, else by its own
// list of locks. -1: none, or several.
int holder_of(const Case& c, int waiter, const FileLockWait& wait) {
  const RankEvidence& own = c.evidence_of(waiter);
  int found = -1;
  for (int i = 0; i < static_cast<int>(c.ranks.size()); ++i) {
    const RankEvidence& e = c.evidence_of(i);
    if (e.id.host != own.id.host || e.id.boot_id != own.id.boot_id ||
        (wait.holder > 0 ? e.id.pid != wait.holder : !holds(e, wait.file))) {
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
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    const FileLockWait wait = file_lock_wait(*c.ranks[i]);
    if (wait.file.empty() || exits[i].ended()) {
      continue;
    }
    const int holder = holder_of(c, static_cast<int>(i), wait);
    out[i] = holder < 0 || exits[static_cast<std::size_t>(holder)].ended() ? -1 : holder;
  }
  return out;
}

}  // namespace frtrace
