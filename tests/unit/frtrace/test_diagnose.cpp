// test_diagnose.cpp - verdicts of hosts: one case per rule and per doubt.
#include <cmath>
#include <csignal>
#include <functional>

#include "builder.hpp"
#include "catch.hpp"
#include "facts/facts.hpp"

using namespace frtest;

namespace {

const int kWorld = JobBuilder::kWorld;
const Op kLoss{.line = 20, .numel = 1};
const Op kGrads{.line = 30, .numel = 4096};
const Op kSub{.line = 40, .numel = 64};
const Op kSend{.op = "send", .line = 50, .reduce_op = "", .kind = Kind::kSend};
const Op kRecv{.op = "recv", .line = 51, .reduce_op = "", .kind = Kind::kRecv};

using Ranks = std::vector<Rank>;

void iterations(JobBuilder& j, int n) {
  for (int i = 0; i < n; ++i) {
    j.all(kWorld, kLoss);
    j.all(kWorld, kGrads);
  }
}

}  // namespace

TEST_CASE("a job at rest is ok") {
  JobBuilder j(4);
  iterations(j, 5);
  j.advance(100);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kOk);
  CHECK(r.ranks.empty());
  CHECK(r.read == 4);
}

TEST_CASE("a healthy job caught in flight is ok") {
  JobBuilder j(4);
  iterations(j, 5);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(0.3);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kOk);
}

TEST_CASE("dumps seconds apart of a job that moves are no hang") {
  JobBuilder j(4);
  iterations(j, 5);
  j.rank(2).written = j.now();
  j.advance(5);
  iterations(j, 3);  // rank 2 too, but its dump shows none of it
  for (int i = 0; i < 6; ++i) {
    --j.row(2, kWorld).enqueued;
    j.rank(2).records.pop_back();
  }
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(0.2);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kOk);
}

TEST_CASE("a rank that stays away is missing") {
  JobBuilder j(4);
  iterations(j, 20);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(12.4);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.confidence == Confidence::kCertain);
  REQUIRE(r.blamed.size() == 1);
  CHECK(r.blamed[0].why == "never_issued");
  CHECK(r.blamed[0].op == "all_reduce");
  CHECK(r.blamed[0].seq == 41);
  CHECK(r.blamed[0].desc == "default_pg");
  CHECK(r.blamed[0].site == Site{"train.py", 30, "step"});
  CHECK(says(r.blamed[0], "next, by its earlier iterations, would be all_reduce at train.py:20"));
  REQUIRE(r.waiting.size() == 1);
  CHECK(r.waiting[0].ranks == Ranks{0, 1, 3});
  CHECK(r.waiting[0].site.line == 20);
  CHECK(std::abs(r.waiting[0].seconds - 12.4) < 0.01);
  CHECK(r.summary == "rank 2 never issued all_reduce #41 of default_pg; ranks 0,1,3 wait there");
}

TEST_CASE("two ranks that stay away are both missing") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1}, kWorld, kLoss);
  j.advance(30);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2, 3});
}

TEST_CASE("a rank that is first for good reason is not blamed for being alone") {
  // Rank 0 is in the next operation of the usual loop; the three others sleep.
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0}, kWorld, kLoss);
  j.advance(30);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{1, 2, 3});
}

TEST_CASE("a stopped process says so") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.rank(2).salvaged = true;
  j.rank(2).salvage_why = "unresponsive";
  j.advance(30);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.blamed[0].why == "unresponsive");
  CHECK(says(r.blamed[0], "does not respond"));
}

TEST_CASE("a rank waiting in another group is a victim") {
  // 3 stays away from {2,3}; 2 waits there and so is away from the world.
  JobBuilder j(4);
  const int sub = j.group("1", {2, 3}, "tp");
  for (int i = 0; i < 4; ++i) {
    j.all(kWorld, kLoss);
    j.all(sub, kSub);
  }
  j.all(kWorld, kLoss);
  j.some({2}, sub, kSub);
  j.some({0, 1}, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{3});
  CHECK(has(r, "excluded", "rank 2 never issued"));
}

TEST_CASE("a chain over three groups is followed to its end") {
  JobBuilder j(4);
  const int a = j.group("1", {0, 1}), b = j.group("2", {1, 2}), c = j.group("3", {2, 3});
  j.all(kWorld, kLoss);
  j.some({0}, a, kSub);
  j.some({1}, b, kSub);
  j.some({2}, c, kSub);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{3});
}

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

TEST_CASE("same name, other members: different groups") {
  JobBuilder j(4);
  const int a = j.group("tp", {0, 1}), b = j.group("tp", {2, 3});
  j.all(5, a, kSub);
  j.all(3, b, kSub);
  j.advance(20);
  CHECK(j.diagnose().kind == Verdict::kOk);
}

TEST_CASE("a receive without a send") {
  JobBuilder j(4);
  Op send = kSend, recv = kRecv;
  send.peer = 1, recv.peer = 0;
  for (int i = 0; i < 3; ++i) {
    j.issue(0, kWorld, send, State::kCompleted);
    j.issue(1, kWorld, recv, State::kCompleted);
  }
  j.issue(1, kWorld, recv, State::kWaiting);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{0});
  CHECK(r.blamed[0].seq == 4);
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

