// test_device_errors.cpp - errors of devices, and what must not be concluded from devices
// that were not seen.
#include <algorithm>
#include <set>

#include "catch.hpp"
#include "device_jobs.hpp"
#include "facts/facts.hpp"

using namespace frtest;

// ---------------------------------------------------------------- errors

namespace {

void cuda_error(DeviceJob& j, Rank r, double after_s) {
  DeviceFailure& f = j.rank(r).device.failure;
  f.present = true;
  f.code = 700;
  f.name = "CUDA_ERROR_ILLEGAL_ADDRESS";
  f.text = "an illegal memory access was encountered";
  f.time = j.now() + static_cast<Time>(after_s * 1e9);
  f.has_record = true;
  f.ticket = j.rank(r).records.back().ticket;
}

void nccl_error(DeviceJob& j, Rank r, const std::string& text, double after_s) {
  Record& record = j.rank(r).records.back();
  record.state = State::kFailed;
  record.ended = j.now() + static_cast<Time>(after_s * 1e9);
  record.error = JobBuilder::intern(j.rank(r), text);
  CommEvidence& c = j.rank(r).device.comms[1];
  c.error = record.error;
  c.error_time = record.ended;
}

}  // namespace

TEST_CASE("the first asynchronous error is the cause, later ones follow") {
  DeviceJob j = job(4);
  for (Rank r = 0; r < 4; ++r) {
    j.on_device(r, kWorld, kGrads, DeviceState::kStarted).channels(1);
  }
  const std::string remote =
      "asynchronous error: remote process exited or there was a network error (6)";
  SECTION("of CUDA") {
    cuda_error(j, 2, 0.5);
    nccl_error(j, 1, remote, 0.1);  // a consequence by its own text, whatever its time
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kDevice);
    CHECK(r.ranks == Ranks{2});
    CHECK(r.blamed[0].why == "cuda_error");
    CHECK(r.blamed[0].seq == 6);
    CHECK(r.blamed[0].site.line == 30);
    CHECK(says(r, 2, "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"));
    CHECK(has(r, "error", "rank 1: asynchronous error: remote process exited"));
    check_weaker(j, r);
  }
  SECTION("two of one clock") {
    cuda_error(j, 2, 0.5);
    cuda_error(j, 0, 0.1);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.ranks == Ranks{0});
    CHECK(r.confidence == Confidence::kCertain);
    CHECK(has(r, "error", "rank 2: CUDA_ERROR_ILLEGAL_ADDRESS"));
  }
  SECTION("two at once") {
    cuda_error(j, 2, 0.11);
    cuda_error(j, 0, 0.1);
    j.rank(2).id.host = "n1";
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.ranks == Ranks{0, 2});
    CHECK(r.confidence == Confidence::kLikely);
  }
  SECTION("two whose clocks nothing compares") {
    cuda_error(j, 2, 0.5);
    cuda_error(j, 0, 0.1);
    j.rank(2).id.host = "n1";
    for (Record& record : j.rank(2).records) {
      record.ended = 0;
    }
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kUndecided);
    CHECK(r.ranks.empty());
    CHECK(r.summary.find("ranks 0,2") != std::string::npos);
  }
  SECTION("of NCCL") {
    nccl_error(j, 3, "asynchronous error: unhandled cuda error (1)", 0.5);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kDevice);
    CHECK(r.ranks == Ranks{3});
    CHECK(r.blamed[0].why == "nccl_error");
    check_weaker(j, r);
  }
  SECTION("only of those who lost somebody: nobody is named") {
    nccl_error(j, 3, remote, 0.5);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.ranks.empty());
    CHECK(has(r, "error", "rank 3: asynchronous error: remote process exited"));
  }
}

TEST_CASE("clocks of two hosts are compared by what ended on both") {
  DeviceJob j(2);
  j.comm(kWorld, {0, 1});
  j.all(20, kWorld, kGrads);
  for (Rank r = 0; r < 2; ++r) {
    j.on_device(r, kWorld, kGrads, DeviceState::kStarted).channels(1);
  }
  // Rank 1's clock is two seconds ahead: its error came first.
  cuda_error(j, 0, 0.5);
  cuda_error(j, 1, 0.1);
  constexpr Time kAhead = 2 * kSecond;
  for (Record& r : j.rank(1).records) {
    r.time += kAhead;
    r.ended += r.ended != 0 ? kAhead : 0;
  }
  j.rank(1).device.failure.time += kAhead;
  j.rank(1).id.host = "n1";
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.ranks == Ranks{1});
}

