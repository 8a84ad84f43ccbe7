// test_case.cpp - which files belong to one incident of one job.
#include "catch.hpp"
#include "jobs.hpp"

using namespace frtest;

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
  CHECK(cases[0].notes ==
        std::vector<std::string>{"2 files of an earlier run of this job are not used: see "
                                 "--incident 1"});

  // But for a process that the youngest one met on its node.
  evidence[1]->id.pid = 4711;
  evidence.back()->peers.push_back({.rank = 1, .pid = 4711, .state = PeerState::kExited});
  CHECK(make_cases(evidence, {})[0].missing.empty());
}

TEST_CASE("a run whose rings a later one found is said to be over") {
  JobBuilder before(3);
  iterations(before, 2);
  before.some({0, 2}, kWorld, kLoss);
  before.advance(5);
  for (const Rank r : {0, 1, 2}) {
    before.rank(r).id.run = 6;
    before.gone(r);
    before.rank(r).salvage = Salvage::kLeftOver;
  }
  auto evidence = before.take();
  Report r = frtrace::diagnose(make_cases(evidence, {})[0]);
  CHECK(r.ranks == Ranks{1});
  CHECK(r.rank_reports[0].state == "is gone");
  CHECK(has(r, "earlier", "the rings of ranks 0-2 were found when the job was started again"));

  // The report is on the later run's own incident, and names the other one.
  JobBuilder now(3);
  now.advance(1000);
  iterations(now, 2);
  now.some({0, 1}, kWorld, kLoss);
  now.advance(20);
  for (const Rank rank : {0, 1, 2}) {
    now.rank(rank).id.run = 7;
    now.rank(rank).incident = 2;
  }
  for (auto& e : now.take()) {
    evidence.push_back(std::move(e));
  }
  r = frtrace::diagnose(make_cases(evidence, {})[0]);
  CHECK(r.ranks == Ranks{2});
  CHECK(has(r, "input", "3 files of an earlier run of this job are not used: see --incident 1"));
  CHECK_FALSE(has(r, "earlier", ""));
}

TEST_CASE("two processes that live at the same time say they are one rank") {
  JobBuilder j(4);
  j.lose_file(3);
  j.advance(20);
  auto evidence = j.take();
  evidence.push_back(std::make_unique<RankEvidence>(*evidence[2]));
  evidence.back()->id.pid = 4711;
  evidence.back()->file = "j.r2.p4711.fr";
  SECTION("both live") {
    const Report r = frtrace::diagnose(make_cases(evidence, {})[0]);
    CHECK(r.kind == Verdict::kMismatch);
    CHECK(r.ranks == Ranks{2});
    CHECK(r.summary ==
          "two processes say they are rank 2 (pids 1002 on n0, 4711 on n0); no rank 3");
  }
  SECTION("one began when the other had ended") {
    evidence.back()->id.start = evidence[2]->written + 1;
    evidence.back()->written = evidence[2]->written + 1'000'000'000;
    CHECK(make_cases(evidence, {})[0].twins.empty());
  }
}

TEST_CASE("the number of a run tells its evidence from another's, whatever the clocks say") {
  constexpr Time kHour = 3'600'000'000'000;
  JobBuilder j(3);
  for (const Rank r : {0, 1, 2}) {
    j.rank(r).id.run = 7;
    j.rank(r).id.host = r == 2 ? "ahead" : "right";
  }
  iterations(j, 2);
  j.some({0, 1}, kWorld, kLoss);
  j.advance(20);
  auto evidence = j.take();
  evidence[2]->id.start += kHour;  // after the other two wrote their files
  evidence[2]->written += kHour;
  auto cases = make_cases(evidence, {});
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].missing.empty());

  evidence[1]->id.run = 6;  // lived at the same time, if the clocks are right
  cases = make_cases(evidence, {});
  REQUIRE(cases.size() == 1);
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
    return f.text.ends_with(
        " rank 2 ended and left no exit status (killed, aborted, or os._exit); the kernel's "
        "OOM killer has killed 1 of its control group; it had issued 1 more operation");
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

TEST_CASE("a rank that answered late is judged by its own dump, unless it has moved on") {
  const bool moved = GENERATE(false, true);
  JobBuilder salvaged(3), answer(3);
  for (JobBuilder* j : {&salvaged, &answer}) {
    iterations(*j, 2);
    j->some({0, 1}, kWorld, kLoss);
    j->advance(20);
  }
  salvaged.rank(1).salvaged = true;
  salvaged.rank(1).salvage = Salvage::kUnresponsive;
  if (moved) {
    answer.issue(1, kWorld, kLoss);
  }
  answer.advance(5);
  answer.rank(1).file = "j.a0.r1.1.later.fr";
  answer.lose_file(0);
  answer.lose_file(2);
  auto evidence = salvaged.take();
  for (auto& e : answer.take()) {
    evidence.push_back(std::move(e));
  }
  const auto cases = make_cases(evidence, {});
  REQUIRE(cases.size() == 1);
  CHECK(cases[0].ranks[1]->salvaged == moved);
}