TEST_CASE("a single send in a big group makes nobody missing") {
  JobBuilder j(4);
  Op send = kSend, recv = kRecv;
  send.peer = 1, recv.peer = 0;
  j.issue(0, kWorld, send, State::kCompleted);
  j.issue(1, kWorld, recv, State::kCompleted);
  j.advance(20);
  CHECK(j.diagnose().kind == Verdict::kOk);
}

TEST_CASE("a wait-only operation that nobody waits for is not in flight") {
  JobBuilder j(2);
  Op send = kSend;
  send.peer = 1;
  j.issue(0, kWorld, send).flags = kWaitOnly;
  j.advance(20);
  CHECK(j.diagnose().kind == Verdict::kOk);
}

TEST_CASE("another size in one slot: mismatch, the minority") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 3}, kWorld, kLoss);
  Op wrong = kLoss;
  wrong.numel = 2;
  j.issue(2, kWorld, wrong);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.confidence == Confidence::kCertain);
  CHECK(r.summary.find("size 2 instead of 1") != std::string::npos);
}

TEST_CASE("fields that must agree") {
  const auto run = [](Op wrong) {
    JobBuilder j(4);
    Op right = wrong;
    right.dtype = "Float", right.reduce_op = "SUM", right.peer = 0, right.numel = 8;
    j.some({0, 1, 2}, kWorld, right);
    j.issue(3, kWorld, wrong);
    j.advance(20);
    return j.diagnose();
  };
  Op dtype{.op = "all_reduce", .numel = 8, .dtype = "Half", .peer = 0};
  CHECK(run(dtype).summary.find("dtype Half instead of Float") != std::string::npos);
  Op reduce{.op = "all_reduce", .numel = 8, .reduce_op = "MAX", .peer = 0};
  CHECK(run(reduce).summary.find("reduce op MAX instead of SUM") != std::string::npos);
  Op root{.op = "broadcast", .numel = 8, .peer = 1};
  CHECK(run(root).summary.find("root 1 instead of 0") != std::string::npos);
  CHECK(run(root).ranks == Ranks{3});
}

TEST_CASE("another operation in one slot") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.issue(2, kWorld, {.op = "broadcast", .line = 99, .peer = 0});
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.blamed[0].site.line == 99);
  CHECK(r.summary.find("issued broadcast #7 of default_pg where ranks 0,1,3 issued all_reduce") !=
        std::string::npos);
}

TEST_CASE("a barrier that a part of the group calls") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({1, 2, 3}, kWorld, kLoss);
  j.issue(0, kWorld, {.op = "barrier", .line = 99, .numel = 0, .reduce_op = ""});
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{0});
  CHECK(has(r, "hint", "rank 0 called barrier, ranks 1-3 did not"));
}

TEST_CASE("legal inequalities are no mismatch") {
  JobBuilder j(4);
  for (const Rank r : {0, 1, 2, 3}) {
    j.issue(
        r, kWorld,
        {.op = "gather", .numel = 8, .reduce_op = "", .peer = 0, .out_numel = r == 0 ? 32u : 1u},
        State::kCompleted);
    j.issue(
        r, kWorld,
        {.op = "scatter", .numel = r == 0 ? 32u : 1u, .reduce_op = "", .peer = 0, .out_numel = 8},
        State::kCompleted);
    j.issue(r, kWorld,
            {.op = "all_gather",
             .numel = 8u + static_cast<unsigned>(r),
             .reduce_op = "",
             .out_numel = 38},
            State::kCompleted);
    j.issue(r, kWorld,
            {.op = "all_to_all",
             .numel = 8u + static_cast<unsigned>(r),
             .reduce_op = "",
             .out_numel = 9},
            State::kCompleted);
    j.issue(r, kWorld, {.op = "my_own", .numel = 8u + static_cast<unsigned>(r)}, State::kCompleted);
  }
  j.advance(20);
  CHECK(j.diagnose().kind == Verdict::kOk);
}

TEST_CASE("all_to_all splits that do not fit name the pair, or the one in all pairs") {
  const auto splits = [](std::vector<std::uint32_t> in, std::vector<std::uint32_t> out) {
    std::uint32_t rows_in = 0, rows_out = 0;
    for (const auto v : in) {
      rows_in += v;
    }
    for (const auto v : out) {
      rows_out += v;
    }
    std::vector<std::uint32_t> w{1u | 1u << 12 | 1u << 26, 1, rows_in, 1, rows_out};
    w.push_back(static_cast<std::uint32_t>(in.size()));
    w.insert(w.end(), in.begin(), in.end());
    w.push_back(static_cast<std::uint32_t>(out.size()));
    w.insert(w.end(), out.begin(), out.end());
    return w;
  };
  JobBuilder j(3);
  const Op base{.op = "all_to_all_single", .reduce_op = ""};
  Op fine = base, odd = base;
  fine.shape = splits({2, 2, 2}, {2, 2, 2});
  odd.shape = splits({3, 2, 3}, {2, 2, 2});  // rank 1 sends 3 to 0 and to 2
  j.issue(0, kWorld, fine);
  j.issue(1, kWorld, odd);
  j.issue(2, kWorld, fine);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{1});
  CHECK(r.summary.find("rank 1 sends 3 rows to rank 0, which expects 2") != std::string::npos);
}

