// test_generations.cpp - groups that a process destroyed and made anew.
#include "catch.hpp"
#include "jobs.hpp"
#include "model/generations.hpp"

using namespace frtest;

namespace {

// A process with two default groups; the first ended with a failed operation and an open one.
RankEvidence restarted(bool again) {
  JobBuilder j(1);
  j.advance(1);
  j.fail(0, 0, kLoss, "Connection closed by peer");
  j.issue(0, 0, kLoss);
  Op note{.op = "caught RuntimeError at train.py:12 in step: bad batch", .kind = Kind::kNote};
  j.advance(1);
  j.issue(0, -1, note, State::kUnknown);
  j.advance(1);
  j.row(0, 0).destroyed = j.now();
  j.advance(1);
  if (again) {
    const int second = j.group("0", {0}, "default_pg");
    j.row(0, second).created = j.now();
    j.issue(0, second, kLoss);
  }
  return j.rank(0);
}

}  // namespace

TEST_CASE("a process that made its groups anew waits in nothing of before") {
  RankEvidence e = restarted(true);
  settle_generations(e);
  CHECK(e.records.front().state == State::kReleased);
  CHECK(e.records[1].state == State::kReleased);
  CHECK(e.records.back().state == State::kEnqueued);
  CHECK(e.groups.back().generation == 1);
  const std::vector<Restart> restarts = restarts_of(e);
  REQUIRE(restarts.size() == 1);
  CHECK(restarts[0].caught == "RuntimeError at train.py:12 in step: bad batch");
  CHECK(restarts[0].failed == "Connection closed by peer");
  CHECK(restarts[0].went_on == e.records.back().time);
}

TEST_CASE("a process that only destroyed its groups keeps what failed there") {
  RankEvidence e = restarted(false);
  settle_generations(e);
  CHECK(e.records.front().state == State::kFailed);
  CHECK(restarts_of(e).empty());
}
