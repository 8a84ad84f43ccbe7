// test_hook_recorder.cpp - files of PyTorch's hook recorder: nccl2, plugins, and backends without
// completions. Each hang is tested beside the healthy job with the most similar files.
#include "dumps.hpp"

using namespace frtest;

namespace {

constexpr int kWorld = 4;

// The ways in which backends differ in entries and status.
struct Backend {
  const char* name;
  bool reports_completions;
  bool retires_at_issue;  // PyTorch 2.14; later releases leave such entries open
  int first_op_id;        // operations that the group counted before the first entry
};

json hook_entry(const Backend& b, int i, bool finished, const char* op = "all_reduce") {
  const bool completed = finished && b.reports_completions;
  json e = entry(i, i + 1, completed ? "completed" : "scheduled",
                 fmt::format("{}:{}", b.name, op).c_str());
  e["time_discovered_started_ns"] = nullptr;
  e["op_id"] = b.first_op_id + i;
  e["retired"] = completed || (b.retires_at_issue && !b.reports_completions);
  return e;
}

// A rank that issued `n` operations; the last one has not finished where `open`.
json hook_file(const Backend& b, int n, bool open) {
  json entries = json::array();
  for (int i = 0; i < n; ++i) {
    entries.push_back(hook_entry(b, i, !open || i + 1 < n));
  }
  json d = dump(std::move(entries));
  const int newest = b.first_op_id + n - 1;
  status(d, "0", newest, -1, b.reports_completions ? newest - (open ? 1 : 0) : -1);
  return d;
}

Report report_of(const Backend& b, const std::vector<int>& issued, double age, bool open) {
  const int most = *std::ranges::max_element(issued);
  Evidence all;
  for (int rank = 0; rank < kWorld; ++rank) {
    const int n = issued[static_cast<std::size_t>(rank)];
    add(all, hook_file(b, n, open && n == most), fmt::format("/d/nccl_trace_rank_{}", rank), age);
  }
  return report(all);
}

constexpr Backend kNccl2{"nccl2", true, false, 100};
constexpr Backend kSilent[] = {{"mpi", false, true, 0},     {"ucc", false, true, 7},
                               {"c10d", false, true, 100},  {"my_plugin", false, true, 3},
                               {"fake", false, false, 100}, {"my_plugin", false, false, 0}};

}  // namespace

TEST_CASE("hook recorder: op ids of pg_status are not taken for sequence numbers") {
  const auto e = load(hook_file(kNccl2, 5, true));
  const GroupEvidence& g = e->groups[1];
  CHECK(g.enqueued == 5);
  CHECK(g.completed == 4);
  CHECK(g.untracked == 0);
  CHECK(e->records[4].state == State::kEnqueued);
  CHECK_FALSE(e->holes.no_completions);
  CHECK(e->holes.unrecorded == 0);
}

TEST_CASE("hook recorder: the numbers of a native backend stay sequence numbers") {
  // A coalesced batch makes NCCL's op ids higher than its sequence numbers.
  json d = dump({entry(0, 1), entry(1, 2, "scheduled")});
  d["entries"][0]["op_id"] = 4;
  d["entries"][1]["op_id"] = 9;
  status(d, "0", 3, 2, 1);
  CHECK(load(d)->groups[1].enqueued == 3);
}

TEST_CASE("hook recorder: nccl2, a rank that never issued an operation, and the job that moves") {
  for (const int first_op_id : {0, 1, 100}) {
    Backend b = kNccl2;
    b.first_op_id = first_op_id;
    const Report hang = report_of(b, {40, 40, 39, 40}, 720, true);
    CHECK(hang.kind == Verdict::kMissing);
    CHECK(hang.ranks == std::vector<Rank>{2});
    CHECK(hang.confidence == Confidence::kCertain);
    CHECK(report_of(b, {40, 40, 40, 40}, 0.2, false).kind == Verdict::kOk);
  }
}

TEST_CASE("hook recorder: without completions nothing is known to have completed") {
  for (const Backend& b : kSilent) {
    INFO(b.name << (b.retires_at_issue ? ", retired at issue" : ", never retired"));
    const auto e = load(hook_file(b, 3, false));
    CHECK(e->holes.no_completions);
    CHECK(e->groups[1].completed == 0);
    CHECK(e->groups[1].untracked == 3);
    for (const Record& r : e->records) {
      CHECK(r.state == State::kUnknown);
    }
  }
}

TEST_CASE("hook recorder: without completions a rank that never issued an operation is named") {
  for (const Backend& b : kSilent) {
    INFO(b.name << (b.retires_at_issue ? ", retired at issue" : ", never retired"));
    const Report hang = report_of(b, {40, 40, 39, 40}, 720, true);
    CHECK(hang.kind == Verdict::kMissing);
    CHECK(hang.ranks == std::vector<Rank>{2});
    CHECK(hang.confidence == Confidence::kLikely);
    // The very first operation of the job.
    const Report first = report_of(b, {2, 1, 2, 2}, 720, true);
    CHECK(first.kind == Verdict::kMissing);
    CHECK(first.ranks == std::vector<Rank>{1});
  }
}

TEST_CASE("hook recorder: without completions a job is never certainly ok") {
  for (const Backend& b : kSilent) {
    INFO(b.name << (b.retires_at_issue ? ", retired at issue" : ", never retired"));
    const Report moving = report_of(b, {40, 40, 39, 40}, 0.2, false);
    CHECK(moving.kind == Verdict::kOk);
    CHECK(moving.confidence == Confidence::kLikely);
    const Report ended = report_of(b, {40, 40, 40, 40}, 0.3, false);
    CHECK(ended.kind == Verdict::kOk);
    CHECK(ended.confidence == Confidence::kLikely);
    const Report resting = report_of(b, {40, 40, 40, 40}, 720, true);
    CHECK(resting.kind == Verdict::kUndecided);
  }
}

TEST_CASE("hook recorder: operations that another backend of the group ran are counted") {
  json d = hook_file(kNccl2, 5, false);
  d["entries"].erase(2);
  for (int i = 2; i < 4; ++i) {  // the recorder numbers what it records
    d["entries"][static_cast<std::size_t>(i)]["record_id"] = i;
    d["entries"][static_cast<std::size_t>(i)]["collective_seq_id"] = i + 1;
  }
  const auto e = load(d);
  CHECK(e->records.size() == 4);
  CHECK(e->holes.unrecorded == 1);
}

TEST_CASE("hook recorder: a file of what is in flight keeps it in flight") {
  json d = hook_file(kNccl2, 6, true);
  d["entries"] = json::array({d["entries"][5]});
  const auto e = load(d);
  CHECK(e->holes.only_active);
  CHECK_FALSE(e->holes.no_completions);
  REQUIRE(e->records.size() == 1);
  CHECK(e->records[0].state == State::kEnqueued);
  CHECK(e->groups[1].enqueued == 6);
}
