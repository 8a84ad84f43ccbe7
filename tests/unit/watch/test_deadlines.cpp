// When a standstill is warned of and dumped: each state, what is learned, what is forgotten, and
// simulated weeks of a job.
#include <cstdio>

#include "catch.hpp"
#include "watch/deadlines_file.hpp"
#include "watch/silent_week.hpp"
#include "watch/week.hpp"

using namespace fr;
using namespace fr::test;

namespace {

constexpr u64 kS = 1'000'000'000;
constexpr Floors kDefault{10 * kS, 60 * kS, false, false, true};
constexpr Floors kSet{1 * kS, 2 * kS, true, true, true};

Standstill in(Others others, u64 since_ns = 0) {
  return {others, since_ns, ~0ull};
}

// A site that was visited often and waited so long each time.
struct Known {
  explicit Known(Waited waited = {}) {
    site.visits.store(100);
    learn(site, waited, kS);
  }
  SiteRow site{};
};

void check(const Deadline& d, u64 warn_s, u64 dump_s) {
  CHECK(d.warn_ns / kS == warn_s);
  CHECK(d.dump_ns / kS == dump_s);
}

}  // namespace

TEST_CASE("deadlines: a site that was never seen") {
  check(deadline_of(nullptr, in(Others::kBusy), kDefault), 60, 660);
  check(deadline_of(nullptr, in(Others::kUnseen), kDefault), 60, 660);
  check(deadline_of(nullptr, in(Others::kAsleep), kDefault), 10, 60);
  check(deadline_of(nullptr, in(Others::kCame), kDefault), 10, 60);
  check(deadline_of(nullptr, in(Others::kGone), kDefault), 2, 2);
  // a value that the user set is used unchanged
  for (const Others o :
       {Others::kBusy, Others::kUnseen, Others::kAsleep, Others::kCame, Others::kGone}) {
    check(deadline_of(nullptr, in(o), kSet), 1, 2);
  }
}

TEST_CASE("deadlines: a site that is known, and fast") {
  const Known k;
  check(deadline_of(&k.site, in(Others::kCame), kDefault), 10, 30);
  check(deadline_of(&k.site, in(Others::kBusy), kDefault), 10, 60);
  check(deadline_of(&k.site, in(Others::kAsleep), kDefault), 10, 60);
  check(deadline_of(&k.site, in(Others::kCame), kSet), 1, 2);
  // the time begins when the last member issued the operation, or fell asleep
  check(deadline_of(&k.site, in(Others::kCame, 20 * kS), kDefault), 10, 50);
  check(deadline_of(&k.site, in(Others::kAsleep, 5 * kS), kDefault), 10, 60);
}

TEST_CASE("deadlines: a site that took long gets multiples, for each state by its own waits") {
  const Known absent({.absent_ns = 30 * kS, .asleep_ns = 0, .together_ns = 0});
  check(deadline_of(&absent.site, in(Others::kBusy), kDefault), 150, 300);
  check(deadline_of(&absent.site, in(Others::kCame), kDefault), 10, 30);
  check(deadline_of(&absent.site, in(Others::kBusy), kSet), 150, 300);
  const Known asleep({.absent_ns = 30 * kS, .asleep_ns = 30 * kS, .together_ns = 0});
  check(deadline_of(&asleep.site, in(Others::kAsleep), kDefault), 90, 150);
  const Known together({.absent_ns = 0, .asleep_ns = 0, .together_ns = 30 * kS});
  check(deadline_of(&together.site, in(Others::kCame), kDefault), 10, 60);
  const Known both({.absent_ns = 30 * kS, .asleep_ns = 0, .together_ns = 30 * kS});
  check(deadline_of(&both.site, in(Others::kCame, 20 * kS), kDefault), 110, 170);
}

TEST_CASE("deadlines: a state that comes and goes does not put a dump off for ever") {
  const Known k;
  for (u64 since_s = 1; since_s < 1000; since_s *= 2) {
    CHECK(deadline_of(&k.site, in(Others::kAsleep, since_s * kS), kDefault).dump_ns <= 60 * kS);
    CHECK(deadline_of(&k.site, in(Others::kCame, since_s * kS), kDefault).dump_ns <= 60 * kS);
  }
}

TEST_CASE("deadlines: FR_ADAPT=0 leaves the times as they stand") {
  const Known k({.absent_ns = 300 * kS, .asleep_ns = 300 * kS, .together_ns = 300 * kS});
  Floors fixed = kDefault;
  fixed.adapt = false;
  for (const Others o :
       {Others::kBusy, Others::kUnseen, Others::kAsleep, Others::kCame, Others::kGone}) {
    check(deadline_of(&k.site, {o, 7 * kS, 3 * kS}, fixed), 10, 60);
  }
}

