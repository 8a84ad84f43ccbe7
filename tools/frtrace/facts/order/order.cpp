// Steps of ranks, and their usual order.
#include "facts/order/order.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>

#include "facts/limits.hpp"
#include "model/hash.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// Operations with a size that changes in most rounds of the program, as that of a batch or of an
// object does: it does not tell one round from another. A round of an operation ends when another
// operation repeats in a size that it had before, unless its own size stays.
class Varying {
 public:
  // Called in order of issue; `kind` is `exact` without the size.
  void add(std::uint64_t exact, std::uint64_t kind) {
    const auto [it, fresh] = sizes_.try_emplace(exact, kinds_.size());
    if (fresh) {
      it->second = indices_.try_emplace(kind, kinds_.size()).first->second;
      kinds_.resize(std::max(kinds_.size(), it->second + 1));
    }
    const std::size_t index = it->second;
    Kind& own = kinds_[index];
    const std::size_t again = again_.kind == index ? again_.other : again_.last;
    ++now_;
    if (own.rounds.empty() || (own.last < again && own.size != exact)) {
      own.rounds.push_back(exact);
      own.counted = false;
    }
    own.fresh += fresh && !own.counted ? 1 : 0;
    own.counted = own.counted || fresh;
    own.last = now_;
    own.size = exact;
    if (!fresh) {
      again_ = {index, now_, again};
    }
  }
  // Called after the last operation.
  void finish() {
    for (Kind& own : kinds_) {
      own.varies = own.rounds.size() >= limits::kRepeats &&
                   4 * (own.fresh - 1) >= 3 * (own.rounds.size() - 1) && !come_in_order(own.rounds);
    }
  }
  bool contains(std::uint64_t kind) const { return kinds_[indices_.at(kind)].varies; }

 private:
  struct Kind {
    std::vector<std::uint64_t> rounds;  // the size with which each began
    std::size_t fresh = 0;              // rounds that have a size for the first time
    std::size_t last = 0;               // when it was last issued
    std::uint64_t size = 0;             // its size then
    bool counted = false;               // this round is one of `fresh`
    bool varies = false;
  };
  struct Again {  // last operation that repeated: its kind, when; when one of another kind did
    std::size_t kind = SIZE_MAX, last = 0, other = 0;
  };

  // Repeated sizes come in the order in which they first came, forwards or backwards: sizes of
  // layers, not of batches.
  static bool come_in_order(const std::vector<std::uint64_t>& sizes) {
    std::set<std::uint64_t> seen;
    std::set<std::pair<std::uint64_t, std::uint64_t>> neighbours;
    std::size_t back = 0, in_order = 0;
    for (std::size_t k = 0; k < sizes.size(); ++k) {
      const auto pair = std::minmax(sizes[k], sizes[k - std::min<std::size_t>(k, 1)]);
      if (!seen.insert(sizes[k]).second) {
        ++back;
        in_order += neighbours.contains(pair) || (back == 1 && sizes[k] == sizes[0]) ? 1 : 0;
      }
      neighbours.insert(pair);
    }
    return in_order >= 2 && 2 * in_order >= back;
  }

  std::unordered_map<std::uint64_t, std::size_t> sizes_, indices_;
  std::vector<Kind> kinds_;
  std::size_t now_ = 0;
  Again again_;
};

}  // namespace

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
  Varying varying;
  std::vector<std::uint64_t> kinds;  // of the steps: their keys without sizes
  const auto count = static_cast<std::size_t>(std::ranges::count_if(e.records, communicates));
  steps_[i].reserve(count);
  kinds.reserve(count);
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
    const auto key = [&](bool sizes) {
      std::uint64_t out = mix(mix(signatures.hash(record, sizes), it->second),
                              static_cast<std::uint64_t>(group + 1));
      out = mix(out, static_cast<std::uint64_t>(record.kind));
      if (record.kind != Kind::kCollective) {
        out = mix(out, static_cast<std::uint64_t>(record.peer + 1));
        // Without a call site, only the size tells one message from another.
        out = sizes && it->second == no_site ? mix(out, record.in_numel) : out;
      }
      return out;
    };
    const std::uint64_t exact = key(true);
    steps_[i].push_back({exact, group, static_cast<std::uint32_t>(r), true, exact});
    kinds.push_back(key(false));
    varying.add(exact, kinds.back());
  }
  varying.finish();
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    Step& step = steps_[i][k];
    step.sized = !varying.contains(kinds[k]);
    step.key = step.sized ? step.key : kinds[k];
  }
  return steps_[i];
}

