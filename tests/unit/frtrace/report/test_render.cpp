// test_render.cpp - text, JSON and table of a report.
#include <map>
#include <nlohmann/json.hpp>

#include "builder.hpp"
#include "catch.hpp"
#include "report/lines.hpp"
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

struct Extent {
  std::size_t lines = 0, widest = 0;
};

Extent extent(const std::string& text) {
  Extent out;
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    out.widest = std::max(out.widest, columns(std::string_view(text).substr(begin, end - begin)));
    ++out.lines;
  }
  return out;
}

// A report with something to say of every kind, about as many ranks.
Report busy_report(int ranks) {
  Report r;
  r.job = "job-with-a-rather-long-name";
  r.kind = Verdict::kMissing;
  r.confidence = Confidence::kLikely;
  r.summary = "rank 1 never issued all_reduce #41 of default_pg";
  r.time = 1'700'000'000'123'456'789;
  r.read = r.expected = ranks;
  const std::string path = "/a/long/path/to/the/code/of/the/user/with/many/folders/train.py";
  for (Rank rank = 0; rank < ranks; ++rank) {
    if (rank % 4 == 1) {
      Blamed b;
      b.rank = rank;
      b.host = "node-" + std::to_string(rank / 8);
      b.pid = 1000 + rank;
      b.site = {path, 57, "load_batch"};
      b.evidence = {"last issued all_reduce #" + std::to_string(40 + rank) + " of default_pg",
                    "batch = " + std::string(900, 'x'), "step 7"};
      b.stack = {path + ":57 load_batch"};
      r.ranks.push_back(rank);
      r.blamed.push_back(b);
    } else {
      Waiting w;
      w.ranks = {rank};
      w.op = rank % 3 == 0 ? "send" : "all_reduce";
      w.group = std::to_string(rank / 8);
      w.desc = "tp";
      w.title = "tp{" + std::to_string(rank) + "}";
      w.seq = 41 + static_cast<std::uint64_t>(rank) % 5;
      w.site = {path, 90 + static_cast<std::uint32_t>(rank) % 7, "step"};
      w.seconds = 12.5;
      r.waiting.push_back(w);
    }
    for (const char* id : {"cause", "why", "excluded", "consequence", "device", "lost", "ras"}) {
      r.findings.push_back({id, "rank " + std::to_string(rank) + ": " + std::string(150, 'y')});
    }
  }
  r.findings.push_back({"confidence", std::string(300, 'z') + " " + std::string(90, 'z')});
  return r;
}

}  // namespace

TEST_CASE("text: a screen at any scale, and how much more there is") {
  for (const int ranks : {4, 64, 512, fr::test::kSanitized ? 1024 : 16384}) {
    LoadResult input;
    for (int i = 0; i < ranks; ++i) {
      input.unreadable.push_back({std::string(200, 'f') + ".fr", "truncated"});
    }
    const Report r = busy_report(ranks);
    const std::string text = render_text({r}, input, {});
    INFO(text);
    CHECK(extent(text).lines <= 24);
    CHECK(extent(text).widest <= 120);
    CHECK(text.find("rank 1 never issued all_reduce #41 of default_pg") != std::string::npos);
    CHECK(text.find("train.py:57 load_batch") != std::string::npos);
    CHECK(text.find("2023-11-1") != std::string::npos);
    CHECK(text.find("more: frtrace -v DIR (") != std::string::npos);
    CHECK(text.find("likely: zzz") != std::string::npos);
    CHECK(text.find("not read: " + std::to_string(ranks - 2) + " more files") != std::string::npos);
    if (ranks > 4) {
      CHECK(text.find("the same holds for ranks") != std::string::npos);
      CHECK(text.find("more operations that ranks wait in") != std::string::npos);
    }
    TextStyle full;
    full.full = true;
    const std::string all = render_text({r}, input, full);
    CHECK(all.find(std::string(900, 'x')) != std::string::npos);
    CHECK(extent(all).lines > 7 * static_cast<std::size_t>(ranks));
    CHECK(all.find("more: ") == std::string::npos);
    // Several jobs share the screen.
    const std::string several = render_text({r, r, r, r, r}, input, {});
    INFO(several);
    CHECK(extent(several).lines <= 24);
    CHECK(extent(several).widest <= 120);
    CHECK(several.find("and 2 more jobs") != std::string::npos);
  }
}

