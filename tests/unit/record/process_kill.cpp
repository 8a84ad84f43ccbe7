// SIGKILL at any instant: the ring is readable, and what reads as whole is whole.
#include <signal.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "catch.hpp"
#include "format/hash.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

// An operation whose members depend on each other.
void record_checked(fr_group_t group, u64 value) {
  fr_op op = make_op(group);
  u32 shape[40];
  for (u32 i = 0; i < 40; ++i) {
    shape[i] = static_cast<u32>(value + i);
  }
  op.in_numel = value;
  op.out_numel = mix(7, value);
  op.timeout_ms = static_cast<u32>(mix(8, value));
  op.peer = static_cast<i32>(value & 0xffff);
  op.shape = shape;
  op.n_shape = value % 2 == 0 ? 6 : 40;
  fr_ticket t;
  fr_begin(&op, &t);
  fr_end(&t, FR_OK, nullptr);
}

bool is_whole(const RecordCopy& r) {
  const u64 value = r.payload.in_numel;
  if (r.payload.out_numel != mix(7, value) ||
      r.payload.timeout_ms != static_cast<u32>(mix(8, value)) ||
      r.payload.peer != static_cast<i32>(value & 0xffff) ||
      r.payload.n_shape != (value % 2 == 0 ? 6 : 40)) {
    return false;
  }
  for (u32 i = 0; r.shape != nullptr && i < r.n_shape; ++i) {
    if (r.shape[i] != static_cast<u32>(value + i)) {
      return false;
    }
  }
  return !r.shape_lost || r.payload.n_shape > kInlineWords;
}

struct Count {
  u32 whole = 0;
  u32 torn = 0;
  u32 wrong = 0;
};

Count read_ring(const View& view) {
  Count c;
  RecordCopy r;
  for (u32 slot = 0; slot < view.n_slots(); ++slot) {
    switch (view.read(slot, r)) {
      case Slot::kWhole:
        ++c.whole;
        c.wrong += r.payload.kind == FR_COLLECTIVE && !is_whole(r) ? 1 : 0;
        break;
      case Slot::kTorn:
        ++c.torn;
        break;
      case Slot::kEmpty:
        break;
    }
  }
  return c;
}

}  // namespace

TEST_CASE("kill: SIGKILL leaves a readable ring") {
  Scene scene;
  Child child = scene.start(3, {}, [&] {
    const fr_group_t g = child_group("0", 3, 4);
    for (u64 i = 0; i < 500; ++i) {
      record_checked(g, i);
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
  const Count c = read_ring(ring.view());
  CHECK(c.torn == 0);
  CHECK(c.wrong == 1);  // the broadcast has no check sum
  CHECK(c.whole >= 502);
}

TEST_CASE("kill: at fifty random instants, nothing torn reads as whole") {
  std::mt19937 random(50);
  u32 torn = 0;
  u64 whole = 0;
  for (int round = 0; round < 50; ++round) {
    Scene scene;
    Child child = scene.start(0, {{"FR_BUFFER_SIZE", "256"}}, [&] {
      const fr_group_t g = child_group();
      const auto record = [&scene, g](u64 first) {
        for (u64 value = first;; value += 2) {
          record_checked(g, value);
          scene.board.cell[0].store(value, std::memory_order_relaxed);
        }
      };
      std::thread other(record, 1);
      record(2);
      return 0;
    });
    REQUIRE(scene.reached(0, 200 + random() % 4'000));
    for (u32 i = random() % 5'000; i > 0; --i) {
      asm volatile("" ::: "memory");
    }
    child.kill(SIGKILL);
    CHECK(child.wait().signal == SIGKILL);
    REQUIRE(scene.rings().size() == 1);
    const RingFile ring(scene.ring_dir() + "/" + scene.rings()[0]);
    REQUIRE(ring.view().ok());
    const Count c = read_ring(ring.view());
    CHECK(c.wrong == 0);
    CHECK(c.torn <= 2);  // one per recording thread
    CHECK(c.whole >= 64);
    torn += c.torn;
    whole += c.whole;
  }
  WARN("killed 50 times: " << whole << " records whole, " << torn << " caught in the middle");
}

TEST_CASE("kill: a living process's ring is read while it records") {
  Scene scene;
  Child child = scene.start(0, {{"FR_BUFFER_SIZE", "64"}}, [&] {
    const fr_group_t g = child_group();
    for (u64 value = 0;; ++value) {
      record_checked(g, value);
      scene.board.cell[0].store(value, std::memory_order_relaxed);
    }
    return 0;
  });
  REQUIRE(scene.reached(0, 100));
  const RingFile ring(scene.ring_dir() + "/" + scene.rings().at(0));
  REQUIRE(ring.view().ok());
  u32 wrong = 0;
  for (int i = 0; i < 2'000; ++i) {
    wrong += read_ring(ring.view()).wrong;
  }
  CHECK(wrong == 0);
}
