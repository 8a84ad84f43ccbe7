// test_complete_set.cpp - a set of PyTorch's files: what each leaves out, the others say.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dumps.hpp"

using namespace frtest;

namespace {

// The rank's operations: two that ended and one in flight, which one rank never issued.
json all_but(int absent, int rank, const char* state = "started") {
  json entries = {entry(0, 1), entry(1, 2)};
  if (rank != absent) {
    entries.push_back(entry(2, 3, state));
  }
  return entries;
}

}  // namespace

TEST_CASE("torch: two directories with the same ranks are two jobs") {
  Evidence all;
  for (const char* dir : {"x/a/", "x/b/"}) {
    for (int r = 0; r < 2; ++r) {
      add(all, dump({entry(0, 1)}), dir + ("trace_rank_" + std::to_string(r)));
    }
  }
  settle_torch(all);
  CHECK(all[0]->id.job == "a");
  CHECK(all[3]->id.job == "b");
  Evidence hosts;
  for (int r = 0; r < 4; ++r) {
    add(hosts, dump({entry(0, 1)}),
        "x/node" + std::to_string(r / 2) + "/trace_rank_" + std::to_string(r));
  }
  settle_torch(hosts);
  CHECK(hosts[0]->id.job == "torch");
  CHECK(hosts[3]->id.job == "torch");
}

TEST_CASE("torch: who never came") {
  Evidence all;
  for (int r = 0; r < 4; ++r) {
    json entries = all_but(2, r);
    add(all, dump(entries), "nccl_trace_rank_" + std::to_string(r));
  }
  const Report r = report(all);
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == std::vector<Rank>{2});
  CHECK_FALSE(all[0]->holes.written_guessed);
}

TEST_CASE("torch: what the writer of a file found itself tells when that was") {
  const bool hangs = GENERATE(false, true);
  Evidence all;
  for (int r = 0; r < 4; ++r) {
    json entries = all_but(2, r);
    entries[1]["retired"] = false;  // ended, and the watchdog has not seen it yet
    entries[1]["time_discovered_completed_ns"] = kBase + (hangs ? 600 : 1) * kSecond;
    add(all, dump(entries), "nccl_trace_rank_" + std::to_string(r), 30.0 * 86400);
  }
  const Report r = report(all);
  CHECK(r.kind == (hangs ? Verdict::kMissing : Verdict::kOk));
  CHECK(all[0]->written == kBase + (hangs ? 600 : 1) * kSecond);
  CHECK_FALSE(all[0]->holes.written_guessed);
  CHECK(all[0]->records[1].ended == 0);  // before that
}

TEST_CASE("torch: a file is as old as most others that tell, of a set that lost its times") {
  const int telling = GENERATE(1, 3);
  Evidence all;
  for (int r = 0; r < 4; ++r) {
    json entries = all_but(2, r, "scheduled");
    if (r < telling) {
      entries[1]["retired"] = false;
      entries[1]["time_discovered_completed_ns"] = kBase + kSecond / 10;
    }
    add(all, dump(entries), "nccl_trace_rank_" + std::to_string(r), 30.0 * 86400);
  }
  CHECK(report(all).kind == (telling == 3 ? Verdict::kOk : Verdict::kMissing));
  CHECK(all[3]->holes.written_guessed);
}

TEST_CASE("torch: a file older than what it holds is of a clock that is ahead") {
  Evidence all;
  for (int r = 0; r < 4; ++r) {
    json entries = all_but(2, r, "scheduled");
    add(all, dump(entries), "nccl_trace_rank_" + std::to_string(r), r < 2 ? -60 : 600);
  }
  const Report r = report(all);
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == std::vector<Rank>{2});
  CHECK(all[0]->written > all[0]->newest + 500 * kSecond);
  CHECK(all[0]->holes.written_guessed);
  CHECK_FALSE(all[3]->holes.written_guessed);
}

TEST_CASE("torch: ends found at several moments do not tell when the file was written") {
  json entries = {entry(0, 1), entry(1, 2), entry(2, 3, "started")};
  entries[0]["retired"] = entries[1]["retired"] = false;
  entries[1]["time_discovered_completed_ns"] = kBase + kSecond;
  const auto e = load(dump(entries));
  CHECK(e->looked == 0);
  CHECK(e->records[1].ended == kBase + kSecond);
}

TEST_CASE("torch: the same where copies have lost their times") {
  Evidence all;
  for (int r = 0; r < 4; ++r) {
    json entries = all_but(2, r);
    add(all, dump(entries), "nccl_trace_rank_" + std::to_string(r), 30.0 * 86400);
  }
  const Report r = report(all);
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == std::vector<Rank>{2});
  CHECK(all[0]->holes.written_guessed);
}