TEST_CASE("text: of jobs that are stuck alike, one that still runs comes first") {
  Report over = busy_report(4), runs = over;
  over.job = "a_over";
  runs.job = "b_runs";
  runs.rank_reports.assign(1, {});
  runs.rank_reports[0].from_ring = runs.rank_reports[0].runs_now = true;
  const std::string text = render_text({over, runs}, LoadResult(), {});
  CHECK(text.find("job b_runs") < text.find("job a_over"));
}

TEST_CASE("text: of rings, whether the job still runs here") {
  Report r = busy_report(4);
  TextStyle style;
  style.full = true;  // no line is broken
  const auto text = [&] { return render_text({r}, LoadResult(), style); };
  r.rank_reports.assign(4, {});
  CHECK(text().find("; job " + r.job + "\n") != std::string::npos);
  for (RankReport& k : r.rank_reports) {
    k.from_ring = true;
  }
  CHECK(text().find("; job " + r.job + ", which no longer runs here") != std::string::npos);
  r.rank_reports[1].runs_now = true;
  CHECK(text().find(", of which 1 of 4 processes run now") != std::string::npos);
  for (RankReport& k : r.rank_reports) {
    k.runs_now = true;
  }
  CHECK(text().find(", which runs now") != std::string::npos);
}

TEST_CASE("text: waits of one operation and call site are one line") {
  Report r;
  r.kind = Verdict::kTransport;
  for (Rank rank = 0; rank < 64; ++rank) {
    Waiting w;
    w.ranks = {rank};
    w.op = "all_reduce";
    w.desc = "mesh_dp";
    w.title = "mesh_dp{" + std::to_string(rank / 8 * 8) + "}";
    w.seq = 41 + static_cast<std::uint64_t>(rank / 32);
    w.site = {"train.py", 91, "step"};
    w.seconds = rank;
    if (rank != 31) {
      r.waiting.push_back(w);
    }
  }
  CHECK(render_text({r}, {}, {})
            .find("ranks 0-30,32-63 wait in all_reduce #41-42 of mesh_dp (8 "
                  "groups) at train.py:91 step, for 63.0 s") != std::string::npos);
}

TEST_CASE("text: with whom ranks wait in messages, where that is one rank") {
  Report r;
  r.kind = Verdict::kTransport;
  Waiting w;
  w.op = "send", w.desc = w.title = "pp", w.seq = 4;
  w.site = {"train.py", 91, "step"};
  w.ranks = {1};
  w.peer = " to rank 2";
  r.waiting.push_back(w);
  CHECK(render_text({r}, {}, {}).find("rank 1 waits in send #4 of pp to rank 2 at train.py:91") !=
        std::string::npos);
  w.ranks = {2};
  w.peer = " to rank 3";
  r.waiting.push_back(w);
  CHECK(render_text({r}, {}, {}).find("ranks 1,2 wait in send #4 of pp at train.py:91") !=
        std::string::npos);
}

TEST_CASE("text: of a stream on a device what a rank waits in, and how much is queued behind it") {
  JobBuilder j(4);
  const int gloo = j.group("7", {0, 3}, "gloo");
  for (const Rank r : {0, 3}) {
    j.rank(r).groups.back().backend = j.intern(j.rank(r), "gloo");
  }
  for (int n = 0; n < 3; ++n) {
    for (const int g : {JobBuilder::kWorld, gloo}) {
      j.issue(0, g, {.op = "send", .line = 50, .peer = g == gloo ? 1 : 3, .kind = Kind::kSend});
    }
  }
  j.some({1, 2}, JobBuilder::kWorld, {.line = 20});
  j.issue(0, JobBuilder::kWorld, {.line = 20});
  j.advance(12.4);
  const std::vector<Report> reports = one(j);
  for (const bool full : {false, true}) {
    const std::string text = render_text(reports, {}, {.full = full});
    CHECK(text.find("rank 0 waits in send #1 of default_pg to rank 3 at train.py:50 step, for 12.4 "
                    "s; and 2 more queued behind it\n") != std::string::npos);
    CHECK((text.find("send #3 of default_pg") == std::string::npos));
    // gloo's run side by side
    CHECK((text.find("send #3 of gloo") != std::string::npos) == full);
    CHECK((text.find("send #1-3 of gloo") != std::string::npos) != full);
  }
  const auto json = nlohmann::json::parse(render_json(reports, {}));
  CHECK(json["verdict"]["waiting"].size() == 7);
}

