// test_record.cpp - the record path: the traces of begin, started and end in the ring.
#include "catch.hpp"
#include "recorder/in_flight.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

fr_op p2p(u32 group, u16 kind, i32 peer) {
  fr_op op = make_op(group, kind);
  op.peer = peer;
  return op;
}

void end(Rig& rig, const fr_ticket& t, State state = State::kCompleted, u32 error = 0) {
  fr::end(rig.hot, t, state, error);
}

}  // namespace

TEST_CASE("frontiers of collectives: enqueued, started, completed per group") {
  Rig rig;
  const u32 a = rig.group("a");
  const u32 b = rig.group("b");
  const fr_ticket a1 = rig.collective(a);
  const fr_ticket a2 = rig.collective(a);
  const fr_ticket b1 = rig.collective(b);
  CHECK(a1.seq == 1);
  CHECK(a2.seq == 2);
  CHECK(b1.seq == 1);
  CHECK((rig.row(a).issued & kSeqMask) == 2);
  CHECK(rig.row(a).enqueued_ticks != 0);
  CHECK(rig.row(a).completed_seq == 0);
  started(rig.hot, a1);
  CHECK(rig.row(a).started_seq == 1);
  CHECK(rig.row(a).started_ticks >= rig.row(a).created_ticks);
  end(rig, a1);
  CHECK(rig.row(a).completed_seq == 1);
  CHECK(rig.row(a).ended == 1);
  CHECK(rig.row(b).completed_seq == 0);
  CHECK(count_in_flight(rig.row(a)) == 1);
  CHECK(count_in_flight(rig.row(b)) == 1);
  end(rig, a2);
  end(rig, b1);
  CHECK(count_in_flight(rig.row(a)) == 0);
  const RecordCopy r = rig.read(a1);
  CHECK(r.has_status);
  CHECK(r.state == State::kCompleted);
  CHECK(r.started_ticks != 0);
  CHECK(r.ended_ticks >= r.started_ticks);
}

TEST_CASE("ends out of order: the frontier is the highest, the count exact") {
  Rig rig;
  const u32 g = rig.group("g");
  const fr_ticket one = rig.collective(g);
  const fr_ticket two = rig.collective(g);
  end(rig, two);
  CHECK(rig.row(g).completed_seq == 2);
  CHECK(count_in_flight(rig.row(g)) == 1);
  end(rig, one);
  CHECK(rig.row(g).completed_seq == 2);
  CHECK(count_in_flight(rig.row(g)) == 0);
}

