// No rank waits in an operation and none issues one, for far longer than the job ever paused: all
// ranks wait for something else (a file, a lock, a data server).
#include <algorithm>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "format/silence.hpp"
#include "model/hints.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// The longest time, in seconds, in which the rank issued nothing and had nothing in flight, by its
// records and its learned deadlines; negative: unknown, too few operations.
double longest_pause_s(const RankEvidence& e) {
  Time last = 0;
  double longest = 0;
  std::size_t n = 0;
  for (const Record& r : e.records) {
    if (communicates(r)) {
      longest = last == 0 ? 0 : std::max(longest, seconds_between(last, r.time));
      last = std::max({last, r.time, r.ended});
      ++n;
    }
  }
  for (const LearnedSite& site : e.deadlines) {
    if (site.site == fr::kSilentSite) {
      longest = std::max(longest, site.absent_ms / 1e3);
    }
  }
  return n < limits::kUsualWaitFewest ? -1 : longest;
}

// The rank's recorder raised an incident because the job is silent.
bool is_told_silent(const RankEvidence& e) {
  return e.reason.find(fr::kSilentReason) != std::string::npos;
}

bool is_silent(const Facts& f, int i, bool told) {
  const RankEvidence& e = f.ev(i);
  const Exit& x = f.exit(i);
  if (!e.format.empty() || f.is_leaving(i) || (x.ended() && !x.terminated)) {
    return false;
  }
  if (has_not_begun(e)) {
    return told || silent_s(e) >= e.timeout_s();
  }
  const double pause_s = longest_pause_s(e);
  return told ||
         (pause_s >= 0 && idle_s(e) >= std::max(e.timeout_s(), limits::kIdleTimes * pause_s));
}

// The main thread of the rank sleeps. A thread that computes may just take long.
bool is_asleep(const RankEvidence& e) {
  const ThreadStack* t = told_thread(e);
  return t != nullptr && t->activity != fr::Activity::kRunning &&
         t->activity != fr::Activity::kRunnable;
}

}  // namespace

std::vector<Cause> all_idle(const Facts& f) {
  const bool told = std::ranges::any_of(f.c.ranks, [](auto* e) { return is_told_silent(*e); });
  const std::vector<int> silent = ranks_that(f, [&](int i) { return is_silent(f, i, told); });
  if (silent.size() != f.c.ranks.size() || !f.c.missing.empty() || (silent.size() < 2 && !told)) {
    return {};
  }
  const Site place = stopped_at(f.ev(silent.front()));
  const bool together = !place.file.empty() && std::ranges::all_of(silent, [&](int i) {
    return stopped_at(f.ev(i)) == place && is_asleep(f.ev(i));
  });
  Cause c(together ? Rule::kIdle : Rule::kOpenIdle,
          together ? Verdict::kMissing : Verdict::kUndecided);
  c.others = silent;
  for (const int i : silent) {
    if (together) {
      c.guilty.push_back(guilty_rank(f, i, Why::kIdle));
    }
  }
  if (together) {
    c.assume(Assume::kStuckThere, f.ranks(silent));
  }
  return {c};
}

}  // namespace frtrace