TEST_CASE("text: who waits at an unknown place, since an unknown time, stands with the others") {
  Report r;
  r.kind = Verdict::kTransport;
  Waiting w;
  w.op = "all_reduce", w.desc = w.title = "dp", w.seq = 41;
  w.ranks = {7};
  r.waiting.push_back(w);
  w.ranks = {0, 1};
  w.site = {"train.py", 91, "step"};
  w.seconds = 60;
  r.waiting.push_back(w);
  const std::string folded = render_text({r}, {}, {});
  CHECK(folded.find("ranks 0,1,7 wait in all_reduce #41 of dp at train.py:91 step, for 60.0 s") !=
        std::string::npos);
  CHECK(folded.find("rank 7 waits") == std::string::npos);
  TextStyle full;
  full.full = true;
  CHECK(render_text({r}, {}, full).find("rank 7 waits in all_reduce #41 of dp\n") !=
        std::string::npos);
}

TEST_CASE("text of evidence does not drive the terminal") {
  CHECK(printable("a\x1b[31mb\r\n\x7f") == "a\\x1b[31mb\\x0d\\x0a\\x7f");
  CHECK(printable("\xc2\x9b"
                  "1m\xff") == "\\xc2\\x9b1m\\xff");
  CHECK(printable("gr\xc3\xbc\xc3\x9f"
                  "e") ==
        "gr\xc3\xbc\xc3\x9f"
        "e");
  CHECK(columns("gr\xc3\xbc\xc3\x9f"
                "e") == 5);
  Report r;
  r.summary = "rank 0 \x1b]0;title\x07";
  for (const bool full : {false, true}) {
    TextStyle style;
    style.full = full;
    CHECK(render_text({r}, {}, style).find('\x1b') == std::string::npos);
  }
}

TEST_CASE("lines break at spaces, and the last is shortened") {
  using Lines = std::vector<std::string>;
  CHECK(wrapped("one two three", 8, 2) == Lines{"one two", "three"});
  CHECK(wrapped("one two three four", 8, 2) == Lines{"one two", "three..."});
  CHECK(wrapped("abcdefghijkl", 5, 3) == Lines{"abcde", "fghij", "kl"});
  CHECK(shortened("abcdef", 5) == "ab...");
}

TEST_CASE("groups of one description are told apart by their ranks") {
  JobBuilder j(64);
  const auto add = [&](const char* name, std::vector<Rank> ranks, const char* desc) {
    j.all(j.group(name, std::move(ranks), desc), {.line = 1});
  };
  std::vector<Rank> column;
  for (Rank r = 0; r < 64; r += 8) {
    column.push_back(r);
  }
  j.all(JobBuilder::kWorld, {.line = 1});
  add("1", {0, 1, 2, 3}, "tp");
  add("2", {4, 5, 6, 7}, "tp");
  add("3", column, "tp");
  add("4", {8, 9}, "undefined");
  add("5", {10, 11}, "");
  add("experts", {12, 13}, "");
  add("7", {14, 15}, "tp_twice");
  add("8", {14, 15}, "tp_twice");
  const auto evidence = j.take();
  const auto cases = make_cases(evidence, {});
  REQUIRE(cases.size() == 1);
  std::map<std::string, std::string> titles;
  for (const Group& g : cases[0].groups) {
    titles[g.name] = g.title();
  }
  CHECK(titles["0"] == "default_pg");
  CHECK(titles["1"] == "tp{0-3}");
  CHECK(titles["2"] == "tp{4-7}");
  CHECK(titles["3"] == "tp{0,8,...,56}");
  CHECK(titles["4"] == "group {8,9}");
  CHECK(titles["5"] == "group {10,11}");
  CHECK(titles["experts"] == "experts");
  CHECK(titles["7"] == "tp_twice (pg 7)");
  CHECK(titles["8"] == "tp_twice (pg 8)");
}

