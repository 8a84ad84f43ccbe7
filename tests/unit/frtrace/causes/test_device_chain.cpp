// test_device_chain.cpp - what NCCL's view of devices and transfers decides: from the
// operation that hangs down to the link, the channel or the kernel.
#include <algorithm>
#include <set>

#include "catch.hpp"
#include "device_jobs.hpp"
#include "facts/facts.hpp"

using namespace frtest;

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
    CHECK(says(r, 2,
               "receive from rank 1: step 1 of 4 arrived, the kernel here does not consume it"));
    CHECK(has(r, "device", "rank 1: "));
    CHECK(has(r, "device", "send to rank 2: no free buffer at the receiver for step 1 of 4"));
  } else {
    // Its kernel may wait for its neighbour, over a link that is not recorded.
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
    const bool of_another = GENERATE(false, true);
    if (!of_another) {
      op.flags |= fr::kDevTransfersLost;
    }
    j.advance(20);
    CHECK(j.diagnose().ranks == (of_another ? Ranks{1} : Ranks{}));
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
               "launched 20.0 s ago, never started on its device; before it on stream 0x700 is "
               "a kernel that is no recorded operation, or the device has no room for it"));
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
  // Rank 2's stream is busy with a send to rank 3. Rank 3's stream is busy with an operation that
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
  CHECK(has(r, "device", "ranks 0-3: all_reduce #6 of default_pg launched 20.0 s ago"));
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
  // Rank 0's process carries the send of rank 1 to rank 2.
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

TEST_CASE("what was asked of NCCL says what silence means, not its version") {
  DeviceJob j = job(4);
  for (Rank r = 0; r < 4; ++r) {
    j.on_device(r, kWorld, kGrads, r == 2 ? DeviceState::kLaunched : DeviceState::kStarted);
    if (r != 2) {
      const int next = (r + 1) % 4;
      j.rank(r).device.operations.back().channels_started = 0;
      DeviceJob::Added{j.rank(r)}.send(next,
                                       next == 2 ? PhaseWait::kInFlight : PhaseWait::kOwnKernel);
    }
  }
  const bool asked = GENERATE(true, false);
  for (Rank r = 0; r < 4; ++r) {
    j.rank(r).device.events = asked ? 0x1fdf : 0x1f9f;
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.ranks == (asked ? Ranks{2} : Ranks{}));
}

TEST_CASE("a receive waits for what its sender has sent: between them it was lost") {
  DeviceJob j = job(4);
  j.issue(1, kWorld, to(kSend, 2), State::kCompleted);
  j.on_device(2, kWorld, to(kRecv, 1), DeviceState::kStarted).channels(1).recv(1, PhaseWait::kData);
  j.advance(20);
  const Report r = j.diagnose();
  REQUIRE(r.links.size() == 1);
  CHECK(r.links[0].from == 1);
  CHECK(r.links[0].to == 2);
}

TEST_CASE("a kernel that nobody owes anything and that does not end is its device's") {
  DeviceJob j = job(4, 4);
  const bool told = GENERATE(true, false);  // of kernels
  for (Rank r = 0; r < 4; ++r) {
    j.on_device(r, kWorld, kGrads, DeviceState::kStarted).channels(2, told ? 2 : 0);
    auto& op = j.rank(r).device.operations.back();
    op.transfers_started = 4;
    op.transfers_ended = r == 1 && GENERATE(false, true) ? 3 : 4;
    if (r != 1) {
      j.complete(r, kWorld, j.rank(r).records.size() - 1);
    }
  }
  const bool owed = j.rank(1).device.operations.back().transfers_ended == 3;
  j.advance(20);
  CHECK(j.diagnose().ranks == (owed ? Ranks{} : Ranks{1}));
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
