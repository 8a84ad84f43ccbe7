// NCCL's reports before a hang: in the watchdog's line, in the dump, after SIGKILL.
#include <signal.h>

#include "catch.hpp"
#include "nccl/abi.hpp"
#include "nccl/tracker/tracker.hpp"
#include "support.hpp"
#include "watch/ranks.hpp"

using namespace fr;
using namespace fr::test;

namespace {

// A collective with a kernel that runs on one of two channels, and a network that waits for rank 1.
void hang_in_the_network(bool starts) {
  using namespace fr::nccl;
  int mask = 0;
  const Handle context =
      plugin_init(6, 0xfeed, "", 1, 2, 0, &mask, kEvCollApi | kEvColl | kEvKernelCh | kEvProxyOp);
  Call call;
  call.func = Func::kAllReduce;
  call.count = 512;
  call.stream = reinterpret_cast<void*>(0x77);
  const Handle group = group_api_start(context, false);
  const Handle api = api_start(context, group, call);
  const Handle task = task_start(context, api, call, 2, "TREE", "LL128");
  nccl::stop(group);
  const Handle send = transfer_start(task, 0, 5, 1, 8, true);
  const Handle step = step_start(send, 3);
  nccl::state(step, kStStepSendPeerWait, 0, 0);
  if (starts) {
    kernel_start(task, 0, 1'000);
  }
  sleep_for_ever();
}

// The first row that is used, and a field of it by name.
Node cell(const Dump& d, const char* table, const char* field) {
  const Node t = d["device"][table];
  std::size_t column = 0;
  while (t["fields"][column].text() != field) {
    ++column;
  }
  for (std::size_t i = 0; i < t["rows"].size(); ++i) {
    if (!t["rows"][i].is_nil()) {
      return t["rows"][i][column];
    }
  }
  throw std::runtime_error("no row");
}

}  // namespace

TEST_CASE("nccl: a hang's dump has the operation, its channels and what its network waits for") {
  Scene scene;
  Child child = scene.start(0, kFast, [] {
    hang_in_the_network(true);
    return 0;
  });
  REQUIRE(eventually([&] { return exists(scene.dump_path(0, 1)); }));
  const Dump d = Dump::load(scene.dump_path(0, 1));
  const std::string reason = d["reason"].text();
  CAPTURE(reason);
  CHECK(reason.find("all_reduce #1 of nccl:000000000000feed") != std::string::npos);
  CHECK(
      reason.find("its kernel runs on 1 channel; channel 5 waits for rank 1 to take step 3 of 8") !=
      std::string::npos);
  CHECK(d["device"]["plugin_api"].natural() == 6);
  CHECK(cell(d, "comms", "hash").natural() == 0xfeed);
  CHECK(cell(d, "comms", "n_ranks").integer() == 2);
  CHECK(cell(d, "comms", "profiled").natural() == 1);
  CHECK(cell(d, "operations", "state").text() == "started");
  CHECK(cell(d, "operations", "stream").natural() == 0x77);
  CHECK(cell(d, "operations", "channels").natural() == 2);
  CHECK(cell(d, "operations", "channels_started").natural() == 1);
  CHECK(d.string(cell(d, "operations", "algorithm")) == "TREE");
  CHECK(d.string(cell(d, "operations", "protocol")) == "LL128");
  CHECK(cell(d, "operations", "ticket").natural() ==
        d.cell("records", d.rows("records") - 1, "ticket").natural());
  CHECK(cell(d, "phases", "kind").text() == "send");
  CHECK(cell(d, "phases", "waits_for").text() == "peer_credit");
  CHECK(cell(d, "phases", "peer").integer() == 1);
  CHECK(cell(d, "phases", "step").natural() == 3);
  CHECK(cell(d, "phases", "n_steps").natural() == 8);
  CHECK(cell(d, "phases", "live").natural() == 1);
  CHECK(d["device"]["losses"]["ops_lost"].natural() == 0);
}

TEST_CASE("nccl: launched and not started is said, too, a killed rank's ring has it all") {
  Scene scene;
  Child child = scene.start(0, {{"FR_WARN_S", "0.2"}, {"FR_TIMEOUT_S", "60"}}, [] {
    hang_in_the_network(false);
    return 0;
  });
  REQUIRE(eventually([&] { return scene.log(0).find("no progress") != std::string::npos; }));
  CHECK(scene.log(0).find("launched, its kernel does not run") != std::string::npos);
  child.kill(SIGKILL);
  child.wait();
  REQUIRE(scene.rings().size() == 1);
  const RingFile ring(scene.ring_dir() + "/" + scene.rings()[0]);
  REQUIRE(ring.view().ok());
  DeviceOpCopy op;
  bool found = false;
  for (u32 i = 0; i < ring.view().n_device_ops(); ++i) {
    found = found ||
            (ring.view().read_device_op(i, op) && op.launched_ticks != 0 && op.started_ticks == 0);
  }
  CHECK(found);
  PhaseCopy phase;
  found = false;
  for (u32 i = 0; i < ring.view().n_phases(); ++i) {
    found = found || (ring.view().read_phase(i, phase) && phase.wait() == Wait::kPeerCredit &&
                      phase.oldest_step() == 3);
  }
  CHECK(found);
}

TEST_CASE("nccl: without NCCL a dump says nothing of devices") {
  Scene scene;
  Child child = scene.start(0, kFast, [] {
    child_begin(child_group());
    sleep_for_ever();
    return 0;
  });
  REQUIRE(eventually([&] { return exists(scene.dump_path(0, 1)); }));
  CHECK(Dump::load(scene.dump_path(0, 1))["device"].is_nil());
}

TEST_CASE("nccl: every byte of a unique id counts in its hash") {
  char id[128] = {};
  const u64 zero = nccl::unique_id_hash(id, sizeof id);
  id[127] = 1;
  CHECK(nccl::unique_id_hash(id, sizeof id) != zero);
  id[127] = 0;
  CHECK(nccl::unique_id_hash(id, sizeof id) == zero);
}