TEST_CASE("torch: a healthy job, looked at rank after rank") {
  for (const double age : {0.05, 30.0 * 86400}) {
    Evidence all;
    for (int r = 0; r < 4; ++r) {
      json entries = json::array();
      const int issued = 100 + 40 * r;  // rank 0 was looked at first
      for (int i = 0; i < issued; ++i) {
        entries.push_back(entry(i, i + 1, i + 1 < issued ? "completed" : "started"));
        entries.back()["time_created_ns"] = kBase + Time{i} * 50'000'000;
      }
      add(all, dump(entries), "nccl_trace_rank_" + std::to_string(r), age);
    }
    const Report r = report(all);
    CHECK(r.ranks.empty());
    CHECK((r.kind == Verdict::kOk || r.kind == Verdict::kUndecided));
    CHECK((age > 1 || r.kind == Verdict::kOk));
  }
}

TEST_CASE("torch: only what is in flight was dumped, by all") {
  Evidence all;
  for (int r = 0; r < 4; ++r) {
    json d = dump(json::array());
    if (r != 1) {
      d["entries"].push_back(entry(900, 71, "started"));
    }
    add(all, d, "_dump_" + std::to_string(r));
  }
  const Report r = report(all);
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == std::vector<Rank>{1});
  CHECK(all[1]->holes.frontier_inferred);
}

TEST_CASE("torch: gloo groups are those who appear in them") {
  Evidence all;
  for (int r = 0; r < 4; ++r) {
    json entries = json::array();
    for (int i = 0; i < 3; ++i) {
      if (i == 2 && r == 3) {
        break;
      }
      json e = entry(2 * i, i + 1, "scheduled", "gloo:all_reduce");
      e["retired"] = i < 2;
      json tp =
          entry(2 * i + 1, i + 1, "scheduled", "gloo:all_gather", r < 2 ? "1" : "2", "undefined");
      tp["retired"] = true;
      entries.push_back(e);
      if (i < 2) {
        entries.push_back(tp);
      }
    }
    json d = dump(entries);
    d["pg_config"] = json::object();
    add(all, d, "trace_rank_" + std::to_string(r));
  }
  const Report r = report(all);
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == std::vector<Rank>{3});
  CHECK(all[0]->holes.no_members);
  CHECK(expand(all[0]->groups[1].ranks) == std::vector<Rank>{0, 1, 2, 3});
  CHECK(expand(all[3]->groups[2].ranks) == std::vector<Rank>{2, 3});
}

TEST_CASE("torch: gloo's failures look finished, and are not") {
  Evidence all;
  for (int r = 0; r < 4; ++r) {
    json entries = json::array();
    for (int i = 0; i < (r == 1 ? 2 : 3); ++i) {
      entries.push_back(entry(i, i + 1, "scheduled", "gloo:all_reduce"));
      entries.back()["retired"] = true;
    }
    json d = dump(entries);
    d["pg_config"] = json::object();
    add(all, d, "trace_rank_" + std::to_string(r), 100 + 0.1 * r);
  }
  const Report r = report(all);
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == std::vector<Rank>{1});
  CHECK(all[0]->holes.failure_inferred);
}

TEST_CASE("torch: who has gone on to later operations of gloo has not failed before") {
  Evidence all;
  for (int r = 0; r < 4; ++r) {
    json entries = json::array();
    for (int i = 0; i < (r == 1 ? 2 : 5); ++i) {
      entries.push_back(entry(i, i + 1, "scheduled", "gloo:all_reduce"));
      entries.back()["retired"] = i < 4;
      entries.back()["time_created_ns"] = kBase + Time{i} * 1'000'000;
    }
    add(all, dump(entries), "trace_rank_" + std::to_string(r), 0.1 * r);
  }
  CHECK(report(all).kind == Verdict::kOk);
  CHECK_FALSE(all[0]->holes.failure_inferred);
}

TEST_CASE("torch: who is in what gloo's others left just then was dumped before it left, too") {
  Evidence all;
  for (int r = 0; r < 3; ++r) {
    const int n = r == 0 ? 2 : 6;
    json entries = json::array();
    for (int i = 0; i < n; ++i) {
      entries.push_back(entry(i, i + 1, "scheduled", "gloo:all_reduce"));
      entries.back()["retired"] = i + 1 < n;
      entries.back()["time_created_ns"] = kBase + Time{i} * 1'000'000;
    }
    json d = dump(entries);
    d["pg_config"] = json::object();
    add(all, d, "trace_rank_" + std::to_string(r), 4);
  }
  CHECK(report(all).kind == Verdict::kOk);
  CHECK_FALSE(all[1]->holes.failure_inferred);
}

