// Threads of a rank that ended, or did not issue an operation, while its other threads wait
// elsewhere.
#include <algorithm>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "model/contains.hpp"
#include "model/crumbs.hpp"
#include "model/operation.hpp"
#include "model/threads.hpp"

namespace frtrace {

namespace {

std::vector<const Record*> issued_in(const Facts& f, int i, int group) {
  std::vector<const Record*> out;
  for (const Record& r : f.ev(i).records) {
    if (communicates(r) && f.c.group_at(i, r.group) == group) {
      out.push_back(&r);
    }
  }
  return out;
}

// One thread of the rank issued all its operations of that group, and has ended. The waits of the
// rank's other threads do not hold that up.
bool lost_its_thread(const Facts& f, int i, int group) {
  const RankEvidence& e = f.ev(i);
  const std::size_t front = f.graph.fronts[idx(i)].first;
  const std::vector<const Record*> issued = issued_in(f, i, group);
  if (issued.empty() || front == kNoRecord) {
    return false;
  }
  const std::uint32_t tid = issued.front()->tid;
  return issued.size() >= (has_died(e, tid) ? 1 : limits::kOwnThread) &&
         std::ranges::all_of(issued, [tid](const Record* r) { return r->tid == tid; }) &&
         e.records[front].tid != tid && e.threads.present && e.threads.threads_lost == 0 &&
         thread_of(e.threads, static_cast<int>(tid)) == nullptr;
}

Cause never_issued_by(const Facts& f, int evidence, int pending) {
  Cause c(Rule::kNeverIssued, Verdict::kMissing);
  c.pending = pending;
  c.guilty = {guilty_rank(f, evidence, Why::kNeverIssued, pending)};
  c.explains = f.graph.leading_to({evidence});
  c.independent = true;
  return c;
}

}  // namespace

std::optional<Cause> other_thread_did_not_come(const Facts& f, const Problem& p, int evidence) {
  const RankEvidence& e = f.ev(evidence);
  const std::size_t front = f.graph.fronts[idx(evidence)].first;
  // A thread that the library started works for the thread that waits.
  const auto is_own = [&](const Record& r) {
    return static_cast<int>(r.tid) == e.id.pid || is_of_thread(e, r.stack);
  };
  if (front == kNoRecord || !is_own(e.records[front])) {
    return std::nullopt;
  }
  const auto by_others = [&](int group) {
    const std::vector<const Record*> issued = issued_in(f, evidence, group);
    return issued.size() >= limits::kOwnThread && std::ranges::all_of(issued, [&](const Record* r) {
             return r->tid != e.records[front].tid && is_own(*r);
           });
  };
  const auto k = std::ranges::find_if(p.pending, [&](int op) {
    return f.graph[op].kind == Kind::kCollective && contains(f.graph[op].absent, evidence) &&
           by_others(f.graph[op].group);
  });
  return k == p.pending.end() ? std::nullopt : std::optional(never_issued_by(f, evidence, *k));
}

// A thread of a rank issued a group's operations and ended, and others wait in that group: a fault
// by itself, whatever the rank's other threads wait in.
std::vector<Cause> thread_ended(const Facts& f) {
  std::vector<Cause> out;
  for (std::size_t k = 0; k < f.graph.pending.size(); ++k) {
    const Pending& p = f.graph.pending[k];
    std::vector<int> without_thread;
    for (const int a : p.kind == Kind::kCollective ? p.absent : std::vector<int>()) {
      if (f.graph.waits(a) && lost_its_thread(f, a, p.group)) {
        without_thread.push_back(a);
      }
    }
    // If most members lack the thread, its work is done.
    if (2 * without_thread.size() < f.group(p.group).ranks.size()) {
      for (const int a : without_thread) {
        out.push_back(never_issued_by(f, a, static_cast<int>(k)));
        out.back().thread_ended = true;
      }
    }
  }
  return out;
}

}  // namespace frtrace
