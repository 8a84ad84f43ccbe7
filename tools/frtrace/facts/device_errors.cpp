// Errors of devices and communicators, and whose came first although clocks differ.
#include <algorithm>

#include "facts/devices.hpp"
#include "facts/exits.hpp"
#include "model/operation.hpp"

namespace frtrace {

std::vector<DeviceError> device_errors(const Case& c) {
  std::vector<DeviceError> out;
  for (int i = 0; i < static_cast<int>(c.ranks.size()); ++i) {
    const RankEvidence& e = c.evidence_of(i);
    DeviceError first;
    const auto take = [&](DeviceError x) {
      // One without a time is no earlier than one with.
      if (first.evidence < 0 || (x.time != 0 && (first.time == 0 || x.time < first.time))) {
        first = std::move(x);
      }
    };
    if (const DeviceFailure& f = e.device.failure; f.present) {
      DeviceError x;
      x.evidence = i;
      x.time = f.time;
      x.cuda = true;
      x.text = f.name.empty() ? "CUDA error " + std::to_string(f.code) : f.name;
      x.text += f.text.empty() ? "" : ": " + f.text;
      x.text += f.call.empty() ? "" : " (told by " + f.call + ")";
      x.record = f.has_record ? record_at(e, f.ticket) : SIZE_MAX;
      take(std::move(x));
    }
    for (const CommEvidence& comm : e.device.comms) {
      if (!comm.used || comm.ended || comm.error == 0) {
        continue;  // an ended one's was dealt with
      }
      DeviceError x;
      x.evidence = i;
      x.time = comm.error_time;
      x.text = e.text(comm.error);
      x.consequence = is_consequence(x.text);
      for (std::size_t r = e.records.size(); r-- > 0;) {
        const Record& record = e.records[r];
        if (record.state == State::kFailed && record.error == comm.error) {
          x.record = r;  // the first of them
        }
      }
      take(std::move(x));
    }
    if (first.evidence >= 0) {
      out.push_back(std::move(first));
    }
  }
  return out;
}

// Members of a synchronising collective leave it together.
Offset clock_offset(const Case& c, const std::vector<Slots>& slots, int a, int b) {
  constexpr Time kSameClock = 1'000'000, kFewSamples = 20'000'000, kFewest = 100'000'000;
  constexpr std::size_t kFew = 3, kEnough = 8, kMost = 256;
  const Identity& x = c.evidence_of(a).id;
  const Identity& y = c.evidence_of(b).id;
  if (x.host == y.host && x.boot_id == y.boot_id) {
    return {0, kSameClock};
  }
  std::vector<Time> ahead;
  for (std::size_t g = 0; g < c.groups.size() && ahead.size() < kMost; ++g) {
    const Group& group = c.groups[g];
    const auto i = group.position.find(x.rank), j = group.position.find(y.rank);
    if (i == group.position.end() || j == group.position.end()) {
      continue;
    }
    const std::size_t mine = static_cast<std::size_t>(i->second);
    const std::size_t theirs = static_cast<std::size_t>(j->second);
    if (group.evidence[mine] != a || group.evidence[theirs] != b) {
      continue;
    }
    const std::vector<std::uint32_t>& own = slots[g].records[mine];
    for (std::size_t r = own.size(); r-- > 0 && ahead.size() < kMost;) {
      const Record& left = c.evidence_of(a).records[own[r]];
      const Record* right = slots[g].at(c, group, theirs, left.seq);
      if (right != nullptr && left.state == State::kCompleted && left.ended != 0 &&
          right->state == State::kCompleted && right->ended != 0 &&
          meets_all(c.evidence_of(a).text(left.op))) {
        ahead.push_back(right->ended - left.ended);
      }
    }
  }
  if (ahead.empty()) {
    return {0, kUnmeasured};
  }
  std::sort(ahead.begin(), ahead.end());
  Offset out;
  out.ns = ahead[ahead.size() / 2];
  out.error = (ahead.size() < kFew      ? kFewest
               : ahead.size() < kEnough ? kFewSamples
                                        : kSameClock) +
              std::max(out.ns - ahead[ahead.size() / 10],
                       ahead[ahead.size() - 1 - ahead.size() / 10] - out.ns);
  return out;
}

FirstErrors first_errors(const Case& c, const std::vector<Slots>& slots,
                         const std::vector<DeviceError>& errors) {
  const DeviceError* first = nullptr;
  const auto since_first = [&](const DeviceError& x, Time& error) {
    const Offset o = x.evidence == first->evidence
                         ? Offset{}
                         : clock_offset(c, slots, first->evidence, x.evidence);
    error = o.error;
    return x.time - o.ns - first->time;
  };
  for (const DeviceError& x : errors) {
    if (x.time != 0 && (first == nullptr || x.time < first->time)) {
      first = &x;
    }
  }
  if (first == nullptr) {
    return {errors, errors.size() > 1};
  }
  // By the clock of that one, another may be.
  const DeviceError* earliest = first;
  Time least = 0, error = 0;
  for (const DeviceError& x : errors) {
    if (const Time t = since_first(x, error); x.time != 0 && t < least) {
      least = t;
      earliest = &x;
    }
  }
  first = earliest;
  FirstErrors out;
  for (const DeviceError& x : errors) {
    if (x.time == 0 || since_first(x, error) <= error) {
      out.errors.push_back(x);
      out.unmeasured = out.unmeasured || x.time == 0 || error == kUnmeasured;
    }
  }
  return out;
}

}  // namespace frtrace