TEST_CASE("JSON: causes, time and end of the incident") {
  Report r;
  r.kind = Verdict::kMissing;
  r.time = 1'700'000'000'123'456'789;
  r.causes.push_back({Verdict::kMissing, {2}, {{"train.py", 57, "load"}}, 0.75, "rank 2 ..."});
  r.causes.push_back({Verdict::kDevice, {5, 6}, {}, 0.25, "ranks 5,6 ..."});
  const auto v = nlohmann::json::parse(render_json({r}, {}))["verdict"];
  CHECK(v["time"] == "2023-11-14T22:13:20.123456+00:00");
  CHECK(v["ended"].is_null());
  REQUIRE(v["causes"].size() == 2);
  CHECK(v["causes"][0]["kind"] == "missing");
  CHECK(v["causes"][0]["ranks"] == nlohmann::json::array({2}));
  CHECK(v["causes"][0]["sites"][0]["line"] == 57);
  CHECK(v["causes"][0]["share"] == 0.75);
  CHECK(v["causes"][0]["summary"] == "rank 2 ...");
  CHECK(v["causes"][1]["kind"] == "device");
  CHECK(v["causes"][1]["sites"].empty());
  r.time = 0;
  CHECK(nlohmann::json::parse(render_json({r}, {}))["verdict"]["time"].is_null());
}

TEST_CASE("text: the first line is the verdict") {
  JobBuilder j = skipped();
  const std::string text = render_text(one(j), {}, {});
  CHECK(text.substr(0, text.find('\n')) ==
        "MISSING    rank 2 never issued all_reduce #6 of default_pg; ranks 0,1,3 wait there");
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
  CHECK(table.find("all_reduce of 1024 elements Float SUM train.py:20  completed") !=
        std::string::npos);
  TableFilter filter;
  filter.groups = {"nope"};
  CHECK(render_table(cases, filter).find("seq") == std::string::npos);
  filter.groups = {"default_pg"};
  filter.ranks = {2};
  CHECK(render_table(cases, filter).find("ranks 0,1,3") == std::string::npos);
}

TEST_CASE("table: rows that differ and five before") {
  JobBuilder j(4);
  for (int i = 0; i < 30; ++i) {
    j.all(JobBuilder::kWorld, {.line = 20});
  }
  j.some({0, 1, 3}, JobBuilder::kWorld, {.line = 20});
  j.advance(12.4);
  const auto evidence = j.take();
  const std::vector<Case> cases = make_cases(evidence, {});
  const std::string table = render_table(cases, {});
  INFO(table);
  CHECK(table.find("\n      25  ") == std::string::npos);
  CHECK(table.find("\n      26  ") != std::string::npos);
  CHECK(table.find("\n      31  ") != std::string::npos);
  TableFilter all;
  all.full = true;
  CHECK(render_table(cases, all).find("\n       1  ") != std::string::npos);
}

TEST_CASE("columns of the table stay side by side in the width of a terminal") {
  JobBuilder j(3);
  for (int i = 0; i < 3; ++i) {
    j.all(JobBuilder::kWorld, {.line = 7});
  }
  j.issue(0, JobBuilder::kWorld, {.op = "all_gather", .line = 11});
  j.issue(1, JobBuilder::kWorld, {.op = "reduce_scatter", .line = 12});
  j.issue(2, JobBuilder::kWorld, {.op = "broadcast", .line = 13});
  j.advance(100);
  const auto evidence = j.take();
  const auto cases = make_cases(evidence, {});
  for (const std::size_t width : {std::size_t{80}, std::size_t{120}}) {
    const std::string table =
        render_table(cases, {.ranks = {}, .groups = {}, .full = false, .width = width});
    INFO(table);
    std::size_t begin = 0, headers = 0;
    for (std::size_t end; (end = table.find('\n', begin)) != std::string::npos; begin = end + 1) {
      CHECK(end - begin <= width);
      headers += table.compare(begin, 11, "     seq  o") == 0 ? 1 : 0;
    }
    CHECK(headers == 1);
    CHECK(table.find("broadcast") != std::string::npos);
  }
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
  const std::string table =
      render_table(cases, {.ranks = {}, .groups = {}, .full = false, .width = 100});
  std::size_t lines = 0, widest = 0, begin = 0;
  for (std::size_t end; (end = table.find('\n', begin)) != std::string::npos; begin = end + 1) {
    widest = std::max(widest, end - begin);
    ++lines;
  }
  CHECK(lines < 20);
  CHECK(widest <= 100);
  CHECK(table.find("ranks 0-700,702-1023") != std::string::npos);
  CHECK(table.find("512 groups tp, ranks ") != std::string::npos);
}
