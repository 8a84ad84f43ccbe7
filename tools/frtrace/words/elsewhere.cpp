// Where the ranks are that wait in no operation and are not blamed.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "model/contains.hpp"
#include "model/hints.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

// "{} in load_batch() at train.py:57, asleep in flock; waits for the lock of data.lock, ...", {} for
// "is" or "are". Without what differs from rank to rank: addresses, sockets.
std::string place_of(const Facts& f, int i) {
  const RankEvidence& e = f.ev(i);
  const ThreadStack* t = told_thread(e);
  std::string where = t == nullptr ? "" : where_text(e.threads, *t, e.id.cwd);
  where.erase(std::min(where.size(), where.find(", within ")));  // the system call says as much
  if (where.empty()) {
    return {};
  }
  std::string out = "{} in " + where;
  if (t->activity != "interrupted" && !t->activity.empty()) {
    out += fmt::format(", {}{}{}", t->activity, t->syscall.empty() ? "" : " in ", t->syscall);
  }
  const int holder = f.graph.lock_holders[idx(i)];
  for (const Hint& hint : hints_of(e)) {
    out +=
        "; " + (hint.kind == HintKind::kFileLock && holder >= 0 ? file_lock_text(e, f.rank(holder))
                                                                : hint.text);
  }
  return out;
}

std::string last_issued(const Facts& f, int i) {
  const Names names(f);
  const Record* last = f.last_operation(i);
  return last == nullptr ? "no operation in the file"
                         : "last issued " + names.record(i, *last) + names.at(i, last->stack);
}

// Others wait for it, or nobody could be named.
bool matters(const Facts& f, const Report& r, int i) {
  const auto awaits = [&](const Pending& p) { return contains(p.absent, i); };
  return r.kind == Verdict::kUndecided ||
         std::any_of(f.graph.pending.begin(), f.graph.pending.end(), awaits);
}

}  // namespace

void add_elsewhere(const Facts& f, Report& r) {
  std::map<std::pair<bool, std::string>, std::vector<int>> at;  // it has a place
  for (int i = 0; i < static_cast<int>(f.c.ranks.size()); ++i) {
    const bool blamed = contains(r.ranks, f.rank(i));
    if (f.graph.waits(i) || blamed || !matters(f, r, i)) {
      continue;
    }
    const std::string place = f.exit(i).ended() ? "" : place_of(f, i);
    at[{!place.empty(), !place.empty()      ? place
                        : f.exit(i).ended() ? Names(f).exit(f.exit(i))
                                            : last_issued(f, i)}]
        .push_back(i);
  }
  for (const auto& [what, who] : at) {
    const bool one = who.size() == 1;
    const std::string ranks = ranks_words(f.ranks(who));
    say(r, "elsewhere",
        what.first
            ? ranks + " " + (one ? "is" : "are") + what.second.substr(2)
            : fmt::format("{} {} in no operation: {}", ranks, one ? "waits" : "wait", what.second));
  }
}

}  // namespace frtrace