TEST_CASE("torch: a group that one rank has used, whose members no file lists") {
  Evidence all;
  for (int r = 0; r < 4; ++r) {
    json entries = json::array({entry(0, 1, "scheduled", "gloo:all_reduce")});
    entries.back()["retired"] = true;
    if (r == 2) {
      entries.push_back(entry(1, 1, "scheduled", "gloo:all_reduce", "2", "undefined"));
      entries.back()["retired"] = false;
    }
    json d = dump(entries);
    d["pg_config"] = json::object();
    add(all, d, "trace_rank_" + std::to_string(r), 100);
  }
  const Report r = report(all);
  CHECK(r.kind == Verdict::kUndecided);
  CHECK(r.summary.find("rank 2, and no file shows another member") != std::string::npos);
}

TEST_CASE("torch: what a batch consists of is not recorded by all releases") {
  Evidence all;
  for (int r = 0; r < 4; ++r) {
    json batch = entry(2, 2, "started", "nccl:ALLGATHER_coalesced");
    batch["input_sizes"] = batch["output_sizes"] = json::array();
    json entries = {entry(0, 1)};
    if (r < 2) {
      entries.push_back(entry(1, 2, "scheduled", "nccl:_broadcast_oop"));
    }
    entries.push_back(batch);
    json d = dump(entries);
    d["version"] = r < 2 ? "2.10" : "2.4";
    add(all, d, "nccl_trace_rank_" + std::to_string(r));
  }
  const Report r = report(all);
  CHECK(r.kind == Verdict::kTransport);
  CHECK(r.ranks.empty());
}

TEST_CASE("torch: files that hold no operation do not show that nothing is stuck") {
  const bool lists_groups =
      GENERATE(true, false);  // NCCL's are listed once they have a communicator
  Evidence all;
  for (int r = 0; r < 4; ++r) {
    json d = dump(json::array());
    d["pg_status"] = json::object();
    if (!lists_groups) {
      d["pg_config"] = json::object();
    }
    add(all, d, "trace_rank_" + std::to_string(r));
  }
  CHECK(report(all).kind == Verdict::kUndecided);
}

TEST_CASE("torch: messages of two ranks for each other only are counted alike at both ends") {
  // Rank 0's window holds two batches, rank 1's three; of the last rank 1 left out a receive.
  Evidence all;
  for (const int r : {0, 1}) {
    json entries = json::array();
    int id = 10;
    for (int batch = r == 0 ? 8 : 7; batch <= 9; ++batch) {
      for (const int size : {5, 6}) {
        if (r == 1 && batch == 9 && size == 5) {
          continue;
        }
        entries.push_back(
            p2p(id++, batch, r == 0 ? "nccl:send 0->1" : "nccl:recv 1<-0", "scheduled"));
        entries.back()["input_sizes"] = entries.back()["output_sizes"] = {{size}};
      }
      entries.push_back(p2p(id++, batch, "nccl:coalesced", batch == 9 ? "started" : "completed"));
    }
    add(all, dump(entries, "[0, 1]"), "nccl_trace_rank_" + std::to_string(r));
  }
  const Report r = report(all);
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == std::vector<Rank>{1});
}

TEST_CASE("torch: sends and receives of windows that begin in the middle") {
  // Rank 0's window holds 3 of its sends, rank 1's 5 of the receives; the last receive waits.
  Evidence all;
  json zero = json::array(), one = json::array();
  for (int i = 0; i < 3; ++i) {
    zero.push_back(p2p(100 + i, 50 + i, "nccl:send 0->1"));
  }
  for (int i = 0; i < 6; ++i) {
    one.push_back(p2p(200 + i, 48 + i, "nccl:recv 1<-0", i < 5 ? "completed" : "started"));
  }
  for (int i = 0; i < 6; ++i) {  // same moments on both sides
    if (i < 3) {
      zero[static_cast<std::size_t>(i)]["time_created_ns"] = kBase + Time{i + 2} * 1'000'000;
      zero[static_cast<std::size_t>(i)]["time_discovered_completed_ns"] =
          kBase + Time{i + 2} * 1'000'000 + 5000;
    }
    one[static_cast<std::size_t>(i)]["time_created_ns"] = kBase + Time{i} * 1'000'000;
    if (i < 5) {
      one[static_cast<std::size_t>(i)]["time_discovered_completed_ns"] =
          kBase + Time{i} * 1'000'000 + 5000;
    }
  }
  add(all, dump(zero, "[0, 1]"), "trace_rank_0");
  add(all, dump(one, "[0, 1]"), "trace_rank_1");
  const Report r = report(all);
  CHECK(all[0]->holes.relative_p2p);
  CHECK(all[0]->lanes[0].enqueued == 5);
  CHECK(all[1]->lanes[0].enqueued == 6);
  CHECK(all[0]->records.back().seq == 5);
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == std::vector<Rank>{0});
}