TEST_CASE("a tie is decided by earlier iterations, else both are blamed") {
  SECTION("earlier iterations tell") {
    JobBuilder j(2);
    iterations(j, 3);
    j.issue(0, kWorld, kLoss);
    Op wrong = kLoss;
    wrong.numel = 7;
    j.issue(1, kWorld, wrong);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMismatch);
    CHECK(r.ranks == Ranks{1});
    CHECK(r.confidence == Confidence::kLikely);
  }
  SECTION("nothing tells") {
    JobBuilder j(2);
    j.issue(0, kWorld, kLoss);
    Op other = kLoss;
    other.numel = 7;
    j.issue(1, kWorld, other);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMismatch);
    CHECK(r.ranks == Ranks{0, 1});
    CHECK(r.confidence == Confidence::kPossible);
  }
  SECTION("a sister group tells") {
    JobBuilder j(4);
    const int a = j.group("1", {0, 1}), b = j.group("2", {2, 3});
    j.all(b, kLoss);
    j.issue(0, a, kLoss);
    Op wrong = kLoss;
    wrong.numel = 7;
    j.issue(1, a, wrong);
    j.advance(20);
    CHECK(j.diagnose().ranks == Ranks{1});
  }
  SECTION("who is not heard could turn the vote") {
    JobBuilder j(3);
    j.issue(0, kWorld, kLoss);
    Op other = kLoss;
    other.numel = 7;
    j.issue(1, kWorld, other);
    j.issue(2, kWorld, other);
    j.lose_file(2);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kUndecided);
  }
}

TEST_CASE("a skip that shows as a mismatch is recognised") {
  SECTION("the others went on asynchronously") {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.some({0, 1, 2, 3}, kWorld, kGrads);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{2});
    CHECK(r.blamed[0].seq == 7);
    CHECK(r.blamed[0].why == "skipped");
    CHECK(r.summary.find("rank 2 skipped all_reduce #7 of default_pg at train.py:20") !=
          std::string::npos);
  }
  SECTION("everybody blocks in the slot: the order of earlier iterations tells") {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.some({2}, kWorld, kGrads);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{2});
  }
}

TEST_CASE("an inserted operation is a mismatch of the one that inserted it") {
  JobBuilder j(4);
  iterations(j, 3);
  j.issue(2, kWorld, {.line = 77, .numel = 3});
  j.some({0, 1, 2, 3}, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.blamed[0].site.line == 77);
}

TEST_CASE("a skip among equal operations shows in the call sites") {
  JobBuilder j(3);
  Op a{.line = 10}, b{.line = 11}, c{.line = 12};
  for (int i = 0; i < 3; ++i) {
    j.all(kWorld, a), j.all(kWorld, b), j.all(kWorld, c);
  }
  // Rank 1 leaves out b; all sizes are equal, so nothing differs, until it is one short.
  j.all(kWorld, a);
  for (const Rank r : {0, 2}) {
    j.issue(r, kWorld, b, State::kCompleted), j.issue(r, kWorld, c, State::kCompleted);
    j.issue(r, kWorld, a, State::kCompleted), j.issue(r, kWorld, b);
  }
  j.issue(1, kWorld, c, State::kCompleted), j.issue(1, kWorld, a, State::kCompleted);
  j.issue(1, kWorld, b, State::kCompleted);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{1});
  CHECK(says(r.blamed[0], "left out all_reduce at train.py:11 step as early as #11"));
}

TEST_CASE("the tutorial: rank 0 issues one more than the others") {
  const Op loop{.line = 10}, extra{.line = 15};
  SECTION("the others have left") {
    JobBuilder j(4);
    j.all(5, kWorld, loop);
    j.issue(0, kWorld, extra);
    for (const Rank r : {1, 2, 3}) {
      j.exits(r, 0);
    }
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMismatch);
    CHECK(r.ranks == Ranks{0});
    CHECK(r.blamed[0].why == "extra_operation");
    CHECK(r.blamed[0].site.line == 15);
    CHECK(r.confidence == Confidence::kLikely);
  }
  SECTION("the others are idle, and nobody ever was at that line") {
    JobBuilder j(4);
    j.all(5, kWorld, loop);
    j.issue(0, kWorld, extra);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMismatch);
    CHECK(r.ranks == Ranks{0});
  }
  SECTION("of two, the one that left is named") {
    JobBuilder j(2);
    j.all(5, kWorld, loop);
    j.issue(0, kWorld, extra);
    j.exits(1, 0);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kExited);
    CHECK(r.ranks == Ranks{1});
    CHECK(r.blamed[0].why == "left_early");
  }
}

TEST_CASE("a killed rank: the launcher's SIGTERM makes victims") {
  JobBuilder j(4);
  iterations(j, 10);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.gone(2);
  j.rank(2).written = j.now();
  j.advance(0.2);
  for (const Rank r : {0, 1, 3}) {
    j.signal(r, SIGTERM);
  }
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.blamed[0].why == "gone");
  CHECK(r.confidence == Confidence::kCertain);
  CHECK(has(r, "consequence", "ranks 0,1,3 were ended by SIGTERM"));
}

