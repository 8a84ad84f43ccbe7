// test_mismatch.cpp - verdicts `mismatch`: members that differ in one slot.
#include "catch.hpp"
#include "jobs.hpp"

using namespace frtest;

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
  const auto with_barrier_at = [](std::uint32_t line) {
    JobBuilder j(4);
    iterations(j, 3);
    j.some({1, 2, 3}, kWorld, kLoss);  // at line 20
    j.issue(0, kWorld, {.op = "barrier", .line = line, .numel = 0, .reduce_op = ""});
    j.advance(20);
    return j.diagnose();
  };
  const Report passed = with_barrier_at(15);
  CHECK(passed.kind == Verdict::kMismatch);
  CHECK(passed.ranks == Ranks{0});
  CHECK(
      has(passed, "hint", "rank 0 called barrier and ranks 1-3 did not: is it under a condition"));
  // A loop that ended too early looks the same as a condition in it.
  const Report ahead = with_barrier_at(99);
  CHECK(ahead.ranks == Ranks{0});
  CHECK(has(ahead, "hint", "did rank 0 leave a loop before the others (fewer iterations)"));
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
  const bool of_the_pair = std::any_of(r.findings.begin(), r.findings.end(), [](const Finding& x) {
    return x.id == "why" && x.text.starts_with("rank 0 issued all_to_all_single");
  });
  CHECK(of_the_pair);
}

TEST_CASE("all_to_all of uneven sizes: whose size makes the totals differ") {
  JobBuilder j(4);
  const std::vector<std::uint64_t> got{700, 300, 548, 500};  // of 512 that each has
  const auto sized = [](std::uint64_t in, std::uint64_t out) {
    return Op{.op = "all_to_all", .numel = in, .reduce_op = "", .out_numel = out};
  };
  SECTION("all others send the same") {
    for (int r = 0; r < 4; ++r) {
      j.issue(r, kWorld, sized(r == 2 ? 520 : 512, got[idx(r)]));
    }
  }
  SECTION("all others give back what they took") {
    for (int r = 0; r < 4; ++r) {
      j.issue(r, kWorld, sized(512, got[idx(r)]), State::kCompleted);
    }
    j.advance(0.01);
    for (int r = 0; r < 4; ++r) {
      j.issue(r, kWorld, sized(got[idx(r)] + (r == 2 ? 8 : 0), 512));
    }
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.summary.find("out, which do not fit those of ranks 0,1,3") != std::string::npos);
}

TEST_CASE("of two, the one whose all_to_all is uneven where all others are even, later ones too") {
  JobBuilder j(2);
  const auto sized = [](std::uint64_t in) {
    return Op{.op = "all_to_all", .numel = in, .reduce_op = "", .out_numel = 512};
  };
  j.all(2, kWorld, sized(512));
  for (const std::uint64_t own : {600u, 512u}) {
    j.issue(0, kWorld, sized(512));
    j.issue(1, kWorld, sized(own));
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{1});
}

TEST_CASE("a message of a size that its end never had, where sizes vary") {
  JobBuilder j(2);
  const auto message = [&](std::uint64_t sent, std::uint64_t room, State state) {
    Op send = kSend, recv = kRecv;
    send.line = recv.line = 0;
    send.numel = sent;
    recv.numel = room;
    send.peer = 1;
    recv.peer = 0;
    j.issue(0, kWorld, send, state);
    j.issue(1, kWorld, recv, state);
    j.advance(0.01);
  };
  for (const std::uint64_t n : {8u, 16u, 8u, 32u, 16u}) {
    message(n, n, State::kCompleted);
  }
  message(7, 32, State::kEnqueued);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{0});
}

TEST_CASE("an end that is where it was once at the start, not where it is in each iteration") {
  JobBuilder j(2);
  struct End {
    std::uint64_t numel;
    std::uint32_t line;
  };
  const auto message = [&](Rank from, const End& at_sender, const End& at_receiver, State state) {
    Op send = kSend, recv = kRecv;
    send.line = at_sender.line;
    send.numel = at_sender.numel;
    send.peer = 1 - from;
    recv.line = at_receiver.line;
    recv.numel = at_receiver.numel;
    recv.peer = from;
    j.issue(from, kWorld, send, state);
    j.issue(1 - from, kWorld, recv, state);
    j.advance(0.01);
  };
  message(0, {1, 70}, {1, 71}, State::kCompleted);  // sizes are recorded once
  message(1, {1, 72}, {1, 73}, State::kCompleted);
  const auto several = [&](Rank from, const End& at_sender, const End& at_receiver) {
    for (int i = 0; i < 4; ++i) {
      message(from, at_sender, at_receiver, State::kCompleted);
    }
  };
  for (int i = 0; i < 6; ++i) {
    several(0, {48, 50}, {48, 51});
    several(1, {48, 60}, {48, 61});
  }
  message(0, {48, 50}, {1, 71}, State::kEnqueued);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{1});
}

