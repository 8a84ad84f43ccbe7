// test_stragglers.cpp - verdicts `slow`: ranks that are late again and again.
#include <cmath>
#include <functional>

#include "catch.hpp"
#include "facts/late/rhythm.hpp"
#include "facts/late/series.hpp"
#include "jobs.hpp"

using namespace frtest;

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

struct Late {
  double host = 0, device = 0;  // seconds, of that rank in that step
};

// Steps of 2 s that tell their number; two nodes of two ranks, device times recorded.
JobBuilder stepped(int steps, const std::function<Late(Rank, int)>& late) {
  JobBuilder j(4);
  Time step = j.now();
  for (int n = 1; n <= steps; ++n) {
    Time end = step + 2'000'000;
    for (Rank r = 0; r < 4; ++r) {
      const Late own = late(r, n);
      Record& mark = j.issue(r, kWorld, kGrads, State::kCompleted);
      mark.kind = Kind::kStep;
      mark.seq = static_cast<std::uint64_t>(n);
      mark.time = step;
      Record& rec = j.issue(r, kWorld, kGrads, State::kCompleted);
      rec.seq = static_cast<std::uint64_t>(n);
      rec.time = step + 1000 + static_cast<Time>(own.host * 1e9);
      rec.started = rec.time + 1000 + static_cast<Time>(own.device * 1e9);
      end = std::max(end, rec.started + 1'000'000);
      GroupEvidence& g = j.row(r, kWorld);
      g.enqueued = g.completed = g.ended = static_cast<std::uint64_t>(n);
    }
    for (Rank r = 0; r < 4; ++r) {
      j.rank(r).records.back().ended = end;
    }
    step = end + 2 * kSecond;
  }
  for (Rank r = 0; r < 4; ++r) {
    j.rank(r).id.host = r < 2 ? "n0" : "n1";
  }
  j.advance(seconds_between(j.now(), step) + 0.1);
  return j;
}

}  // namespace

TEST_CASE("whose time makes a rank late, and since which step") {
  const bool host = GENERATE(true, false);
  const Report r = stepped(40, [&](Rank rank, int n) {
                     const double s = rank == 1 && n >= 13 ? 0.8 : 0;
                     return Late{host ? s : 0, host ? 0 : s};
                   }).diagnose();
  CHECK(r.kind == Verdict::kSlow);
  CHECK(r.ranks == Ranks{1});
  REQUIRE(r.late.size() == 1);
  const LateReport& late = r.late.front();
  CHECK(late.cause == (host ? "host" : "device"));
  CHECK(late.pattern == "always");
  CHECK(late.since_step == 13);
  CHECK_FALSE(late.since_kept);
  CHECK(late.last == 28);
  CHECK(late.of == 28);
  CHECK(std::abs(late.median_s - 0.8) < 0.01);
  // From there on all steps take longer.
  REQUIRE(late.steps.size() == 1);
  CHECK(late.steps.front().step.value_or(-1) == 13);
}

TEST_CASE("a node is late when most of its ranks are and no other is") {
  const auto job = [](Rank first, Rank last) {
    return stepped(30,
                   [=](Rank rank, int) { return Late{rank >= first && rank <= last ? 0.8 : 0, 0}; })
        .diagnose();
  };
  const Report node = job(2, 3), apart = job(1, 2);
  CHECK(node.ranks == Ranks{2, 3});
  REQUIRE(node.late.size() == 2);
  CHECK(node.late.front().cause == "node");
  CHECK(node.summary.find("on node n1") != std::string::npos);
  CHECK(apart.kind == Verdict::kOk);  // half of the ranks, on both nodes: uneven work
}