std::vector<std::size_t> steps_of_program(const RankEvidence& e, const std::vector<Step>& steps,
                                          std::size_t stuck) {
  const auto thread = [&](const Step& s) { return e.records[s.record].tid; };
  if (std::ranges::adjacent_find(steps, std::not_equal_to(), thread) == steps.end()) {
    std::vector<std::size_t> all(steps.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return all;
  }
  struct Thread {
    std::set<int> groups;
    bool own = false;  // it has an order of its own
  };
  std::map<std::uint32_t, Thread> threads;
  for (const Step& s : steps) {
    Thread& t = threads[thread(s)];
    if (t.groups.insert(s.group).second && !t.own) {
      const std::uint32_t stack = e.records[s.record].stack;
      t.own = !user_site(e, stack).file.empty() || is_of_thread(e, stack);
    }
  }
  std::set<std::uint32_t> own{thread(steps[std::min(stuck, steps.size() - 1)])};
  std::set<int> groups = threads[*own.begin()].groups;
  for (std::size_t before = 0; own.size() != before;) {
    before = own.size();
    for (const auto& [tid, t] : threads) {
      if (!t.own || std::ranges::any_of(t.groups, [&](int g) { return groups.contains(g); })) {
        own.insert(tid);
        groups.insert(t.groups.begin(), t.groups.end());
      }
    }
  }
  std::vector<std::size_t> out;
  for (std::size_t k = 0; k < steps.size(); ++k) {
    if (own.contains(thread(steps[k]))) {
      out.push_back(k);
    }
  }
  return out;
}

std::size_t step_of(const std::vector<Step>& steps, std::size_t record) {
  const auto it =
      std::lower_bound(steps.begin(), steps.end(), record,
                       [](const Step& step, std::size_t wanted) { return step.record < wanted; });
  return static_cast<std::size_t>(it - steps.begin());
}

namespace {

// Calls f for the earlier steps that follow the same `context` steps as `pos`, latest first, until
// it returns true.
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

std::size_t first_repeated(std::span<const Step> steps) {
  std::unordered_map<std::uint64_t, int> times;
  for (const Step& s : steps) {
    ++times[s.key];
  }
  const auto first = std::ranges::find_if(steps, [&](const Step& s) { return times[s.key] > 1; });
  return static_cast<std::size_t>(first - steps.begin());
}

bool is_first_of_its_kind(std::span<const Step> steps, std::size_t at) {
  return std::ranges::none_of(steps.first(at),
                              [&](const Step& s) { return s.key == steps[at].key; });
}

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
  std::size_t to_the_end = SIZE_MAX;  // smallest shift of a kind that agrees to the end
  support = 0;
  // A loop agrees again one round later. Among the kinds that agree to the end, the smallest shift
  // counts.
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
    best = Anomaly::kSwapped;  // the operation issued first usually comes later
  }
  // Two operations changed places, and the operations between them came as usual.
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

// The place near the program's begin from which the steps equal those from `start` on for longest,
// and for how many steps. The setup of the program comes before it.
struct First {
  std::size_t at = 0, equal = 0;
};
First first_like(const std::vector<Step>& steps, std::size_t start) {
  First best;
  for (std::size_t p = 0; p < std::min(start, limits::kRecent); ++p) {
    const std::size_t n = equal_steps(steps, p, start);
    best = n > best.equal ? First{p, n} : best;
  }
  return best;
}

// Starts of the rank's iterations: after the collective of its largest group with the largest
// minimum distance between its places.
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
  const bool whole_program = records.front().ticket <= 1;
  struct Places {
    std::vector<std::size_t> at;
    std::size_t apart = SIZE_MAX;  // distance of the closest two
  };
  std::unordered_map<std::uint64_t, Places> places;
  // No iteration begins after the last step. But if it ends the second iteration, it shows where
  // the first ended.
  for (std::size_t p = 0; p + 1 < steps.size() + (whole_program ? 1 : 0); ++p) {
    const Record& r = records[steps[p].record];
    if (r.kind == Kind::kCollective && size_of(r) == largest) {
      Places& own = places[steps[p].key];
      if (p + 1 == steps.size() && own.at.size() > 1) {
        continue;
      }
      own.apart = own.at.empty() ? SIZE_MAX : std::min(own.apart, p - own.at.back());
      own.at.push_back(p);
    }
  }
  const auto repeats = [](const Places& x) { return x.at.size() >= 2; };
  const bool any = std::ranges::any_of(places, [&](const auto& x) { return repeats(x.second); });
  // Among collectives that came once, one after which the program began again.
  const auto rank = [&](const Places& x) {
    const auto as_first = [&] { return first_like(steps, x.at.front() + 1).equal; };
    return std::pair(any ? x.apart : std::min(as_first(), limits::kContextLeast), x.at.back());
  };
  const Places* best = nullptr;
  std::pair<std::size_t, std::size_t> highest;
  for (const auto& [key, own] : places) {
    if (any ? !repeats(own) : !whole_program) {
      continue;
    }
    if (const auto own_rank = rank(own); best == nullptr || own_rank > highest) {
      best = &own;
      highest = own_rank;
    }
  }
  std::vector<std::size_t> starts;
  for (std::size_t k = 0; best != nullptr && k < best->at.size(); ++k) {
    if (best->at[k] + 1 < steps.size()) {
      starts.push_back(best->at[k] + 1);
    }
  }
  // The first iteration of the program, after its setup, if that is kept.
  if (!starts.empty() && whole_program) {
    if (const First first = first_like(steps, starts.front()); first.equal != 0) {
      // A step that the loop repeats is no setup.
      const auto in_loop = [&](const Step& own) {
        return std::any_of(steps.begin() + static_cast<std::ptrdiff_t>(first.at),
                           steps.begin() + static_cast<std::ptrdiff_t>(starts.front()),
                           [&](const Step& s) { return s.key == own.key; });
      };
      std::size_t at = first.at;
      while (at > 0 && in_loop(steps[at - 1])) {
        --at;
      }
      starts.insert(starts.begin(), at);
    }
  }
  return starts;
}

