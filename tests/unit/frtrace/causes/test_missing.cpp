// test_missing.cpp - verdicts `missing`: ranks that others wait for, and cases that look similar.
#include <cmath>
#include <csignal>

#include "catch.hpp"
#include "jobs.hpp"
#include "thread_stacks.hpp"

using namespace frtest;

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
  CHECK(says(r.blamed[0], "in earlier iterations next issued all_reduce at train.py:20"));
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

TEST_CASE("of several operations that lack a rank the first in its own order is named") {
  // Two wait in the last one for both ranks of the group of two, and only one in the first.
  JobBuilder j(4);
  const int tp = j.group("1", {2, 3}, "tp");
  for (int i = 0; i < 5; ++i) {
    j.all(tp, kSub);
    j.all(kWorld, kLoss);
  }
  j.some({0, 1}, kWorld, kLoss);
  j.some({2}, tp, kSub);
  j.advance(30);
  const Report r = j.diagnose();
  CHECK(r.ranks == Ranks{3});
  CHECK(r.summary == "rank 3 never issued all_reduce #6 of tp; rank 2 waits there");
  CHECK(r.blamed[0].op == "all_reduce");
  CHECK(r.blamed[0].seq == 6);
  CHECK(r.blamed[0].desc == "tp");
}

TEST_CASE("of several messages that lack a rank the first in its own order is named") {
  JobBuilder j(4);
  const auto message = [&](Rank from, Rank to) {
    Op send = kSend, recv = kRecv;
    send.peer = to;
    recv.peer = from;
    j.some({from}, kWorld, send, State::kCompleted);
    j.some({to}, kWorld, recv, State::kCompleted);
  };
  for (int i = 0; i < 5; ++i) {
    message(3, 2);
    j.all(kWorld, kLoss);
  }
  j.some({0, 1}, kWorld, kLoss);
  Op recv = kRecv;
  recv.peer = 3;
  j.some({2}, kWorld, recv);
  j.advance(30);
  const Report r = j.diagnose();
  CHECK(r.ranks == Ranks{3});
  CHECK(r.summary ==
        "rank 3 never issued the send to rank 2 that recv #6 of default_pg waits for; rank 2 waits "
        "there");
}

TEST_CASE("a rank that is first for good reason is not blamed for being alone") {
  // Rank 0 is in the next operation of the usual loop; the three others sleep. Without their stacks it
  // may have issued one too many, and they are done.
  for (const bool stacks : {true, false}) {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({0}, kWorld, kLoss);
    for (Rank r = 1; r < 4 && stacks; ++r) {
      j.rank(r).threads = rank({py("train.py", 7, "load")}).threads;
      j.rank(r).threads.threads[0].tid = j.rank(r).id.pid;
    }
    j.advance(30);
    const Report r = j.diagnose();
    CHECK(r.kind == (stacks ? Verdict::kMissing : Verdict::kUndecided));
    CHECK(r.ranks == (stacks ? Ranks{1, 2, 3} : Ranks{}));
    CHECK(r.confidence == (stacks ? Confidence::kLikely : Confidence::kPossible));
  }
}

TEST_CASE("a stopped process says so") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.rank(2).salvaged = true;
  j.rank(2).salvage = Salvage::kUnresponsive;
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

// Rank 0 waits for 1, which waits for 2, which waits for 3, each in a group of the two.
static Report chain_of_three_groups() {
  JobBuilder j(4);
  const int a = j.group("1", {0, 1}), b = j.group("2", {1, 2}), c = j.group("3", {2, 3});
  j.all(kWorld, kLoss);
  j.some({0}, a, kSub);
  j.some({1}, b, kSub);
  j.some({2}, c, kSub);
  j.advance(20);
  return j.diagnose();
}

TEST_CASE("several waits of those who are not to blame are one line, and all of them in full") {
  const Report r = chain_of_three_groups();
  CHECK(r.ranks == Ranks{3});
  CHECK(has(r, "excluded", "ranks 1,2 keep others waiting only because they wait themselves"));
  CHECK(std::ranges::count(r.findings, "excluded", &Finding::id) == 1);
  CHECK(std::ranges::count(r.findings, "chain", &Finding::id) == 2);
}

TEST_CASE("a chain over three groups is followed to its end") {
  const Report r = chain_of_three_groups();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{3});
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
    CHECK(r.summary.find(", which ranks 1-3 ") != std::string::npos);
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

TEST_CASE(
    "a rank that was killed in its wait for one that never came is the cause of a short one") {
  // The wait before: of the length of many others of this job, or far longer.
  const double waited_s = GENERATE(0.5, 20.0);
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 3}, kWorld, kLoss);  // without 2, which is elsewhere
  j.advance(waited_s);
  j.gone(0);
  j.rank(0).written = j.now();
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.confidence == Confidence::kLikely);
  if (waited_s > 10) {
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{2});
    CHECK(has(r, "confidence", "processes were killed after the hang"));
  } else {
    CHECK(r.kind == Verdict::kExited);
    CHECK(r.ranks == Ranks{0});
    CHECK(has(r, "why", "rank 0 ended while waiting for rank 2"));
  }
}