TEST_CASE("an error where nobody waits for it explains nothing") {
  DeviceJob j = job(4);
  for (const Rank r : {0, 1, 3}) {
    j.on_device(r, kWorld, kGrads, DeviceState::kStarted).channels(1);
  }
  cuda_error(j, 1, -2);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
  CHECK(has(r, "error", "rank 1: CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST_CASE("an error of a communicator that was given up is past") {
  DeviceJob j = job(2);
  for (Rank r = 0; r < 2; ++r) {
    j.on_device(r, kWorld, kGrads, DeviceState::kStarted).channels(1);
  }
  CommEvidence& c = j.rank(1).device.comms.emplace_back(j.rank(1).device.comms[1]);
  c.hash = 0x999;
  c.ended = true;
  c.error = JobBuilder::intern(j.rank(1), "asynchronous error: unhandled system error (2)");
  c.error_time = j.now();
  j.advance(20);
  CHECK(j.diagnose().ranks.empty());
}

TEST_CASE("a CUDA call that does not return is told") {
  DeviceJob j = job(4);
  for (Rank r = 0; r < 4; ++r) {
    j.on_device(r, kWorld, kGrads, r == 1 ? DeviceState::kLaunched : DeviceState::kStarted)
        .channels(r == 1 ? 0 : 1);
  }
  j.rank(1).device.observer_call = "cuEventQuery";
  j.rank(1).device.observer_since = j.now();
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.ranks == Ranks{1});
  CHECK(has(r, "device", "rank 1: the recorder's own thread has been in cuEventQuery for 20.0 s"));
}

// ---------------------------------------------------------------- groups

TEST_CASE("communicators without a list of members are placed by their own ranks") {
  DeviceJob j(4);
  const int odd = j.group("nccl:7", {3, 1}, "");
  for (const Rank r : {1, 3}) {
    j.row(r, odd).ranks.clear();
  }
  const auto ranks_of = [](const auto& evidence) {
    const std::vector<Case> cases = make_cases(evidence, {});
    for (const Group& g : cases.at(0).groups) {
      if (g.name == "nccl:7") {
        return std::pair(g.ranks, g.ranks_known);
      }
    }
    return std::pair(Ranks{}, false);
  };
  SECTION("all of whom are there") {
    CHECK(ranks_of(j.take()) == std::pair(Ranks{3, 1}, true));
  }
  SECTION("of whom one is not") {
    j.lose_file(3);
    CHECK(ranks_of(j.take()) == std::pair(Ranks{1}, false));
  }
  SECTION("or two say the same: two groups of one name") {
    j.row(3, odd).own_rank = 1;
    CHECK_FALSE(ranks_of(j.take()).second);
  }
}

TEST_CASE("a communicator of the whole world in another order") {
  DeviceJob j(3);
  const int g = j.group("nccl:7", {2, 1, 0}, "");
  for (Rank r = 0; r < 3; ++r) {
    j.row(r, g).ranks.clear();
  }
  j.lose_file(1);
  const auto evidence = j.take();
  const std::vector<Case> cases = make_cases(evidence, {});
  for (const Group& group : cases.at(0).groups) {
    if (group.name == "nccl:7") {
      CHECK_FALSE(group.ranks_known);  // not 0, 1, 2
    }
  }
}

TEST_CASE("a communicator is known by the process group that it works for") {
  DeviceJob j(4);
  const int tp = j.group("7", {1, 3}, "tensor parallel"), raw = j.group("nccl:7", {1, 3}, "");
  j.comm(tp, {1, 3});
  for (const Rank r : {1, 3}) {
    j.row(r, raw).ranks.clear();
    j.rank(r).device.comms[1].group =
        static_cast<std::uint32_t>(&j.row(r, raw) - j.rank(r).groups.data());
  }
  j.lose_file(3);
  const auto evidence = j.take();
  const std::vector<Case> cases = make_cases(evidence, {});
  const auto g = std::find_if(cases[0].groups.begin(), cases[0].groups.end(),
                              [](const Group& x) { return x.name == "nccl:7"; });
  REQUIRE(g != cases[0].groups.end());
  CHECK(g->ranks == Ranks{1, 3});
  CHECK(g->title() == "tensor parallel");
}

TEST_CASE("one whose device is seen, among others that are not, is not blamed for it") {
  DeviceJob j = job(4);
  j.some({0, 1, 3}, kWorld, kGrads);
  j.on_device(2, kWorld, kGrads, DeviceState::kLaunched);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kUndecided);
  CHECK(r.ranks.empty());
}

TEST_CASE("a device that was looked at when the others had just started is not late") {
  DeviceJob j = job(4);
  for (Rank r = 0; r < 4; ++r) {
    j.on_device(r, kWorld, kGrads, r == 2 ? DeviceState::kLaunched : DeviceState::kStarted);
  }
  j.advance(20);
  const bool just = GENERATE(true, false);
  for (const Rank r : {0, 1, 3}) {
    j.rank(r).records.back().started = j.now() - (just ? kSecond / 10 : 10 * kSecond);
  }
  CHECK(j.diagnose().ranks == (just ? Ranks{} : Ranks{2}));
}

