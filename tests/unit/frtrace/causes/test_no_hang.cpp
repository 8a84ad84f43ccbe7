// test_no_hang.cpp - nothing is stuck: verdict `ok`, whatever was dumped.
#include <csignal>

#include "catch.hpp"
#include "jobs.hpp"
#include "thread_stacks.hpp"

using namespace frtest;

TEST_CASE("a job that just issued is ok, and a silent one is not") {
  const double idle_s = GENERATE(3, 100);
  JobBuilder j(4);
  iterations(j, 5);
  j.advance(idle_s);
  const Report r = j.diagnose();
  CHECK(r.kind == (idle_s > 60 ? Verdict::kUndecided : Verdict::kOk));
  CHECK(r.ranks.empty());
  CHECK(r.read == 4);
}

TEST_CASE("silent ranks that sleep at one place are all named, and others are told by place") {
  const bool together = GENERATE(true, false);
  JobBuilder j(4);
  iterations(j, 5);
  j.advance(100);
  for (const Rank r : {0, 1, 2, 3}) {
    const RankEvidence there =
        rank({py("/w/data.py", r == 3 && !together ? 20 : 13, "next_shard")});
    j.rank(r).threads = there.threads;
    j.rank(r).id.pid = there.id.pid;
    j.rank(r).id.cwd = "/w";
  }
  const Report r = j.diagnose();
  CHECK(r.kind == (together ? Verdict::kMissing : Verdict::kUndecided));
  CHECK(r.ranks == (together ? Ranks{0, 1, 2, 3} : Ranks{}));
  INFO(r.summary);
  if (together) {
    CHECK(r.summary.find("issued nothing for 100.0 s") != std::string::npos);
    CHECK(r.summary.find("all are in next_shard() at data.py:13") != std::string::npos);
    CHECK(r.blamed.front().why == "idle");
  } else {
    CHECK(has(r, "elsewhere", "ranks 0-2 are in next_shard() at data.py:13"));
    CHECK(has(r, "elsewhere", "rank 3 is in next_shard() at data.py:20"));
  }
}

