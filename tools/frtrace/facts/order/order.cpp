// Steps of ranks, and what they usually do.
#include "facts/order/order.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>

#include "facts/limits.hpp"
#include "model/hash.hpp"
#include "model/operation.hpp"

namespace frtrace {

const std::vector<Step>& History::of(int evidence) const {
  const std::size_t i = idx(evidence);
  if (built_[i]) {
    return steps_[i];
  }
  built_[i] = true;
  const RankEvidence& e = case_.evidence_of(evidence);
  std::unordered_map<std::uint32_t, std::uint64_t> site_keys;
  const std::uint64_t no_site = mix(mix(7, std::string_view()), 0);
  Signatures signatures(e);
  steps_[i].reserve(static_cast<std::size_t>(std::ranges::count_if(e.records, communicates)));
  for (std::size_t r = 0; r < e.records.size(); ++r) {
    const Record& record = e.records[r];
    if (!communicates(record)) {
      continue;
    }
    const int group = case_.group_at(evidence, record.group);
    auto [it, added] = site_keys.try_emplace(record.stack, 0);
    if (added) {
      const Site site = user_site(e, record.stack);
      it->second = mix(mix(7, site.file), static_cast<std::uint64_t>(site.line));
    }
    std::uint64_t key = signatures.hash(record);
    key = mix(mix(key, it->second), static_cast<std::uint64_t>(group + 1));
    key = mix(key, static_cast<std::uint64_t>(record.kind));
    if (record.kind != Kind::kCollective) {
      key = mix(key, static_cast<std::uint64_t>(record.peer + 1));
      // Without a call site nothing but its size tells one from the other.
      key = it->second == no_site ? mix(key, record.in_numel) : key;
    }
    steps_[i].push_back({key, group, static_cast<std::uint32_t>(r)});
  }
  return steps_[i];
}

std::size_t step_of(const std::vector<Step>& steps, std::size_t record) {
  const auto it =
      std::lower_bound(steps.begin(), steps.end(), record,
                       [](const Step& step, std::size_t wanted) { return step.record < wanted; });
  return static_cast<std::size_t>(it - steps.begin());
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

std::optional<std::size_t> usual_next(const std::vector<Step>& steps, std::size_t pos) {
  std::optional<std::size_t> usual;
  for (std::size_t c = std::min(limits::kContext, pos); c >= 1 && !usual; --c) {
    any_alike(steps, pos, c, [&](std::size_t j) { return usual = j, true; });
  }
  return usual;
}

std::size_t equal_run(std::span<const std::uint64_t> a, std::size_t i,
                      std::span<const std::uint64_t> b, std::size_t j) {
  std::size_t n = 0;
  while (n < limits::kAgree && i + n < a.size() && j + n < b.size() && a[i + n] == b[j + n]) {
    ++n;
  }
  return n;
}

Anomaly::Kind kind_of(std::span<const std::uint64_t> issued, std::span<const std::uint64_t> due,
                      std::size_t& support) {
  const auto agree = [&](std::size_t a, std::size_t b) { return equal_run(issued, a, due, b); };
  Anomaly::Kind best = Anomaly::kReplaced;
  std::size_t to_the_end = SIZE_MAX;  // places by which the best is shifted that agrees to the end
  support = 0;
  // What repeats itself agrees again a round later: of those that agree to the end the nearest counts.
  const auto consider = [&](Anomaly::Kind kind, std::size_t a, std::size_t b) {
    const std::size_t n = agree(a, b), shift = std::max(a, b);
    const bool ends = n >= limits::kClearSupport && (a + n == issued.size() || b + n == due.size());
    const bool nearer = shift < to_the_end || (shift == to_the_end && n > support);
    if (ends && to_the_end != SIZE_MAX ? nearer : n > support) {
      best = kind;
      support = n;
      to_the_end = ends ? shift : SIZE_MAX;
    }
  };
  const auto taken = std::ranges::find(due, issued[0]) - due.begin();
  const bool known = static_cast<std::size_t>(taken) < due.size();
  consider(Anomaly::kReplaced, 1, 1);
  for (std::size_t k = 1; k <= limits::kLookahead; ++k) {
    consider(Anomaly::kInserted, k, 0);
  }
  for (std::size_t k = 1; k <= limits::kLookahead; ++k) {
    consider(Anomaly::kSkipped, 0, k);
  }
  if (known && best == Anomaly::kInserted) {
    best = Anomaly::kSwapped;  // what it issued first usually comes later
  }
  // Two changed places, and what is between them came as ever.
  const auto apart = static_cast<std::size_t>(taken);
  if (known && apart != 0 && apart < issued.size() && to_the_end == SIZE_MAX &&
      issued[apart] == due[0] && agree(1, 1) + 1 >= apart && apart + 1 > support) {
    best = Anomaly::kSwapped;
    support = apart + 1 + agree(apart + 1, apart + 1);
  }
  return best;
}

namespace {

std::size_t equal_steps(const std::vector<Step>& steps, std::size_t a, std::size_t b) {
  std::size_t n = 0;
  while (std::max(a, b) + n < steps.size() && steps[a + n].key == steps[b + n].key) {
    ++n;
  }
  return n;
}

// Where the rank's iterations begin: after the collective of its largest group whose places lie
// farthest apart.
std::vector<std::size_t> iteration_starts(const std::vector<Step>& steps, const RankEvidence& e) {
  const std::vector<Record>& records = e.records;
  if (steps.empty()) {
    return {};
  }
  std::size_t largest = 0;
  std::vector<std::size_t> sizes;
  for (const GroupEvidence& g : e.groups) {
    sizes.push_back(expand(g.ranks).size());
  }
  // 0: no collective, or one of a group that a damaged file does not describe.
  const auto size_of = [&](const Record& r) {
    return r.kind == Kind::kCollective && r.group < sizes.size() ? sizes[r.group] : 0;
  };
  for (const Step& s : steps) {
    largest = std::max(largest, size_of(records[s.record]));
  }
  struct Places {
    std::vector<std::size_t> at;
    std::size_t apart = SIZE_MAX;  // the closest two
  };
  std::unordered_map<std::uint64_t, Places> places;
  for (std::size_t p = 0; p + 1 < steps.size(); ++p) {
    const Record& r = records[steps[p].record];
    if (r.kind == Kind::kCollective && size_of(r) == largest) {
      Places& own = places[steps[p].key];
      own.apart = own.at.empty() ? SIZE_MAX : std::min(own.apart, p - own.at.back());
      own.at.push_back(p);
    }
  }
  const bool whole_program = records.front().ticket <= 1;
  const Places* best = nullptr;
  for (const auto& [key, own] : places) {
    const auto rank = [](const Places& x) {
      return std::tuple(x.at.size() >= 2, x.apart, x.at.back());
    };
    const bool better = best == nullptr || rank(own) > rank(*best);
    best = better && (own.at.size() >= 2 || whole_program) ? &own : best;
  }
  std::vector<std::size_t> starts;
  for (std::size_t k = 0; best != nullptr && k < best->at.size(); ++k) {
    starts.push_back(best->at[k] + 1);
  }
  // The first one of the program, after what sets it up, where that is kept.
  if (!starts.empty() && whole_program) {
    std::size_t first = 0, most = 0;
    for (std::size_t p = 0; p < std::min(starts.front(), limits::kRecent); ++p) {
      const std::size_t n = equal_steps(steps, p, starts.front());
      first = n > most ? p : first;
      most = std::max(n, most);
    }
    if (most != 0) {
      starts.insert(starts.begin(), first);
    }
  }
  return starts;
}

// `times`: how often what was due may have come again, as where a loop is left.
Anomaly anomaly_at(const std::vector<Step>& steps, std::size_t issued, std::size_t usual,
                   std::size_t context, std::size_t times = 1) {
  Anomaly a;
  a.issued = issued;
  a.usual = usual;
  a.context = context;
  a.novel = std::none_of(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(issued),
                         [&](const Step& s) { return s.key == steps[issued].key; });
  std::vector<std::uint64_t> now, due;
  for (std::size_t k = issued; k < std::min(steps.size(), issued + limits::kRecent); ++k) {
    now.push_back(steps[k].key);
  }
  const std::size_t length = (usual < issued ? issued : steps.size()) - usual;
  for (std::size_t k = 0; k < std::min(times * length, limits::kRecent); ++k) {
    due.push_back(steps[usual + k % length].key);
  }
  a.kind = kind_of(now, due, a.support);
  return a;
}

// Where the steps agree again after what was left out, added or replaced.
std::pair<std::size_t, std::size_t> past(const std::vector<Step>& steps, const Anomaly& a) {
  const bool added = a.kind == Anomaly::kInserted, skipped = a.kind == Anomaly::kSkipped;
  for (std::size_t k = 1; k <= limits::kLookahead && (added || skipped); ++k) {
    const std::size_t issued = a.issued + (added ? k : 0), usual = a.usual + (added ? 0 : k);
    if (equal_steps(steps, issued, usual) >= a.support) {
      return {issued, usual};
    }
  }
  return {a.issued + 1, a.usual + 1};
}

}  // namespace

// An iteration that is like no other one deviates where it leaves the one it is like for longest.
std::optional<std::vector<Anomaly>> odd_iterations(const std::vector<Step>& steps,
                                                   const RankEvidence& e, std::size_t stuck) {
  const std::vector<std::size_t> starts = iteration_starts(steps, e);
  if (starts.size() < 2) {
    return std::nullopt;
  }
  std::vector<Anomaly> out;
  for (std::size_t k = starts.size(); k-- > 1 && k + limits::kIterations > starts.size();) {
    const std::size_t begin = starts[k];
    const std::size_t whole = (k + 1 < starts.size() ? starts[k + 1] : steps.size()) - begin;
    std::size_t most = 0, like = k - 1, after = 0;
    for (std::size_t j = starts.size() - 1; j-- > 0 && most < whole;) {
      const std::size_t n = j == k ? 0 : equal_steps(steps, begin, starts[j]);
      // A later one that is like it up to the end of the file tells nothing of what comes then.
      if (n < most || n == 0 || (n < whole && starts[j] + n >= steps.size())) {
        continue;
      }
      const std::size_t agree =
          n < whole ? anomaly_at(steps, begin + n, starts[j] + n, n).support : 0;
      if (n > most || (agree > after && after < limits::kContextLeast)) {
        most = n;
        like = j;
        after = agree;
      }
    }
    if (most < whole && starts[like] + most < steps.size()) {
      std::size_t context = most;  // where it is stuck also what was before that iteration
      while (begin + most >= stuck && context < limits::kPeerContext &&
             context - most < std::min(begin, starts[like]) &&
             steps[begin + most - 1 - context].key ==
                 steps[starts[like] + most - 1 - context].key) {
        ++context;
      }
      std::vector<Anomaly> found{anomaly_at(steps, begin + most, starts[like] + most, context)};
      // Of several left out at once the first one may be none of every iteration.
      const auto [issued, due] = past(steps, found.front());
      for (std::size_t next = found.front().usual + 1; issued == begin + most && next < due;
           ++next) {
        const std::size_t n = equal_steps(steps, issued, next);
        if (n != 0 && issued + n < begin + whole) {
          found.insert(found.begin(), anomaly_at(steps, issued + n, next + n, n));
        }
      }
      // What is not in every iteration hides nothing that comes after it.
      while (found.back().support >= limits::kContextLeast) {
        auto [at, usual] = past(steps, found.back());
        const std::size_t n = equal_steps(steps, at, usual);
        at += n, usual += n;
        if (at >= begin + whole || usual >= steps.size() || usual == at) {
          break;
        }
        found.push_back(anomaly_at(steps, at, usual, n));
      }
      out.insert(out.end(), found.rbegin(), found.rend());
    }
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::optional<Anomaly> anomaly(const std::vector<Step>& steps, std::size_t from, bool cut) {
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
    // As far as the ring reaches back it did the same after the same.
    for (std::size_t j = 1; cut && !normal && j < std::min(p, limits::kContext); ++j) {
      normal = std::equal(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(j + 1),
                          steps.begin() + static_cast<std::ptrdiff_t>(p - j),
                          [](const Step& x, const Step& y) { return x.key == y.key; });
    }
    if (usual == SIZE_MAX || normal) {
      continue;
    }
    const Anomaly again = anomaly_at(steps, p, usual, a.context, limits::kRecent);
    a = anomaly_at(steps, p, usual, a.context);
    a.part = !a.novel && again.support < limits::kContextLeast;
    return a;
  }
  return std::nullopt;
}

}  // namespace frtrace
