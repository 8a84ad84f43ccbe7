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
  CHECK(has(r, "why", "ranks 0-2 wait for rank 3, directly or through others"));
}

TEST_CASE("one round more, and its partner does not come: no record of what it waits in",
          "[known][!mayfail]") {
  JobBuilder j(4);
  const int sub = j.group("1", {2, 3}, "tp");
  for (int i = 0; i < 6; ++i) {
    j.all(sub, kSub);
    j.all(kWorld, kLoss);
  }
  j.some({0, 1, 2}, kWorld, {.op = "barrier", .line = 30});
  j.some({3}, sub, kSub);
  j.advance(20);
  j.forget(3, j.rank(3).records.size());
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{3});
}

TEST_CASE("left out long ago, in an iteration of few operations: a skip, and no exchange",
          "[known][!mayfail]") {
  JobBuilder j(4);
  const int shards[] = {j.group("1", {0, 1}, "shard"), j.group("2", {2, 3}, "shard")};
  const int copies[] = {j.group("3", {0, 2}, "copy"), j.group("4", {1, 3}, "copy")};
  const Op scatter{.op = "reduce_scatter", .line = 14}, sum{.line = 15},
      gather{.op = "all_gather", .line = 16};
  constexpr int kSteps = 12, kSkip = 7;
  for (int step = 0; step < kSteps; ++step) {
    const bool last = step == kSteps - 1;
    for (const Rank r : {0, 1, 2, 3}) {
      j.issue(r, shards[r / 2], scatter, State::kCompleted);
      if (r != 3 || step != kSkip) {
        j.issue(r, copies[r % 2], sum, r == 1 && last ? State::kEnqueued : State::kCompleted);
      }
      if (r != 1 || !last) {
        j.issue(r, shards[r / 2], gather, r == 0 && last ? State::kEnqueued : State::kCompleted);
      }
    }
    j.advance(0.1);
  }
  j.some({2, 3}, kWorld, {.op = "barrier", .line = 17});
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{3});
  CHECK(r.blamed[0].why == "skipped");
  CHECK(r.blamed[0].seq == kSkip + 1);
}

TEST_CASE("one of many alternating sends and receives left out, in the last iteration: a skip",
          "[known][!mayfail]") {
  JobBuilder j(3);
  Op send{.op = "send", .line = 20, .kind = Kind::kSend},
      recv{.op = "recv", .line = 21, .kind = Kind::kRecv};
  constexpr int kSteps = 3, kRounds = 57, kSkip = 21;
  for (int step = 0; step < kSteps; ++step) {
    for (int round = 0; round < kRounds; ++round) {
      for (const Rank r : {0, 1, 2}) {
        const bool last = step == kSteps - 1;
        const bool late = last && r == 0 && round == kRounds - 1;
        send.peer = (r + 1) % 3;
        recv.peer = (r + 2) % 3;
        if (r != 1 || !last || round != kSkip) {
          j.issue(r, kWorld, recv, State::kCompleted);
        }
        j.issue(r, kWorld, send, late ? State::kEnqueued : State::kCompleted);
      }
      j.advance(0.01);
    }
    if (step < kSteps - 1) {
      j.all(kWorld, kLoss);
    }
  }
  j.some({0, 1, 2}, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{1});
  CHECK(r.blamed[0].why == "skipped");
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

namespace {

// The rank's main thread waits in that system call, at train.py:12, for the lock of a file.
void waits_for_lock(RankEvidence& e, int holder, const std::string& file = "/home/u/data.lock",
                    const std::string& syscall = "flock") {
  e.threads.present = true;
  e.threads.frames = {{true, "prepare", "/home/u/train.py", 12, 0}};
  ThreadStack& t = e.threads.threads.emplace_back();
  t.tid = e.id.pid;
  t.activity = fr::Activity::kAsleep;
  t.syscall = syscall;
  t.syscall_on = file;
  t.stack = {0};
  e.threads.locks.push_back({true, holder, syscall == "flock" ? "FLOCK" : "POSIX", "python", file});
}

}  // namespace

TEST_CASE("a rank holds the lock that the others wait for, and waits for them: deadlock") {
  JobBuilder j(4);
  j.all(kWorld, kLoss);
  j.some({0}, kWorld, kSub);
  const std::string syscall = GENERATE("flock", "fcntl");
  for (const Rank r : {1, 2, 3}) {
    waits_for_lock(j.rank(r), j.rank(0).id.pid, "/home/u/data.lock", syscall);
  }
  j.advance(20);
  SECTION("all on the cycle, with their places") {
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kDeadlock);
    CHECK(r.ranks == Ranks{0, 1, 2, 3});
    CHECK(r.confidence == Confidence::kCertain);
    CHECK(r.summary ==
          "rank 0 holds the lock of data.lock, which ranks 1-3 wait for, and waits for them in "
          "all_reduce #2 of default_pg");
    REQUIRE(r.blamed.size() == 4);
    CHECK(r.blamed[1].site.line == 12);
    CHECK(std::count(r.blamed[1].evidence.begin(), r.blamed[1].evidence.end(),
                     "waits for the lock of data.lock, which rank 0 holds") == 1);
  }
  SECTION("another process holds it: they are idle, and the evidence names that process") {
    for (const Rank r : {1, 2, 3}) {
      j.rank(r).threads.locks[0].holder = 4711;
    }
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kUndecided);  // most are idle
    CHECK(has(r, "elsewhere",
              "ranks 1-3 are in prepare() at train.py:12, asleep in " + syscall +
                  "; each waits for the lock of data.lock, which process 4711 (python) holds"));
  }
  SECTION("a process of another machine has the same number") {
    j.rank(0).id.host = "n1";
    CHECK(j.diagnose().kind == Verdict::kUndecided);
  }
  SECTION("two ranks of one number: nothing tells which") {
    j.rank(1).id.pid = j.rank(0).id.pid;
    j.rank(1).threads.threads[0].tid = j.rank(0).id.pid;
    CHECK(j.diagnose().kind == Verdict::kUndecided);
  }
}

