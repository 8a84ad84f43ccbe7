// test_devices.cpp - every host issued the operation: the evidence of the devices decides.
#include "catch.hpp"
#include "jobs.hpp"

using namespace frtest;

TEST_CASE("everybody came and it does not end") {
  JobBuilder j(4);
  iterations(j, 3);
  SECTION("nothing more is known") {
    j.some({0, 1, 2, 3}, kWorld, kLoss);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kUndecided);
    // The report names the evidence that is lacking. All ranks wait, so none is elsewhere.
    const auto has = [&](std::string_view id) {
      return std::any_of(r.findings.begin(), r.findings.end(),
                         [&](const Finding& f) { return f.id == id; });
    };
    CHECK(has("need"));
    CHECK_FALSE(has("elsewhere"));
  }
  SECTION("all started") {
    j.some({0, 1, 2, 3}, kWorld, kLoss, State::kStarted);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kTransport);
  }
  SECTION("one is stopped") {
    j.some({0, 1, 2, 3}, kWorld, kLoss);
    j.rank(1).salvaged = true;
    j.rank(1).salvage = Salvage::kUnresponsive;
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kDevice);
    CHECK(r.ranks == Ranks{1});
  }
}

TEST_CASE("several devices are behind: named if they are the few of all") {
  // In each group one device does not start the operation that the other devices started.
  for (const int per_group : {2, 4}) {
    JobBuilder j(3 * per_group);
    iterations(j, 5);
    std::vector<int> groups;
    for (int g = 0; g < 3; ++g) {
      std::vector<Rank> members(static_cast<std::size_t>(per_group));
      std::iota(members.begin(), members.end(), g * per_group);
      groups.push_back(j.group(std::to_string(g + 1), members, "tp"));
    }
    for (Rank r = 0; r < 3 * per_group; ++r) {
      j.issue(r, groups[static_cast<std::size_t>(r / per_group)], kSub,
              r % per_group == 1 ? State::kEnqueued : State::kStarted);
    }
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == (per_group == 2 ? Verdict::kUndecided : Verdict::kDevice));
    CHECK(r.ranks == (per_group == 2 ? Ranks{} : Ranks{1, 5, 9}));
  }
}

TEST_CASE("a device that stands is behind what its host and all others issued") {
  JobBuilder j(4);
  iterations(j, 5);
  for (Rank r = 0; r < 4; ++r) {
    j.issue(r, kWorld, kLoss, r == 2 ? State::kEnqueued : State::kStarted);
  }
  SECTION("and the host stands with it") {
    for (Rank r = 0; r < 4; ++r) {
      for (int n = 0; n < (r == 2 ? 1 : 3); ++n) {
        j.issue(r, kWorld, kGrads);
      }
    }
  }
  SECTION("and all went on") {
    for (Rank r = 0; r < 4; ++r) {
      j.issue(r, kWorld, kGrads);
    }
  }
  SECTION("and its host never comes to another group, whose members are victims") {
    const int pair = j.group("7", {2, 3}, "tp");
    j.issue(3, pair, kSub, State::kStarted);
  }
  j.advance(100);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kDevice);
  CHECK(r.ranks == Ranks{2});
  REQUIRE(r.blamed.size() == 1);
  CHECK(r.blamed[0].why == "not_started");
  CHECK(r.blamed[0].seq == 11);
}

TEST_CASE("a device that did not end what others ended is behind, whatever it issued before") {
  JobBuilder j(4);
  const int pair = j.group("7", {2, 3}, "tp");
  iterations(j, 5);
  j.issue(2, pair, kSub);  // no evidence of rank 3
  j.some({0, 1}, kWorld, kLoss, State::kCompleted);
  j.issue(2, kWorld, kLoss);
  j.some({0, 1, 2}, kWorld, kGrads);
  j.lose_file(3);
  j.advance(100);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kDevice);
  CHECK(r.ranks == Ranks{2});
}

TEST_CASE("what keeps an operation from starting on a device is not known: no work is made up") {
  JobBuilder j(4);
  iterations(j, 5);
  for (Rank r = 0; r < 4; ++r) {
    j.issue(r, kWorld, kLoss, r == 2 ? State::kEnqueued : State::kStarted);
  }
  j.advance(100);
  const Report r = j.diagnose();
  CHECK(r.ranks == Ranks{2});
  CHECK(r.summary ==
        "rank 2 issued all_reduce #11 of default_pg, but its device did not start it; ranks 0,1,3 "
        "started it and wait");
  CHECK(has(r, "why",
            "no operation that rank 2 recorded before it is unfinished: other work on its device "
            "may be in its way, or the device is stuck"));
}

TEST_CASE("a device that waits for another group's absent member is a victim") {
  JobBuilder j(4);
  const int tp = j.group("7", {2, 3}, "tp");
  iterations(j, 5);
  j.issue(2, tp, kSub, State::kStarted);  // rank 3 never comes
  for (Rank r = 0; r < 3; ++r) {
    j.issue(r, kWorld, kLoss, r == 2 ? State::kEnqueued : State::kStarted);
  }
  j.advance(100);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{3});
}

TEST_CASE("all started and none finished: transport, nobody is blamed") {
  JobBuilder j(4);
  iterations(j, 5);
  for (Rank r = 0; r < 4; ++r) {
    j.issue(r, kWorld, kLoss, State::kStarted);
    j.issue(r, kWorld, kGrads);
  }
  j.advance(100);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kTransport);
  CHECK(r.ranks.empty());
}

TEST_CASE("one member that did not end a broadcast: its device, or what is below it") {
  JobBuilder j(4);
  const Op broadcast{.op = "broadcast", .line = 60, .reduce_op = "", .peer = 0};
  for (Rank r = 0; r < 4; ++r) {
    j.rank(r).format = "torch 2.10 pickle";
  }
  iterations(j, 3);
  j.some({0, 1, 2}, kWorld, broadcast, State::kCompleted);
  j.issue(3, kWorld, broadcast);
  j.some({0, 1, 2}, kWorld, kLoss);
  j.advance(100);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kDevice);
  CHECK(r.ranks == Ranks{3});
  CHECK(r.confidence == Confidence::kLikely);
}