TEST_CASE("deadlines: a dump comes before the operation's own timeout") {
  CHECK(before_timeout(600 * kS) == 540 * kS);
  CHECK(before_timeout(1800 * kS) == 1740 * kS);
  CHECK(before_timeout(30 * kS) == 24 * kS);
  const Known k({.absent_ns = 300 * kS, .asleep_ns = 0, .together_ns = 0});
  CHECK(deadline_of(&k.site, {Others::kBusy, 0, 540 * kS}, kDefault).dump_ns == 540 * kS);
  CHECK(deadline_of(nullptr, {Others::kUnseen, 0, 540 * kS}, kDefault).dump_ns == 540 * kS);
}

TEST_CASE(
    "deadlines: a false dump doubles those of its state, three times, and a day forgives one") {
  Known k;
  CHECK(note_false_dump(k.site, Others::kBusy, kS));
  check(deadline_of(&k.site, in(Others::kBusy), kDefault), 20, 120);
  check(deadline_of(&k.site, in(Others::kCame), kDefault), 10, 30);
  CHECK(note_false_dump(k.site, Others::kUnseen, 2 * kS));
  CHECK(note_false_dump(k.site, Others::kBusy, 3 * kS));
  CHECK_FALSE(note_false_dump(k.site, Others::kBusy, 4 * kS));
  check(deadline_of(&k.site, in(Others::kBusy), kDefault), 80, 480);
  CHECK(k.site.absent.false_dumps.load() == 4);
  decay(k.site, 24 * 3600 * kS);
  check(deadline_of(&k.site, in(Others::kBusy), kDefault), 80, 480);
  decay(k.site, 24 * 3600 * kS + 4 * kS);
  check(deadline_of(&k.site, in(Others::kBusy), kDefault), 40, 240);
}

TEST_CASE("deadlines: what was long ago counts half every three hours, but the last 32 in full") {
  Known k({.absent_ns = 80 * kS, .asleep_ns = 0, .together_ns = 0});
  decay(k.site, 7 * 3600 * kS);
  check(deadline_of(&k.site, in(Others::kBusy), kDefault), 400, 800);  // no new wait since then
  for (int i = 0; i < 64; ++i) {
    learn(k.site, {.absent_ns = 1 * kS, .asleep_ns = 0, .together_ns = 0}, 7 * 3600 * kS);
  }
  check(deadline_of(&k.site, in(Others::kBusy), kDefault), 100, 200);
}

TEST_CASE("deadlines: a row per site, and one for all that find no room") {
  SiteRow rows[8] = {};
  SiteRow& first = site_of(rows, 8, 42, "all_reduce at a\nb");
  CHECK(std::string(first.text) == "all_reduce at a b");
  CHECK(&site_of(rows, 8, 42, "") == &first);
  for (u64 key = 1; key < 7; ++key) {
    CHECK(&site_of(rows, 8, key, "x") != &rows[7]);
  }
  CHECK(&site_of(rows, 8, 1000, "x") == &rows[7]);
  CHECK(&site_of(rows, 8, 1001, "x") == &rows[7]);
  CHECK(&site_of(rows, 8, 42, "x") == &first);
}

