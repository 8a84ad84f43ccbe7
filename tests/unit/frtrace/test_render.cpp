// test_render.cpp - text, JSON and table of a report.
#include <nlohmann/json.hpp>

#include "builder.hpp"
#include "catch.hpp"
#include "report/render.hpp"

using namespace frtest;

namespace {

std::vector<Report> one(JobBuilder& j) {
  return {j.diagnose()};
}

JobBuilder skipped() {
  JobBuilder j(4);
  for (int i = 0; i < 5; ++i) {
    j.all(JobBuilder::kWorld, {.line = 20});
  }
  j.some({0, 1, 3}, JobBuilder::kWorld, {.line = 20});
  j.advance(12.4);
  return j;
}

}  // namespace

TEST_CASE("text: the first line is the verdict") {
  JobBuilder j = skipped();
  const std::string text = render_text(one(j), {}, {});
  CHECK(text.substr(0, text.find('\n')) ==
        "MISSING    rank 2 never issued all_reduce #6 of default_pg; ranks 0,1,3 wait there, for "
        "12.4 s");
  CHECK(text.find("rank 2 (host n0, pid 1002) last issued all_reduce #5 of default_pg at "
                  "train.py:20 step") != std::string::npos);
  CHECK(text.find('\033') == std::string::npos);
}

TEST_CASE("text: colour and stacks on demand") {
  JobBuilder j = skipped();
  TextStyle style;
  style.colour = true;
  style.stacks = true;
  const std::string text = render_text(one(j), {}, style);
  CHECK(text.find("\033[31;1m") != std::string::npos);
  CHECK(text.find("distributed_c10d.py:2000 all_reduce") != std::string::npos);
}

TEST_CASE("text: what was not read is named") {
  JobBuilder j = skipped();
  LoadResult input;
  input.unreadable.push_back({"x.fr", "truncated"});
  CHECK(render_text(one(j), input, {}).find("not read: x.fr: truncated") != std::string::npos);
}

TEST_CASE("JSON follows the schema") {
  JobBuilder j = skipped();
  const auto json = nlohmann::json::parse(render_json(one(j), {}));
  CHECK(json["schema"] == "frtrace.report/1");
  const auto& v = json["verdict"];
  CHECK(v["kind"] == "missing");
  CHECK(v["ranks"] == nlohmann::json::array({2}));
  CHECK(v["confidence"] == "certain");
  const auto& b = v["blamed"][0];
  CHECK(b["rank"] == 2);
  CHECK(b["group"] == "0");
  CHECK(b["desc"] == "default_pg");
  CHECK(b["op"] == "all_reduce");
  CHECK(b["seq"] == 6);
  CHECK(b["site"]["file"] == "train.py");
  CHECK(b["site"]["line"] == 20);
  CHECK(b["evidence"].is_array());
  CHECK(v["waiting"][0]["ranks"] == nlohmann::json::array({0, 1, 3}));
  CHECK(json["input"]["read"] == 4);
  CHECK(json["input"]["missing_ranks"].empty());
  CHECK_FALSE(json.contains("jobs"));
}

TEST_CASE("JSON: the site of who never came is where it is now, beside its last operation's") {
  JobBuilder j = skipped();
  RankEvidence& e = j.rank(2);
  const auto python = [](const char* file, std::uint32_t line, const char* function) {
    return ThreadFrame{true, function, file, line, 0};
  };
  e.threads.present = true;
  e.threads.frames = {{false, "clock_nanosleep", "/usr/lib/libc.so.6", 0, 16},
                      python("/usr/lib/python3.11/queue.py", 171, "Queue.get"),
                      python("/home/u/train.py", 57, "load_batch"),
                      python("/home/u/train.py", 80, "main")};
  ThreadStack main_thread;
  main_thread.tid = e.id.pid;
  main_thread.stack = {0, 1, 2, 3};
  e.threads.threads = {main_thread};
  const auto json = nlohmann::json::parse(render_json(one(j), {}));
  const auto& b = json["verdict"]["blamed"][0];
  CHECK(b["site"] ==
        nlohmann::json{{"file", "train.py"}, {"line", 57}, {"function", "load_batch"}});
  CHECK(b["last_site"] == nlohmann::json{{"file", "train.py"}, {"line", 20}, {"function", "step"}});
}

TEST_CASE("JSON: nothing read, and text that is no UTF-8") {
  const auto json = nlohmann::json::parse(render_json({}, {}));
  CHECK(json["verdict"]["kind"] == "undecided");
  Report r;
  r.summary = "\xff\xfe";
  CHECK_NOTHROW(render_json({r}, {}));
}

TEST_CASE("table: equal ranks share a column") {
  JobBuilder j = skipped();
  const auto evidence = j.take();
  const std::vector<Case> cases = make_cases(evidence, {});
  const std::string table = render_table(cases, {});
  CHECK(table.find("ranks 0,1,3") != std::string::npos);
  CHECK(table.find("rank 2") != std::string::npos);
  CHECK(table.find("all_reduce of 1024 elements Float SUM: completed train.py:20") !=
        std::string::npos);
  TableFilter filter;
  filter.groups = {"nope"};
  CHECK(render_table(cases, filter).find("seq") == std::string::npos);
  filter.groups = {"default_pg"};
  filter.ranks = {2};
  CHECK(render_table(cases, filter).find("ranks 0,1,3") == std::string::npos);
}

TEST_CASE(
    "the table of a thousand ranks fits a terminal: equal ranks and equal groups are folded") {
  constexpr int kRanks = 1024, kGuilty = 701;
  JobBuilder j(kRanks);
  for (Rank r = 0; r < kRanks; r += 2) {
    j.all(j.group(std::to_string(1 + r / 2), {r, r + 1}, "tp"), {.line = 7});
  }
  j.all(JobBuilder::kWorld);
  for (Rank r = 0; r < kRanks; ++r) {
    if (r != kGuilty) {
      j.issue(r, JobBuilder::kWorld, {.line = 11});
    }
  }
  j.advance(100);
  const auto evidence = j.take();
  const auto cases = make_cases(evidence, {});
  const std::string table = render_table(cases, {.ranks = {}, .groups = {}, .width = 100});
  std::size_t lines = 0, widest = 0, begin = 0;
  for (std::size_t end; (end = table.find('\n', begin)) != std::string::npos; begin = end + 1) {
    widest = std::max(widest, end - begin);
    ++lines;
  }
  CHECK(lines < 20);
  CHECK(widest <= 100);
  CHECK(table.find("ranks 0-700,702-1023") != std::string::npos);
  CHECK(table.find("512 groups tp: 1,2,") != std::string::npos);
}