TEST_CASE("a killed rank: the others fail with a closed connection") {
  JobBuilder j(4);
  iterations(j, 10);
  for (const Rank r : {0, 1, 3}) {
    j.fail(r, kWorld, kLoss, "[gloo] Connection closed by peer [127.0.0.1]:1234");
    j.exception(r, "RuntimeError", "[gloo] Connection closed by peer [127.0.0.1]:1234");
  }
  j.gone(2);
  j.advance(0.2);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == Ranks{2});
  CHECK(has(r, "consequence", "Connection closed by peer"));
}

TEST_CASE("a dead rank and one that stays away by itself are two faults") {
  for (const double seconds : {70.0, 20.0}) {
    CAPTURE(seconds);
    JobBuilder j(6);
    const int left = j.group("1", {0, 1, 2}), right = j.group("2", {3, 4, 5});
    j.all(3, left, kLoss), j.all(3, right, kLoss), j.all(kWorld, kLoss);
    j.some({0, 1}, left, kLoss);   // without 2, which is dead
    j.some({3, 4}, right, kLoss);  // without 5, which is elsewhere
    j.gone(2);
    j.rank(2).written = j.now();
    j.advance(seconds);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kExited);
    // late by less than it takes to be called a hang is no fault
    CHECK(r.ranks == (seconds > 60 ? Ranks{2, 5} : Ranks{2}));
    CHECK(r.confidence == (seconds > 60 ? Confidence::kLikely : Confidence::kCertain));
  }
  SECTION("one that waits for the dead rank elsewhere is a victim") {
    JobBuilder j(6);
    const int left = j.group("1", {0, 1, 2}), right = j.group("2", {3, 4, 5});
    j.all(3, left, kLoss), j.all(3, right, kLoss), j.all(kWorld, kLoss);
    j.some({3, 4}, right, kLoss);
    j.issue(5, kWorld, kLoss);
    j.issue(0, left, kLoss), j.issue(1, left, kLoss);
    j.gone(2);
    j.rank(2).written = j.now();
    j.advance(70);
    CHECK(j.diagnose().ranks == Ranks{2});
  }
}

TEST_CASE("an exception on one rank") {
  JobBuilder j(4);
  iterations(j, 10);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.exception(2, "ValueError", "bad batch");
  j.advance(0.5);
  for (const Rank r : {0, 1, 3}) {
    j.signal(r, SIGTERM);
  }
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.blamed[0].why == "exception");
  CHECK(r.summary.find("ValueError: bad batch") != std::string::npos);
}

TEST_CASE("who was first, and in which order the others followed") {
  JobBuilder j(4);
  iterations(j, 10);
  j.fail(0, kWorld, kLoss, "[gloo] Connection closed by peer [127.0.0.1]:1234");
  j.some({1, 3}, kWorld, kLoss);
  j.exception(2, "ValueError", "bad batch\n  at data.py:7 in load\n  first cause: OSError: gone");
  j.advance(0.5);
  j.exception(0, "RuntimeError", "[gloo] Connection closed by peer [127.0.0.1]:1234");
  j.advance(2);
  j.exception(1, "KeyError", "'a'");
  j.advance(1);
  j.signal(3, SIGTERM);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.summary.find("ValueError: bad batch;") != std::string::npos);
  const auto& said = r.blamed[0].evidence;
  CHECK(std::count(said.begin(), said.end(), "at data.py:7 in load") == 1);
  CHECK(std::count(said.begin(), said.end(), "first cause: OSError: gone") == 1);
  CHECK(has(r, "consequence", "rank 0 failed after that, 500 ms later: RuntimeError"));
  CHECK(has(r, "excluded", "rank 1 ended too (KeyError: 'a'), 2.5 s later"));
  CHECK(has(r, "consequence", "rank 3 was ended by SIGTERM, sent by process 77, 3.5 s later"));
}

TEST_CASE("a rank that died in its wait for one that had died is not the cause") {
  JobBuilder j(4);
  iterations(j, 10);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(0.5);
  j.gone(1);
  j.exception(2, "ValueError", "bad batch");
  j.advance(5);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == Ranks{2});
  CHECK(has(r, "excluded", "rank 1 ended too"));
}

TEST_CASE("a segfault on one rank, the rest left hanging") {
  JobBuilder j(4);
  iterations(j, 10);
  j.signal(1, SIGSEGV);
  j.some({0, 2, 3}, kWorld, kLoss);
  j.advance(60);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == Ranks{1});
  CHECK(r.blamed[0].why == "killed");
}

TEST_CASE("a mismatch beats the errors it provoked") {
  JobBuilder j(4);
  iterations(j, 3);
  Op wrong = kLoss;
  wrong.numel = 16;
  j.fail(2, kWorld, wrong, "[enforce fail] op.preamble.length <= op.nbytes. 64 vs 4");
  j.exception(2, "RuntimeError", "[enforce fail] op.preamble.length <= op.nbytes. 64 vs 4");
  for (const Rank r : {0, 1, 3}) {
    j.fail(r, kWorld, kLoss, "Connection closed by peer");
    j.exception(r, "RuntimeError", "Connection closed by peer");
  }
  j.advance(1);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{2});
  CHECK(has(r, "consequence", "Connection closed by peer"));
}

