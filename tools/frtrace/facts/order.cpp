// Steps of ranks, and what they usually do.
#include "facts/order.hpp"

#include <algorithm>
#include <unordered_map>

#include "facts/limits.hpp"
#include "model/hash.hpp"
#include "model/operation.hpp"

namespace frtrace {

const std::vector<Step>& History::of(int evidence) const {
  const std::size_t i = static_cast<std::size_t>(evidence);
  if (built_[i]) {
    return steps_[i];
  }
  built_[i] = true;
  const RankEvidence& e = case_.evidence_of(evidence);
  std::unordered_map<std::uint32_t, std::uint64_t> site_keys;
  for (std::size_t r = 0; r < e.records.size(); ++r) {
    const Record& record = e.records[r];
    if (!communicates(record)) {
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
  const std::size_t oldest = pos > limits::kWindow ? pos - limits::kWindow : 0;
  for (std::size_t c = std::min(limits::kContext, pos - oldest); c >= 1; --c) {
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
  for (std::size_t p = after_last; p < std::min(steps.size(), after_last + limits::kDeviationSteps);
       ++p) {
    if (const auto usual = usual_next(steps, p); usual && steps[*usual].group == group) {
      return Deviation{p, *usual};
    }
  }
  return std::nullopt;
}

namespace {

// Earlier steps that follow the same `context` steps as `pos`, latest first.
template <class F>
bool any_alike(const std::vector<Step>& steps, std::size_t pos, std::size_t context, F&& f) {
  const std::size_t oldest = pos > limits::kWindow ? pos - limits::kWindow : 0;
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

}  // namespace

Anomaly::Kind kind_of(std::span<const std::uint64_t> issued, std::span<const std::uint64_t> due,
                      std::size_t& support) {
  const auto agree = [&](std::size_t a, std::size_t b) {
    std::size_t n = 0;
    while (n < limits::kAgree && a + n < issued.size() && b + n < due.size() &&
           issued[a + n] == due[b + n]) {
      ++n;
    }
    return n;
  };
  Anomaly::Kind best = Anomaly::kReplaced;
  support = agree(1, 1);
  const auto consider = [&](Anomaly::Kind kind, std::size_t n) {
    if (n > support) {
      best = kind;
      support = n;
    }
  };
  const auto taken = std::find(due.begin(), due.end(), issued[0]) - due.begin();
  const bool known = static_cast<std::size_t>(taken) < due.size();
  for (std::size_t k = 1; k <= limits::kLookahead; ++k) {
    consider(Anomaly::kInserted, agree(k, 0));
  }
  for (std::size_t k = 1; k <= limits::kLookahead && best == Anomaly::kReplaced; ++k) {
    consider(Anomaly::kSkipped, agree(0, k));
  }
  for (std::size_t k = 1; k <= limits::kLookahead; ++k) {
    consider(Anomaly::kSkipped, agree(0, k));
  }
  const bool came = std::find(issued.begin() + 1, issued.end(), due[0]) != issued.end();
  if (known && (best == Anomaly::kInserted || (best == Anomaly::kReplaced && came))) {
    best = Anomaly::kSwapped;  // what it issued first usually comes later
  }
  // The last operation of all: only what usually comes next is a skip; farther ahead it is order.
  if (issued.size() == 1 && known && taken > 1) {
    best = Anomaly::kSwapped;
  }
  return best;
}

std::optional<Anomaly> anomaly(const std::vector<Step>& steps, std::size_t from) {
  for (std::size_t p = std::max<std::size_t>(from, limits::kContextLeast); p < steps.size(); ++p) {
    std::size_t usual = SIZE_MAX;
    bool normal = false;
    Anomaly a;
    for (std::size_t c = std::min(limits::kContext, p);
         c >= limits::kContextLeast && usual == SIZE_MAX; --c) {
      normal = any_alike(steps, p, c, [&](std::size_t j) {
        usual = usual == SIZE_MAX ? j : usual;
        a.context = c;
        return steps[j].key == steps[p].key;
      });
    }
    if (usual == SIZE_MAX || normal) {
      continue;
    }
    a.issued = p;
    a.usual = usual;
    a.novel = std::none_of(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(p),
                           [&](const Step& s) { return s.key == steps[p].key; });
    std::vector<std::uint64_t> issued, due;
    for (std::size_t k = p; k < std::min(steps.size(), p + limits::kRecent); ++k) {
      issued.push_back(steps[k].key);
    }
    for (std::size_t k = usual; k < std::min(p, usual + limits::kRecent); ++k) {
      due.push_back(steps[k].key);
    }
    a.kind = kind_of(issued, due, a.support);
    return a;
  }
  return std::nullopt;
}

}  // namespace frtrace