TEST_CASE("of processes that are all gone, one whose last sign of life is far older ended first") {
  JobBuilder j(4);
  iterations(j, 3);
  for (const Rank r : {0, 1, 2, 3}) {
    j.gone(r);
  }
  j.rank(2).written = j.now();  // stopped there, like its watchdog
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == Ranks{2});
}

TEST_CASE("an idle rank that is killed after those who wait for it stays missing") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(20);
  for (const Rank r : {3, 2, 1, 0}) {  // as by a loop over their pids
    j.advance(0.4);
    j.gone(r);
    j.rank(r).written = j.now();
  }
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
}

TEST_CASE("ranks that are killed one after the other in a hang are not its cause") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 3}, kWorld, kLoss);  // without 2, which is elsewhere
  j.advance(20);
  for (const Rank r : {0, 1, 2, 3}) {
    j.rank(r).options.emplace_back("FR_TIMEOUT_S", "10");
  }
  j.dump();
  j.advance(1);  // the last one alive sees the others gone, and not when they ended
  for (const Rank r : {0, 1}) {
    j.rank(3).peers.push_back({r, 0, PeerState::kGone, 0, 0, 0, "", ""});
  }
  j.rank(3).written = j.now();
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
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

TEST_CASE("a rank that never made the group is missing in it") {
  // A PyTorch dump lists a group with its first record: it may lack one that the rank has made.
  for (const char* format : {"", "torch 2.10 pickle"}) {
    JobBuilder j(3);
    iterations(j, 2);
    const int evaluation = j.group("2", {0, 1, 2});
    j.rank(2).groups.pop_back();
    j.rank(2).format = format;
    j.some({0, 1}, evaluation, kLoss);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.ranks == Ranks{2});
    REQUIRE(r.blamed.size() == 1);
    CHECK(says(r.blamed[0], "never created the group") == (*format == '\0'));
  }
}

TEST_CASE("a file from before the first operation is older than what its group ended") {
  JobBuilder j(4);
  iterations(j, 2);
  j.some({0, 1}, kWorld, kLoss);
  j.advance(20);
  for (Rank r = 0; r < 4; ++r) {  // only operations in flight
    j.rank(r).format = "torch 2.10 pickle";
    std::erase_if(j.rank(r).records, [](const Record& x) { return x.state == State::kCompleted; });
  }
  j.rank(3).groups.resize(1);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
}

TEST_CASE("who waits at the store waits for another rank, and does not fail to come") {
  for (const int at_store : {1, 3}) {
    JobBuilder j(4);
    iterations(j, 3);
    for (Rank r = 0; r < 4; ++r) {
      if (r < at_store) {
        j.rank(r).threads = rank({native("c10d::TCPStore::wait")}).threads;
        j.rank(r).threads.threads[0].tid = j.rank(r).id.pid;
      } else {
        j.some({r}, kWorld, kLoss);
      }
    }
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kUndecided);
    CHECK(r.ranks.empty());
    // The report asks for no stacks that it has.
    CHECK(!has(r, "need", "FR_STACKS"));
    CHECK(r.summary.ends_with("the evidence does not show which rank sets it"));
  }
}

TEST_CASE("one that issued something once more waits alone at the end: that one, not all others") {
  JobBuilder j(4);
  const Op first{.line = 11}, second{.line = 12}, third{.line = 13};
  for (int i = 0; i < 5; ++i) {
    j.all(kWorld, first);
    j.all(kWorld, second);
    j.all(kWorld, third);
  }
  for (const Rank r : {0, 1, 2, 3}) {
    for (const Op& op : {first, second, third}) {
      j.issue(r, kWorld, op, r == 3 && op.line == 13 ? State::kEnqueued : State::kCompleted);
      if (r == 3 && op.line == 11) {
        j.issue(r, kWorld, op, State::kCompleted);
      }
    }
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{3});
}

TEST_CASE("a server that receives from any rank waits for who sends nothing, not for who waits") {
  JobBuilder j(4);
  const auto send = [](int to) {
    return Op{.op = "send", .line = 28, .peer = to, .kind = Kind::kSend};
  };
  const auto recv = [](int from) {
    return Op{.op = "recv", .line = 14, .peer = from, .kind = Kind::kRecv};
  };
  for (int step = 0; step < 3; ++step) {
    for (const Rank r : {1, 2, 3}) {
      j.issue(r, 0, send(0), State::kCompleted);
      j.issue(0, 0, recv(-1), State::kCompleted);
    }
    for (const Rank r : {1, 2, 3}) {
      j.issue(0, 0, send(r), State::kCompleted);
      j.issue(r, 0, recv(0), State::kCompleted);
    }
    j.advance(0.1);
  }
  for (const Rank r : {1, 2}) {
    j.issue(r, 0, send(0), State::kCompleted);
    j.issue(0, 0, recv(-1), State::kCompleted);
    j.issue(r, 0, recv(0));
  }
  j.issue(0, 0, recv(-1));
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{3});
  CHECK(r.confidence == Confidence::kCertain);
}