TEST_CASE("a hang that timed out and was then killed is still missing") {
  JobBuilder j(4);
  iterations(j, 3);
  for (const Rank r : {0, 1, 3}) {
    j.fail(r, kWorld, kLoss, "Timed out waiting 30000ms for recv operation to complete", 30);
  }
  j.advance(30);
  for (const Rank r : {0, 1, 3}) {
    j.exception(r, "RuntimeError", "Timed out waiting 30000ms for recv operation to complete");
  }
  j.signal(2, SIGTERM);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
}

TEST_CASE("one rank alone was told to end, and the others' wait begins there") {
  JobBuilder j(4);
  iterations(j, 10);
  j.signal(2, SIGTERM, 4242);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(0.1);
  j.exception(1, "RuntimeError", "Connection closed by peer");
  SECTION("and the launcher ended another") {
    j.signal(0, SIGTERM, 1);
  }
  SECTION("and nobody else was") {}
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.blamed[0].why == "killed");
  CHECK(r.summary.find("rank 2 ended by SIGTERM, sent by process 4242; ") == 0);
}

TEST_CASE("a rank that was late before somebody ended it is missing") {
  JobBuilder j(4);
  iterations(j, 10);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(20);
  j.signal(2, SIGTERM, 4242);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
}

TEST_CASE("the crash and the exception lead, not the place where the dump was written") {
  JobBuilder j(2);
  iterations(j, 10);
  j.some({0}, kWorld, kLoss);
  RankEvidence& e = j.rank(1);
  SECTION("crash") {
    j.signal(1, SIGSEGV, 0);
    e.exit.kind = "crash";
    e.exit.type = "SIGSEGV";
    e.exit.message = "address 0x10: nothing is mapped there; thread 1001 (python) in ? (x.so+0x1)";
    j.advance(5);
    const Report r = j.diagnose();
    CHECK(r.summary.find("rank 1 ended by SIGSEGV, address 0x10: nothing is mapped there; ") == 0);
    CHECK(r.blamed[0].evidence[0] == "got SIGSEGV, address 0x10: nothing is mapped there");
  }
  SECTION("exception") {
    j.exception(1, "KeyError", "'lr'\n  at capture.py:7 in _note");
    e.threads.present = true;
    e.threads.frames.push_back({true, "_note", "/x/site-packages/fr/capture.py", 7, 0});
    e.threads.threads.push_back({});
    e.threads.threads[0].tid = e.id.pid;
    e.threads.threads[0].stack = {0};
    j.advance(5);
    const Report r = j.diagnose();
    CHECK(r.summary.find("rank 1 ended: KeyError: 'lr'; ") == 0);
    CHECK(r.blamed[0].evidence[0] == "raised KeyError: 'lr'");
    CHECK_FALSE(says(r.blamed[0], "is in _note"));
  }
  SECTION("exit") {
    j.exits(1, 3);
    j.advance(5);
    const Report r = j.diagnose();
    CHECK(r.summary.find("rank 1 exited with status 3; ") == 0);
    CHECK(r.blamed[0].evidence[0] == "exited with status 3");
  }
}

TEST_CASE("a hang ended by SIGTERM to all is still missing") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(30);
  for (const Rank r : {0, 1, 2, 3}) {
    j.signal(r, SIGTERM);
  }
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
}

TEST_CASE("a rank that was killed in its wait for one that never came need not be the cause") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 3}, kWorld, kLoss);  // without 2, which is elsewhere
  j.advance(20);
  j.gone(0);
  j.rank(0).written = j.now();
  for (const Rank r : {1, 2, 3}) {
    j.signal(r, SIGTERM);
  }
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == Ranks{0});
  CHECK(r.confidence == Confidence::kLikely);
  CHECK(has(r, "why", "rank 0 ended in a wait of its own: for rank 2"));
}

TEST_CASE("a cancelled job that was well is ok") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(0.1);
  for (const Rank r : {0, 1, 2, 3}) {
    j.signal(r, SIGTERM);
  }
  CHECK(j.diagnose().kind == Verdict::kOk);
}

TEST_CASE("all killed: nobody alone is to blame, unless they hung before") {
  SECTION("at work") {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0, 1, 3}, kWorld, kLoss);
    for (const Rank r : {0, 1, 2, 3}) {
      j.gone(r);
    }
    j.advance(0.3);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kExited);
    CHECK(r.ranks == Ranks{0, 1, 2, 3});
    CHECK(r.confidence == Confidence::kLikely);
  }
  SECTION("hung") {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0, 1, 3}, kWorld, kLoss);
    for (const Rank r : {0, 1, 2, 3}) {
      j.gone(r);
    }
    j.advance(30);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{2});
  }
}

TEST_CASE("loss by wrap: the frontiers still tell who did not come") {
  JobBuilder j(4);
  iterations(j, 50);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.forget(2, 100);
  j.forget(0, 90);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
  CHECK(says(r.blamed[0], "overwritten") == false);  // nothing known: says it issued nothing kept
  CHECK(has(r, "lost", "older records of default_pg are overwritten"));
}

