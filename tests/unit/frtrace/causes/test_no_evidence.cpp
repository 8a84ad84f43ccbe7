// test_no_evidence.cpp - ranks without a file: what is concluded, and what must not be.
#include <functional>

#include "catch.hpp"
#include "jobs.hpp"

using namespace frtest;

TEST_CASE("a rank without evidence") {
  SECTION("in the end all wait for it: exited, possible") {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.lose_file(2);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kExited);
    CHECK(r.ranks == Ranks{2});
    CHECK(r.blamed[0].why == "no_evidence");
    CHECK(r.confidence == Confidence::kPossible);
    CHECK(r.missing_ranks == Ranks{2});
  }
  SECTION("others are in an operation without end that does not need it: transport") {
    JobBuilder j(4);
    const int tp = j.group("1", {0, 1}, "tp"), dp = j.group("2", {2, 3}, "dp");
    iterations(j, 3);
    j.some({0, 1}, tp, kSub, State::kStarted);
    j.issue(2, dp, kSub);
    j.lose_file(3);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kTransport);
  }
  SECTION("it sent less than was received: its evidence is old, and it is not idle") {
    JobBuilder j(3);
    iterations(j, 3);
    for (int n = 0; n < 5; ++n) {
      Op send = kSend, recv = kRecv;
      send.peer = 1;
      recv.peer = 0;
      if (n < 3) {
        j.issue(0, kWorld, send, State::kCompleted);
      }
      j.issue(1, kWorld, recv, State::kCompleted);
    }
    j.rank(1).lanes[0].completed = 5;
    j.issue(1, kWorld, kLoss);
    j.lose_file(2);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kExited);
    CHECK(r.ranks == Ranks{2});
  }
  SECTION("others saw it alive: undecided") {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.rank(0).peers.push_back({2, 1002, PeerState::kLive, 0, 0, 0, "", ""});
    j.lose_file(2);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kUndecided);
  }
  SECTION("others saw it die") {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.rank(0).peers.push_back({2, 1002, PeerState::kGone, 0, 0, 0, "", ""});
    j.lose_file(2);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kExited);
    CHECK(r.ranks == Ranks{2});
    CHECK(r.confidence == Confidence::kLikely);
  }
  SECTION("two are lacking: undecided") {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.lose_file(2);
    j.lose_file(3);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kUndecided);
    CHECK(r.ranks.empty());
    CHECK(r.summary.find("evidence of ranks 2,3 is lacking") != std::string::npos);
  }
  SECTION("their node did not answer either: named as such, and not blamed for that") {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0, 1}, kWorld, kLoss);
    j.rank(1).nodes = {1, 600'000'000, {{"n1", 2, 2, 1}}};
    j.lose_file(2);
    j.lose_file(3);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kUndecided);
    REQUIRE(r.silent_nodes.size() == 1);
    CHECK(r.silent_nodes[0].host == "n1");
    CHECK(r.silent_nodes[0].ranks == Ranks{2, 3});
    CHECK_FALSE(r.silent_nodes[0].has_files);
    const auto silent = std::find_if(r.findings.begin(), r.findings.end(),
                                     [](const Finding& f) { return f.id == "silent"; });
    REQUIRE(silent != r.findings.end());
    CHECK(silent->text ==
          "node n1 (ranks 2,3) did not answer within 600 ms and left no files: stopped, dead or "
          "cut off");
  }
  SECTION("a node did not answer and left files: that is said, and changes nothing") {
    const auto hang = [](JobBuilder& job) {
      iterations(job, 3);
      job.some({0, 1, 3}, kWorld, kLoss);
      job.advance(20);
    };
    JobBuilder plain(4), j(4);
    hang(plain);
    hang(j);
    const Report without = plain.diagnose();
    j.rank(1).nodes = {1, 600'000'000, {{"n1", 2, 2, 1}, {"n2", -1, 8, 0}}};
    j.rank(0).nodes = j.rank(1).nodes;
    const Report r = j.diagnose();
    CHECK(r.kind == without.kind);
    CHECK(r.ranks == without.ranks);
    CHECK(r.confidence == without.confidence);
    REQUIRE(r.silent_nodes.size() == 2);  // each once
    CHECK(r.silent_nodes[0].has_files);
    CHECK(r.silent_nodes[1].ranks.empty());
    CHECK(r.silent_nodes[1].n_ranks == 8);
  }
  SECTION("an innocent one is lacking: the known absentee is blamed") {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.lose_file(1);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{2});
    CHECK(r.confidence == Confidence::kLikely);
  }
  SECTION("the victim of a skip is lacking: no other name") {
    JobBuilder j(4);
    const int sub = j.group("1", {2, 3}, "tp");
    for (int i = 0; i < 4; ++i) {
      j.all(kWorld, kLoss);
      j.all(sub, kSub);
    }
    j.all(kWorld, kLoss);
    j.some({2}, sub, kSub);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.lose_file(2);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK((r.kind == Verdict::kUndecided || r.ranks == Ranks{3}));
  }
}

TEST_CASE("losing any file never makes another rank guilty") {
  const auto skip = [](JobBuilder& j) {
    iterations(j, 4);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.advance(20);
  };
  const auto size = [](JobBuilder& j) {
    iterations(j, 4);
    j.some({0, 1, 3}, kWorld, kLoss);
    Op wrong = kLoss;
    wrong.numel = 9;
    j.issue(2, kWorld, wrong);
    j.advance(20);
  };
  const auto killed = [](JobBuilder& j) {
    iterations(j, 4);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.gone(2);
    j.advance(20);
  };
  for (const auto& fault : {std::function<void(JobBuilder&)>(skip), {size}, {killed}}) {
    for (unsigned lost = 0; lost < 15; ++lost) {
      JobBuilder j(4);
      fault(j);
      for (Rank r = 0; r < 4; ++r) {
        if ((lost >> r & 1u) != 0) {
          j.lose_file(r);
        }
      }
      const Report r = j.diagnose();
      INFO("lost " << lost << ": " << r.summary);
      CHECK((r.ranks.empty() || r.ranks == Ranks{2}));
    }
  }
}
