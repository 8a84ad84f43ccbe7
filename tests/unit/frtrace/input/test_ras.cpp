// The answers of NCCL's RAS service, as lines of the report. They are invented, in its formats.
#include "builder.hpp"
#include "catch.hpp"
#include "input/fr/ras.hpp"
#include "input/other_tools/settle.hpp"
#include "model/case.hpp"
#include "words/diagnose.hpp"

using namespace frtest;

namespace {

using Lines = std::vector<std::string>;

std::string json_rank(int rank, int all_reduces, const char* flags = "", int async_error = 0,
                      int init_state = 0) {
  return "{\"rank\": " + std::to_string(rank) +
         ", \"status\": {\"init_state\": " + std::to_string(init_state) +
         ", \"async_error\": " + std::to_string(async_error) + flags +
         "}, \"collective_counts\": {\"Broadcast\": 1, \"AllReduce\": " +
         std::to_string(all_reduces) + "}}";
}

RasEvidence ras_json(const std::string& ranks, const std::string& missing = "", int timeouts = 0) {
  RasEvidence e;
  e.asked = true;
  e.format = "json";
  e.answer = "{\"communicators\": [{\"hash\": \"0xabc\", \"ranks\": [" + ranks +
             "], \"missing_ranks\": [" + missing +
             "]}], \"ras\": {\"collection_time_sec\": 0.1, \"timeouts_count\": " +
             std::to_string(timeouts) + "}}";
  return e;
}

RasEvidence text(const std::string& answer) {
  RasEvidence e;
  e.asked = true;
  e.format = "text";
  e.answer = answer;
  return e;
}

}  // namespace

TEST_CASE("ras: where all agree there is nothing to say") {
  CHECK(ras_lines(ras_json(json_rank(0, 5) + "," + json_rank(1, 5))).empty());
  CHECK(ras_lines(text("NCCL version 2.27.7\n\nErrors\n======\n\nWarnings\n========\n\n")).empty());
  CHECK(ras_lines({}).empty());
}

TEST_CASE("ras: operation counts that differ, the most first") {
  CHECK(ras_lines(ras_json(json_rank(0, 45) + "," + json_rank(1, 44) + "," + json_rank(2, 45))) ==
        Lines{"communicator abc: AllReduce operations launched: ranks 0,2: 45; rank 1: 44"});
}

TEST_CASE("ras: states, errors and ranks that do not answer") {
  const auto lines = ras_lines(
      ras_json(json_rank(0, 1, "", 0, 7) + "," + json_rank(1, 1, ", \"abort_flag\": true", 6),
               "{\"rank\": 2, \"status\": {\"unresponsive\": true, \"considered_dead\": false}},"
               "{\"rank\": 3, \"status\": {\"unresponsive\": true, \"considered_dead\": true}},"
               "{\"rank\": 4, \"status\": {\"unresponsive\": false, \"considered_dead\": false}}",
               1));
  CHECK(lines == Lines{"communicator abc: rank 2: no answer; rank 4: not a member any more; rank "
                       "3: taken for dead",
                       "communicator abc: asynchronous rank 1: error 6",
                       "communicator abc: state: rank 1: ABORT; rank 0: INIT",
                       "1 timeouts while it gathered this"});
}

TEST_CASE("ras: of text, what stands under Errors and Warnings") {
  CHECK(ras_lines(text("Group  Comms\n    0      1\n\nErrors\n======\n\nDEAD\n  1 job process is "
                       "considered dead\n\nWarnings\n========\n\n#0-0 (0123) MISMATCH\n  "
                       "Communicator ranks have different AllReduce operation counts\n  Rank 1 has "
                       "launched up to operation 44\n")) ==
        Lines{"DEAD: 1 job process is considered dead",
              "#0-0 (0123) MISMATCH: Communicator ranks have different AllReduce operation counts",
              "#0-0 (0123) MISMATCH: Rank 1 has launched up to operation 44"});
}

TEST_CASE("ras: garbage of any kind is survived, and not silent where it was to be JSON") {
  RasEvidence e = ras_json("");
  for (const char* answer :
       {"", "[]", "7", "{\"communicators\": 7}", "{\"communicators\": [null, [1]]}",
        "{\"communicators\": [{\"ranks\": {\"a\": 1}, \"hash\": 5}]}"}) {
    e.answer = answer;
    CHECK_NOTHROW(ras_lines(e));
  }
  e.answer = "{\"communicators\": [{";
  CHECK(ras_lines(e) == Lines{"the answer is not whole and was not read"});
  std::string many = "Errors\n======\nX\n";
  for (int i = 0; i < 100; ++i) {
    many += "  line\n";
  }
  CHECK(ras_lines(text(many)).size() == 12);
}

TEST_CASE("ras: it is shown beside the verdict and does not change it") {
  JobBuilder j(3);
  j.all(JobBuilder::kWorld, {.line = 20});
  j.some({0, 1}, JobBuilder::kWorld, {.line = 20});
  j.advance(12.4);
  j.rank(0).ras.asked = true;
  j.rank(0).ras.address = "localhost:28028";
  j.rank(0).ras.error = "no answer";
  const Report silent = j.diagnose();
  CHECK(silent.kind == Verdict::kMissing);
  const auto ras_of = [](const Report& r) {
    std::string out;
    for (const Finding& f : r.findings) {
      out += f.id == "ras" ? f.text + "\n" : "";
    }
    return out;
  };
  CHECK(ras_of(silent) == "NCCL's RAS at localhost:28028 did not answer: no answer\n");
}

TEST_CASE("ras: a file alone decides nothing, and its counts are shown") {
  const std::string file = "{\"communicators\": [{\"hash\": \"0xabc\", \"size\": 3, \"ranks\": [" +
                           json_rank(0, 45) + "," + json_rank(1, 44) + "," + json_rank(2, 45) +
                           "]}]}";
  auto all = load_ras({reinterpret_cast<const unsigned char*>(file.data()), file.size()});
  REQUIRE(all.size() == 3);
  for (const auto& e : all) {
    e->file = "run/ras.json";
  }
  settle_tools(all);
  const std::vector<Case> cases = make_cases(all, {});
  REQUIRE(cases.size() == 1);
  const Report r = diagnose(cases[0]);
  CHECK(r.kind == Verdict::kUndecided);
  const auto is_count = [](const Finding& f) {
    return f.text.find("AllReduce operations launched: ranks 0,2: 45; rank 1: 44") !=
           std::string::npos;
  };
  CHECK(std::any_of(r.findings.begin(), r.findings.end(), is_count));
}

TEST_CASE("ras: a file that is none") {
  for (const std::string file : {"{}", "{\"communicators\": 3}", "{\"communicators\": [{}]}",
                                 "{\"communicators\": [{\"ranks\": [{\"rank\": -5}]}]}", "["}) {
    CHECK(load_ras({reinterpret_cast<const unsigned char*>(file.data()), file.size()}).empty());
  }
}