TEST_CASE("of two ranks that stopped, each is said to be missed in what its own group waits in") {
  JobBuilder j(8);
  const int a = j.group("1", {0, 1, 2, 3}, "a"), b = j.group("2", {4, 5, 6, 7}, "b");
  j.all(3, a, kLoss);
  j.all(3, b, kLoss);
  j.some({0, 2, 3}, a, kLoss);
  j.some({4, 5, 7}, b, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.ranks == Ranks{1, 6});
  CHECK(r.summary.find("rank 1 never issued all_reduce #4 of a; ranks 0,2,3 wait there") !=
        std::string::npos);
  CHECK(r.summary.find("rank 6 never issued all_reduce #4 of b; ranks 4,5,7 wait there") !=
        std::string::npos);
}

TEST_CASE("several ranks between sends and receives, in files without times: perhaps it moves") {
  const bool times = GENERATE(true, false);
  JobBuilder j(8);
  for (Rank r = 0; r < 8; ++r) {
    j.rank(r).format = "torch 2.10 pickle";
    j.rank(r).holes.written_guessed = !times;
    Op next = kSend;
    next.peer = (r + 1) % 8;
    j.issue(r, JobBuilder::kWorld, next, State::kCompleted);
    Op last = kRecv;
    last.peer = (r + 7) % 8;
    j.issue(r, JobBuilder::kWorld, last, State::kCompleted);
    if (r != 1 && r != 4 && r != 6) {
      j.issue(r, JobBuilder::kWorld, last, State::kStarted);
    }
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == (times ? Verdict::kMissing : Verdict::kUndecided));
}

TEST_CASE("a rank that destroyed its groups while others go on says so, wherever it is now") {
  JobBuilder j(4);
  iterations(j, 5);
  j.issue(2, -1, {.op = "destroy_process_group", .line = 60, .numel = 0, .kind = Kind::kLifecycle},
          State::kCompleted);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
  CHECK(std::ranges::count(r.blamed[0].evidence,
                           "then destroyed its process groups at train.py:60 step") == 1);
}

TEST_CASE("whose script is over left early, whatever Python runs then") {
  const bool over = GENERATE(true, false);
  JobBuilder j(4);
  iterations(j, 5);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(20);
  ThreadStack facts;
  facts.whole = true;
  const RankEvidence at_exit =
      rank({py("/x/tabulate.py", 12, "tabulate"),
            py("/x/utils.py", 9, over ? "dump_compile_times" : "<module>")},
           facts);
  j.rank(2).threads = at_exit.threads;
  j.rank(2).id.pid = at_exit.id.pid;
  const Report r = j.diagnose();
  CHECK(r.kind == (over ? Verdict::kExited : Verdict::kMissing));
  CHECK(r.ranks == Ranks{2});
  CHECK(r.blamed[0].why == (over ? "left_early" : "never_issued"));
  CHECK(r.summary.find(over ? "rank 2 left without issuing all_reduce #11" : "never issued") !=
        std::string::npos);
}

TEST_CASE("who may wait for a rank that issued nothing, to make a communicator, is not certain") {
  const bool blank = GENERATE(true, false);
  JobBuilder j(6);
  const int most = j.group("1", {0, 1, 3, 4, 5}, "dp");
  Op send = kSend, recv = kRecv;
  send.peer = 1, recv.peer = 0;
  for (Rank r = 0; r < 6; ++r) {
    j.rank(r).format = "torch 2.10 pickle";
  }
  if (!blank) {
    j.all(kWorld, kLoss);
  }
  j.all(most, kSub);
  j.issue(0, kWorld, send, State::kCompleted);
  j.issue(1, kWorld, recv, State::kCompleted);
  j.some({0, 3, 4, 5}, most, kSub);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{1});
  CHECK(r.confidence == (blank ? Confidence::kPossible : Confidence::kCertain));
}

TEST_CASE("half waits where its iterations had another operation: not certain who is wrong") {
  const bool due = GENERATE(true, false);
  JobBuilder j(4);
  iterations(j, 5);
  j.some({0, 1}, kWorld, due ? kLoss : kGrads);
  j.advance(30);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2, 3});
  CHECK(r.confidence == (due ? Confidence::kCertain : Confidence::kPossible));
}
