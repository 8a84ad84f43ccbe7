// Devices, and libraries that run on them, that reported an error.
#include <algorithm>

#include "causes/rules.hpp"
#include "model/contains.hpp"

namespace frtrace {

namespace {

// The waits may end at this rank: it is idle, or its device is behind. If no rank is idle: the rank
// owes something to a device that is behind, or, if none is, it waits where the waits end.
bool may_hold_up(const Facts& f, int i) {
  bool idle = false, lagging = false, owes = false, waits = false;
  for (const Problem& p : f.graph.problems) {
    const bool own = contains(p.evidence, i);
    if (own && (p.kind == Problem::kIdle || p.kind == Problem::kLagging)) {
      return true;
    }
    idle = idle || p.kind == Problem::kIdle;
    waits = waits || (own && p.kind == Problem::kCycle);
    for (const int k : p.pending) {
      const Pending& at = f.graph[k];
      if (p.kind == Problem::kLagging) {
        lagging = true;
        owes = owes || (!at.starts_seen && contains(f.group(at.group).evidence, i));
      }
      waits = waits || (p.kind == Problem::kComplete && at.waits_here(i));
    }
  }
  return !idle && (lagging ? owes : waits);
}

}  // namespace

std::vector<Cause> device_error(const Facts& f) {
  std::vector<DeviceError> own = f.device_errors;
  std::erase_if(own, [](const DeviceError& e) { return e.consequence; });
  if (own.empty() || f.graph.pending.empty()) {
    return {};
  }
  Cause c;
  const auto [first, unmeasured] = first_errors(f.c, f.slots, own);
  for (const DeviceError& e : first) {
    if (!may_hold_up(f, e.evidence)) {
      return {};
    }
    Guilty g = guilty_rank(f, e.evidence, e.cuda ? Why::kCudaError : Why::kNcclError);
    g.issued = e.record;
    c.guilty.push_back(g);
  }
  c.errors = first;
  const std::vector<int> who = evidence_of(c.guilty);
  c.explains = f.graph.leading_to(who, f.graph.waits_in[idx(who.front())]);
  const auto earliest = std::ranges::min_element(f.graph.pending, {}, &Pending::since);
  c.pending = static_cast<int>(earliest - f.graph.pending.begin());
  if (first.size() > 1 && unmeasured) {
    c.guilty.clear();
    c.set(Rule::kOpenErrors, Verdict::kUndecided);
    c.others = who;
    return {c};
  }
  c.set(Rule::kDeviceError, Verdict::kDevice);
  for (Guilty& g : c.guilty) {
    g.pending = c.pending;
  }
  sort_by_rank(c.guilty);
  if (first.size() > 1) {
    c.assume(Assume::kErrorsAtOnce);
  }
  return {c};
}

}  // namespace frtrace
