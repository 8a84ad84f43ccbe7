#include "facts/late/arrivals.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "facts/late/stragglers.hpp"
#include "facts/limits.hpp"

namespace frtrace {

namespace {

void add(const LateSlot& slot, Arrivals& a, std::unordered_map<int, std::size_t>& places) {
  double most = 0;
  int last = -1;
  for (std::size_t k = 0; k < slot.members.size(); ++k) {
    const int evidence = slot.members[k].first;
    const auto [at, fresh] = places.try_emplace(evidence, a.members.size());
    if (fresh) {
      a.members.emplace_back().evidence = evidence;
    }
    a.members[at->second].each_s.push_back(static_cast<float>(slot.late_s[k]));
    if (last < 0 || slot.late_s[k] > most) {
      last = evidence;
      most = slot.late_s[k];
    }
  }
  ++a.slots;
  a.sum_s += most;
  std::size_t bucket = 0;
  for (double edge = 1e-6; bucket + 1 < Arrivals::kBuckets && most >= edge; edge *= 2) {
    ++bucket;
  }
  ++a.histogram[bucket];
  if (most > limits::kLateLeast_s) {
    Arrivals::Member& m = a.members[places.at(last)];
    ++m.last;
    m.sum_s += most;
  }
}

const Record& record_of(const Case& c, const LateSlot& slot) {
  return c.evidence_of(slot.members[0].first).records[slot.members[0].second];
}

// The operations of one group at one call site, in the order of its first member.
using SitesOfGroup = std::map<std::tuple<int, Id, std::uint32_t>, std::vector<const LateSlot*>>;

double median(std::vector<double> x) {
  const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
  std::ranges::nth_element(x, middle);
  return *middle;
}

std::optional<LateInTurn> in_turn_at(const Case& c, const std::vector<const LateSlot*>& slots,
                                     double ends_within_s) {
  std::vector<double> most_s, step_s;  // lateness of the last member; time between calls without it
  for (std::size_t k = 0; k < slots.size(); ++k) {
    most_s.push_back(std::ranges::max(slots[k]->late_s));
    if (k != 0) {
      const Time since = record_of(c, *slots[k - 1]).time;
      step_s.push_back(seconds_between(since, record_of(c, *slots[k]).time) - most_s[k]);
    }
  }
  if (step_s.empty()) {
    return {};
  }
  const double long_s =
      std::max({limits::kPauseLeast_s, limits::kPauseTimes * median(step_s), 2 * ends_within_s});
  LateInTurn out;
  std::map<int, std::size_t> pauses;  // by evidence
  std::vector<double> each_s;
  double lost_s = 0;
  for (std::size_t k = 0; k < slots.size(); ++k) {
    if (most_s[k] >= long_s) {
      const auto last = std::ranges::max_element(slots[k]->late_s) - slots[k]->late_s.begin();
      ++pauses[slots[k]->members[idx(last)].first];
      each_s.push_back(most_s[k]);
      lost_s += most_s[k];
    }
  }
  const double span_s =
      seconds_between(record_of(c, *slots.front()).time, record_of(c, *slots.back()).time);
  out.slots = slots.size();
  out.pauses = each_s.size();
  // Frequent pauses mean that the work of the ranks is uneven.
  if (out.pauses < limits::kPausesEach * pauses.size() || out.pauses < limits::kPausesFewest ||
      limits::kPauseEvery * out.pauses > out.slots || lost_s < limits::kPauseShare * span_s) {
    return {};
  }
  for (const auto& [evidence, n] : pauses) {
    out.members.push_back({evidence, n});
  }
  std::ranges::stable_sort(out.members, std::ranges::greater(), &LateInTurn::Member::pauses);
  const auto of_one = static_cast<double>(out.members.front().pauses);
  if (of_one > limits::kPausesOfOne * static_cast<double>(out.pauses)) {
    return {};
  }
  std::tie(out.evidence, out.record) = slots.back()->members[0];
  out.typical_s = median(std::move(each_s));
  out.share = std::min(1.0, lost_s / span_s);
  return out;
}

}  // namespace

std::vector<Arrivals> arrivals(const Case& c, const std::vector<Slots>& slots, bool& by_clocks) {
  const LateSlots late = late_slots(c, slots);
  by_clocks = late.by_clocks;
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> known;
  std::vector<Arrivals> out;
  std::vector<std::unordered_map<int, std::size_t>> members;  // evidence -> place, of each
  for (const LateSlot& slot : late.all) {
    const Group& group = c.groups[idx(slot.group)];
    const RankEvidence& e = c.evidence_of(slot.members.front().first);
    const Record& r = record_of(c, slot);
    Arrivals one;
    one.group = group.desc.empty() ? group.name : group.desc;
    one.op = e.text(r.op);
    one.site = user_site(e, r.stack);
    const auto [at, fresh] =
        known.try_emplace({one.group, one.op, site_text(one.site)}, out.size());
    if (fresh) {
      out.push_back(std::move(one));
      members.emplace_back();
    }
    add(slot, out[at->second], members[at->second]);
  }
  for (Arrivals& a : out) {
    std::ranges::stable_sort(a.members, [](const auto& x, const auto& y) {
      return x.last != y.last ? x.last > y.last : x.sum_s > y.sum_s;
    });
  }
  std::ranges::stable_sort(out,
                           [](const Arrivals& a, const Arrivals& b) { return a.sum_s > b.sum_s; });
  return out;
}

std::optional<LateInTurn> late_in_turn(const Case& c, const std::vector<Slots>& slots) {
  const LateSlots late = late_slots(c, slots);
  if (late.by_clocks) {
    return {};
  }
  SitesOfGroup sites;
  for (const LateSlot& slot : late.all) {
    const Record& r = record_of(c, slot);
    sites[{slot.group, r.op, r.stack}].push_back(&slot);
  }
  std::optional<LateInTurn> worst;
  for (const auto& [site, at] : sites) {
    const auto found = in_turn_at(c, at, late.ends_within_s);
    if (found && (!worst || found->share > worst->share)) {
      worst = found;
    }
  }
  return worst;
}

}  // namespace frtrace
