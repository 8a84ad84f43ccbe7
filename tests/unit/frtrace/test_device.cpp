// test_device.cpp - verdicts below the host: what NCCL's view of devices and transfers decides.
#include <algorithm>
#include <set>

#include "catch.hpp"
#include "device_builder.hpp"
#include "facts/facts.hpp"

using namespace frtest;

namespace {

const int kWorld = JobBuilder::kWorld;
const Op kGrads{.line = 30, .numel = 4096};
const Op kSub{.line = 40, .numel = 64};
const Op kSend{.op = "send", .line = 50, .reduce_op = "", .kind = Kind::kSend};
const Op kRecv{.op = "recv", .line = 51, .reduce_op = "", .kind = Kind::kRecv};
constexpr std::uint64_t kStream = 0x700, kOther = 0x900;

using Ranks = std::vector<Rank>;

bool says(const Report& r, Rank who, const std::string& part) {
  return std::any_of(r.blamed.begin(), r.blamed.end(),
                     [&](const Blamed& b) { return b.rank == who && frtest::says(b, part); });
}

Op to(const Op& op, int peer) {
  Op out = op;
  out.peer = peer;
  return out;
}

DeviceJob job(int world, std::uint32_t n_nodes = 0) {
  DeviceJob j(world);
  Ranks all;
  for (Rank r = 0; r < world; ++r) {
    all.push_back(r);
  }
  j.comm(kWorld, all, n_nodes);
  j.all(5, kWorld, kGrads);
  return j;
}

// What the devices say only ever makes an answer of a question: whoever is blamed without it, is
// blamed with it.
void check_weaker(const DeviceJob& j, const Report& with) {
  const std::set<Rank> blamed(with.ranks.begin(), with.ranks.end());
  for (const Rank r : j.without().ranks) {
    CHECK(blamed.contains(r));
  }
}

}  // namespace

TEST_CASE("the network between two ranks: transport, and the link") {
  DeviceJob j = job(4);
  j.ring(kWorld, {0, 1, 2, 3}, kGrads);
  const auto over = GENERATE("", "; over NIC 2, queue pair 7711");
  if (*over != '\0') {
    j.phase(1, PhaseKind::kSend).nic = 2;
    j.phase(1, PhaseKind::kSend).qp = 7711;
  }
  SECTION("what was sent does not come") {
    j.phase(1, PhaseKind::kSend).wait = PhaseWait::kInFlight;
  }
  SECTION("the room that was made is not learnt of") {
    j.phase(1, PhaseKind::kSend).wait = PhaseWait::kPeerCredit;
  }
  SECTION("and its own kernel is held by what it cannot send") {
    j.phase(1, PhaseKind::kSend).wait = PhaseWait::kInFlight;
    j.phase(1, PhaseKind::kRecv).wait = PhaseWait::kOwnKernelTakes;
    j.phase(0, PhaseKind::kSend).wait = PhaseWait::kPeerCredit;
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kTransport);
  CHECK(r.ranks.empty());
  CHECK(r.confidence == Confidence::kCertain);
  REQUIRE(r.links.size() == 1);
  CHECK(r.links[0].from == 1);
  CHECK(r.links[0].to == 2);
  CHECK(r.links[0].step == 1);
  CHECK(
      has(r, "link",
          "from rank 1 (host n0) to rank 2 (host n0): step 1 of 4, channel 0" + std::string(over)));
  CHECK(has(r, "device", "rank 2: all_reduce #6 of default_pg started 20.0 s ago, channel 0"));
  CHECK(r.summary == "all_reduce #6 of default_pg is stuck in the network, from rank 1 to rank 2");
  check_weaker(j, r);
}

TEST_CASE("transfers that were not kept name no link for sure") {
  DeviceJob j = job(4);
  j.ring(kWorld, {0, 1, 2, 3}, kGrads);
  j.phase(1, PhaseKind::kSend).wait = PhaseWait::kInFlight;
  j.rank(3).device.phases_lost = 2;
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kTransport);
  CHECK(r.confidence == Confidence::kLikely);
}