TEST_CASE("late now and then, and later and later") {
  const auto one = [](double (*of)(int)) {
    return stepped(300, [=](Rank rank, int n) { return Late{rank == 2 ? of(n) : 0, 0}; })
        .diagnose();
  };
  const Report rare = one([](int n) { return n % 60 == 7 ? 20.0 : 0; });
  CHECK(rare.ranks == Ranks{2});
  REQUIRE(rare.late.size() == 1);
  CHECK(rare.late.front().pattern == "now_and_then");
  CHECK(rare.late.front().late == 5);
  CHECK(rare.late.front().of == 299);  // the first has no arrival before it
  CHECK(rare.late.front().since_step == 7);
  const Report growing = one([](int n) { return 0.005 * n; });
  CHECK(growing.ranks == Ranks{2});
  REQUIRE(growing.late.size() == 1);
  CHECK(growing.late.front().pattern == "growing");
  // Each of the ranks once or twice is chance.
  const Report all = stepped(300, [](Rank rank, int n) {
                       return Late{n % 30 == 4 && n / 30 % 4 == rank ? 20.0 : 0, 0};
                     }).diagnose();
  CHECK(all.kind == Verdict::kOk);
  CHECK(all.late.empty());
}

TEST_CASE("the chance to come last is that of one of so many, a round counts once") {
  std::vector<LateCall> calls;
  for (std::uint32_t k = 0; k < 40; ++k) {
    calls.push_back({.record = k, .late = 1, .most = 1, .order = 1});
  }
  for (const std::size_t members : {2, 4, 64}) {
    const double exact = -10 * std::log(static_cast<double>(members));
    CHECK(std::abs(log_chance(calls, 0, 0.5, 4, members) - exact) < 0.01);
    CHECK(std::abs(log_chance(calls, 20, 0.5, 4, members) - exact / 2) < 0.01);
  }
  CHECK(log_chance(calls, 0, 2, 4, 4) == 0);
  for (LateCall& call : calls) {
    call.order = call.record % 2 == 0 ? 1 : 0;
  }
  CHECK(log_chance(calls, 0, 0.5, 1, 4) == 0);
}

TEST_CASE("a program repeats itself after so many operations") {
  std::vector<std::uint64_t> x;
  for (std::uint64_t step = 0; step < 20; ++step) {
    for (const std::uint64_t op : {1, 2, 2, 2, 3}) {
      x.push_back(op);
    }
    if (step % 10 == 0) {
      x.push_back(4);
    }
  }
  CHECK(period(x) == 5);
  CHECK(period({}) == 1);
}

TEST_CASE("changes of a level, not of single values") {
  std::vector<double> x(60, 1.0);
  for (std::size_t k = 0; k < x.size(); ++k) {
    x[k] += 0.01 * static_cast<double>(k * 7 % 5) + (k % 11 == 3 ? 5 : 0);
  }
  CHECK(changes(x).empty());
  for (std::size_t k = 25; k < x.size(); ++k) {
    x[k] += 1;
  }
  const std::vector<Change> found = changes(x);
  REQUIRE(found.size() == 1);
  CHECK(found.front().at == 25);
  CHECK(found.front().before < 1.1);
  CHECK(found.front().after > 1.9);
  // The first of the many are the least of them: they belong to them all the same.
  for (std::size_t k = 0; k < x.size(); ++k) {
    x[k] = k < 12 ? 1 : 2 + 0.01 * static_cast<double>(k);
  }
  REQUIRE(changes(x).size() == 1);
  CHECK(changes(x).front().at == 12);
}

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