TEST_CASE("a message left out before one of another size: its iterations tell whose end") {
  JobBuilder j(4);
  const int tp0 = j.group("1", {0, 1}, "tp"), tp1 = j.group("2", {2, 3}, "tp");
  const std::vector<int> pp{j.group("3", {0, 2}, "pp"), j.group("4", {1, 3}, "pp")};
  const auto message = [&](Rank r, std::uint64_t n, std::uint32_t line, State state) {
    Op op = r < 2 ? kSend : kRecv;
    op.numel = n;
    op.line = line;
    op.peer = r < 2 ? 1 : 0;
    j.issue(r, pp[idx(r % 2)], op, state);
  };
  for (const std::uint64_t n : {8u, 16u, 8u, 16u}) {
    j.all(tp0, kSub);
    j.all(tp1, kSub);
    for (const std::uint32_t line : {50u, 51u}) {
      for (Rank r = 0; r < 4; ++r) {
        message(r, n, line, State::kCompleted);
      }
      j.advance(0.01);
    }
  }
  j.all(tp0, kSub);
  j.all(tp1, kSub);
  for (Rank r = 0; r < 4; ++r) {
    message(r, 8, 50, State::kCompleted);
    if (r != 0) {
      message(r, 8, 51, r == 2 ? State::kEnqueued : State::kCompleted);
    }
  }
  j.advance(0.01);
  j.all(tp0, kSub);
  message(0, 16, 50, State::kEnqueued);
  message(1, 16, 50, State::kEnqueued);
  j.issue(3, tp1, kSub);
  j.advance(20);
  CHECK(j.diagnose().ranks == Ranks{0});
}

TEST_CASE("a tie is decided by earlier iterations, else both are blamed") {
  SECTION("some of several equal parts of an iteration are left out") {
    JobBuilder j(2);
    const auto part = [&] {
      for (std::uint32_t line = 50; line < 60; ++line) {
        j.all(kWorld, {.line = line});
      }
    };
    for (int i = 0; i < 3; ++i) {
      part(), part(), part();
      j.all(kWorld, kLoss);
    }
    part();
    j.issue(0, kWorld, {.line = 50});
    j.issue(1, kWorld, kLoss);
    j.advance(20);
    CHECK(j.diagnose().ranks == Ranks{1});
  }
  SECTION("one left something out and is in its order again, of the other one too little is kept") {
    JobBuilder j(4);
    const int dp = j.group("1", {0, 1}, "dp");
    const int tp0 = j.group("2", {0, 2}, "tp"), tp1 = j.group("3", {1, 3}, "tp");
    j.all(3, tp0, kSub);
    j.all(3, tp1, kSub);
    j.all(dp, kGrads);
    j.all(dp, kLoss);
    j.all(tp0, {.line = 70});
    j.all(tp1, {.line = 70});
    j.issue(1, dp, {.line = 71});
    j.all(3, tp0, kSub);
    j.issue(0, dp, kGrads);
    j.advance(20);
    CHECK(j.diagnose().ranks == Ranks{0, 1});
  }
  SECTION("what came in some iterations only is as usual there") {
    JobBuilder j(2);
    iterations(j, 3);
    j.all(kWorld, kSub);
    iterations(j, 1);
    j.issue(0, kWorld, kGrads);
    j.issue(1, kWorld, kLoss);
    j.advance(20);
    CHECK(j.diagnose().ranks == Ranks{0});
  }
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
    CHECK(r.summary.find("size 7 instead of 1") != std::string::npos);
  }
  SECTION("the first member is the wrong one: its size is said first") {
    JobBuilder j(2);
    iterations(j, 3);
    Op wrong = kLoss;
    wrong.numel = 7;
    j.issue(0, kWorld, wrong);
    j.issue(1, kWorld, kLoss);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.ranks == Ranks{0});
    CHECK(r.summary.find("size 7 instead of 1, unlike rank 1") != std::string::npos);
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
  SECTION("it meets the others in an operation of equal size first: told where it began") {
    const Op forward{.op = "all_gather", .line = 35, .numel = 64, .reduce_op = ""};
    Op backward = forward;
    backward.line = 86;
    JobBuilder j(4);
    for (int i = 0; i < 3; ++i) {
      j.all(3, kWorld, forward);
      j.all(2, kWorld, backward);
      j.all(kWorld, kGrads);
    }
    j.all(2, kWorld, forward);  // of three
    j.some({0, 1, 3}, kWorld, forward, State::kCompleted);
    j.some({2}, kWorld, backward, State::kCompleted);
    j.all(kWorld, backward);
    j.some({0, 1, 3}, kWorld, backward);
    j.some({2}, kWorld, kGrads);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{2});
    CHECK(r.blamed[0].seq == 21);
    CHECK(r.summary ==
          "rank 2 skipped all_gather #21 of default_pg at train.py:35 step and issued "
          "all_gather at train.py:86 step instead");
  }
  SECTION("what comes after it differs from time to time") {
    const Op save{.op = "gather", .line = 60, .numel = 8, .reduce_op = ""};
    JobBuilder j(4);
    for (int i = 0; i < 7; ++i) {
      j.all(kWorld, kSub);
      j.all(kWorld, kLoss);
      if (i == 6) {
        break;
      }
      j.all(kWorld, kGrads);
      if (i == 3) {
        j.all(2, kWorld, save);
      }
    }
    j.some({0, 1, 3}, kWorld, kGrads);
    j.some({2}, kWorld, kSub);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{2});
    CHECK(r.blamed[0].why == "skipped");
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