TEST_CASE("who waits for the lock of an idle rank is not blamed") {
  JobBuilder j(4);
  j.all(kWorld, kLoss);
  j.some({3}, kWorld, kLoss);
  for (const Rank r : {1, 2}) {
    waits_for_lock(j.rank(r), j.rank(0).id.pid);
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{0});
}

TEST_CASE("each of two holds the lock that the other wants") {
  JobBuilder j(4);
  j.all(kWorld, kLoss);
  j.some({2, 3}, kWorld, kLoss);
  waits_for_lock(j.rank(0), j.rank(1).id.pid, "/home/u/a.lock");
  waits_for_lock(j.rank(1), j.rank(0).id.pid, "/home/u/b.lock");
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kDeadlock);
  CHECK(r.ranks == Ranks{0, 1});
}

TEST_CASE("a lock that is polled: its holder says that it holds it") {
  // The frames of filelock before 4.3, and since.
  const auto [function, file] = GENERATE(table<const char*, const char*>(
      {{"BaseFileLock.acquire", "/x/filelock/_api.py"},
       {"Acquisition._poll_until_acquired", "/x/filelock/_core/_acquire.py"}}));
  JobBuilder j(2);
  j.all(kWorld, kLoss);
  j.some({0}, kWorld, kLoss);
  waits_for_lock(j.rank(1), -1, "", "clock_nanosleep");
  RankEvidence& e = j.rank(1);
  e.threads.locks.clear();
  e.threads.frames.push_back({true, function, file, 300, 0});
  e.threads.threads[0].stack = {1, 0};
  e.threads.threads[0].variables = {{0, {{"lock_filename", "'/home/u/data.lock'"}}}};
  j.rank(0).threads.locks.push_back({false, 1000, "FLOCK", "python", "/home/u/data.lock"});
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

TEST_CASE("a circle of many operations: the first few, and how many more there are") {
  JobBuilder j(6);
  for (Rank r = 0; r < 6; ++r) {
    Op recv = kRecv;
    recv.peer = (r + 1) % 6;
    j.issue(r, kWorld, recv, State::kWaiting);
  }
  j.advance(20);
  const std::string summary = j.diagnose().summary;
  CHECK(summary.starts_with("ranks 0-5 wait for each other: rank "));
  CHECK(summary.ends_with("; and 2 more likewise"));
}

TEST_CASE(
    "half of a group take another order than before: those, though the others of them did too") {
  JobBuilder j(8);
  const int even = j.group("1", {0, 2, 4, 6}, "even");
  for (int i = 0; i < 4; ++i) {
    j.all(even, kSub);
    j.all(kWorld, kLoss);
  }
  j.some({0, 6}, even, kSub);
  j.some({1, 2, 3, 4, 5, 7}, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2, 4});
}

TEST_CASE("a replica of two left out what the many stand in, or came to it too early",
          "[known][!mayfail]") {
  JobBuilder j(6);
  const int even = j.group("1", {0, 2, 4}, "dp"), odd = j.group("2", {1, 3, 5}, "dp");
  const int tp = j.group("3", {2, 3}, "tp");
  j.all(kWorld, kGrads);
  SECTION("left out, and went on") {
    j.some({0, 1, 4, 5}, kWorld, kLoss);
    j.all(tp, kSub);
    j.some({2}, even, kSub);
    j.some({3}, odd, kSub);
  }
  SECTION("came to it behind that") {
    j.some({0, 1, 4, 5}, kWorld, kLoss);
    j.some({2}, even, kSub);
    j.some({3}, odd, kSub);
    j.some({2, 3}, kWorld, kLoss);
  }
  SECTION("too early") {
    j.all(tp, kSub);
    j.all(j.group("4", {0, 1}, "tp"), kSub);
    j.all(j.group("5", {4, 5}, "tp"), kSub);
    j.some({2, 3}, kWorld, kLoss);
    j.some({0, 4}, even, kSub);
    j.some({1, 5}, odd, kSub);
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2, 3});
}