TEST_CASE("nothing is seen of the transfers: as without") {
  DeviceJob j = job(4);
  for (Rank r = 0; r < 4; ++r) {
    j.on_device(r, kWorld, kGrads, DeviceState::kStarted).channels(2);
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kTransport);
  CHECK(r.ranks.empty());
  CHECK(r.links.empty());
  CHECK(r.summary == j.without().summary);
  CHECK(r.confidence == Confidence::kLikely);
}

TEST_CASE("a kernel that takes nothing though it came is no network") {
  const bool alone = GENERATE(true, false);
  DeviceJob j = job(4, alone ? 0 : 2);
  j.ring(kWorld, {0, 1, 2, 3}, kGrads);
  j.phase(2, PhaseKind::kRecv).wait = PhaseWait::kOwnKernelTakes;
  j.phase(1, PhaseKind::kSend).wait = PhaseWait::kPeerCredit;
  j.advance(20);
  const Report r = j.diagnose();
  if (alone) {
    CHECK(r.kind == Verdict::kDevice);
    CHECK(r.ranks == Ranks{2});
    CHECK(r.blamed[0].why == "kernel_stands");
    CHECK(says(r, 2, "receive from rank 1: step 1 of 4 came, its own kernel does not take it"));
    CHECK(has(r, "device", "rank 1: "));
    CHECK(has(r, "device", "send to rank 2: no room there for step 1 of 4"));
  } else {
    // Its kernel may wait for its neighbour, over what is not seen.
    CHECK(r.kind == Verdict::kUndecided);
    CHECK(r.ranks.empty());
    CHECK(r.summary.find("the kernel of rank 2 runs") != std::string::npos);
  }
  check_weaker(j, r);
}

TEST_CASE("channels of a kernel that do not run") {
  DeviceJob j = job(3, 1);
  j.ring(kWorld, {0, 1, 2}, kGrads);
  DeviceOperation& op = j.rank(1).device.operations[0];
  op.channels = 2;
  j.phase(1, PhaseKind::kKernel).channel = 1;
  SECTION("they are known to be announced") {
    op.channels_started = 1;
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kDevice);
    CHECK(r.ranks == Ranks{1});
    CHECK(r.blamed[0].why == "channels_not_started");
  }
  SECTION("unless that was not kept") {
    op.channels_started = 1;
    j.rank(1).device.phases_lost = 1;
    j.advance(20);
    CHECK(j.diagnose().ranks.empty());
  }
  SECTION("or they have ended") {
    op.channels_started = 2;
    j.advance(20);
    CHECK(j.diagnose().ranks.empty());
  }
}

TEST_CASE("a network thread that does not begin") {
  DeviceJob j = job(3);
  j.ring(kWorld, {0, 1, 2}, kGrads);
  j.phase(1, PhaseKind::kSend).wait = PhaseWait::kPeerCredit;
  j.phase(2, PhaseKind::kRecv).wait = PhaseWait::kIdle;
  j.phase(2, PhaseKind::kSend).wait = PhaseWait::kIdle;
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kDevice);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.blamed[0].why == "network_thread");
  CHECK(r.confidence == Confidence::kLikely);
}

TEST_CASE("a device that does not start says how far it got") {
  DeviceJob j = job(4);
  const auto run = [&](DeviceState state) {
    for (const Rank r : {0, 1, 3}) {
      j.on_device(r, kWorld, kGrads, DeviceState::kStarted)
          .channels(1)
          .send((r + 1) % 4, PhaseWait::kPeerCredit)
          .recv((r + 3) % 4, PhaseWait::kData);
    }
    j.on_device(2, kWorld, kGrads, state);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kDevice);
    CHECK(r.ranks == Ranks{2});
    CHECK(has(r, "device", "rank 1: all_reduce #6 of default_pg started 20.0 s ago"));
    check_weaker(j, r);
    return r;
  };
  SECTION("on the stream") {
    const Report r = run(DeviceState::kLaunched);
    CHECK(r.blamed[0].why == "not_started");
    CHECK(says(r, 2,
               "launched 20.0 s ago, never started on its device; nothing that fr sees is "
               "before it on stream 0x700: a kernel of the user's"));
  }
  SECTION("in the launch") {
    const Report r = run(DeviceState::kLaunching);
    CHECK(r.blamed[0].why == "in_launch");
    CHECK(says(r, 2, "the host has been inside its launch for 20.0 s"));
    CHECK(r.summary.find("is in the launch of all_reduce #6") != std::string::npos);
  }
  SECTION("before it") {
    const Report r = run(DeviceState::kScheduled);
    CHECK(r.blamed[0].why == "never_launched");
    CHECK(r.summary.find("issued all_reduce #6 of default_pg and never launched it") !=
          std::string::npos);
  }
}

