// The tables of libfr/format/README.md against format/schema.hpp and format/codes.hpp.
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "format/schema.hpp"

using namespace fr;

namespace {

// The text behind `name` at the beginning of a line of the page, with the indented lines below it.
std::string documented(const std::string& name) {
  std::ifstream in(FR_SOURCE_DIR "/libfr/format/README.md");
  std::string out;
  std::string line;
  bool is_within = false;
  while (std::getline(in, line)) {
    const bool is_rule = line.find("::=") != std::string::npos;  // of the grammar above the lists
    if (!is_rule && line.compare(0, name.size() + 1, name + " ") == 0) {
      is_within = true;
      line.erase(0, name.size());
    } else if (line.empty() || line[0] != ' ') {
      is_within = false;
    }
    std::istringstream words(is_within ? line : "");
    for (std::string word; words >> word;) {
      out += (out.empty() ? "" : " ") + word;
    }
  }
  return out;
}

template <class... C>
std::string names(const std::tuple<C...>& table) {
  std::string out;
  std::apply(
      [&](const auto&... c) { ((out += (out.empty() ? "" : " ") + std::string(c.name)), ...); },
      table);
  return out;
}

template <class Code, std::size_t N>
std::string words(const Word<Code> (&table)[N]) {
  std::string out;
  for (const Word<Code>& w : table) {
    out += (out.empty() ? "" : " ") + std::string(w.word);
  }
  return out;
}

template <class Code, std::size_t N>
void check_both_ways(const Word<Code> (&table)[N]) {
  for (const Word<Code>& w : table) {
    CAPTURE(w.word);
    CHECK(code<Code>(w.word) == w.code);
    CHECK(code<Code>(word(w.code)) == w.code);
  }
  CHECK(code<Code>("a word of a later version") == Code{});
}

}  // namespace

TEST_CASE(
    "schema: the grammar's page has the columns, keys and words of the code, in their order") {
  CHECK(documented("groups") == names(schema::kGroups));
  CHECK(documented("lanes") == names(schema::kLanes));
  CHECK(documented("records") == names(schema::kRecords));
  CHECK(documented("device.comms") == names(schema::kComms));
  CHECK(documented("device.operations") == names(schema::kOperations));
  CHECK(documented("device.phases") == names(schema::kPhases));

  CHECK(documented("deadlines") == names(schema::kDeadlines));
  CHECK(documented("identity") == names(schema::kIdentity));
  CHECK(documented("losses") == names(schema::kLosses));
  CHECK(documented("exit") == names(schema::kExit));
  CHECK(documented("peer") == names(schema::kPeer));
  CHECK(documented("device.losses") == names(schema::kDeviceLosses));
  CHECK(documented("device.losses.cuda") == names(schema::kCudaLosses));
  CHECK(documented("device.observer") == names(schema::kObserver));
  CHECK(documented("device.error") == names(schema::kCudaError));
  CHECK(documented("ras") == names(schema::kRas));
  CHECK(documented("nodes") == names(schema::kNodes));
  CHECK(documented("nodes.unanswered") == names(schema::kUnanswered));
  CHECK(documented("notes") == names(schema::kNotes));
  CHECK(documented("notes.threads") == names(schema::kThreadNotes));
  CHECK(documented("notes.threads.spans") == names(schema::kSpans));
  CHECK(documented("thread") == names(schema::kThreads));
  CHECK(documented("thread.variables") == names(schema::kFrameVariables));
  CHECK(documented("variable") == names(schema::kVariables));
  CHECK(documented("frame") == names(schema::kFrames));
  CHECK(documented("module") == names(schema::kModules));
  CHECK(documented("facts") == names(schema::kThreadFacts));
  CHECK(documented("child") == names(schema::kChildren));
  CHECK(documented("lock") == names(schema::kLocks));

  CHECK(documented("records.kind") == words(kKindWords));
  CHECK(documented("records.state") == words(kStateWords));
  CHECK(documented("operations.state") == words(kDeviceStateWords));
  CHECK(documented("phases.kind") == words(kPhaseKindWords));
  CHECK(documented("phases.waits_for") == words(kPhaseWaitWords));
  CHECK(documented("peer.state") == words(kPeerWords));
  CHECK(documented("trigger") == words(kTriggerWords));
  CHECK(documented("exit.state") == words(kExitWords));
  CHECK(documented("exit.kind") == words(kExitByWords));
  CHECK(documented("thread.activity") == words(kActivityWords));
  CHECK(documented("thread.gil") == words(kGilWords));
  CHECK(documented("thread.answer") == words(kAnswerWords));
  CHECK(documented("clock.kind") == words(kClockWords));
}

TEST_CASE("schema: codes and words lead to each other, what is not known to \"unknown\"") {
  check_both_ways(kKindWords);
  check_both_ways(kStateWords);
  check_both_ways(kDeviceStateWords);
  check_both_ways(kPhaseKindWords);
  check_both_ways(kPhaseWaitWords);
  check_both_ways(kPeerWords);
  check_both_ways(kSalvageWords);
  check_both_ways(kExitWords);
  check_both_ways(kGilWords);
  check_both_ways(kAnswerWords);
  check_both_ways(kClockWords);
  CHECK(std::string(dtype_name(dtype_code("BFloat16"))) == "BFloat16");
  CHECK(dtype_code("") == 0);
  CHECK(std::string(word(dump::Kind::kOther)) == "?");
}