TEST_CASE("torch: windows that begin in the middle fit by the sizes of what both have ended") {
  // The last send meets the last receive; the receiver's iterations had another size there.
  Evidence all;
  json zero = json::array(), one = json::array();
  const auto message = [](json& to, int n, int numel, bool send, bool over) {
    json e = p2p(100 + n, 50 + n, send ? "nccl:send 0->1" : "nccl:recv 1<-0",
                 over ? "completed" : "scheduled");
    e["input_sizes"] = e["output_sizes"] = {{numel}};
    to.push_back(e);
  };
  for (int n = 0; n < 12; ++n) {
    const int numel = 1 + n % 3;
    if (n > 3) {
      message(zero, n, numel, true, n < 11);
    }
    message(one, n, n < 11 ? numel : 7, false, n < 11);
  }
  add(all, dump(zero, "[0, 1]"), "trace_rank_0");
  add(all, dump(one, "[0, 1]"), "trace_rank_1");
  const Report r = report(all);
  CHECK_FALSE(all[0]->lanes[0].guessed);
  CHECK(r.kind == Verdict::kMismatch);
  CHECK(r.ranks == std::vector<Rank>{1});
}

TEST_CASE("torch: one whose file is older than what others ended is not behind") {
  Evidence all;
  for (int r = 0; r < 7; ++r) {
    json entries = json::array();
    for (int n = 0; n < (r == 1 ? 6 : 21); ++n) {
      entries.push_back(entry(n, n + 1, n == (r == 1 ? 5 : 20) ? "started" : "completed"));
    }
    add(all, dump(entries, "[0, 1, 2, 3, 4, 5, 6, 7]"), "trace_rank_" + std::to_string(r),
        30.0 * 86400);
  }
  const Report r = report(all);
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == std::vector<Rank>{7});
}

