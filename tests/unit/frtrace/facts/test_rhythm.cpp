// test_rhythm.cpp - jobs that are slow as a whole.
#include "catch.hpp"
#include "facts/late/rhythm.hpp"
#include "jobs.hpp"

using namespace frtest;

namespace {

// All ranks come to one all_reduce per step, rank `late` of them late_s after the others.
void step(JobBuilder& j, int ranks, double step_s, int late = -1, double late_s = 0) {
  for (Rank r = 0; r < ranks; ++r) {
    if (r != late) {
      j.issue(r, 0, kLoss);
    }
  }
  if (late >= 0) {
    j.advance(late_s);
    j.issue(late, 0, kLoss);
  }
  for (Rank r = 0; r < ranks; ++r) {
    j.complete(r, 0, j.rank(r).records.size() - 1);
  }
  j.advance(step_s);
}

}  // namespace

TEST_CASE("all ranks became slow at once") {
  JobBuilder j(3);
  for (int n = 0; n < 60; ++n) {
    step(j, 3, n < 30 ? 0.1 : 1.2);
  }
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kSlow);
  CHECK(r.ranks.empty());
  CHECK(r.summary == "steps take 1.2 s now (100 ms before), on all ranks at once");
}

TEST_CASE("steps that were slow for a while only, or a little slower, are no fault") {
  for (const bool ends : {true, false}) {
    JobBuilder j(3);
    for (int n = 0; n < 60; ++n) {
      step(j, 3, ends ? (n >= 20 && n < 40 ? 1.2 : 0.1) : (n < 30 ? 0.1 : 0.2));
    }
    CHECK(j.diagnose().kind == Verdict::kOk);
  }
}

TEST_CASE("ranks that come late in turn") {
  JobBuilder j(4);
  for (int n = 0; n < 120; ++n) {
    step(j, 4, 0.01, n % 4 == 0 ? n / 4 % 4 : -1, 0.4);
  }
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kSlow);
  CHECK(r.ranks.empty());
  CHECK(r.summary ==
        "in 30 of 120 operations one of 4 ranks came 400 ms late, now this one, now that: 91 % of "
        "the time");
}