TEST_CASE("in a loop of two operations the whole loop tells a skip from an exchange") {
  const Op gather{.op = "all_gather", .line = 11, .numel = 64},
      scatter{.op = "reduce_scatter", .line = 12};
  for (const bool skip : {true, false}) {
    JobBuilder j(4);
    for (int step = 0; step < 3; ++step) {
      j.all(kWorld, kLoss);
      for (int layer = 0; layer < 4; ++layer) {
        j.all(kWorld, gather);
        j.all(kWorld, scatter);
      }
    }
    j.all(kWorld, kLoss);
    j.all(kWorld, gather);
    for (const Rank r : {0, 1, 2, 3}) {  // hosts run ahead
      const bool wrong = r == 2;
      j.some({r}, kWorld, wrong ? gather : scatter);
      j.some({r}, kWorld, wrong ? scatter : gather);
      for (int layer = 2; layer < 4; ++layer) {
        j.some({r}, kWorld, wrong && skip ? gather : scatter);
        j.some({r}, kWorld, wrong && skip ? scatter : gather);
      }
      if (!wrong || !skip) {
        j.some({r}, kWorld, scatter);
      }
      j.some({r}, kWorld, kLoss);
    }
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == (skip ? Verdict::kMissing : Verdict::kMismatch));
    CHECK(r.ranks == Ranks{2});
  }
}

TEST_CASE("what fits a skip and an exchange alike is a skip of who issued fewer") {
  const Op gather{.op = "all_gather", .line = 11, .numel = 64};
  const Op scatter{.op = "reduce_scatter", .line = 12};
  for (const bool fewer : {true, false}) {
    JobBuilder j(4);
    const int loss = j.group("1", {0, 1, 2, 3}, "loss");
    for (int step = 0; step < 3; ++step) {
      for (const Op& op : {gather, scatter, gather, scatter, scatter}) {
        j.all(kWorld, op);
      }
      j.all(loss, kLoss);
    }
    j.all(kWorld, gather);
    for (const Rank r : {0, 1, 3}) {
      j.some({r}, kWorld, scatter);
      j.some({r}, kWorld, gather);
      j.some({r}, kWorld, scatter);
      if (fewer) {
        j.some({r}, kWorld, scatter);
      }
    }
    j.some({2}, kWorld, gather);
    j.some({2}, kWorld, scatter);
    j.some({2}, kWorld, scatter);
    j.some({0, 1, 2, 3}, loss, kLoss);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == (fewer ? Verdict::kMissing : Verdict::kMismatch));
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

TEST_CASE("a forward pass more on one rank is no skip of its backward pass") {
  JobBuilder j(4);
  const Op forward{.line = 20, .numel = 64, .caller = 40};
  const Op backward{.line = 30, .numel = 4096, .caller = 41};
  Op sample = forward;
  sample.caller = 50;
  for (int i = 0; i < 3; ++i) {
    j.all(kWorld, forward);
    j.all(kWorld, backward);
  }
  for (const Rank r : {0, 1, 2, 3}) {
    j.issue(r, kWorld, r == 2 ? sample : forward, State::kCompleted);
  }
  j.some({2}, kWorld, forward);
  j.some({0, 1, 3}, kWorld, backward);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{2});
  const bool told = std::any_of(r.findings.begin(), r.findings.end(), [](const Finding& x) {
    return x.text.find(
               "#7 of default_pg at train.py:20 step, called from train.py:50 main, the "
               "others did not") != std::string::npos;
  });
  CHECK(told);
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
  CHECK(says(r.blamed[0], "left out all_reduce at train.py:11 step as #11"));
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

TEST_CASE("members that differ are found whatever numbers a damaged file has") {
  JobBuilder j(3);
  iterations(j, 3);
  j.rank(0).records.front().seq = std::uint64_t{1} << 60;
  j.some({0, 1}, kWorld, kLoss);
  Op other = kLoss;
  other.numel *= 2;
  j.some({2}, kWorld, other);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{2});
}