TEST_CASE("torch: files, told apart by content, in parallel, in order") {
  namespace fs = std::filesystem;
  const fs::path dir = fs::temp_directory_path() / ("fr-torch-" + std::to_string(::getpid()));
  fs::create_directories(dir);
  const auto put = [&](const std::string& name, const auto& bytes) {
    std::ofstream file(dir / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  };
  for (int r = 0; r < 40; ++r) {
    const json d = dump({entry(0, 1), entry(1, 2, "started")}, "[0, 39]");
    if (r % 2 == 0) {
      put("trace_rank_" + std::to_string(r), pickle_of(d));
    } else {
      put("trace_rank_" + std::to_string(r), "\n " + d.dump());
    }
  }
  put("evil_rank_40", std::string("cos\nsystem\n(S'true'\ntR."));
  put("evil_rank_41", std::string("\x80\x02") + "cos\nsystem\n(S'true'\ntR.");
  put("notes.json", std::string("{\"a\": 1}"));
  const auto cut = pickle_of(dump({entry(0, 1)}));
  put("trace_rank_42", std::vector<unsigned char>(cut.begin(), cut.end() - 9));
  const LoadResult result = load_paths({dir.string()}, "");
  fs::remove_all(dir);
  CHECK(result.evidence.size() == 40);
  REQUIRE(result.unreadable.size() == 4);
  CHECK(result.unreadable[1].why.find("hostile or unrecognised pickle") == 0);
  CHECK(result.unreadable[2].why.find("not recognised") == 0);
  CHECK(result.unreadable[3].why.find("truncated") == 0);
  for (std::size_t i = 1; i < result.evidence.size(); ++i) {
    CHECK(result.evidence[i - 1]->file < result.evidence[i]->file);
  }
}

namespace {

// 16 ranks of 700 operations: rank 3 never came to the last one. Long before, `odd` had another
// size than the others in slot 100, which all completed.
std::filesystem::path write_long_set(int odd) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::temp_directory_path() / fmt::format("fr-long-{}-{}", ::getpid(), odd);
  fs::create_directories(dir);
  for (int rank = 0; rank < 16; ++rank) {
    json entries = json::array();
    for (int i = 1; i <= (rank == 3 ? 699 : 700); ++i) {
      entries.push_back(entry(i, i, i == 700 ? "started" : "completed"));
      if (i == 100 && rank == odd) {
        entries.back()["input_sizes"] = entries.back()["output_sizes"] = {{1, 1}};
      }
    }
    const auto bytes = pickle_of(dump(std::move(entries),
                                      "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, "
                                      "11, 12, 13, 14, 15]"));
    std::ofstream(dir / fmt::format("trace_rank_{}", rank), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  return dir;
}

std::string verdict_of(const LoadResult& input) {
  std::vector<Report> reports;
  for (const Case& c : make_cases(input.evidence, {})) {
    reports.push_back(diagnose(c));
  }
  return render_json(reports, input);
}

}  // namespace

TEST_CASE("of a large set a window is kept, and the answer is the same") {
  for (const int odd : {-1, 9}) {
    const auto dir = write_long_set(odd);
    const std::vector<std::string> paths{dir.string()};
    const LoadResult whole = load_paths(paths, "");
    LoadOptions options;
    options.budget_records = 200;
    std::string first;
    for (const unsigned threads : {1u, 2u, 7u}) {
      if (fr::test::kSanitized && threads != 2) {
        continue;  // ten seconds each
      }
      options.threads = threads;
      const LoadResult cut = load_paths(paths, options);
      REQUIRE(cut.evidence.size() == 16);
      for (const auto& e : cut.evidence) {
        const RankEvidence& all =
            **std::find_if(whole.evidence.begin(), whole.evidence.end(),
                           [&](const auto& other) { return other->id.rank == e->id.rank; });
        INFO("rank " << e->id.rank);
        // Rank 3 looks guilty and is compared with rank 0.
        CHECK((e->losses.trimmed == 0) == (e->id.rank == 3 || e->id.rank == 0));
        CHECK(e->losses.trimmed + e->records.size() == all.records.size());
        CHECK(e->groups.back().enqueued == all.groups.back().enqueued);
        CHECK(e->groups.back().first_kept == all.groups.back().first_kept);
        if (e->losses.trimmed != 0) {
          CHECK(e->records.size() < (odd < 0 ? 40 : 80));
        }
        const auto slot = [&](std::uint64_t seq) {
          return std::any_of(e->records.begin(), e->records.end(),
                             [&](const Record& r) { return r.seq == seq; });
        };
        CHECK((e->id.rank == 3 || slot(700)));
        CHECK((odd < 0 || slot(100)));
        for (const Record& r : e->records) {
          const Record& same = all.records[static_cast<std::size_t>(r.seq - 1)];
          REQUIRE(operation_text(*e, r) == operation_text(all, same));
          REQUIRE(site_text(user_site(*e, r.stack)) == site_text(user_site(all, same.stack)));
        }
      }
      const std::string verdict = verdict_of(cut);
      CHECK((first.empty() || verdict == first));
      first = verdict;
      CHECK(json::parse(verdict)["verdict"] == json::parse(verdict_of(whole))["verdict"]);
    }
    std::filesystem::remove_all(dir);
  }
}

TEST_CASE("torch: a file without an operation shows nothing of its rank") {
  const bool alone = GENERATE(true, false);
  Evidence all;
  for (int r = 0; r < (alone ? 1 : 3); ++r) {
    const json entries = r == 0 ? json::array() : json{entry(0, 1), entry(1, 2)};
    add(all, dump(entries), "trace_rank_" + std::to_string(r));
  }
  const Report r = report(all);
  CHECK(r.kind == Verdict::kOk);
  CHECK(r.confidence == (alone ? Confidence::kPossible : Confidence::kLikely));
  const std::string said = alone ? "the files hold no operation" : "the file of rank 0 holds";
  CHECK(std::any_of(r.findings.begin(), r.findings.end(),
                    [&](const Finding& f) { return f.text.find(said) == 0; }));
  CHECK(r.time > kBase);  // not at the beginning of all time
}

TEST_CASE("torch: of files without an operation the status shows nothing pending") {
  Evidence all;
  for (int r = 0; r < 3; ++r) {
    json d = dump(json::array());
    d["pg_status"]["0"] = {{"last_enqueued_collective", 2},
                           {"last_started_collective", -1},
                           {"last_completed_collective", -1}};
    add(all, d, "trace_rank_" + std::to_string(r));
  }
  CHECK(report(all).kind == Verdict::kOk);
}
