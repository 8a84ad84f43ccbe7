#include "diagnosis.hpp"

namespace frtrace {

bool Diagnosis::lifecycle() {
  std::map<std::string, std::vector<int>> inside;
  double longest = 0;
  for (int i = 0; i < static_cast<int>(c_.ranks.size()); ++i) {
    const Record* r = lifecycle_in_flight(i);
    if (r == nullptr || ends_[at(i)].ended) {
      continue;
    }
    const double seconds = seconds_between(r->time, ev(i).written);
    if (seconds >= kStuckSeconds) {
      inside[std::string(ev(i).text(r->op))].push_back(i);
      longest = std::max(longest, seconds);
    }
  }
  if (inside.empty()) {
    return false;
  }
  const auto& busiest = *std::max_element(
      inside.begin(), inside.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  const std::string& op = busiest.first;
  const std::vector<int>& members = busiest.second;
  for (const int i : members) {
    const Record& r = *lifecycle_in_flight(i);
    Waiting w;
    w.ranks = {rank(i)};
    w.op = op;
    if (const Group* g = group_of(i, r)) {
      w.group = g->name;
      w.desc = g->desc;
    }
    w.site = user_site(ev(i), r.stack);
    w.seconds = seconds_between(r.time, ev(i).written);
    w.stack = stack_lines(i, r.stack);
    if (!r_.waiting.empty() && r_.waiting.back().site == w.site) {
      r_.waiting.back().ranks.push_back(rank(i));
      r_.waiting.back().seconds = std::max(r_.waiting.back().seconds, w.seconds);
    } else {
      r_.waiting.push_back(std::move(w));
    }
  }
  std::vector<int> outside;
  const std::set<int> in(members.begin(), members.end());
  for (int i = 0; i < static_cast<int>(c_.ranks.size()); ++i) {
    if (in.contains(i) || ends_[at(i)].ended) {
      continue;
    }
    const bool came = std::any_of(ev(i).records.begin(), ev(i).records.end(), [&](const Record& r) {
      return r.kind == Kind::kLifecycle && ev(i).text(r.op) == op &&
             r.time + 60'000'000'000 > ev(members.front()).records.front().time &&
             r.seq >= lifecycle_in_flight(members.front())->seq;
    });
    if (!came) {
      outside.push_back(i);
    }
  }
  if (!outside.empty() && c_.missing.empty() && outside.size() < c_.ranks.size()) {
    r_.kind = Verdict::kMissing;
    for (const int i : outside) {
      blame(i, "never_issued").op = op;
    }
    std::sort(r_.ranks.begin(), r_.ranks.end());
    r_.summary = fmt::format("{} never came to {}; {} {} there", ranks_words(r_.ranks), op,
                             ranks_words(ranks(members)), members.size() == 1 ? "waits" : "wait");
    lower(Confidence::kPossible, op + " need not wait for all ranks");
    return true;
  }
  r_.kind = Verdict::kUndecided;
  r_.summary = fmt::format(
      "{} {} been in {} for {}; no operation is in flight, and the evidence "
      "does not say what it waits for",
      ranks_words(ranks(members)), members.size() == 1 ? "has" : "have", op,
      duration_text(longest));
  if (!c_.missing.empty()) {
    r_.summary += "; evidence of " + ranks_words(c_.missing) + " is lacking";
  }
  return true;
}

}  // namespace frtrace