TEST_CASE("who waits in an operation is said with its own name, wherever the first member is") {
  JobBuilder j(4);
  j.all(4, kWorld, kGrads);
  const Op barrier{.op = "barrier", .line = 60, .numel = 0, .dtype = "", .reduce_op = ""};
  j.some({0}, kWorld, kGrads);
  j.some({1, 2, 3}, kWorld, barrier);
  j.advance(20);
  const Report r = j.diagnose();
  REQUIRE(r.ranks == Ranks{0});
  REQUIRE(r.waiting.size() == 1);
  CHECK(r.waiting[0].op == "barrier");
  CHECK(r.waiting[0].site.line == 60);
  CHECK_FALSE(has(r, "hint", "barrier"));  // it had one operation more to do
}

TEST_CASE("the same operation from another place is another call") {
  JobBuilder j(4);
  j.all(4, kWorld, kGrads);
  j.some({3}, kWorld, kLoss);
  j.some({0, 1, 2}, kWorld, kGrads);
  j.advance(20);
  CHECK(
      j.diagnose().summary ==
      "rank 3 issued all_reduce #5 of default_pg at train.py:20 step, where ranks 0-2 issued it at "
      "train.py:30 step (size 1 instead of 4096)");
}

TEST_CASE("the difference is in every sentence: root, reduce operation, shape") {
  JobBuilder j(4);
  j.all(4, kWorld, kGrads);
  Op usual = kGrads, odd = kGrads;
  std::string said;
  SECTION("root") {
    usual.op = odd.op = "broadcast";
    usual.peer = 0;
    odd.peer = 2;
    said = "root 2 instead of 0";
  }
  SECTION("reduce operation") {
    odd.reduce_op = "MAX";
    said = "reduce op MAX instead of SUM";
  }
  j.some({2}, kWorld, odd);
  j.some({0, 1, 3}, kWorld, usual);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.summary.find(said) != std::string::npos);
}

TEST_CASE("a rank whose capture saw Python's calls only is not compared with the others") {
  const bool all = GENERATE(false, true);
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 3}, kWorld, kLoss);
  Op wrong = kLoss;
  wrong.numel = 2;
  j.issue(2, kWorld, wrong);
  j.advance(20);
  for (const Rank rank : all ? Ranks{0, 1, 2, 3} : Ranks{2}) {
    j.rank(rank).holes.calls_only = true;
  }
  const Report r = j.diagnose();
  CHECK(r.kind == (all ? Verdict::kMismatch : Verdict::kUndecided));
  CHECK(r.ranks == (all ? Ranks{2} : Ranks{}));
  if (!all) {
    CHECK(r.summary.find("rank 2 recorded only what Python called") != std::string::npos);
  }
}

TEST_CASE("a difference that all ended last does not hide what they differ in now") {
  JobBuilder j(4);
  iterations(j, 3);
  Op longer = kGrads;
  longer.numel = 5000;
  j.some({0, 1, 3}, kWorld, kGrads, State::kCompleted);
  j.issue(2, kWorld, longer, State::kCompleted);
  j.advance(0.01);
  j.some({0, 1, 3}, kWorld, kLoss);
  j.issue(2, kWorld, {.op = "broadcast", .line = 99, .peer = 0});
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{2});
}

TEST_CASE("of two dtypes the one that a rank never had from there is wrong, where sizes vary") {
  JobBuilder j(2);
  Op sent{.op = "broadcast", .line = 0, .dtype = "Byte", .reduce_op = ""};
  for (const std::uint64_t n : {100u, 130u, 117u, 90u}) {
    sent.numel = n;
    j.all(kWorld, sent);
  }
  sent.numel = 140;
  j.issue(0, kWorld, sent);
  sent.dtype = "Float";
  j.issue(1, kWorld, sent);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == Ranks{1});
}