TEST_CASE("a recorder that raised an incident for silence is believed before a rhythm is known") {
  const bool told = GENERATE(true, false);
  JobBuilder j(4);
  iterations(j, 1);
  j.advance(30);
  j.rank(1).reason = told ? "no operation issued for 30.0 s" : "";
  CHECK(j.diagnose().kind == (told ? Verdict::kUndecided : Verdict::kOk));
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

TEST_CASE("who ends a job in which nothing was in flight for long may have had a reason") {
  const double idle_s = GENERATE(3, 100);
  JobBuilder j(4);
  iterations(j, 5);
  j.advance(idle_s);
  for (const Rank r : {0, 1, 2, 3}) {
    j.signal(r, SIGTERM);
  }
  const Report r = j.diagnose();
  CHECK(r.kind == (idle_s > 60 ? Verdict::kUndecided : Verdict::kOk));
  CHECK(r.ranks.empty());
  CHECK(has(r, "elsewhere", "ranks 0-3 were in no operation") == (idle_s > 60));
}

TEST_CASE("a job that pauses for as long now and then was well when it was ended") {
  JobBuilder j(4);
  iterations(j, 5);
  j.advance(70);  // an evaluation
  iterations(j, 5);
  j.advance(100);
  for (const Rank r : {0, 1, 2, 3}) {
    j.signal(r, SIGTERM);
  }
  CHECK(j.diagnose().kind == Verdict::kOk);
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

TEST_CASE("a hang among operations that found no room is not called ok") {
  // nothing that matters; groups without a row; operations and groups without a name
  for (std::uint64_t Losses::* const lost :
       {&Losses::trimmed, &Losses::no_group, &Losses::groups_lost, &Losses::strings_lost}) {
    const bool matters = lost != &Losses::trimmed;
    JobBuilder j(2);
    iterations(j, 3);
    j.advance(20);
    for (const int r : {0, 1}) {
      j.rank(r).trigger = Trigger::kTimeout;
      j.rank(r).reason = "no progress for 4.0 s";
    }
    j.rank(1).losses.*lost = 31;
    const Report r = j.diagnose();
    CHECK(r.kind == (matters ? Verdict::kUndecided : Verdict::kOk));
    CHECK((r.summary.find("found no room in the recorder") != std::string::npos) == matters);
  }
}

TEST_CASE("a watchdog's open operation is not ok where nobody can be found that it waits for") {
  const bool placed = GENERATE(true, false);
  JobBuilder j(4);
  iterations(j, 3);
  for (Rank r = 0; r < 4; ++r) {  // as NCCL's plugin up to version 3 knows a communicator
    GroupEvidence& g = j.row(r, kWorld);
    g.ranks.clear();
    g.n_ranks = 0;
    g.own_rank = placed ? r : -1;
  }
  Op receive = kRecv;
  receive.peer = 3;
  j.issue(0, kWorld, receive);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == (placed ? Verdict::kMissing : Verdict::kUndecided));
  CHECK(r.ranks == (placed ? Ranks{3} : Ranks{}));
}

TEST_CASE("ranks that rest for long are not ok where files leave out sends and receives") {
  const double idle_s = GENERATE(1.0, 30.0);
  JobBuilder j(4);
  iterations(j, 3);
  j.advance(idle_s);
  for (Rank r = 0; r < 4; ++r) {
    j.rank(r).format = "torch 2.10 pickle";
    j.rank(r).trigger = Trigger::kManual;
    j.rank(r).holes.no_p2p = true;
  }
  const Report r = j.diagnose();
  CHECK(r.kind == (idle_s > 10 ? Verdict::kUndecided : Verdict::kOk));
  CHECK(r.ranks.empty());
}

TEST_CASE("ranks of a PyTorch job rest, nothing is in flight and a file is lost: not ok") {
  const double idle_s = GENERATE(1.0, 30.0);
  const bool lost = GENERATE(false, true);
  JobBuilder j(4);
  iterations(j, 3);
  j.advance(idle_s);
  for (Rank r = 0; r < 4; ++r) {
    j.rank(r).format = "torch 2.10 pickle";
    j.rank(r).trigger = Trigger::kUnknown;
  }
  if (lost) {
    j.lose_file(3);
  }
  const Report r = j.diagnose();
  CHECK(r.kind == (idle_s > 10 && lost ? Verdict::kUndecided : Verdict::kOk));
  CHECK(r.ranks.empty());
}

TEST_CASE("a running job of which all were told to end: what fails since then is no hang") {
  JobBuilder j(2);
  iterations(j, 12);
  j.advance(0.1);
  for (const Rank r : {0, 1}) {
    j.signal(r, SIGINT);
  }
  j.fail(0, 0, {.line = 12}, "Connection closed by peer", 2.0);
  j.advance(3);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kOk);
  CHECK(r.ranks.empty());
}

TEST_CASE("a wait as long as the timeout is a hang, however long the usual ones are") {
  JobBuilder j(2);
  for (const Rank r : {0, 1}) {
    j.rank(r).options.emplace_back("FR_TIMEOUT_S", "4");
    j.rank(r).trigger = Trigger::kManual;
  }
  for (int i = 0; i < 12; ++i) {
    j.advance(3);
    j.all(0);
  }
  j.issue(0, 0, {});
  j.advance(6);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{1});
}

TEST_CASE("of dumps by hand, a short wait is a hang where the watchdog had warned of it") {
  const bool warned = GENERATE(true, false);
  JobBuilder j(4);
  iterations(j, 12);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.advance(2);
  for (Rank r = 0; r < 4; ++r) {
    j.rank(r).trigger = Trigger::kManual;
  }
  j.rank(3).id.warned = warned ? j.now() - 500'000'000 : j.now() - 2'500'000'000;  // of another
  const Report r = j.diagnose();
  CHECK(r.kind == (warned ? Verdict::kMissing : Verdict::kOk));
  CHECK(r.ranks == (warned ? Ranks{2} : Ranks{}));
}

TEST_CASE("what hung and then failed, with nothing after it, did not go on") {
  const bool failed = GENERATE(true, false);
  JobBuilder j(3);
  iterations(j, 12);
  j.some({0, 1}, kWorld, kLoss);
  j.advance(20);
  auto evidence = j.take();
  for (const std::size_t i : {0, 1}) {
    auto later = std::make_unique<RankEvidence>(*evidence[i]);
    later->file = "j.a0.r" + std::to_string(i) + ".1.later.fr";
    later->trigger = Trigger::kWentOn;
    later->written += 9 * kSecond;
    later->records.back().state = failed ? State::kFailed : State::kCompleted;
    evidence.push_back(std::move(later));
  }
  const Report r = frtrace::diagnose(make_cases(evidence, {})[0]);
  CHECK(r.kind == (failed ? Verdict::kMissing : Verdict::kOk));
}
