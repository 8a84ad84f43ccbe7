// test_polls.cpp - ranks that poll, and ranks that wait for others' writes to the store.
#include "catch.hpp"
#include "jobs.hpp"
#include "thread_stacks.hpp"

using namespace frtest;

namespace {

// Rank r sleeps in a loop of its own at train.py:57.
void naps(JobBuilder& j, Rank r, fr::Activity activity, const char* left = "") {
  RankEvidence& e = j.rank(r);
  ThreadStack t;
  t.tid = e.id.pid;
  t.activity = activity;
  t.answer = fr::Answer::kAnswered;
  t.syscall = "clock_nanosleep";
  t.syscall_on = left;
  t.stack = {0, 1};
  e.threads.present = true;
  e.threads.frames = {py("/home/u/train.py", 57, "file_barrier"),
                      py("/home/u/train.py", 90, "main")};
  e.threads.threads.push_back(t);
}

// Rank 1 waits in a collective; these ranks nap in a loop.
JobBuilder one_waits(const Ranks& polling) {
  JobBuilder j(4);
  iterations(j, 20);
  j.some({1}, kWorld, kLoss);
  j.advance(30);
  for (const Rank r : polling) {
    naps(j, r, fr::Activity::kPolling);
  }
  return j;
}

Op store(const char* call, Kind kind, std::uint64_t count = 0) {
  return {.op = call, .line = 40, .numel = count, .dtype = "", .reduce_op = "", .kind = kind};
}

void writes(JobBuilder& j, const Ranks& who, std::uint64_t count) {
  for (const Rank r : who) {
    j.issue(r, -1, store("store.add barrier/#", Kind::kStore, count), State::kUnknown);
  }
}

}  // namespace

TEST_CASE("most ranks poll, and the one in a collective is not to blame for certain") {
  const Report r = one_waits({0, 2, 3}).diagnose();
  CHECK(r.kind == Verdict::kUndecided);
  CHECK(r.summary ==
        "ranks 0,2,3 wait in a polling loop and rank 1 waits in all_reduce #41 of default_pg: the "
        "evidence does not show which of them is to go on first");
}

TEST_CASE("one rank polls: the others wait for it, likely") {
  for (const bool seen_asleep : {false, true}) {
    JobBuilder j(4);
    iterations(j, 20);
    j.some({0, 2, 3}, kWorld, kLoss);
    j.advance(30);
    seen_asleep ? naps(j, 1, fr::Activity::kAsleep, "38 ms") : naps(j, 1, fr::Activity::kPolling);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{1});
    CHECK(r.confidence == Confidence::kLikely);
  }
}

TEST_CASE("a rank that has ended does not poll, whatever its last dump shows") {
  JobBuilder j(4);
  iterations(j, 20);
  j.some({0, 2, 3}, kWorld, kLoss);
  j.advance(1);
  j.exits(1, 0);
  j.advance(30);
  naps(j, 1, fr::Activity::kPolling);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == Ranks{1});
  CHECK(r.confidence == Confidence::kCertain);
}

TEST_CASE("one long sleep is no loop") {
  JobBuilder j(4);
  iterations(j, 20);
  j.some({0, 2, 3}, kWorld, kLoss);
  j.advance(30);
  naps(j, 1, fr::Activity::kAsleep, "970 s");
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.confidence == Confidence::kCertain);
}

TEST_CASE("a rank beside those that poll stands still: it is missing") {
  JobBuilder j = one_waits({0, 2});
  naps(j, 3, fr::Activity::kAsleep, "970 s");
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{3});
}

TEST_CASE("a rank that a sample finds between two naps of the loop polls, too") {
  JobBuilder j = one_waits({0, 2});
  naps(j, 3, fr::Activity::kRunning);
  j.rank(3).threads.threads.back().syscall = "";
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kUndecided);
  CHECK(r.ranks.empty());
}

TEST_CASE("a rank that is stopped at the line of the loop does not poll") {
  JobBuilder j = one_waits({0, 2});
  naps(j, 3, fr::Activity::kStopped);
  j.rank(3).threads.threads.back().syscall = "";
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{3});
}

TEST_CASE("a rank that wrote less often to the store than those who wait since") {
  JobBuilder j(3);
  iterations(j, 20);
  writes(j, {0, 1, 2}, 30);
  j.all(kWorld, kLoss);
  writes(j, {0, 2}, 31);
  j.some({1}, kWorld, kLoss);
  j.advance(30);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{1});
  CHECK(r.confidence == Confidence::kLikely);
  CHECK(r.blamed[0].why == "skipped");
  CHECK(r.summary ==
        "rank 1 called store.add barrier/# at train.py:40 step 30 times, ranks 0,2 31 times; ranks "
        "0,2 wait for it there");
}

TEST_CASE("ranks that wrote as often as the others are not waited for") {
  JobBuilder j(3);
  iterations(j, 20);
  writes(j, {0, 1, 2}, 31);
  j.some({1, 2}, kWorld, kLoss);
  j.advance(30);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{0});
}

TEST_CASE("a key that one rank wrote before and that the others wait for") {
  JobBuilder j(3);
  iterations(j, 20);
  j.issue(2, -1, store("store.set ready-#", Kind::kStore, 20), State::kUnknown);
  j.all(kWorld, kLoss);
  for (const Rank r : {0, 1}) {
    j.issue(r, -1, store("store.wait ready-#", Kind::kLifecycle));
  }
  j.some({2}, kWorld, kLoss);
  j.advance(30);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
  CHECK(
      r.summary ==
      "ranks 0,1 wait for key ready-# of the ranks' store, which rank 2 wrote before (20 times at "
      "train.py:40 step)");
}