TEST_CASE("frontiers are exact whatever the ring has forgotten") {
  Rig rig(64);
  const u32 g = rig.group("g");
  for (int i = 0; i < 10'000; ++i) {
    const fr_ticket t = rig.collective(g);
    started(rig.hot, t);
    end(rig, t);
  }
  CHECK((rig.row(g).issued & kSeqMask) == 10'000);
  CHECK(rig.row(g).started_seq == 10'000);
  CHECK(rig.row(g).completed_seq == 10'000);
  CHECK(rig.row(g).ended == 10'000);
  CHECK(rig.read_all().size() == 64);
}

TEST_CASE("sends and receives count per peer and direction, apart from collectives") {
  Rig rig;
  const u32 g = rig.group("g", {0, 1, 2, 3});
  const fr_ticket s1 = rig.begin(p2p(g, FR_SEND, 1));
  const fr_ticket s2 = rig.begin(p2p(g, FR_SEND, 1));
  const fr_ticket other = rig.begin(p2p(g, FR_SEND, 2));
  const fr_ticket r1 = rig.begin(p2p(g, FR_RECV, 1));
  CHECK(s1.seq == 1);
  CHECK(s2.seq == 2);
  CHECK(other.seq == 1);
  CHECK(r1.seq == 1);
  CHECK(s1.lane == s2.lane);
  CHECK(s1.lane != other.lane);
  CHECK(s1.lane != r1.lane);
  CHECK((rig.row(g).issued & kSeqMask) == 0);
  CHECK(rig.row(g).p2p_issued == 4);
  CHECK(count_in_flight(rig.row(g)) == 4);
  started(rig.hot, s2);
  end(rig, s2);
  const LaneRow& lane = rig.hot.lanes[s1.lane];
  CHECK(lane.enqueued == 2);
  CHECK(lane.started_seq == 2);
  CHECK(lane.completed_seq == 2);
  CHECK(lane.ended == 1);
  end(rig, s1, State::kFailed);
  CHECK(lane.failed == 1);
  CHECK(rig.row(g).failed == 1);
  CHECK(rig.row(g).p2p_ended == 2);
  CHECK(count_in_flight(rig.row(g)) == 2);
  CHECK(rig.read(r1).payload.peer == 1);
  CHECK(rig.read(r1).payload.lane == r1.lane);
}

TEST_CASE("a full lane table counts what it cannot hold and goes on") {
  Rig rig(4096);
  const u32 g = rig.group("g");
  for (i32 peer = 0; peer < 1000; ++peer) {
    const fr_ticket t = rig.begin(p2p(g, FR_SEND, peer));
    REQUIRE(t.ticket != 0);
    REQUIRE(t.seq >= 1);
  }
  CHECK(rig.header().lanes_lost > 0);
  CHECK(rig.row(g).p2p_issued == 1000);
  CHECK(rig.view.lane(0) == nullptr);  // the overflow row is no lane
}

TEST_CASE("lifecycle calls count apart and are in flight while they last") {
  Rig rig;
  const u32 g = rig.group("g");
  const fr_ticket t = rig.begin(make_op(g, FR_LIFECYCLE));
  CHECK(t.seq == 1);
  CHECK(rig.row(g).lifecycle_issued == 1);
  CHECK((rig.row(g).issued & kSeqMask) == 0);
  CHECK(count_in_flight(rig.row(g)) == 1);
  end(rig, t);
  CHECK(rig.row(g).lifecycle_ended == 1);
  CHECK(count_in_flight(rig.row(g)) == 0);
  CHECK(rig.collective(g).seq == 1);
}

TEST_CASE("untracked operations are never in flight") {
  Rig rig;
  const u32 g = rig.group("g");
  fr_op op = make_op(g);
  op.flags = FR_UNTRACKED;
  const fr_ticket t = rig.begin(op);
  rig.begin(op);
  CHECK(rig.row(g).untracked == 2);
  CHECK(count_in_flight(rig.row(g)) == 0);
  rig.collective(g);
  CHECK(count_in_flight(rig.row(g)) == 1);
  end(rig, t);  // an end that is seen after all does not unbalance the count
  CHECK(count_in_flight(rig.row(g)) == 1);
}

TEST_CASE("wait-only operations are in flight only while somebody waits") {
  Rig rig;
  const u32 g = rig.group("g");
  fr_op op = make_op(g);
  op.flags = FR_WAIT_ONLY;
  const fr_ticket t = rig.begin(op);
  CHECK(count_in_flight(rig.row(g)) == 0);
  wait_begin(rig.hot, t);
  CHECK(count_in_flight(rig.row(g)) == 1);
  CHECK(rig.read(t).state == State::kWaiting);
  wait_end(rig.hot, t);
  CHECK(count_in_flight(rig.row(g)) == 0);
  CHECK(rig.read(t).state == State::kIdle);
  wait_begin(rig.hot, t);
  end(rig, t);
  wait_end(rig.hot, t);
  CHECK(count_in_flight(rig.row(g)) == 0);
  CHECK(rig.read(t).state == State::kCompleted);
  CHECK(rig.row(g).wait_only == 1);
  CHECK(rig.row(g).wait_only_ended == 1);
  CHECK(rig.row(g).completed_seq == 1);
}

TEST_CASE("a failed operation keeps its message and does not complete the frontier") {
  Rig rig;
  const u32 g = rig.group("g");
  const fr_ticket t = rig.collective(g);
  end(rig, t, State::kFailed, rig.intern("connection closed by peer"));
  CHECK(rig.row(g).failed == 1);
  CHECK(rig.header().failed == 1);
  CHECK(rig.row(g).completed_seq == 0);
  CHECK(rig.row(g).ended == 1);
  const RecordCopy r = rig.read(t);
  CHECK(r.state == State::kFailed);
  CHECK(rig.view.string(r.error) == "connection closed by peer");
}

TEST_CASE("a released operation has ended, unseen") {
  Rig rig;
  const u32 g = rig.group("g");
  const fr_ticket t = rig.collective(g);
  end(rig, t, State::kReleased);
  CHECK(rig.row(g).released == 1);
  CHECK(rig.row(g).completed_seq == 0);
  CHECK(rig.read(t).state == State::kReleased);
  CHECK(count_in_flight(rig.row(g)) == 0);
}

TEST_CASE("all members of an operation are read back") {
  Rig rig;
  const u32 g = rig.group("g");
  fr_op op = make_op(g, FR_COLLECTIVE, rig.intern("broadcast"));
  op.flags = FR_ASYNC | FR_COALESCED;
  op.peer = 3;
  op.in_dtype = 7;
  op.out_dtype = 16;
  op.reduce_op = 1;
  op.timeout_ms = 600'000;
  op.stack = 17;
  op.in_numel = 1ull << 40;
  op.out_numel = 12;
  const fr_ticket t = rig.begin(op);
  CHECK(t.kind == FR_COLLECTIVE);
  CHECK((t.flags & FR_ASYNC) != 0);
  const Payload p = rig.read(t).payload;
  CHECK(p.group == g);
  CHECK(rig.view.string(p.op) == "broadcast");
  CHECK(p.flags == (FR_ASYNC | FR_COALESCED));
  CHECK(p.peer == 3);
  CHECK(p.in_dtype == 7);
  CHECK(p.out_dtype == 16);
  CHECK(p.reduce_op == 1);
  CHECK(p.timeout_ms == 600'000);
  CHECK(p.stack == 17);
  CHECK(p.in_numel == 1ull << 40);
  CHECK(p.out_numel == 12);
  CHECK(p.tid == own_tid());
}

TEST_CASE("operations of groups that found no row go to the process and are counted") {
  Rig rig;
  const fr_ticket t = rig.collective(0);
  CHECK(rig.header().no_group == 1);
  CHECK(rig.read(t).payload.group == 0);
  CHECK(rig.read(rig.collective(kGroups + 5)).payload.group == 0);
  CHECK(rig.header().no_group == 2);
}

TEST_CASE("a stack is asked for only where it is wanted") {
  static int asked;
  asked = 0;
  Rig rig;
  const u32 g = rig.group("g");
  g_stack_provider.store([]() -> u32 {
    ++asked;
    return 9;
  });
  fr_op op = make_op(g);
  CHECK(rig.read(rig.begin(op)).payload.stack == 0);
  op.stack = FR_STACK_CAPTURE;
  CHECK(rig.read(rig.begin(op)).payload.stack == 9);
  CHECK(asked == 1);
  rig.hot.stacks = false;
  CHECK(rig.read(rig.begin(op)).payload.stack == 0);
  g_stack_provider.store(nullptr);
  rig.hot.stacks = true;
  CHECK(rig.read(rig.begin(op)).payload.stack == 0);
  CHECK(asked == 1);
}

TEST_CASE("the empty ticket is not counted") {
  CHECK_FALSE(is_counted(fr_ticket{}));
  fr_ticket bad{};
  bad.ticket = 1;
  bad.flags = 0x80;
  bad.group = kGroups;
  CHECK_FALSE(is_counted(bad));
}

TEST_CASE("recording allocates nothing") {
  Rig rig;
  const u32 g = rig.group("g");
  rig.collective(g);
  note(rig.hot, "x", 1);
  const u64 before = allocations();
  for (int i = 0; i < 2'000; ++i) {
    const fr_ticket t = rig.collective(g);
    started(rig.hot, t);
    end(rig, t);
    note(rig.hot, "text", 4);
    step(rig.hot, i);
  }
  CHECK(allocations() == before);
}

// ---------------------------------------------------------------- breadcrumbs

TEST_CASE("notes, steps and spans are records of the process and a state of the thread") {
  Rig rig;
  note(rig.hot, "loading shard 7", 15);
  step(rig.hot, 1234);
  const u32 name = rig.intern("epoch");
  span_begin(rig.hot, name);
  const Crumb* c = rig.view.crumb(0);
  REQUIRE(c != nullptr);
  CHECK(c->tid == own_tid());
  CHECK(c->depth == 1);
  CHECK(c->span[0] == name);
  CHECK(c->note_bytes == 15);
  CHECK((c->note_seq & 1) == 0);
  span_end(rig.hot);
  CHECK(c->depth == 0);
  CHECK(rig.header().step == 1234);
  CHECK(count_in_flight(rig.row(0)) == 0);
  const auto all = rig.read_all();
  REQUIRE(all.size() == 4);
  CHECK(all[0].payload.kind == FR_NOTE);
  CHECK(all[0].n_shape == 15);
  CHECK(std::memcmp(all[0].shape_buffer, "loading shard 7", 15) == 0);
  CHECK(all[1].payload.kind == FR_STEP);
  CHECK(all[1].payload.seq == 1234);
  CHECK(all[2].payload.seq == 1);
  CHECK(all[3].payload.seq == 0);
  CHECK(all[3].payload.op == name);
}

TEST_CASE("notes are cut at 200 bytes") {
  Rig rig;
  const std::string text(1000, 'n');
  note(rig.hot, text.data(), text.size());
  const auto all = rig.read_all();
  REQUIRE(all.size() == 1);
  CHECK(all[0].n_shape == kNoteBytes);
  CHECK(rig.view.crumb(0)->note_bytes == kNoteBytes);
}

TEST_CASE("spans deeper than 8 are counted, and an end too many is ignored") {
  Rig rig;
  for (u32 i = 0; i < 12; ++i) {
    span_begin(rig.hot, i + 1);
  }
  const Crumb* c = rig.view.crumb(0);
  CHECK(c->depth == 12);
  CHECK(c->span[7] == 8);
  for (u32 i = 0; i < 15; ++i) {
    span_end(rig.hot);
  }
  CHECK(c->depth == 0);
  CHECK(rig.read_all().size() == 24);
}