namespace {

// Four ranks pass data round a ring, twice, then meet in an all_reduce. Rank 1 begins each step
// `late_s` behind the others, which wait in the ring, so all ranks issue the all_reduce together.
JobBuilder around(int steps, double late_s, bool overwritten) {
  JobBuilder j(4);
  Time step = j.now();
  const Time late = static_cast<Time>(late_s * 1e9), ms = 1'000'000;
  for (int n = 0; n < steps; ++n) {
    for (Rank r = 0; r < 4; ++r) {
      for (int hop = 0; hop < 2; ++hop) {
        const Time begin = step + (hop == 0 ? (r == 1 ? late : 0) : late + 20 * ms);
        for (Op op : {kSend, kRecv}) {
          op.peer = op.kind == Kind::kSend ? (r + 1) % 4 : (r + 3) % 4;
          Record& rec = j.issue(r, kWorld, op, State::kCompleted);
          rec.time = rec.started = begin;
          rec.ended = step + late + (hop == 0 ? 2 : 22) * ms;
        }
      }
      Record& rec = j.issue(r, kWorld, kGrads, State::kCompleted);
      rec.time = rec.started = step + late + 40 * ms + (r + n) % 3 * 100'000;
      rec.ended = step + late + 42 * ms;
      rec.seq = static_cast<std::uint64_t>(n + 1);
      GroupEvidence& g = j.row(r, kWorld);
      g.enqueued = g.completed = g.ended = rec.seq;
    }
    step += late + 60 * ms;
  }
  if (overwritten) {
    std::erase_if(j.rank(3).records, [](const Record& r) { return r.kind != Kind::kCollective; });
  }
  j.advance(seconds_between(j.now(), step) + 0.1);
  return j;
}

}  // namespace

TEST_CASE("a rank for which the others wait in sends and receives is slow") {
  const Report r = around(30, 0.3, false).diagnose();
  CHECK(r.kind == Verdict::kSlow);
  CHECK(r.ranks == Ranks{1});
  REQUIRE(r.late.size() == 1);
  CHECK(r.late.front().cause == "host");
  CHECK(around(30, 0, false).diagnose().kind == Verdict::kOk);
}

TEST_CASE("time in receives that the ring has lost is nobody's own") {
  CHECK(around(30, 0.3, true).diagnose().kind == Verdict::kOk);
}

TEST_CASE("one entry for a rank and a cause, with its call sites") {
  JobBuilder j(4);
  const Op other{.line = 9, .file = "norm.py"};
  const Time start = j.now(), ms = 1'000'000;
  for (int n = 0; n < 20; ++n) {
    for (Rank r = 0; r < 4; ++r) {
      for (int k = 0; k < 3; ++k) {
        Record& rec = j.issue(r, kWorld, k == 1 ? other : kGrads, State::kCompleted);
        const Time begin = start + (n * 3 + k) * 1000 * ms;
        rec.time = rec.started = begin + (r == 2 ? (k == 1 ? 200 : 400) * ms : r * 10'000);
        rec.ended = begin + 410 * ms;
        GroupEvidence& g = j.row(r, kWorld);
        g.completed = g.ended = g.enqueued;
      }
    }
  }
  j.advance(60.5);
  const Report r = j.diagnose();
  CHECK(r.ranks == Ranks{2});
  REQUIRE(r.late.size() == 1);
  CHECK(r.late.front().site.file == "train.py");
  CHECK(r.late.front().of ==
        39);  // after itself and after the other one, of 40: nothing before one
  REQUIRE(r.late.front().also.size() == 1);
  CHECK(r.late.front().also.front().site.file == "norm.py");
}

TEST_CASE("who is late after another one, in messages that the files lack, goes with it") {
  // Two pairs; rank 1 waits for rank 3 in a receive that no file of gloo's has.
  const auto job = [](bool gloo) {
    JobBuilder j(4);
    const int low = j.group("1", {0, 1}, "tp"), high = j.group("2", {2, 3}, "tp");
    const Time start = j.now(), ms = 1'000'000;
    for (int n = 0; n < 30; ++n) {
      const Time step = start + n * 2000 * ms;
      for (Rank r = 0; r < 4; ++r) {
        Record& own = j.issue(r, r < 2 ? low : high, kGrads, State::kCompleted);
        own.time = step + (r == 3 ? 800 : r == 1 ? 840 : 5) * ms;
        Record& all = j.issue(r, kWorld, kGrads, State::kCompleted);
        all.time = step + 900 * ms;
        for (const int g : {r < 2 ? low : high, kWorld}) {
          j.row(r, g).completed = j.row(r, g).ended = j.row(r, g).enqueued;
        }
      }
    }
    for (Rank r = 0; r < 4; ++r) {
      RankEvidence& e = j.rank(r);
      e.format = "torch 2.10 pickle";
      if (gloo) {
        e.strings.emplace_back("gloo");
        for (GroupEvidence& g : e.groups) {
          g.backend = static_cast<Id>(e.strings.size() - 1);
        }
      }
    }
    j.advance(60.5);
    return j.diagnose();
  };
  const Report folded = job(true);
  CHECK(folded.ranks == Ranks{3});
  REQUIRE(folded.late.size() == 1);
  CHECK(folded.late.front().followers == Ranks{1});
  CHECK(job(false).ranks != Ranks{3});
}

namespace {

// All ranks issue one all_reduce per step.
void whole_step(JobBuilder& j, int ranks, double step_s) {
  for (Rank r = 0; r < ranks; ++r) {
    j.issue(r, 0, kLoss);
  }
  for (Rank r = 0; r < ranks; ++r) {
    j.complete(r, 0, j.rank(r).records.size() - 1);
  }
  j.advance(step_s);
}

}  // namespace

TEST_CASE("all ranks became slow at once") {
  JobBuilder j(3);
  for (int n = 0; n < 60; ++n) {
    whole_step(j, 3, n < 30 ? 0.1 : 1.2);
  }
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kSlow);
  CHECK(r.ranks.empty());
  CHECK(r.summary == "steps take 1.2 s now (100 ms before), on all ranks at once");
}