TEST_CASE("stages with unequal windows are not compared by position") {
  JobBuilder j(4);
  const int busy = j.group("1", {0, 1}), quiet = j.group("2", {2, 3});
  for (int i = 0; i < 50; ++i) {
    j.all(10, busy, kSub);
    j.all(1, quiet, kSub);
    j.all(kWorld, kLoss);
  }
  j.forget(0, 500), j.forget(1, 510);
  j.some({0, 1, 2}, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{3});
}

TEST_CASE("a rank without evidence") {
  SECTION("all waits end at it: exited, possible") {
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
  SECTION("others saw it alive: undecided") {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.rank(0).peers.push_back({2, 1002, "live", 0, 0, 0, "", ""});
    j.lose_file(2);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kUndecided);
  }
  SECTION("others saw it die") {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.rank(0).peers.push_back({2, 1002, "gone", 0, 0, 0, "", ""});
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

TEST_CASE("adding healthy ranks does not change the answer") {
  for (const int world : {3, 4, 16, 64}) {
    JobBuilder j(world);
    iterations(j, 4);
    for (Rank r = 0; r < world; ++r) {
      if (r != 2) {
        j.issue(r, kWorld, kLoss);
      }
    }
    j.advance(20);
    CHECK(j.diagnose().ranks == Ranks{2});
  }
}

TEST_CASE("two jobs are judged apart") {
  JobBuilder a(2, "a"), b(2, "b");
  a.all(kWorld, kLoss);
  b.all(kWorld, kLoss);
  b.issue(0, kWorld, kLoss);
  a.advance(20), b.advance(20);
  auto evidence = a.take();
  for (auto& e : b.take()) {
    evidence.push_back(std::move(e));
  }
  auto cases = make_cases(evidence, {});
  REQUIRE(cases.size() == 2);
  CHECK(diagnose(cases[0]).kind == Verdict::kOk);
  CHECK(diagnose(cases[1]).kind == Verdict::kMissing);
  CHECK(diagnose(cases[1]).ranks == Ranks{1});
  cases = make_cases(evidence, {.job = "a", .attempt = {}, .incident = {}});
  CHECK(cases.size() == 1);
}

TEST_CASE("incidents and attempts: the last unless told otherwise") {
  JobBuilder first(2), second(2), retry(2);
  first.issue(0, kWorld, kLoss);
  first.advance(20);
  second.all(3, kWorld, kLoss);
  second.advance(60);
  for (const Rank r : {0, 1}) {
    second.rank(r).incident = 2;
  }
  auto evidence = first.take();
  for (auto& e : second.take()) {
    evidence.push_back(std::move(e));
  }
  auto cases = make_cases(evidence, {});
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].incident == 2);
  CHECK(diagnose(cases[0]).kind == Verdict::kOk);
  cases = make_cases(evidence, {.job = {}, .attempt = {}, .incident = 1});
  REQUIRE(cases.size() == 1);
  CHECK(diagnose(cases[0]).ranks == Ranks{1});

  for (const Rank r : {0, 1}) {
    retry.rank(r).id.attempt = 1;
    retry.rank(r).incident = 1;
  }
  for (auto& e : retry.take()) {
    evidence.push_back(std::move(e));
  }
  cases = make_cases(evidence, {});
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].attempt == 1);
  CHECK(make_cases(evidence, {.job = {}, .attempt = 7, .incident = {}}).empty());
}

TEST_CASE("ranks that open incidents at once are judged together") {
  JobBuilder j(3);
  iterations(j, 2);
  j.some({0, 1}, kWorld, kLoss);
  j.advance(20);
  j.rank(0).incident = 2;  // rank 0 counted on before it saw the others' incident
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.read == 3);
}

TEST_CASE("an idle rank alone, dumped for a reason, decides nothing") {
  JobBuilder j(2);
  iterations(j, 2);
  j.issue(0, kWorld, kLoss);
  j.advance(20);
  j.lose_file(0);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kUndecided);
  CHECK(r.summary.find("evidence of rank 0 is lacking") != std::string::npos);
}

TEST_CASE("evidence of an earlier run under the same name is left out") {
  JobBuilder before(2), now(2);
  before.issue(1, kWorld, kLoss);
  before.advance(5);
  now.advance(1000);
  for (const Rank r : {0, 1}) {
    now.rank(r).id.start = now.now();
  }
  now.all(3, kWorld, kLoss);
  now.issue(0, kWorld, kLoss);
  now.lose_file(1);
  now.advance(20);
  auto evidence = before.take();
  for (auto& e : now.take()) {
    evidence.push_back(std::move(e));
  }
  const auto cases = make_cases(evidence, {});
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].ranks.size() == 1);
  CHECK(cases[0].missing == Ranks{1});
}

TEST_CASE("a rank's own dump is judged, its later death is told") {
  JobBuilder before(3), after(3);
  for (JobBuilder* j : {&before, &after}) {
    iterations(*j, 2);
    j->some({0, 1}, kWorld, kLoss);
    j->advance(20);
  }
  after.issue(2, kWorld, kLoss);
  after.gone(2);
  after.rank(2).oom_kills = 1;
  after.rank(2).file = "j.a0.r2.1.dead.fr";
  after.lose_file(0);
  after.lose_file(1);
  auto evidence = after.take();
  for (auto& e : before.take()) {
    evidence.push_back(std::move(e));
  }
  const auto cases = make_cases(evidence, {});
  REQUIRE(cases.size() == 1);
  const Report r = diagnose(cases[0]);
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
  CHECK(std::any_of(r.findings.begin(), r.findings.end(), [](const Finding& f) {
    return f.text ==
           "the process of rank 2 was gone after its dump, the kernel's OOM killer had killed 1 of "
           "its control group, it had issued 1 more operation: j.a0.r2.1.dead.fr";
  }));
}

