// Steps that became longer, from the records of one ring.
#include "catch.hpp"
#include "support.hpp"
#include "watch/slower_steps.hpp"

using namespace fr;
using namespace fr::test;

namespace {

constexpr u64 kMs = 1'000'000;

// A rank that issues all_reduce after all_reduce, at times of the test's choice.
class Rank {
 public:
  Rank() { rig_.header().clock_kind = ClockKind::kMonotonic; }
  void pass(u64 ms) { now_ns_ += ms * kMs; }
  // Issues one that takes so long.
  void collective(u64 numel, u64 ms) {
    fr_op op = make_op(group_);
    op.in_numel = numel;
    const u64 slot = get(rig_.header().head) & rig_.hot.ring.mask;
    const fr_ticket t = rig_.begin(op);
    rig_.hot.ring.records[slot].payload[0].store(ticks());
    pass(ms);
    end(rig_.hot, t, State::kCompleted, 0, ticks());
  }
  void step(i64 number) {
    const u64 slot = get(rig_.header().head) & rig_.hot.ring.mask;
    fr::step(rig_.hot, number);
    rig_.hot.ring.records[slot].payload[0].store(ticks());
  }
  StepTimes times() const { return step_times(rig_.view); }

 private:
  u64 ticks() { return rig_.header().first.ticks.load() + now_ns_; }
  Rig rig_{4096};
  u32 group_ = rig_.group("pg");
  u64 now_ns_ = 0;
};

}  // namespace

TEST_CASE("slower steps: the program takes longer between its operations") {
  Rank r;
  for (int n = 0; n < 60; ++n) {
    r.collective(7, 2);
    r.pass(n < 50 ? 8 : 198);
  }
  const StepTimes t = r.times();
  CHECK(t.before_ns == 10 * kMs);
  CHECK(t.now_ns == 200 * kMs);
  CHECK(t.idle_before_ns == 8 * kMs);
  CHECK(t.idle_now_ns == 198 * kMs);
  CHECK(t.since_step == -1);
  CHECK(t.are_slower());
  CHECK(t.are_idle());
}

TEST_CASE("slower steps: the operations take longer, by the program's own steps") {
  Rank r;
  for (int n = 0; n < 60; ++n) {
    r.step(n);
    r.pass(8);
    r.collective(7, n < 50 ? 2 : 192);
    r.collective(7, 0);
  }
  const StepTimes t = r.times();
  CHECK(t.before_ns == 10 * kMs);
  CHECK(t.now_ns == 200 * kMs);
  CHECK(t.idle_now_ns == 8 * kMs);
  CHECK(t.since_step == 50);
  CHECK(t.are_slower());
  CHECK_FALSE(t.are_idle());
}

TEST_CASE("slower steps: the buckets of a step are told apart by their sizes") {
  Rank r;
  for (int n = 0; n < 60; ++n) {
    r.pass(n < 50 ? 8 : 198);
    for (const u64 numel : {1000, 1000, 1000, 400}) {
      r.collective(numel, 1);
    }
  }
  const StepTimes t = r.times();
  CHECK(t.before_ns == 12 * kMs);
  CHECK(t.now_ns == 202 * kMs);
}

TEST_CASE("slower steps: one pause, few steps and small changes are none") {
  Rank pause, few, small;
  for (int n = 0; n < 60; ++n) {
    pause.collective(7, 2);
    pause.pass(n == 57 ? 5000 : 8);
    small.collective(7, 1);
    small.pass(n < 50 ? 1 : 40);
  }
  for (int n = 0; n < 20; ++n) {
    few.collective(7, 2);
    few.pass(n < 14 ? 8 : 198);
  }
  CHECK_FALSE(pause.times().are_slower());
  CHECK_FALSE(small.times().are_slower());
  CHECK(few.times().before_ns == 0);
}
