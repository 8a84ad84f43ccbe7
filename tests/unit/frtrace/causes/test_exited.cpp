// test_exited.cpp - verdicts `exited`: processes that ended, and the errors that follow from it.
#include <csignal>

#include "catch.hpp"
#include "jobs.hpp"

using namespace frtest;

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
  CHECK(std::count(said.begin(), said.end(), "raised at data.py:7 in load") == 1);
  CHECK(std::count(said.begin(), said.end(), "first cause: OSError: gone") == 1);
  CHECK(has(r, "consequence", "500 ms later rank 0 failed: RuntimeError"));
  CHECK(has(r, "excluded", "2.5 s later rank 1 raised KeyError: 'a'"));
  CHECK(has(r, "consequence", "3.5 s later rank 3 was ended by SIGTERM, sent by process 77"));
}

TEST_CASE("a message of several lines is told in one piece, or only its beginning") {
  for (const bool is_long : {false, true}) {
    JobBuilder j(4);
    iterations(j, 10);
    j.some({0, 1, 3}, kWorld, kLoss);
    j.exception(2, "RuntimeError",
                "Error in loading" + std::string(is_long ? 300 : 0, 'x') +
                    ":\n\tsize mismatch\n  at data.py:7 in load\n  first cause: OSError: gone");
    const Report r = j.diagnose();
    const auto& said = r.blamed[0].evidence;
    CHECK(std::count(said.begin(), said.end(), "size mismatch") == (is_long ? 0 : 1));
    CHECK((r.summary.find("Error in loading; ranks") != std::string::npos) == !is_long);
    CHECK(std::count(said.begin(), said.end(), "first cause: OSError: gone") == 1);
  }
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
  CHECK(has(r, "excluded", "rank 1 ended and left no exit status"));
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
  CHECK(r.summary.find("rank 2 was ended by SIGTERM, sent by process 4242; ") == 0);
}

TEST_CASE("the crash and the exception lead, not the place where the dump was written") {
  JobBuilder j(2);
  iterations(j, 10);
  j.some({0}, kWorld, kLoss);
  RankEvidence& e = j.rank(1);
  SECTION("crash") {
    j.signal(1, SIGSEGV, 0);
    e.exit.kind = ExitBy::kCrash;
    e.exit.type = "SIGSEGV";
    e.exit.message = "address 0x10: nothing is mapped there; thread 1001 (python) in ? (x.so+0x1)";
    j.advance(5);
    const Report r = j.diagnose();
    CHECK(r.summary.find("rank 1 was ended by SIGSEGV, address 0x10: nothing is mapped there; ") ==
          0);
    CHECK(r.blamed[0].evidence[0] == "got SIGSEGV, address 0x10: nothing is mapped there");
  }
  SECTION("abort at exit") {
    j.signal(1, SIGABRT, 0);
    e.exit.kind = ExitBy::kCrash;
    e.exit.message =
        "raised by the process itself; thread 1001 (python) in abort (libc.so.6+0x1) < "
        "_Unwind_ForcedUnwind (libgcc_s.so.1+0x2)";
    j.advance(5);
    const Report r = j.diagnose();
    CHECK(r.summary.find("rank 1 was ended by SIGABRT, at exit: a thread still ran when Python had "
                         "ended; rank 0 waits for it") == 0);
    CHECK(std::ranges::count(r.findings, "hint", &Finding::id) == 1);
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
    CHECK(r.summary.find("rank 1 raised KeyError: 'lr'; ") == 0);
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
    j.advance(2);  // the start
    iterations(j, 5);
    j.some({0, 1, 3}, kWorld, kLoss);
    for (const Rank r : {0, 1, 2, 3}) {
      j.gone(r);
    }
    // a kill one second into the hang, as the last sign of life of a killed process dates it
    j.advance(GENERATE(0.8, 30.0));
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{2});
  }
  SECTION("hung in what all had come to") {
    JobBuilder j(4);
    j.advance(2);
    iterations(j, 5);
    j.some({0, 1, 2, 3}, kWorld, kLoss);
    for (const Rank r : {0, 1, 2, 3}) {
      j.gone(r);
    }
    j.advance(30);
    CHECK(j.diagnose().kind == Verdict::kUndecided);
  }
}