TEST_CASE("an operation behind a stuck one of another communicator is followed there") {
  // Rank 2's stream is busy with a send to rank 3, whose stream is busy with an operation that
  // rank 4's device never started.
  DeviceJob j(5);
  const int pp = j.group("pp", {2, 3}, "pp"), tp = j.group("tp", {3, 4}, "tp");
  j.comm(kWorld, {0, 1, 2, 3, 4});
  j.comm(pp, {2, 3});
  j.comm(tp, {3, 4});
  j.all(5, kWorld, kGrads);
  j.on_device(3, tp, kSub, DeviceState::kStarted)
      .channels(1)
      .send(1, PhaseWait::kPeerCredit)
      .recv(1, PhaseWait::kData);
  j.on_device(4, tp, kSub, DeviceState::kLaunched);
  j.advance(0.01);
  j.on_device(2, pp, to(kSend, 1), DeviceState::kStarted)
      .channels(2)
      .send(1, PhaseWait::kPeerCredit);
  j.on_device(3, pp, to(kRecv, 0), DeviceState::kLaunched);
  j.advance(0.01);
  for (const Rank r : {0, 1}) {
    j.on_device(r, kWorld, kGrads, DeviceState::kStarted).channels(1);
  }
  for (const Rank r : {2, 3, 4}) {
    j.on_device(r, kWorld, kGrads, DeviceState::kLaunched);
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kDevice);
  CHECK(r.ranks == Ranks{4});
  CHECK(r.blamed[0].desc == "tp");
  check_weaker(j, r);
}

TEST_CASE("what came first on the stream counts, not what was issued first") {
  // Issued in an open group of calls, so launched after what another thread launched meanwhile.
  DeviceJob j(4);
  const int dp = j.group("dp", {0, 1, 2}, "dp"), tp = j.group("tp", {2, 3}, "tp");
  j.comm(dp, {0, 1, 2});
  j.comm(tp, {2, 3});
  for (int i = 0; i < 5; ++i) {
    j.all(dp, kGrads);
    j.all(tp, kSub);
  }
  for (const Rank r : {0, 1}) {
    j.on_device(r, dp, kGrads, DeviceState::kStarted).channels(1);
  }
  j.on_device(2, dp, kGrads, DeviceState::kLaunched);
  j.rank(2).device.operations[0].launched += kSecond / 2;
  j.advance(0.1);
  for (const Rank r : {2, 3}) {
    j.on_device(r, tp, kSub, DeviceState::kStarted).channels(1);
  }
  j.advance(20);
  SECTION("on one stream") {
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kTransport);
    CHECK(r.ranks.empty());
    CHECK(r.summary.find("of tp") != std::string::npos);
  }
  SECTION("on two, nothing says so") {
    j.rank(2).device.operations[0].stream = kOther;
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kDevice);
    CHECK(r.ranks == Ranks{2});
  }
}

TEST_CASE("all launched and none started: nobody") {
  DeviceJob j = job(4);
  for (Rank r = 0; r < 4; ++r) {
    j.on_device(r, kWorld, kGrads, DeviceState::kLaunched);
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kUndecided);
  CHECK(r.ranks.empty());
  CHECK(has(r, "device", "rank 3: all_reduce #6 of default_pg launched 20.0 s ago"));
}

TEST_CASE("a rank that never issued it is missing, whatever the devices do") {
  DeviceJob j = job(4);
  for (const Rank r : {0, 1, 3}) {
    j.on_device(r, kWorld, kGrads, DeviceState::kStarted)
        .channels(1)
        .send((r + 1) % 4, PhaseWait::kPeerCredit)
        .recv((r + 3) % 4, PhaseWait::kData);
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.links.empty());
}

