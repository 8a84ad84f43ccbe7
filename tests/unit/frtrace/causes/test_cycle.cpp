// test_cycle.cpp - verdicts `deadlock`: ranks that wait for each other.
#include "catch.hpp"
#include "jobs.hpp"

using namespace frtest;

TEST_CASE("a skip in a subgroup closes a circle: the one that left its order is blamed") {
  JobBuilder j(4);
  const int sub = j.group("1", {2, 3}, "tp");
  for (int i = 0; i < 4; ++i) {
    j.all(kWorld, kLoss);
    j.all(sub, kSub);
  }
  j.all(kWorld, kLoss);
  j.some({2}, sub, kSub);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{3});
  CHECK(r.blamed[0].why == "skipped");
  CHECK(r.blamed[0].desc == "tp");
  CHECK(r.blamed[0].seq == 5);
}

TEST_CASE("groups taken in different orders from the start: deadlock, the minority is blamed") {
  JobBuilder j(4);
  const int a = j.group("1", {0, 1, 2, 3}), b = j.group("2", {0, 1, 2, 3});
  j.some({0}, b, kSub);
  j.some({1, 2, 3}, a, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kDeadlock);
  CHECK(r.ranks == Ranks{0});
}

TEST_CASE("two against one another: deadlock, both") {
  JobBuilder j(2);
  const int a = j.group("1", {0, 1}), b = j.group("2", {0, 1});
  j.some({0}, b, kSub);
  j.some({1}, a, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kDeadlock);
  CHECK(r.ranks == Ranks{0, 1});
}

TEST_CASE("receives in a circle") {
  JobBuilder j(2);
  Op a = kRecv, b = kRecv;
  a.peer = 1, b.peer = 0;
  j.issue(0, kWorld, a, State::kWaiting);
  j.issue(1, kWorld, b, State::kWaiting);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kDeadlock);
  CHECK(r.ranks == Ranks{0, 1});
}