TEST_CASE("where kernels are not told, launched does not mean that it did not start") {
  DeviceJob j = job(4);
  j.ring(kWorld, {0, 1, 2, 3}, kGrads);
  j.rank(2).device.plugin_api = GENERATE(2u, 6u);
  const bool told = j.rank(2).device.plugin_api == 6;
  DeviceOperation& o = j.rank(2).device.operations.back();
  o.state = DeviceState::kLaunched;
  o.started = 0;
  j.rank(2).records.back().state = State::kEnqueued;
  std::erase_if(j.rank(2).device.phases,
                [](const DevicePhase& p) { return p.kind == PhaseKind::kKernel; });
  j.advance(20);
  CHECK(j.diagnose().ranks == (told ? Ranks{2} : Ranks{}));
}

TEST_CASE("one that runs what all others have finished may be owed something") {
  DeviceJob j(4);
  j.all(5, kWorld, kGrads);
  j.some({0, 1, 3}, kWorld, kGrads, State::kCompleted);
  j.issue(2, kWorld, kGrads, State::kStarted);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kUndecided);
  CHECK(r.summary.find("rank 2") != std::string::npos);
}

TEST_CASE("what all started may have two roots, where no file records them") {
  const int root = GENERATE(-1, 0);
  DeviceJob j(4);
  j.all(5, kWorld, kGrads);
  for (Rank r = 0; r < 4; ++r) {
    j.issue(r, kWorld, {.op = "broadcast", .line = 40, .peer = root}, State::kStarted);
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kTransport);
  CHECK(r.confidence == (root < 0 ? Confidence::kPossible : Confidence::kLikely));
}

TEST_CASE("those who went on past what one still runs wait for it there") {
  // Rank 1 did not get the data that it needs for #6; the others are in #7 and wait for it.
  DeviceJob j = job(3);
  j.some({0, 2}, kWorld, kGrads, State::kCompleted);
  j.on_device(1, kWorld, kGrads, DeviceState::kStarted).channels(1).recv(0, PhaseWait::kData, 3);
  for (const Rank r : {0, 2}) {
    j.on_device(r, kWorld, kGrads, DeviceState::kStarted)
        .channels(1)
        .send((r + 1) % 3, PhaseWait::kOwnKernel)
        .recv((r + 2) % 3, PhaseWait::kData);
  }
  j.on_device(1, kWorld, kGrads, DeviceState::kLaunched);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kTransport);
  REQUIRE(r.links.size() == 1);
  CHECK(r.links[0].from == 0);
  CHECK(r.links[0].to == 1);
}

TEST_CASE("a rank without a file that gave or took something did come") {
  DeviceJob j = job(4);
  j.ring(kWorld, {0, 1, 2, 3}, kGrads);
  const bool moved = GENERATE(true, false);
  for (const Rank r : {1, 3}) {  // the neighbours of rank 2
    j.phase(r, r == 1 ? PhaseKind::kSend : PhaseKind::kRecv).step = moved ? 1 : 0;
  }
  j.advance(20);
  j.lose_file(2);
  const Report r = j.diagnose();
  CHECK(r.kind == (moved ? Verdict::kUndecided : Verdict::kExited));
  CHECK(r.ranks == (moved ? Ranks{} : Ranks{2}));
}

TEST_CASE("who waits for a rank that was looked at too early did not stay away elsewhere") {
  JobBuilder j(3);
  const int pair = j.group("1", {0, 1});
  j.all(3, kWorld, kGrads), j.all(3, pair, kSub);
  j.rank(0).written = j.now();  // before it issued the operation that rank 1 waits in
  j.issue(1, pair, kSub, State::kStarted);
  j.issue(2, kWorld, kGrads, State::kStarted);  // to which 1 comes after that
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kUndecided);
  CHECK(r.ranks.empty());
}

TEST_CASE("what NCCL lets go of unseen on most ranks still stands on those that it tells of") {
  DeviceJob j = job(4);
  j.ring(kWorld, {0, 1, 2, 3}, kGrads);
  j.phase(1, PhaseKind::kSend).wait = PhaseWait::kInFlight;
  for (const Rank r : {0, 3}) {
    j.rank(r).records.back().state = State::kReleased;
    j.rank(r).device.operations.clear();
    j.rank(r).device.phases.clear();
    ++j.row(r, kWorld).released;
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kTransport);
  REQUIRE(r.links.size() == 1);
  CHECK(r.links[0].from == 1);
  CHECK(r.links[0].to == 2);
}