TEST_CASE("a message lost between two ranks") {
  DeviceJob j = job(3);
  j.on_device(0, kWorld, to(kSend, 1), DeviceState::kStarted)
      .channels(1)
      .send(1, PhaseWait::kInFlight, 2);
  j.on_device(1, kWorld, to(kRecv, 0), DeviceState::kStarted)
      .channels(1)
      .recv(0, PhaseWait::kData, 2);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kTransport);
  CHECK(r.ranks.empty());
  REQUIRE(r.links.size() == 1);
  CHECK(r.links[0].from == 0);
  CHECK(r.links[0].to == 1);
  check_weaker(j, r);
}

TEST_CASE("those whom a broken network keeps from finishing are not blamed") {
  // A broadcast that the root and the first have done.
  DeviceJob j = job(4);
  const Op broadcast{.op = "broadcast", .line = 60, .reduce_op = ""};
  j.some({0, 1}, kWorld, broadcast, State::kCompleted);
  j.on_device(2, kWorld, broadcast, DeviceState::kStarted)
      .channels(1)
      .recv(1, PhaseWait::kData, 3)
      .send(3, PhaseWait::kOwnKernel, 3);
  j.on_device(3, kWorld, broadcast, DeviceState::kStarted).channels(1).recv(2, PhaseWait::kData, 3);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kTransport);
  CHECK(r.ranks.empty());
  REQUIRE(r.links.size() == 1);
  CHECK(r.links[0].from == 1);
  CHECK(r.links[0].to == 2);
}

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
    nccl_error(j, 1, remote, 0.1);  // says of itself that it follows, whenever it came
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
  CHECK(has(r, "device", "rank 1: fr's own thread has been in cuEventQuery for 20.0 s"));
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

TEST_CASE("transfers that get on are no dead link") {
  DeviceJob j = job(4);
  j.ring(kWorld, {0, 1, 2, 3}, kGrads);
  j.phase(1, PhaseKind::kSend).wait = PhaseWait::kInFlight;
  const bool moves = GENERATE(true, false);
  j.advance(20);
  for (Rank r = 0; r < 4; ++r) {
    for (DevicePhase& p : j.rank(r).device.phases) {
      p.time = j.now() - (moves ? kSecond / 5 : 10 * kSecond);
    }
  }
  CHECK(j.diagnose().links.empty() == moves);
}

TEST_CASE("a transfer that another process of the node runs is followed") {
  DeviceJob j = job(4);
  j.ring(kWorld, {0, 1, 2, 3}, kGrads);
  j.rank(0).id.pid = 100, j.rank(1).id.pid = 101;  // of one node
  j.rank(0).device.process = 7, j.rank(1).device.process = 8;
  // What rank 1 sends to 2 goes through rank 0's process.
  std::vector<DevicePhase>& own = j.rank(1).device.phases;
  const auto send = std::find_if(own.begin(), own.end(),
                                 [](const DevicePhase& p) { return p.kind == PhaseKind::kSend; });
  CarriedPhase x{.phase = *send, .pid = 101, .process = 8, .generation = 3};
  x.phase.wait = PhaseWait::kInFlight;
  x.phase.has_record = false;
  own.erase(send);
  j.rank(1).device.operations.back().generation = 3;
  SECTION("known") {
    j.rank(0).device.carried = {x};
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kTransport);
    REQUIRE(r.links.size() == 1);
    CHECK(r.links[0].from == 1);
    CHECK(r.links[0].to == 2);
  }
  SECTION("of an operation whose row is another's by now, or of another process") {
    (GENERATE(true, false) ? x.generation : x.process) = 4;
    j.rank(0).device.carried = {x};
    j.advance(20);
    CHECK(j.diagnose().links.empty());
  }
}

TEST_CASE("a channel that never ran stands, also where no transfer waits for it") {
  DeviceJob j = job(4, 1);  // one node: nothing goes over the network
  for (Rank r = 0; r < 4; ++r) {
    j.on_device(r, kWorld, kGrads, DeviceState::kStarted).channels(r == 2 ? 1 : 2, 2);
  }
  const std::uint32_t api = GENERATE(6u, 3u);  // where it is a bound, nothing follows
  j.rank(2).device.plugin_api = api;
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.ranks == (api == 6 ? Ranks{2} : Ranks{}));
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

TEST_CASE("those who went on past what one still runs wait for it there") {
  // Rank 1 did not get what it needs of #6; the others are in #7 and wait for it.
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
  j.rank(0).written = j.now();  // before it issued what 1 waits in
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
