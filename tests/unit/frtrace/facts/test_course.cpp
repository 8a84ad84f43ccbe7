// test_course.cpp - counts per call site, and where courses parted.
#include "catch.hpp"
#include "facts/order/course.hpp"
#include "jobs.hpp"

using namespace frtest;

TEST_CASE("a rank left a loop early: how often each came by") {
  JobBuilder j(4);
  j.all(8, kWorld, kGrads);
  j.some({3}, kWorld, kLoss);
  j.some({0, 1, 2}, kWorld, kGrads);
  j.advance(20);
  const Report r = j.diagnose();
  REQUIRE(r.kind == Verdict::kMismatch);
  REQUIRE(r.ranks == Ranks{3});
  CHECK(has(
      r, "counts",
      "rank 3 issued all_reduce of default_pg at train.py:30 step 8 times, the others 9 times"));
  CHECK_FALSE(has(r, "counts", "train.py:20"));
}

TEST_CASE("counts of what all rings still hold") {
  JobBuilder j(4);
  j.all(8, kWorld, kGrads);
  j.forget(1, 5);
  j.some({3}, kWorld, kLoss);
  j.some({0, 1, 2}, kWorld, kGrads);
  j.advance(20);
  CHECK(has(j.diagnose(), "counts",
            "3 times, the others 4 times, in the records that all have kept"));
}

TEST_CASE("equal counts say nothing, nor one less at the place where the others wait") {
  JobBuilder j(4);
  j.all(8, kWorld, kGrads);
  j.some({0, 1, 2}, kWorld, kGrads);
  j.advance(20);
  const Report r = j.diagnose();
  REQUIRE(r.ranks == Ranks{3});
  CHECK_FALSE(has(r, "counts", ""));
}

namespace {

// 2 x 2: tp {0,1}, {2,3}; dp {0,2}, {1,3}.
struct Mesh {
  JobBuilder j{4};
  int tp[2], dp[2];
  Op tensor{.line = 31}, data{.line = 36};

  Mesh() {
    tp[0] = j.group("1", {0, 1}, "mesh_tp");
    tp[1] = j.group("2", {2, 3}, "mesh_tp");
    dp[0] = j.group("3", {0, 2}, "mesh_dp");
    dp[1] = j.group("4", {1, 3}, "mesh_dp");
  }
  void step(Rank skips = -1, Rank adds = -1) {
    for (Rank r = 0; r < 4; ++r) {
      for (int n = r == skips ? 1 : 0; n < (r == adds ? 3 : 2); ++n) {
        j.issue(r, n == 0 ? tp[r / 2] : dp[r % 2], n == 0 ? tensor : data, State::kCompleted);
      }
    }
    j.advance(0.01);
  }
};

}  // namespace

TEST_CASE("a silent skip, steps before the end: named with its place") {
  Mesh m;
  for (int i = 0; i < 9; ++i) {
    m.step(i == 6 ? 3 : -1);
  }
  for (const Rank r : {0, 1, 3}) {  // rank 3's meets the last one but one of rank 2
    m.j.issue(r, m.tp[r / 2], m.tensor, State::kCompleted);
    m.j.issue(r, m.dp[r % 2], m.data, r == 0 ? State::kEnqueued : State::kCompleted);
  }
  m.j.issue(2, m.tp[1], m.tensor);
  m.j.advance(20);
  const Report r = m.j.diagnose();
  REQUIRE(r.ranks == Ranks{3});
  CHECK(
      has(r, "parted",
          "rank 3 left out all_reduce at train.py:31 step, which it had issued 6 times before; "
          "since then its operations in mesh_tp{2,3} are matched with the wrong ones of the other "
          "ranks: results are wrong from there"));
}

TEST_CASE("an operation too many") {
  Mesh m;
  for (int i = 0; i < 10; ++i) {
    m.step(-1, i == 6 ? 3 : -1);
  }
  const auto evidence = m.j.take();
  const std::vector<Case> cases = make_cases(evidence, {});
  const Facts f(cases.at(0));
  const auto p = parting(f, 3, f.anomalies.peers(3, true));
  REQUIRE(p);
  CHECK_FALSE(p->left_out);
  CHECK(p->site.line == 36);
  CHECK(p->before == 7);
  // no slip of the rank where a peer did the same
  CHECK_FALSE(parting(f, 3, {1, 3}));
}