// `times`: how often the due steps may have come again, as when a loop is left.
Anomaly anomaly_at(const std::vector<Step>& steps, std::size_t issued, std::size_t usual,
                   std::size_t context, std::size_t times = 1) {
  Anomaly a;
  a.issued = issued;
  a.usual = usual;
  a.context = context;
  a.novel = is_first_of_its_kind(steps, issued);
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

// The places where the steps agree again after the part left out, added or replaced.
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

// An iteration that equals no other one deviates where it leaves the iteration that it equals for
// longest.
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
      // A later iteration that equals it up to the end of the file does not show the next step.
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
      std::size_t context = most;  // if stuck there, also steps before that iteration
      while (begin + most >= stuck && context < limits::kPeerContext &&
             context - most < std::min(begin, starts[like]) &&
             steps[begin + most - 1 - context].key ==
                 steps[starts[like] + most - 1 - context].key) {
        ++context;
      }
      std::vector<Anomaly> found{anomaly_at(steps, begin + most, starts[like] + most, context)};
      // If several steps were left out at once, the first may not be part of every iteration.
      const auto [issued, due] = past(steps, found.front());
      for (std::size_t next = found.front().usual + 1; issued == begin + most && next < due;
           ++next) {
        const std::size_t n = equal_steps(steps, issued, next);
        if (n != 0 && issued + n < begin + whole) {
          found.insert(found.begin(), anomaly_at(steps, issued + n, next + n, n));
        }
      }
      // A step that is not part of every iteration hides no later deviation.
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
    // As far back as the ring reaches, the rank did the same after the same steps.
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
