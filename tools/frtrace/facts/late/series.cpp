// Levels are compared by medians and by ranks of values (Pettitt's test), so that a few slow steps,
// which every job has, are no change.
#include "facts/late/series.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "facts/limits.hpp"

namespace frtrace {

namespace {

using Calls = std::vector<LateCall>;

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_late(const Calls& calls, std::size_t from, std::size_t to) {
  std::vector<double> values;
  for (std::size_t k = from; k < to; ++k) {
    values.push_back(calls[k].late);
  }
  return median_of(std::move(values));
}

// The call from which on being late is most clearly the rule, up to the end.
std::size_t start_of_late(const Calls& calls, double floor_s) {
  std::size_t start = calls.size();
  int sum = 0, most = 0;
  for (std::size_t k = calls.size(); k-- > 0;) {
    sum += calls[k].late > floor_s ? 1 : -1;
    if (sum >= most) {
      most = sum;
      start = k;
    }
  }
  return start;
}

// The lateness rises in both halves. A level that changed once does not.
bool grows(const Calls& calls, std::size_t from, double floor_s) {
  const std::size_t n = calls.size() - from;
  if (n < limits::kGrowFewest) {
    return false;
  }
  const std::size_t a = from + n / 3, b = from + 2 * n / 3;
  const double first = median_late(calls, from, a), middle = median_late(calls, a, b),
               third = median_late(calls, b, calls.size());
  const double rise = third - first;
  return rise > floor_s && third > limits::kGrowTimes * first &&
         middle - first > limits::kGrowEach * rise && third - middle > limits::kGrowEach * rise;
}

LateSeries sum_up(const Calls& calls, std::size_t since, double floor_s, bool all) {
  LateSeries s;
  s.since = since;
  std::vector<double> each;
  for (std::size_t k = since; k < calls.size(); ++k) {
    const LateCall& call = calls[k];
    const bool late = call.late > floor_s;
    ++s.of;
    s.late += late ? 1 : 0;
    s.last += call.last ? 1 : 0;
    if (all || late) {
      each.push_back(call.late);
      s.lost_s += call.late;
    }
    if (late) {
      s.records.push_back(call.record);
      s.worst_s = std::max(s.worst_s, static_cast<double>(call.late));
      s.host_s += std::max(0.0F, call.host);
      s.device_s += std::max(0.0F, call.device);
    }
  }
  s.typical_s = each.empty() ? 0 : median_of(std::move(each));
  return s;
}

// The place where two levels fit best. For parts of unequal length, the test itself puts it into
// the longer part. The lowest and the highest tenth of the values are clamped.
std::size_t parting(const std::vector<double>& x, const std::vector<std::size_t>& order,
                    std::size_t from) {
  const std::size_t n = order.size();
  const double low = x[order[n / 10]], high = x[order[n - 1 - n / 10]];
  const auto value = [&](std::size_t k) { return std::clamp(x[from + k], low, high); };
  double all = 0, sum = 0, most = -1;
  for (std::size_t k = 0; k < n; ++k) {
    all += value(k);
  }
  std::size_t at = from;
  for (std::size_t k = 0; k + 1 < n; ++k) {
    sum += value(k);
    const double left = static_cast<double>(k + 1), right = static_cast<double>(n - k - 1);
    const double apart = sum / left - (all - sum) / right;
    if (const double gain = left * right * apart * apart; gain > most) {
      most = gain;
      at = from + k + 1;
    }
  }
  return at;
}

// Changes between `from` and `to`, the clearest first.
void add_changes(const std::vector<double>& x, std::size_t from, std::size_t to,
                 std::vector<Change>& out) {
  const std::size_t n = to - from;
  if (n < 2 * limits::kChangeFewest || out.size() >= limits::kChanges) {
    return;
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), from);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return x[a] < x[b]; });
  std::vector<double> place(n);
  for (std::size_t k = 0, end = 0; k < n; k = end) {  // equal values share one place
    for (end = k; end < n && x[order[end]] == x[order[k]]; ++end) {
    }
    for (std::size_t same = k; same < end; ++same) {
      place[order[same] - from] = static_cast<double>(k + end + 1) / 2;
    }
  }
  double sum = 0, most = 0;
  const double size = static_cast<double>(n);
  for (std::size_t k = 0; k + 1 < n; ++k) {
    sum += 2 * place[k] - (size + 1);
    most = std::max(most, std::abs(sum));
  }
  const double chance = 2 * std::exp(-6 * most * most / (size * size * size + size * size));
  const auto level = [&](std::size_t begin, std::size_t end) {
    return median_of({x.begin() + static_cast<std::ptrdiff_t>(begin),
                      x.begin() + static_cast<std::ptrdiff_t>(end)});
  };
  if (chance > limits::kChangeChance) {
    return;
  }
  const std::size_t at = parting(x, order, from);
  if (at - from < limits::kChangeFewest || to - at < limits::kChangeFewest) {
    return;
  }
  const double before = level(from, at), after = level(at, to);
  if (std::abs(after - before) < limits::kChangeBy * std::min(before, after)) {
    return;
  }
  out.push_back({at, before, after});
  add_changes(x, from, at, out);
  add_changes(x, at, to, out);
}

}  // namespace

