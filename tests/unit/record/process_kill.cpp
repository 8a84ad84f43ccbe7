// SIGKILL leaves a readable ring; tests/stress does it at any instant.
#include <signal.h>
#include <unistd.h>

#include "catch.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("kill: SIGKILL leaves a readable ring") {
  Scene scene;
  Child child = scene.start(3, {}, [&] {
    const fr_group_t g = child_group("0", 3, 4);
    for (int i = 0; i < 500; ++i) {
      const fr_ticket t = child_begin(g);
      fr_end(&t, FR_OK, nullptr);
    }
    child_begin(g, "broadcast");
    scene.board.cell[0] = 1;
    sleep_for_ever();
    return 0;
  });
  REQUIRE(scene.reached(0, 1));
  child.kill(SIGKILL);
  CHECK(child.wait().signal == SIGKILL);
  REQUIRE(scene.rings().size() == 1);
  CHECK(scene.rings()[0] == "job.a0.r3." + std::to_string(child.pid()) + ".ring");
  const RingFile ring(scene.ring_dir() + "/" + scene.rings()[0]);
  REQUIRE(ring.view().ok());
  const Header& h = ring.view().header();
  CHECK(h.rank.load() == 3);
  CHECK(h.pid == child.pid());
  CHECK(std::string(h.job) == "job");
  CHECK(h.exit.state.load() == kRunning);
  const GroupRow& g = *ring.view().group(1);
  CHECK((g.issued.load() & kSeqMask) == 501);
  CHECK(g.completed_seq.load() == 500);
  CHECK(ring.view().string(g.desc) == "default_pg");
  u32 whole = 0;
  RecordCopy r;
  for (u32 slot = 0; slot < ring.view().n_slots(); ++slot) {
    const Slot found = ring.view().read(slot, r);
    CHECK(found != Slot::kTorn);
    whole += found == Slot::kWhole ? 1 : 0;
  }
  CHECK(whole >= 502);
}
