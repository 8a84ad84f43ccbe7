// test_stragglers.cpp - verdicts `slow`: ranks that are late again and again.
#include <functional>

#include "catch.hpp"
#include "jobs.hpp"

using namespace frtest;

namespace {

// Steps of compute and one all_reduce; `late` of rank 3 in step n. Ends are equal on all ranks.
JobBuilder paced(int ranks, int steps, bool ends, const std::function<double(int)>& late) {
  JobBuilder j(ranks);
  const Time start = j.now();
  for (int n = 0; n < steps; ++n) {
    const double late_s = late(n);
    const Time step = start + n * 2 * kSecond;
    for (Rank r = 0; r < ranks; ++r) {
      Record& rec = j.issue(r, kWorld, kGrads, State::kCompleted);
      rec.time = step + static_cast<Time>((r == ranks - 1 ? late_s : 0.001 * ((r + n) % 3)) * 1e9);
      rec.ended = ends ? step + static_cast<Time>(std::max(late_s, 0.002) * 1e9) + 1000000 : 0;
      GroupEvidence& g = j.row(r, kWorld);
      g.completed = g.ended = g.enqueued;
    }
  }
  j.advance(2.0 * steps + 0.5);
  return j;
}

}  // namespace

TEST_CASE("a rank that is late again and again is slow, by ends or by clocks") {
  const bool ends = GENERATE(true, false);
  const Report r = paced(4, 20, ends, [](int) { return 0.6; }).diagnose();
  CHECK(r.kind == Verdict::kSlow);
  CHECK(r.ranks == Ranks{3});
  CHECK(r.confidence == (ends ? Confidence::kLikely : Confidence::kPossible));
}

TEST_CASE("late once, or a little: no straggler") {
  CHECK(paced(4, 20, true, [](int n) { return n == 7 ? 5.0 : 0.001; }).diagnose().kind ==
        Verdict::kOk);
  CHECK(paced(4, 20, true, [](int) { return 0.05; }).diagnose().kind == Verdict::kOk);
}

TEST_CASE("clocks apart make no straggler where ends are recorded") {
  JobBuilder j = paced(4, 20, true, [](int) { return 0.001; });
  for (Record& r : j.rank(3).records) {
    r.time += 7 * kSecond;
    r.ended += 7 * kSecond;
  }
  CHECK(j.diagnose().kind == Verdict::kOk);
}
