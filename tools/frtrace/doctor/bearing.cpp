#include "doctor/bearing.hpp"

#include <algorithm>

#include "doctor/examine.hpp"
#include "system/here.hpp"

namespace frtrace {

namespace {

using namespace std::chrono_literals;

constexpr doctor::Patience kQuick{2s, 2s};
constexpr Time kRecent = 24 * 3600 * kSecond;  // an older incident says nothing about now

// Whether the verdict concerns this machine: a blamed rank runs here; any rank, if none is blamed.
bool is_of_this_host(const Report& r) {
  const std::string host = host_name();
  const bool blames = std::any_of(r.blamed.begin(), r.blamed.end(),
                                  [](const Blamed& b) { return !b.host.empty(); });
  return blames ? std::any_of(r.blamed.begin(), r.blamed.end(),
                              [&](const Blamed& b) { return b.host == host; })
                : std::any_of(r.rank_reports.begin(), r.rank_reports.end(),
                              [&](const RankReport& k) { return k.host == host; });
}

unsigned trouble_of(const Report& r) {
  unsigned out = r.missing_ranks.empty() ? 0 : unsigned{doctor::kRings};
  const auto blamed_for = [&](std::initializer_list<std::string_view> why) {
    return std::any_of(r.blamed.begin(), r.blamed.end(), [&](const Blamed& b) {
      return std::find(why.begin(), why.end(), b.why) != why.end();
    });
  };
  switch (r.kind) {
    case Verdict::kTransport:
      return out | doctor::kMeeting;
    case Verdict::kDevice:
      return out | doctor::kDevices;
    case Verdict::kMissing:
    case Verdict::kUndecided:
      return out | doctor::kFiles |
             (blamed_for({"never_started"}) ? unsigned{doctor::kMeeting} : 0);
    case Verdict::kExited:
      return out | doctor::kFiles |
             (blamed_for({"killed", "gone", "no_evidence"}) ? unsigned{doctor::kKill} : 0);
    default:
      return 0;
  }
}

}  // namespace

void look_at_machine(Report& r, doctor::Where where, bool in_job) {
  unsigned trouble = trouble_of(r);
  if (trouble == 0 || !is_of_this_host(r)) {
    return;
  }
  where.job = r.job;
  if (!in_job && !doctor::Machine(where).is_job()) {
    // of its processes nothing is left to look at, and later things have happened here
    trouble &= doctor::kDevices | doctor::kRings;
    if (trouble == 0 || unix_now() - r.time > kRecent) {
      return;
    }
  }
  const doctor::Examination e = doctor::examine(
      where, [&](const doctor::Check& c) { return (c.bears & trouble) != 0; }, kQuick);
  for (const doctor::Result& result : e.results) {
    if (result.finding.state == doctor::State::kBad) {
      r.doctor.push_back(
          {result.check->id, result.check->name, result.finding.value,
           result.finding.remedy.empty() ? result.check->remedy : result.finding.remedy});
    }
  }
}

}  // namespace frtrace