TEST_CASE("orders that contradict, of hosts that ran ahead, in files without times") {
  JobBuilder j(4);
  const int other = j.group("1", {0, 1, 2, 3}, "ep");
  j.all(other, kSub);
  j.all(kWorld, kGrads);
  for (const Rank r : {0, 1, 2, 3}) {
    j.rank(r).format = "torch 2.10 pickle";
    j.rank(r).holes.written_guessed = true;
    j.issue(r, r == 3 ? kWorld : other, r == 3 ? kGrads : kSub, State::kStarted);
    j.issue(r, r == 3 ? other : kWorld, r == 3 ? kSub : kGrads);
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind != Verdict::kUndecided);
  CHECK(r.ranks == Ranks{3});
}

TEST_CASE(
    "two wait in what they never issued before, without what ended early on those beside them",
    "[known][!mayfail]") {
  JobBuilder j(8);
  const int five = j.group("1", {0, 1, 2, 3, 4}, "gen");
  const Op reduce{.op = "reduce", .line = 30, .numel = 2, .peer = 0};
  const Op gather{.op = "_all_gather_base", .line = 40, .numel = 512, .out_numel = 2560};
  for (int i = 0; i < 2; ++i) {
    j.all(five, kSub);
    j.all(kWorld, reduce);
  }
  j.all(five, kSub);
  j.issue(0, kWorld, reduce, State::kWaiting);
  for (const Rank r : {3, 4, 5, 6, 7}) {
    j.issue(r, kWorld, reduce, State::kCompleted);
  }
  for (const Rank r : {1, 2, 3, 4}) {
    j.issue(r, five, gather, State::kWaiting);
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{1, 2});
}

TEST_CASE("the other group of a kind shows what two ranks of this one left out",
          "[known][!mayfail]") {
  JobBuilder j(8);
  const int low = j.group("1", {0, 1, 2, 3}, "dp"), high = j.group("2", {4, 5, 6, 7}, "dp");
  for (int i = 0; i < 2; ++i) {
    j.all(low, kSub);
    j.all(high, kSub);
    j.all(kWorld, kGrads);
  }
  j.all(low, kSub);
  j.some({5, 6}, high, kSub);
  for (const Rank r : {0, 1, 2, 3, 4, 7}) {
    j.issue(r, kWorld, kLoss, State::kWaiting);
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{4, 7});
  CHECK(r.blamed[0].why == "skipped");
}

TEST_CASE("two stages of two pipelines leave the same out: both, by their own iterations",
          "[known][!mayfail]") {
  JobBuilder j(8);
  const int pipes[] = {j.group("1", {0, 2, 4, 6}, "pp"), j.group("2", {1, 3, 5, 7}, "pp")};
  const int copies[] = {j.group("3", {0, 1}, "dp"), j.group("4", {2, 3}, "dp"),
                        j.group("5", {4, 5}, "dp"), j.group("6", {6, 7}, "dp")};
  const auto message = [&](Rank r, int to, bool send, State state) {
    Op op = send ? kSend : kRecv;
    op.peer = to;
    j.issue(r, pipes[r % 2], op, state);
  };
  for (int step = 0; step < 4; ++step) {
    for (Rank r = 0; r < 8; ++r) {
      const int stage = r / 2;
      for (const int way : {1, -1}) {  // forwards, and backwards
        for (int batch = 0; batch < 4; ++batch) {
          const int from = stage - way, to = stage + way;
          if (from >= 0 && from < 4) {
            message(r, from, false, State::kCompleted);
          }
          if (to >= 0 && to < 4) {
            message(r, to, true, State::kCompleted);
          }
        }
      }
    }
    for (const int g : copies) {
      j.all(g, kGrads);
    }
    j.all(pipes[0], kLoss);
    j.all(pipes[1], kLoss);
  }
  j.issue(2, copies[1], kGrads);
  j.issue(5, copies[2], kGrads);
  message(0, 1, true, State::kEnqueued);
  message(4, 1, false, State::kEnqueued);
  message(6, 2, false, State::kEnqueued);
  message(1, 1, true, State::kCompleted);
  message(3, 0, false, State::kCompleted);
  message(1, 1, true, State::kEnqueued);
  message(3, 2, true, State::kEnqueued);
  message(7, 2, false, State::kEnqueued);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2, 5});
}