TEST_CASE("two files of one rank count once") {
  JobBuilder a(2), b(2);
  a.all(kWorld, kLoss), b.all(kWorld, kLoss);
  b.advance(20), a.advance(20);
  auto evidence = a.take();
  for (auto& e : b.take()) {
    e->source = Source::kRing;
    evidence.push_back(std::move(e));
  }
  const auto cases = make_cases(evidence, {});
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].ranks.size() == 2);
}

TEST_CASE("everybody came and it does not end") {
  JobBuilder j(4);
  iterations(j, 3);
  SECTION("nothing more is known") {
    j.some({0, 1, 2, 3}, kWorld, kLoss);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kUndecided);
  }
  SECTION("all started") {
    j.some({0, 1, 2, 3}, kWorld, kLoss, State::kStarted);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kTransport);
  }
  SECTION("one is stopped") {
    j.some({0, 1, 2, 3}, kWorld, kLoss);
    j.rank(1).salvaged = true;
    j.rank(1).salvage_why = "unresponsive";
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kDevice);
    CHECK(r.ranks == Ranks{1});
  }
}

TEST_CASE("breadcrumbs are no collectives, and are told of the blamed") {
  JobBuilder j(2);
  iterations(j, 2);
  j.rank(1).has_step = true;
  j.rank(1).step = 17;
  j.rank(0).has_step = true;
  j.rank(0).step = 18;
  j.rank(1).notes.push_back({1001, "loading shard 9", j.now(), {{"load", j.now()}}});
  j.issue(1, -1, {.op = "step", .line = 0, .kind = Kind::kStep});
  j.issue(1, -1, {.op = "load", .line = 0, .kind = Kind::kSpan});
  j.issue(0, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.ranks == Ranks{1});
  CHECK(says(r.blamed[0],
             "last note \"loading shard 9\", step 17 (the others at step 18), "
             "span \"load\" open for 20.0 s"));
}

TEST_CASE("notes of many threads: the main one first, few, none twice; traced calls as a stack") {
  JobBuilder j(2);
  iterations(j, 2);
  RankEvidence& e = j.rank(1);
  const auto main = static_cast<std::uint32_t>(e.id.pid);
  for (std::uint32_t t = 0; t < 30; ++t) {
    e.notes.push_back({5000 + t, "worker note", j.now() + t, {}});
  }
  e.notes.push_back({4000, "exception in thread prefetch: ValueError: x", j.now() - 9, {}});
  for (std::uint32_t t = 0; t < 5; ++t) {
    e.notes.push_back({6000 + t, "shard " + std::to_string(t), j.now() - 5, {}});
  }
  e.notes.push_back({main, "went on", j.now() - 7, {{"load", 0}, {"shard", 0}}});
  e.has_step = true;
  e.step = 3;
  for (const char* text : {"-> collate /home/u/data.py:3", "-> tokenize /home/u/data.py:9",
                           "<- tokenize /home/u/data.py:9", "note", "<- never entered /x:1"}) {
    j.issue(1, -1, {.op = text, .line = 0, .kind = Kind::kNote});
  }
  j.issue(0, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  REQUIRE(r.ranks == Ranks{1});
  const auto& said = r.blamed[0].evidence;
  const auto first = std::find(said.begin(), said.end(),
                               "last note \"went on\", step 3, span \"load\" > \"shard\" open");
  REQUIRE(first != said.end());
  CHECK(first[1] == "exception in thread prefetch: ValueError: x");
  CHECK(first[2] == "thread 5029: last note \"worker note\"");
  CHECK(first[4] == "and last notes of 4 more threads");
  CHECK(
      says(r.blamed[0],
           "traced calls: last entered tokenize data.py:9, left again; inside collate data.py:3"));
}

TEST_CASE("stuck in destroy_process_group") {
  const Op destroy{.op = "destroy_process_group",
                   .line = 60,
                   .numel = 0,
                   .dtype = "",
                   .reduce_op = "",
                   .kind = Kind::kLifecycle};
  SECTION("all are in it") {
    JobBuilder j(2);
    iterations(j, 2);
    j.issue(0, -1, destroy);
    j.issue(1, -1, destroy);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kUndecided);
    CHECK(r.summary.find("destroy_process_group") != std::string::npos);
  }
  SECTION("one never came") {
    JobBuilder j(3);
    iterations(j, 2);
    j.issue(0, -1, destroy);
    j.issue(2, -1, destroy);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{1});
    CHECK(r.confidence == Confidence::kPossible);
  }
  SECTION("nobody else has to come") {
    JobBuilder j(3);
    iterations(j, 2);
    Op free = destroy;
    free.op = "ncclMemFree";
    j.issue(0, -1, free);
    j.issue(2, -1, free);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kUndecided);
    CHECK(r.ranks.empty());
    CHECK(r.summary.find("ncclMemFree") != std::string::npos);
  }
}