TEST_CASE("what a rank issues after its peer was gone is no mismatch") {
  JobBuilder j(4);
  iterations(j, 3);
  j.gone(3);
  const std::string closed = "[gloo] Connection closed by peer [127.0.0.1]:1234";
  j.fail(1, kWorld, kLoss, closed);
  j.some({0, 2}, kWorld, kLoss, State::kCompleted);
  j.advance(0.02);
  j.issue(1, kWorld, {.op = "barrier", .line = 99, .numel = 0, .reduce_op = ""});
  for (const Rank r : {0, 2}) {
    j.fail(r, kWorld, kLoss, closed);
  }
  j.advance(2);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == Ranks{3});
}

TEST_CASE("a process that its transport aborts where members differ is not to blame") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 2, 3}, kWorld, kLoss);  // one of those before has not ended either
  j.some({0, 1, 2}, kWorld, kLoss);
  Op wrong = kLoss;
  wrong.numel = 4;
  j.issue(3, kWorld, wrong);
  j.advance(0.1);
  j.signal(2, SIGABRT, 0);
  j.advance(0.5);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{3});
}

TEST_CASE("who exits with a message that it never waited for left early") {
  const bool exits = GENERATE(true, false);
  JobBuilder j(3);
  iterations(j, 4);
  Op send = kSend, recv = kRecv;
  send.peer = 1, recv.peer = 0;
  j.issue(0, kWorld, send);
  if (exits) {
    j.exits(0, 0);
  }
  j.advance(0.5);
  j.fail(1, kWorld, recv, "[gloo] Connection closed by peer [127.0.0.1]:1234");
  j.some({2}, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == (exits ? Verdict::kExited : Verdict::kUndecided));
  CHECK(r.ranks == (exits ? Ranks{0} : Ranks{}));
}

TEST_CASE("a signal that the program handles is no end") {
  JobBuilder j(3);
  iterations(j, 10);
  SECTION("the rank left the loop: it is missing, and the signal is evidence") {
    j.handled_signal(1, SIGTERM);
    j.advance(0.1);
    j.some({0, 2}, kWorld, kLoss);
    j.advance(70);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{1});
    CHECK(says(r.blamed[0], "got SIGTERM from process 77, which the program handles"));
  }
  SECTION("the peers' tables say the same of it") {
    j.handled_signal(1, SIGTERM);
    PeerEvidence p;
    p.rank = 1;
    p.pid = j.rank(1).id.pid;
    p.state = PeerState::kExited;
    p.signal = SIGTERM;
    j.rank(0).peers.push_back(p);
    j.some({0, 2}, kWorld, kLoss);
    j.advance(70);
    CHECK(j.diagnose().kind == Verdict::kMissing);
  }
  SECTION("then its process is gone: that ended it") {
    j.handled_signal(1, SIGTERM);
    j.some({0, 2}, kWorld, kLoss);
    j.gone(1);
    j.advance(70);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kExited);
    CHECK(r.ranks == Ranks{1});
    CHECK(r.blamed[0].why == "gone");
  }
  SECTION("then it ends by itself: its status counts") {
    j.handled_signal(1, SIGTERM);
    j.exits(1, 3);
    j.some({0, 2}, kWorld, kLoss);
    j.advance(70);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kExited);
    CHECK(r.blamed[0].why == "exit");
  }
  SECTION("all handle it and go on") {
    for (const Rank r : {0, 1, 2}) {
      j.handled_signal(r, SIGTERM);
    }
    j.advance(0.1);
    iterations(j, 3);
    CHECK(j.diagnose().kind == Verdict::kOk);
  }
  SECTION("all handle it and end with status 0") {
    for (const Rank r : {0, 1, 2}) {
      j.handled_signal(r, SIGTERM);
    }
    const Time told = j.now();
    j.advance(3.1);
    for (const Rank r : {0, 1, 2}) {
      j.exits(r, 0);
      j.rank(r).exit.time = told;
    }
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kOk);
    CHECK(r.confidence == Confidence::kCertain);
    CHECK(r.summary == "ranks 0-2 were told to end (SIGTERM), and ended orderly after 3.1 s");
  }
}

TEST_CASE("an interrupt counts as handled once the rank goes on") {
  for (const bool goes_on : {true, false}) {
    CAPTURE(goes_on);
    JobBuilder j(3);
    iterations(j, 10);
    j.handled_signal(1, SIGINT);
    j.advance(0.1);
    if (goes_on) {
      j.all(kWorld, kLoss);
    }
    j.some({0, 2}, kWorld, kLoss);
    j.advance(70);
    CHECK(j.diagnose().kind == (goes_on ? Verdict::kMissing : Verdict::kExited));
  }
}
