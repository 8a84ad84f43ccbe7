// test_evidence.cpp - the lines beside a verdict: breadcrumbs and the last operation of each rank.
#include "catch.hpp"
#include "jobs.hpp"
#include "thread_stacks.hpp"

using namespace frtest;

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

TEST_CASE("notes of the recorder's own are told of the job, not of the thread") {
  JobBuilder j(2);
  iterations(j, 2);
  j.rank(1).notes.push_back({1001, "fr: mismatch: rank 1 issued barrier #3", j.now(), {}});
  j.issue(0, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  REQUIRE(r.ranks == Ranks{1});
  CHECK(!says(r.blamed[0], "last note"));
  CHECK(has(r, "told", "mismatch: rank 1 issued barrier #3"));
}

TEST_CASE("that nothing is stuck is not certain where sends and receives are not recorded") {
  JobBuilder j(2);
  iterations(j, 2);
  j.rank(0).holes.no_p2p = true;
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kOk);
  CHECK(r.confidence == Confidence::kLikely);
}

TEST_CASE("the step of a dump of an earlier incident is not where that rank is") {
  JobBuilder j(3);
  iterations(j, 2);
  for (const Rank r : {0, 1, 2}) {
    j.rank(r).has_step = true;
    j.rank(r).step = r == 2 ? 1 : 6;
    j.rank(r).incident = r == 2 ? 1 : 2;
  }
  j.issue(0, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  REQUIRE(!r.blamed.empty());
  CHECK(says(r.blamed[0], "at step 6"));
  CHECK(!says(r.blamed[0], "the others at steps"));
}

TEST_CASE("notes of many threads: the main one first, few, none twice, traced calls as a stack") {
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
  CHECK(first[1] == "thread 5029: last note \"worker note\"");
  CHECK(first[4] == "and last notes of 3 more threads");
  CHECK(said[1] == "its thread prefetch died of ValueError: x");  // after the rank's last operation
  CHECK(
      says(r.blamed[0],
           "traced calls: last entered tokenize data.py:9, left again; inside collate data.py:3"));
}

TEST_CASE("ranks that wait at one place for the store are one line, whatever sockets they have") {
  JobBuilder j(4);
  j.all(3, kWorld, kLoss);
  j.issue(0, kWorld, kLoss);
  for (const Rank r : {1, 2, 3}) {
    ThreadStack facts;
    facts.syscall = "poll";
    facts.syscall_on = "socket 127.0.0.1:" + std::to_string(40000 + r);
    j.rank(r).threads = rank({native("c10d::detail::TCPClient::receive()", "/x/libtorch_cpu.so"),
                              py("/home/u/train.py", 18, "read_config")},
                             facts)
                            .threads;
    j.rank(r).threads.threads[0].tid = j.rank(r).id.pid;
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kUndecided);
  CHECK(std::ranges::count(r.findings, "elsewhere", &Finding::id) == 1);
  CHECK(
      has(r, "elsewhere",
          "ranks 1-3 are in read_config() at train.py:18, asleep in poll; each waits in the ranks' "
          "store for a key that another rank sets"));
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
}