TEST_CASE(
    "deadlines: the file of them keeps what was learned, and nothing of what it cannot vouch for") {
  SiteRow rows[8] = {};
  SiteRow& site = site_of(rows, 8, 42, "train.py:91 all_reduce of default_pg");
  site.visits.store(1000);
  learn(site, {.absent_ns = 30 * kS, .asleep_ns = 20 * kS, .together_ns = 10 * kS}, kS);
  note_false_dump(site, Others::kCame, kS);
  site_of(rows, 8, 43, "seldom").visits.store(1);
  char text[2000];
  const std::size_t n = format_deadlines(rows, 8, "train.py, 8 ranks", text, sizeof text);
  REQUIRE(n > 0);
  const std::string file(text, n);
  CHECK(file.find("train.py:91 all_reduce of default_pg\n") != std::string::npos);
  CHECK(format_deadlines(rows, 8, "train.py, 8 ranks", text, n) == 0);  // no room

  const auto parse = [](const std::string& content, SiteRow(&into)[8]) {
    return parse_deadlines(content, "train.py, 8 ranks", into, 8, 7 * kS);
  };
  SiteRow again[8] = {};
  REQUIRE(parse(file, again) == Deadlines::kTaken);
  const SiteRow& back = site_of(again, 8, 42, "");
  CHECK(back.visits.load() == 64);  // few, so that sites that are gone are forgotten
  CHECK(std::string(back.text) == site.text);
  check(deadline_of(&back, in(Others::kBusy), kDefault), 150, 300);
  check(deadline_of(&back, in(Others::kAsleep), kDefault), 60, 100);
  check(deadline_of(&back, in(Others::kCame), kDefault), 60, 100);
  CHECK(site_of(again, 8, 43, "").visits.load() == 0);

  SiteRow none[8] = {};
  for (std::size_t cut = 0; cut < n; ++cut) {
    CAPTURE(cut);
    CHECK(parse(file.substr(0, cut), none) != Deadlines::kTaken);
  }
  std::string changed = file;
  changed[changed.find("30000")] ^= 1;
  CHECK(parse(changed, none) == Deadlines::kDamaged);
  CHECK(parse("import torch\n", none) == Deadlines::kForeign);
  CHECK(parse_deadlines(file, "train.py, 16 ranks", none, 8, kS) == Deadlines::kOfAnother);
  for (const SiteRow& row : none) {
    CHECK(row.key.load() == 0);
  }
}

TEST_CASE("deadlines: a week has one false dump at most, and no hang is missed") {
  for (const Job job :
       {Job{}, Job{.sees_all = false}, Job{.sees_all = false, .tells = true},
        Job{.timeout_s = 600, .sees_all = false, .tells = true}, Job{.waits_in_step = true},
        Job{.step_s = 5, .sees_all = false, .waits_in_step = true}}) {
    CAPTURE(job.sees_all, job.tells, job.timeout_s, job.waits_in_step);
    u32 dumps = 0;
    u32 warnings = 0;
    for (u64 seed = 1; seed <= (fr::test::kSanitized ? 1 : 3); ++seed) {
      Job one = job;
      one.seed = seed;
      const WeekResult week = Week(one, Rule::kLearned).run();
      dumps += week.false_dumps;
      warnings += week.false_warnings;
      CHECK(week.false_dumps <= 1);
      CHECK(week.missed == 0);
      REQUIRE(week.steady_s.size() > 100);
      const double most = *std::max_element(week.steady_s.begin(), week.steady_s.end());
      CHECK(most <= (job.sees_all || job.tells ? 35 : job.timeout_s - 60));
    }
    CHECK(dumps <= 3);
    CHECK(warnings <= 3 * 7);
  }
  // The same code with fixed times: the job is one that alarms.
  CHECK(Week(Job{}, Rule::kFixed).run().false_dumps > 50);
}

TEST_CASE("deadlines: a silence before a rhythm, and one in which a process computes") {
  const Silent asleep{false, true, 0}, busy{true, true, 0}, new_job{false, false, 0};
  SiteRow row{};
  check(silence_deadline_of(row, asleep, kDefault), 60, 660);
  check(silence_deadline_of(row, asleep, kSet), 1, 2);
  check(silence_deadline_of(row, new_job, kSet), 60, 660);
  row.visits.store(5);
  check(silence_deadline_of(row, asleep, kDefault), 10, 60);
  check(silence_deadline_of(row, busy, kDefault), 60, 660);
  check(silence_deadline_of(row, busy, kSet), 60, 660);
  learn(row, {.absent_ns = 100 * kS, .asleep_ns = 100 * kS, .together_ns = 0}, kS);
  check(silence_deadline_of(row, asleep, kDefault), 500, 1000);
  check(silence_deadline_of(row, busy, kDefault), 500, 1000);
  constexpr Floors kFixed{10 * kS, 60 * kS, false, false, false};
  check(silence_deadline_of(row, asleep, kFixed), 60, 660);
}

TEST_CASE("deadlines: a week of silences has one false dump at most, a server three") {
  for (const bool is_server : {false, true}) {
    u32 dumps = 0;
    for (u64 seed = 1; seed <= 3; ++seed) {
      const SilentWeekResult week = SilentWeek({seed, is_server}).run();
      std::printf(
          "%s, seed %llu: %u false dumps, %u false warnings, then %.0f s asleep, %.0f s busy\n",
          is_server ? "server" : "training", static_cast<unsigned long long>(seed),
          week.false_dumps, week.false_warnings, week.to_dump_asleep_s, week.to_dump_busy_s);
      dumps += week.false_dumps;
      CHECK(week.false_dumps <= (is_server ? 3 : 1));
    }
    CHECK(dumps <= (is_server ? 6 : 1));
  }
}
