// Lines as PyTorch's NCCL watchdog prints them, 2.0 to 2.13.
#include <fmt/format.h>

#include "catch.hpp"
#include "input/other_tools/job_log.hpp"
#include "input/other_tools/settle.hpp"
#include "model/case.hpp"
#include "words/diagnose.hpp"

using namespace frtrace;

namespace {

constexpr Time kModified = 1'763'900'000 * kSecond;  // 2025-11-23

std::string timed_out(int rank, int seq, const char* op = "ALLREDUCE") {
  return fmt::format(
      "[rank{0}]:[E1123 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught "
      "collective operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=64, NumelOut=64, "
      "Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n",
      rank, seq, op);
}
std::string failed(int rank, int seq, int enqueued, const char* group = "0 PG GUID 0(default_pg)") {
  return fmt::format(
      "[rank{0}]:[E1123 02:07:08.465150152 ProcessGroupNCCL.cpp:2168] [PG ID {3} Rank {0}]  "
      "failure detected by watchdog at work sequence id: {1} PG status: last enqueued work: {2}, "
      "last completed work: {4}\n",
      rank, seq, enqueued, group, seq - 1);
}
std::string signalled(int rank, int enqueued, int completed) {
  return fmt::format(
      "[rank{0}]:[E1123 02:07:08.118859045 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID "
      "0(default_pg) Rank {0}] Received a dump signal due to a collective timeout from  rank 3 and "
      "we will try our best to dump the debug info. Last enqueued NCCL work: {1}, last completed "
      "NCCL work: {2}.This is most likely\n",
      rank, enqueued, completed);
}

std::vector<std::unique_ptr<RankEvidence>> read(const std::string& log) {
  const std::span bytes(reinterpret_cast<const unsigned char*>(log.data()), log.size());
  auto all = is_job_log(bytes) ? load_job_log(bytes, kModified)
                               : std::vector<std::unique_ptr<RankEvidence>>();
  for (const auto& e : all) {
    e->file = "run7/job.log";
  }
  settle_tools(all);
  return all;
}

Report verdict(const std::string& log) {
  static std::vector<std::unique_ptr<RankEvidence>> all;
  static std::vector<Case> cases;
  all = read(log);
  cases = make_cases(all, {});
  REQUIRE(cases.size() == 1);
  return diagnose(cases.front());
}

}  // namespace

TEST_CASE("job log: who is one behind by the monitor's words has not come") {
  const Report r = verdict("step 3\n" + timed_out(0, 41) + failed(0, 41, 43) + timed_out(3, 41) +
                           failed(3, 41, 41) + signalled(1, 43, 40) + signalled(2, 40, 40));
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == std::vector<Rank>{2});
  CHECK(r.confidence == Confidence::kLikely);
  CHECK(r.job == "run7");
  CHECK(r.summary.find("rank 2 never issued all_reduce #41 of default_pg") == 0);
}

TEST_CASE("job log: a rank that the log does not name is not blamed") {
  const Report r = verdict(timed_out(0, 41) + failed(0, 41, 43) + timed_out(3, 41) +
                           failed(3, 41, 43) + timed_out(1, 41) + failed(1, 41, 43));
  CHECK(r.kind == Verdict::kUndecided);
  CHECK(r.ranks.empty());
}

TEST_CASE("job log: where all wait in the same operation nobody is named") {
  std::string log;
  for (int rank = 0; rank < 4; ++rank) {
    log += timed_out(rank, 5) + failed(rank, 5, 7);
  }
  CHECK(verdict(log).ranks.empty());
  CHECK(verdict(log).kind != Verdict::kOk);
}

TEST_CASE("job log: wording before 2.2, and of 2.4") {
  const Report old = verdict(
      "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: "
      "WorkNCCL(SeqNum=469508, OpType=_ALLGATHER_BASE, Timeout(ms)=1800000) ran for 1802212 "
      "milliseconds before timing out.\n"
      "\t   - [0] finished collective #469507, but didn't join collective #469508 (count from "
      "1)\n");
  CHECK(old.kind == Verdict::kMissing);
  CHECK(old.ranks == std::vector<Rank>{0});
  CHECK(old.summary.find("all_gather_into_tensor #469508") != std::string::npos);
  const auto all = read(
      timed_out(0, 1580) +
      "[rank0]:[E321 02:07:08.465150152 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Exception (either "
      "an error or timeout) detected by watchdog at work: 1580, last enqueued NCCL work: 1582, "
      "last "
      "completed NCCL work: 1579.\n");
  REQUIRE(all.size() == 1);
  REQUIRE(all[0]->groups.size() == 2);
  CHECK(all[0]->text(all[0]->groups[1].name) == "1");
  CHECK(all[0]->groups[1].enqueued == 1582);
  CHECK(all[0]->groups[1].completed == 1579);
}

TEST_CASE("job log: stacks of the failed collective are the place of the wait") {
  const Report r =
      verdict(timed_out(0, 7) + failed(0, 7, 7) +
              "[rank0]:[E1123 02:07:08.46 ProcessGroupNCCL.cpp:667] Stack trace of the failed "
              "collective: \n"
              "#0 all_reduce from /x/site-packages/torch/distributed/distributed_c10d.py:2968\n"
              "#1 step from /home/u/train.py:91\n\n" +
              signalled(1, 6, 6));
  CHECK(r.ranks == std::vector<Rank>{1});
  REQUIRE(r.waiting.size() == 1);
  CHECK(r.waiting[0].site.line == 91);
  CHECK(r.waiting[0].site.function == "step");
  CHECK(static_cast<int>(r.waiting[0].seconds) == 600);
}

TEST_CASE("job log: groups of part of the ranks are kept apart") {
  const auto all =
      read(timed_out(9, 7) + failed(9, 7, 9, "5 PG GUID 37(TENSOR_MODEL_PARALLEL_GROUP)"));
  REQUIRE(all.size() == 1);
  CHECK(all[0]->id.rank == 9);
  CHECK(all[0]->text(all[0]->groups.back().name) == "37");
  CHECK(all[0]->text(all[0]->groups.back().desc) == "TENSOR_MODEL_PARALLEL_GROUP");
  CHECK(all[0]->groups.back().ranks.empty());
}

TEST_CASE("job log: numbers that are none, and ranks that cannot be") {
  CHECK(read("[rank99999999]: [Rank 99999999] Watchdog caught collective operation timeout: "
             "WorkNCCL(SeqNum=x, OpType=, NumelIn=")
            .empty());
  CHECK_FALSE(
      read("[rank0]: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=-"
           "9, OpType=\x01, Timeout(ms)=99999999999999999999) ran for -5\n[0,-3,x] finished "
           "collective #99999999999999999999, but didn't join collective #5")
          .empty());
}
