// Ranks that hold file locks that other ranks wait for.
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

}  // namespace

std::vector<int> lock_holders(const Case& c, const std::vector<Exit>& exits) {
  std::vector<int> out(c.ranks.size(), -1);
  std::map<std::pair<std::string_view, std::string_view>, std::vector<int>> machines;
  const auto on_machine_of = [&](int i) -> std::vector<int>& {
    return machines[{c.evidence_of(i).id.host, c.evidence_of(i).id.boot_id}];
  };
  for (const int i : c.indices()) {
    on_machine_of(i).push_back(i);
  }
  for (const int i : c.indices()) {
    const FileLockWait wait = file_lock_wait(c.evidence_of(i));
    if (wait.file.empty() || exits[idx(i)].ended()) {
      continue;
    }
    // By the process that the kernel named, else by each rank's own list of locks.
    std::vector<int> holders = on_machine_of(i);
    std::erase_if(holders, [&](int j) {
      const RankEvidence& e = c.evidence_of(j);
      return wait.holder > 0 ? e.id.pid != wait.holder : !holds(e, wait.file);
    });
    if (holders.size() == 1 && holders[0] != i && !exits[idx(holders[0])].ended()) {
      out[idx(i)] = holders[0];
    }
  }
  return out;
}

}  // namespace frtrace
