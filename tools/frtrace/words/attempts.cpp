// The ends of attempts before the reported attempt: a restarted job often fails because of remains
// of the first attempt.
#include <set>

#include "words/diagnose.hpp"
#include "words/words.hpp"

namespace frtrace {

std::vector<int> attempts_before(const std::vector<std::unique_ptr<RankEvidence>>& evidence,
                                 const Report& r) {
  std::set<int> all, ends;
  for (const auto& e : evidence) {
    if (e->id.job == r.job && e->id.attempt < r.attempt) {
      all.insert(e->id.attempt);
    }
  }
  if (!all.empty()) {
    ends = {*all.begin(), *all.rbegin()};
  }
  return {ends.begin(), ends.end()};
}

void add_attempt_before(const std::vector<std::unique_ptr<RankEvidence>>& evidence, int attempt,
                        Report& r) {
  for (const Case& c : make_cases(evidence, {r.job, attempt, std::nullopt})) {
    const Report before = diagnose(c);
    if (before.kind != Verdict::kOk && before.kind != Verdict::kSlow) {
      say(r, "attempt", "attempt {} before ended with: {} (--attempt {})", attempt, before.summary,
          attempt);
    }
  }
}

}  // namespace frtrace
