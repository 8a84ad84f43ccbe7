// test_rank_data.cpp - the model of a rank: shapes, sites, texts.
#include "builder.hpp"
#include "catch.hpp"

using namespace frtest;

TEST_CASE("rank lists are folded") {
  CHECK(fold_ranks({0, 1, 3}) == "0,1,3");
  CHECK(fold_ranks({3, 2, 1, 0, 7, 9, 8, 7}) == "0-3,7-9");
  CHECK(fold_ranks({}).empty());
  CHECK(ranks_words({5}) == "rank 5");
}

TEST_CASE("absurd rank ranges expand to nothing") {
  CHECK(expand({{0, 4, 2}}) == std::vector<Rank>{0, 2, 4, 6});
  CHECK(expand({{0, 0xffffffffu, 1}}).empty());
  CHECK(expand({{0, 3, -1}}).empty());
  CHECK(expand({{2147483647, 2, 1}}).empty());
}

TEST_CASE("durations") {
  CHECK(duration_text(12.44) == "12.4 s");
  CHECK(duration_text(0.35) == "350 ms");
  CHECK(duration_text(3600) == "60 min");
  CHECK(duration_text(3 * 3600) == "3.0 h");
  CHECK(duration_text(72 * 3600) == "3 days");
}

TEST_CASE("the user's frame is the first outside torch and fr") {
  RankEvidence e;
  e.id.cwd = "/w";
  e.strings = {"",
               "<frozen runpy>",
               "/p/site-packages/torch/a.py",
               "/p/site-packages/fr/b.py",
               "/w/m/train.py",
               "step",
               "/q/fr-notes/own.py"};
  e.frames = {{1, 5, 1}, {2, 5, 2}, {3, 5, 3}, {4, 5, 57}, {6, 5, 9}};
  e.stacks = {{}, {0, 1, 2, 3, 4}, {1, 99}, {4}};
  CHECK(user_site(e, 1) == Site{"m/train.py", 57, "step"});
  CHECK(site_text(user_site(e, 1)) == "m/train.py:57 step");
  CHECK(user_site(e, 2) == Site{});
  CHECK(user_site(e, 3).file == "/q/fr-notes/own.py");
  CHECK(user_site(e, 77) == Site{});
}

TEST_CASE("installed packages are not the user's, what the user called of them is named") {
  RankEvidence e;
  e.id.cwd = "/w";
  e.strings = {"",
               "/w/.venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py",
               "/w/.venv/lib/python3.11/site-packages/accelerate/utils/operations.py",
               "/w/.venv/lib/python3.11/site-packages/accelerate/accelerator.py",
               "/w/accelerate_job.py",
               "main",
               "Accelerator.gather",
               "_gpu_gather.<locals>._gpu_gather_one",
               "/w/.venv/bin/accelerate",
               "/w/.venv/lib/python3.11/site-packages/trainer/cli.py",
               "/w/src/installed_in_place/model.py"};
  e.frames = {{1, 5, 1}, {2, 7, 355}, {3, 6, 2861}, {4, 5, 22}, {9, 5, 7}, {8, 5, 8}, {10, 5, 3}};
  e.stacks = {{}, {0, 1, 2, 3}, {0, 1, 2, 4, 5}, {0, 5}, {0, 1, 6, 3}, {0, 1}};
  CHECK(site_text(user_site(e, 1)) == "accelerate_job.py:22 main (in accelerate gather)");
  // A program that was installed itself: the package that it began in.
  CHECK(site_text(user_site(e, 2)) == "trainer/cli.py:7 main (in accelerate gather)");
  CHECK(user_site(e, 3).file == ".venv/bin/accelerate");
  CHECK(site_text(user_site(e, 4)) ==
        "src/installed_in_place/model.py:3 main (in accelerate _gpu_gather_one)");
  CHECK(site_text(user_site(e, 5)) ==
        "accelerate/utils/operations.py:355 _gpu_gather.<locals>._gpu_gather_one");
}

TEST_CASE("shape words that do not add up read as unknown") {
  RankEvidence e;
  Record r;
  const auto parse = [&](std::vector<std::uint32_t> words) {
    e.shape_words = std::move(words);
    r.shape_first = 0;
    r.shape_count = static_cast<std::uint32_t>(e.shape_words.size());
    return parse_shape(e, r);
  };
  const Shape good = parse({1u | 1u << 12, 2u | 7u << 8, 3, 4, 1, 12});
  REQUIRE(good.known);
  CHECK(good.in[0].dims == std::vector<std::uint64_t>{3, 4});
  CHECK(good.in[0].dtype == 7);
  CHECK(good.out[0].dims == std::vector<std::uint64_t>{12});
  CHECK(parse({1u | 1u << 24, 1, 5}).out.size() == 1);
  CHECK_FALSE(parse({0xfff}).known);
  CHECK_FALSE(parse({1, 200, 1}).known);
  CHECK_FALSE(parse({1u << 26, 9}).known);
  r.shape_first = 100;
  CHECK_FALSE(parse_shape(e, r).known);
}