std::vector<double> medians_but(const std::vector<double>& values) {
  std::vector<double> sorted = values, out;
  std::ranges::sort(sorted);
  const std::size_t m = (values.size() - 1) / 2;
  for (const double v : values) {
    out.push_back(sorted[v <= sorted[m] ? m + 1 : m]);
  }
  return out;
}

std::optional<LateSeries> late_mostly(const Calls& calls, double floor_s) {
  const std::size_t n = calls.size(), since = start_of_late(calls, floor_s);
  const auto late = static_cast<double>(
      std::ranges::count_if(calls, [&](const LateCall& call) { return call.late > floor_s; }));
  if (n < limits::kLateAgain || since == n) {
    return std::nullopt;
  }
  LateSeries s = sum_up(calls, since, floor_s, true);
  const bool always = late >= limits::kLateMostly * static_cast<double>(n);
  const bool lately = s.of >= limits::kLateAgainSince && s.late >= limits::kLateMostlySince * s.of;
  if ((!always && !lately) || s.lost_s <= 0) {
    return std::nullopt;
  }
  s.pattern = grows(calls, since, floor_s) ? LatePattern::kGrowing : LatePattern::kAlways;
  return s;
}

// Chernoff's bound. If the members are alike, all places in the order of a round are equally
// likely, whatever the distribution of their times. The mean of dependent places is no more extreme
// than one of them.
double log_chance(const Calls& calls, std::size_t since, double floor_s, std::size_t round,
                  std::size_t members) {
  double early = 0, rounds = 0, least = 0;
  for (std::size_t k = since, end = since; k < calls.size(); k = end) {
    double sum = 0, n = 0;
    for (; end < calls.size() && calls[end].record / round == calls[k].record / round; ++end) {
      if (calls[end].most > floor_s) {
        sum += 1 - calls[end].order;
        ++n;
      }
    }
    early += n == 0 ? 0 : sum / n;
    rounds += n == 0 ? 0 : 1;
  }
  const double m = static_cast<double>(members);
  for (double tilt = 1; tilt < 1e4 && 2 * early < rounds; tilt *= 2) {
    const double step = tilt / (m - 1);
    const double mean = std::log(std::expm1(-step * m) / (std::expm1(-step) * m));
    least = std::min(least, tilt * early + rounds * mean);
  }
  return least;
}

std::size_t period(const std::vector<std::uint64_t>& x) {
  std::unordered_map<std::uint64_t, std::size_t> seen;
  std::set<std::size_t> lags;
  for (std::size_t k = 0; k < x.size(); ++k) {
    lags.insert(k - std::exchange(seen.try_emplace(x[k], k).first->second, k));
  }
  std::size_t best = 1;
  double most = 0;
  lags.erase(0);
  for (const std::size_t lag : lags) {
    if (3 * lag > x.size() || most >= limits::kRepeatsShare) {
      break;
    }
    double same = 0;
    for (std::size_t k = lag; k < x.size(); ++k) {
      same += x[k] == x[k - lag] ? 1 : 0;
    }
    const double share = same / static_cast<double>(x.size() - lag);
    if (share > most) {
      most = share;
      best = lag;
    }
  }
  return best;
}

std::optional<LateSeries> late_now_and_then(const Calls& calls, double floor_s, std::size_t round,
                                            std::size_t members) {
  const auto late = [&](const LateCall& call) { return call.late > floor_s; };
  const auto first = std::ranges::find_if(calls, late);
  const auto own = static_cast<std::size_t>(std::count_if(first, calls.end(), late));
  if (own < limits::kRareAgain || members < 2 ||
      log_chance(calls, 0, floor_s, round, members) + std::log(members) >
          std::log(limits::kRareChance)) {
    return std::nullopt;
  }
  // Counted over all calls: counted from the first late call on, late calls would seem more
  // frequent.
  LateSeries s = sum_up(calls, 0, floor_s, false);
  s.pattern = LatePattern::kNowAndThen;
  s.since = static_cast<std::size_t>(first - calls.begin());
  return s;
}

std::vector<Change> changes(const std::vector<double>& x) {
  std::vector<Change> out;
  add_changes(x, 0, x.size(), out);
  std::ranges::sort(out, [](const Change& a, const Change& b) { return a.at < b.at; });
  return out;
}

}  // namespace frtrace
