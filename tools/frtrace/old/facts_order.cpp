#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "model/hash.hpp"
#include "old/facts.hpp"

namespace frtrace {

const std::vector<Step>& History::of(int evidence) {
  const std::size_t i = static_cast<std::size_t>(evidence);
  if (built_[i]) {
    return steps_[i];
  }
  built_[i] = true;
  const RankEvidence& e = case_.evidence_of(evidence);
  std::unordered_map<std::uint32_t, std::uint64_t> site_keys;
  for (std::size_t r = 0; r < e.records.size(); ++r) {
    const Record& record = e.records[r];
    if (record.kind != Kind::kCollective && record.kind != Kind::kSend &&
        record.kind != Kind::kRecv) {
      continue;
    }
    const int group =
        record.group < case_.group_of[i].size() ? case_.group_of[i][record.group] : -1;
    auto [it, added] = site_keys.try_emplace(record.stack, 0);
    if (added) {
      const Site site = user_site(e, record.stack);
      it->second = mix(mix(7, site.file), static_cast<std::uint64_t>(site.line));
    }
    std::uint64_t key = signature_hash(e, record);
    key = mix(mix(key, it->second), static_cast<std::uint64_t>(group + 1));
    key = mix(key, static_cast<std::uint64_t>(record.kind));
    if (record.kind != Kind::kCollective) {
      key = mix(key, static_cast<std::uint64_t>(record.peer + 1));
    }
    steps_[i].push_back({key, group, r});
  }
  return steps_[i];
}

std::size_t step_of(const std::vector<Step>& steps, std::size_t record) {
  const auto it =
      std::lower_bound(steps.begin(), steps.end(), record,
                       [](const Step& step, std::size_t wanted) { return step.record < wanted; });
  return static_cast<std::size_t>(it - steps.begin());
}

std::optional<std::size_t> usual_next(const std::vector<Step>& steps, std::size_t pos) {
  constexpr std::size_t kContext = 8, kWindow = 4096;
  const std::size_t oldest = pos > kWindow ? pos - kWindow : 0;
  for (std::size_t c = std::min(kContext, pos - oldest); c >= 1; --c) {
    for (std::size_t j = pos - 1; j >= oldest + c && j < pos; --j) {
      bool equal = true;
      for (std::size_t t = 1; t <= c && equal; ++t) {
        equal = steps[j - t].key == steps[pos - t].key;
      }
      if (equal) {
        return j;
      }
    }
  }
  return std::nullopt;
}

std::optional<Deviation> deviation(const std::vector<Step>& steps, int group) {
  std::size_t after_last = 0;
  for (std::size_t i = steps.size(); i > 0 && after_last == 0; --i) {
    if (steps[i - 1].group == group) {
      after_last = i;
    }
  }
  if (after_last == 0) {
    return std::nullopt;
  }
  constexpr std::size_t kLookahead = 256;
  for (std::size_t p = after_last; p < std::min(steps.size(), after_last + kLookahead); ++p) {
    if (const auto usual = usual_next(steps, p); usual && steps[*usual].group == group) {
      return Deviation{p, *usual};
    }
  }
  return std::nullopt;
}

namespace {

constexpr std::size_t kLongest = 8, kShortest = 2, kHistory = 4096, kLookahead = 8;

// Earlier steps that follow the same `context` steps as `pos`, latest first.
template <class F>
bool any_alike(const std::vector<Step>& steps, std::size_t pos, std::size_t context, F&& f) {
  const std::size_t oldest = pos > kHistory ? pos - kHistory : 0;
  for (std::size_t j = pos - 1; j >= oldest + context && j < pos; --j) {
    bool equal = true;
    for (std::size_t t = 1; t <= context && equal; ++t) {
      equal = steps[j - t].key == steps[pos - t].key;
    }
    if (equal && f(j)) {
      return true;
    }
  }
  return false;
}

bool comes(const std::vector<Step>& steps, std::uint64_t key, std::size_t first, std::size_t end) {
  for (std::size_t i = first; i < std::min(end, first + kLookahead); ++i) {
    if (steps[i].key == key) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::optional<Anomaly> anomaly(const std::vector<Step>& steps, std::size_t from) {
  for (std::size_t p = std::max<std::size_t>(from, kShortest); p < steps.size(); ++p) {
    std::size_t usual = SIZE_MAX;
    bool normal = false;
    for (std::size_t c = std::min(kLongest, p); c >= kShortest && usual == SIZE_MAX; --c) {
      normal = any_alike(steps, p, c, [&](std::size_t j) {
        usual = usual == SIZE_MAX ? j : usual;
        return steps[j].key == steps[p].key;
      });
    }
    if (usual == SIZE_MAX || normal) {
      continue;
    }
    Anomaly a;
    a.issued = p;
    a.usual = usual;
    a.novel = std::none_of(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(p),
                           [&](const Step& s) { return s.key == steps[p].key; });
    const bool later = comes(steps, steps[usual].key, p + 1, steps.size());
    const bool follows = comes(steps, steps[p].key, usual + 1, p);
    a.kind = later ? (follows ? Anomaly::kSwapped : Anomaly::kInserted)
                   : (follows ? Anomaly::kSkipped : Anomaly::kOther);
    return a;
  }
  return std::nullopt;
}

}  // namespace frtrace
