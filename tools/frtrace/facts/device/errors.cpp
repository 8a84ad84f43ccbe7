// Errors of devices and communicators, and the first of them although clocks differ.
#include <algorithm>

#include "facts/device/devices.hpp"
#include "facts/exits.hpp"
#include "facts/limits.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// An error without a time is no earlier than an error with a time.
bool is_earlier(const DeviceError& a, const DeviceError& b) {
  return std::pair(a.time == 0, a.time) < std::pair(b.time == 0, b.time);
}

}  // namespace

std::vector<DeviceError> device_errors(const Case& c) {
  std::vector<DeviceError> out;
  for (const int i : c.indices()) {
    const RankEvidence& e = c.evidence_of(i);
    std::vector<DeviceError> own;
    if (const DeviceFailure& f = e.device.failure; f.present) {
      std::string text = f.name.empty() ? "CUDA error " + std::to_string(f.code) : f.name;
      text += f.text.empty() ? "" : ": " + f.text;
      text += f.call.empty() ? "" : " (reported by " + f.call + ")";
      own.push_back({i, f.time, std::move(text), true, false,
                     f.has_record ? record_at(e, f.ticket) : SIZE_MAX});
    }
    for (const CommEvidence& comm : e.device.comms) {
      if (!comm.used || comm.ended || comm.error == 0) {
        continue;  // the error of an ended communicator was dealt with
      }
      const auto failed = std::ranges::find_if(e.records, [&](const Record& r) {
        return r.state == State::kFailed && r.error == comm.error;
      });
      const std::string text(e.text(comm.error));
      own.push_back({i, comm.error_time, text, false, is_consequence(text),
                     failed == e.records.end() ? SIZE_MAX : e.index_of(*failed)});
    }
    const auto first = std::ranges::min_element(own, is_earlier);
    if (first != own.end()) {
      out.push_back(std::move(*first));
    }
  }
  return out;
}

// Members of a synchronising collective leave it together, so its ends relate their clocks.
Offset clock_offset(const Case& c, const std::vector<Slots>& slots, int a, int b) {
  const Identity& x = c.evidence_of(a).id;
  const Identity& y = c.evidence_of(b).id;
  const bool same = x.host == y.host && x.boot_id == y.boot_id;
  if (same && !x.host.empty()) {  // PyTorch's files name no host
    return {0, limits::kSameClock_ns};
  }
  std::vector<Time> ahead;
  for (std::size_t g = 0; g < c.groups.size() && ahead.size() < limits::kMeetings; ++g) {
    const Group& group = c.groups[g];
    const int i = group.at(x.rank), j = group.at(y.rank);
    if (i < 0 || j < 0 || group.evidence[idx(i)] != a || group.evidence[idx(j)] != b) {
      continue;
    }
    const std::vector<std::uint32_t>& own = slots[g].records[idx(i)];
    for (std::size_t r = own.size(); r-- > 0 && ahead.size() < limits::kMeetings;) {
      const Record& left = c.evidence_of(a).records[own[r]];
      const Record* right = slots[g].at(c, group, idx(j), left.seq);
      if (right != nullptr && left.state == State::kCompleted && left.ended != 0 &&
          right->state == State::kCompleted && right->ended != 0 &&
          meets_all(c.evidence_of(a).text(left.op))) {
        ahead.push_back(right->ended - left.ended);
      }
    }
  }
  if (ahead.empty()) {
    return {0, same ? limits::kSameClock_ns : kUnmeasured};
  }
  std::ranges::sort(ahead);
  Offset out;
  out.ns = ahead[ahead.size() / 2];
  out.error = (ahead.size() < limits::kMeetingsFew      ? limits::kClockByFewest_ns
               : ahead.size() < limits::kMeetingsEnough ? limits::kClockByFew_ns
                                                        : limits::kSameClock_ns) +
              std::max(out.ns - ahead[ahead.size() / 10],
                       ahead[ahead.size() - 1 - ahead.size() / 10] - out.ns);
  return out;
}

FirstErrors first_errors(const Case& c, const std::vector<Slots>& slots,
                         const std::vector<DeviceError>& errors) {
  const auto reference = std::ranges::min_element(errors, is_earlier);
  // Time of each error, by the clock of the reference error's rank.
  std::vector<Offset> when;
  for (const DeviceError& x : errors) {
    const Offset o = x.evidence == reference->evidence || x.time == 0
                         ? Offset{}
                         : clock_offset(c, slots, reference->evidence, x.evidence);
    when.push_back({x.time - o.ns, x.time == 0 ? kUnmeasured : o.error});
  }
  std::size_t first = static_cast<std::size_t>(reference - errors.begin());
  for (std::size_t i = 0; i < errors.size(); ++i) {
    first = errors[i].time != 0 && when[i].ns < when[first].ns ? i : first;
  }
  FirstErrors out;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    if (errors[i].time == 0 || i == first ||
        when[i].ns - when[first].ns <= when[i].error + when[first].error) {
      out.errors.push_back(errors[i]);
      out.unmeasured = out.unmeasured || when[i].error == kUnmeasured;
    }
  }
  out.unmeasured = out.unmeasured && out.errors.size() > 1;
  return out;
}

}  // namespace frtrace