namespace {

// Each `every` steps another rank issues its operation 0.4 s after the others.
Report late_in_turn_of(int ranks, int late, int every) {
  JobBuilder j(ranks);
  for (int n = 0; n < 120; ++n) {
    const Rank last = n % every == 0 ? n / every % late : -1;
    for (Rank r = 0; r < ranks; ++r) {
      if (r != last) {
        j.issue(r, 0, kLoss);
      }
    }
    j.advance(last < 0 ? 0 : 0.4);
    if (last >= 0) {
      j.issue(last, 0, kLoss);
    }
    for (Rank r = 0; r < ranks; ++r) {
      j.complete(r, 0, j.rank(r).records.size() - 1);
    }
    j.advance(0.01);
  }
  return j.diagnose();
}

}  // namespace

TEST_CASE("ranks that are late in turn: nobody is blamed") {
  const Report r = late_in_turn_of(4, 4, 4);
  CHECK(r.kind == Verdict::kSlow);
  CHECK(r.ranks.empty());
  CHECK(r.summary.find("ranks are late in turn: 30 of 120 all_reduce") == 0);
  CHECK(r.summary ==
        "ranks are late in turn: 30 of 120 all_reduce at train.py:20 step waited 400 ms for one "
        "rank, "
        "94 % of the time");
  CHECK(late_in_turn_of(2, 2, 4).kind == Verdict::kSlow);
}

TEST_CASE("one rank that makes all pauses is the late one") {
  const Report r = late_in_turn_of(4, 1, 4);
  CHECK(r.kind == Verdict::kSlow);
  CHECK(r.ranks == Ranks{0});
}

TEST_CASE("few pauses are no slow job, nor is uneven work") {
  CHECK(late_in_turn_of(4, 4, 1).kind == Verdict::kOk);
  CHECK(late_in_turn_of(4, 4, 40).kind == Verdict::kOk);
}

TEST_CASE("steps that were slow for a while only, or a little slower, are no fault") {
  for (const bool ends : {true, false}) {
    JobBuilder j(3);
    for (int n = 0; n < 60; ++n) {
      whole_step(j, 3, ends ? (n >= 20 && n < 40 ? 1.2 : 0.1) : (n < 30 ? 0.1 : 0.2));
    }
    CHECK(j.diagnose().kind == Verdict::kOk);
  }
}