namespace {

// new_group calls of one rank: the ordinal is the place in the list.
void make_groups(JobBuilder& j, Rank r, const std::vector<std::vector<Rank>>& lists,
                 std::size_t last_in_flight = SIZE_MAX) {
  for (std::size_t i = 0; i < lists.size(); ++i) {
    Op call{.op = "new_group", .kind = Kind::kLifecycle};
    call.peer = static_cast<int>(i + 1);
    call.shape = {1 | 1u << 12 | 1u << 24, static_cast<std::uint32_t>(3 * lists[i].size())};
    for (const Rank member : lists[i]) {
      call.shape.insert(call.shape.end(), {static_cast<std::uint32_t>(member), 1, 1});
    }
    j.issue(r, -1, call, i == last_in_flight ? State::kEnqueued : State::kCompleted);
    if (i == last_in_flight) {
      return;
    }
  }
}

}  // namespace

TEST_CASE("new_group in another order than on the others") {
  const std::vector<std::vector<Rank>> order = {{0, 1, 2}, {3, 4, 5}, {0, 3}, {1, 4}, {2, 5}};
  const std::vector<std::vector<Rank>> other(order.rbegin(), order.rend());
  for (Rank guilty = 0; guilty < 6; ++guilty) {
    JobBuilder j(6);
    for (Rank r = 0; r < 6; ++r) {
      make_groups(j, r, r == guilty ? other : order, r == guilty ? 1 : 0);
    }
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kDeadlock);
    CHECK(r.ranks == Ranks{guilty});
    CHECK(r.confidence == Confidence::kCertain);
  }
  SECTION("two ranks: either") {
    JobBuilder j(2);
    make_groups(j, 0, {{0}, {1}, {0, 1}}, 2);
    make_groups(j, 1, {{0, 1}, {0}, {1}}, 0);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kDeadlock);
    CHECK(r.ranks == Ranks{0, 1});
    CHECK(r.confidence == Confidence::kPossible);
  }
  SECTION("the same order, and a rank that stays away, is no matter of order") {
    JobBuilder j(6);
    for (Rank r = 0; r < 6; ++r) {
      make_groups(j, r, order);
    }
    j.some({0, 1, 2, 3, 5}, kWorld, kLoss);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kMissing);
  }
  SECTION("a second world counts from the start") {
    JobBuilder j(6);
    for (Rank r = 0; r < 6; ++r) {
      make_groups(j, r, r == 2 ? other : order);
      j.issue(r, -1, {.op = "init_process_group", .kind = Kind::kLifecycle}, State::kCompleted);
      make_groups(j, r, order);
    }
    j.some({0, 1, 2, 3, 5}, kWorld, kLoss);
    j.advance(20);
    CHECK(j.diagnose().ranks == Ranks{4});
  }
  SECTION("nothing is stuck") {
    JobBuilder j(6);
    for (Rank r = 0; r < 6; ++r) {
      make_groups(j, r, r == 3 ? other : order);
    }
    j.all(kWorld, kLoss);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kOk);
  }
}

TEST_CASE("a rank that never made the group is missing in it") {
  JobBuilder j(3);
  iterations(j, 2);
  j.rank(2).groups.pop_back();
  j.rank(2).records.clear();
  j.some({0, 1}, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.ranks == Ranks{2});
  CHECK(says(r.blamed[0], "never created it"));
}

TEST_CASE("usual_next prefers the longest context") {
  const auto steps = [](std::vector<std::uint64_t> keys) {
    std::vector<Step> out;
    for (const auto k : keys) {
      out.push_back({k, 0, out.size()});
    }
    return out;
  };
  // a b c, a b c, x b d, a b -> c
  const auto s = steps({1, 2, 3, 1, 2, 3, 9, 2, 4, 1, 2});
  const auto next = usual_next(s, s.size());
  REQUIRE(next);
  CHECK(s[*next].key == 3);
  CHECK_FALSE(usual_next(s, 0));
  CHECK_FALSE(usual_next(steps({1, 2, 3}), 3));
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

TEST_CASE("the divergence view: the last line in common and what each did next") {
  JobBuilder j(4);
  iterations(j, 5);
  j.all(kWorld, kLoss);
  for (Rank r = 0; r < 3; ++r) {
    j.issue(r, kWorld, kGrads);
  }
  const int pair = j.group("7", {3}, "self");
  j.issue(3, pair, kSub, State::kCompleted);
  j.row(3, pair).completed = j.row(3, pair).ended = 1;
  j.advance(100);
  const Report r = j.diagnose();
  REQUIRE(r.ranks == Ranks{3});
  REQUIRE(r.blamed[0].divergence);
  const Fork& f = *r.blamed[0].divergence;
  CHECK(f.common.site.line == kLoss.line);
  CHECK(f.common.count == 6);
  CHECK(f.own.site.line == kSub.line);
  CHECK(f.own.count == 1);
  CHECK(f.others.site.line == kGrads.line);
  CHECK(f.others.count == 6);
  CHECK(has(r, "divergence", "last operation in common"));
}
