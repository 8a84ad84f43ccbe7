#include "input/summary/shorten.hpp"

#include <algorithm>

#include "input/summary/numbers.hpp"
#include "input/summary/summary.hpp"

namespace frtrace::reduce {

namespace {

constexpr std::size_t kRasBytes = 4096;
constexpr std::size_t kRecords = 2048;  // the last ones; of those, with times:
constexpr std::size_t kTimed = 512;
// Times of older operations are rounded down to this many ns, which keeps their order: enough to
// find late ranks. Times in PyTorch's dumps are kept: states missing there are inferred from times.
constexpr Time kOlderTick = 1 << 20;

void round(Record& r, Time tick) {
  for (Time* t : {&r.time, &r.started, &r.ended}) {
    *t = tick == 0 ? 0 : *t - *t % tick;
  }
}

// Folder and name on its node; the name may contain the rank.
std::string short_name(const std::string& path) {
  const std::string within = std::string(kEnding) + "/";
  if (const std::size_t at = path.rfind(within); at != std::string::npos) {
    return path.substr(at + within.size());
  }
  const std::size_t slash = path.rfind('/');
  const std::size_t before =
      slash == std::string::npos || slash == 0 ? std::string::npos : path.rfind('/', slash - 1);
  return before == std::string::npos ? path : path.substr(before + 1);
}

}  // namespace

void shorten(RankEvidence& e) {
  e.file = short_name(e.file);
  if (e.holes.reduced) {
    return;
  }
  e.holes.reduced = true;
  std::erase_if(e.options, [](const auto& o) { return o.first != "FR_TIMEOUT_S"; });
  e.layers.clear();
  e.deadlines.clear();
  e.threads.modules.clear();
  if (e.ras.answer.size() > kRasBytes) {
    e.ras.answer.resize(kRasBytes);
    e.ras.cut = true;
  }
  for (ThreadStack& t : e.threads.threads) {
    t.variables.clear();
  }
  if (e.records.size() > kRecords) {
    const std::size_t left_out = e.records.size() - kRecords;
    e.losses.trimmed += left_out;
    e.records.erase(e.records.begin(), e.records.begin() + static_cast<std::ptrdiff_t>(left_out));
  }
  const std::vector<bool> is_recent = recent(e);
  for (std::size_t i = 0; i < e.records.size(); ++i) {
    if (!is_recent[i]) {
      const bool timed = i + kTimed >= e.records.size();
      round(e.records[i], !timed ? 0 : e.format.empty() ? kOlderTick : 1);
    }
  }
  std::erase_if(e.device.spans, [&](const DeviceSpan& s) {
    const auto it = std::lower_bound(e.records.begin(), e.records.end(), s.ticket,
                                     [](const Record& r, std::uint64_t t) { return r.ticket < t; });
    return it == e.records.end() || it->ticket != s.ticket || it->time == 0;
  });
}

}  // namespace frtrace::reduce
