// test_ring.cpp - claim, publish and observe of slots, one thread and many.
#include <set>
#include <thread>

#include "catch.hpp"
#include "small_ring.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("a ring hands out tickets in order and publishes 2t+2") {
  SmallRing r(4);
  for (u64 t = 0; t < 4; ++t) {
    CHECK(r.put(1, 100 + t) == t);
    CHECK(r.seq(t) == 2 * t + 2);
  }
  Payload p;
  u64 seen = 0;
  REQUIRE(r.read(2, p, seen));
  CHECK(p.in_numel == 102);
  CHECK(seen == 6);
}

TEST_CASE("a claimed slot reads as being written until it is published") {
  SmallRing r(4);
  const u64 ticket = r.ring.claim();
  REQUIRE(ticket == 0);
  CHECK(r.seq(0) == 1);
  Payload p{};
  u64 seen = 0;
  CHECK_FALSE(r.read(0, p, seen));
  r.ring.publish(ticket, p);
  CHECK(r.read(0, p, seen));
}

TEST_CASE("a full ring overwrites the oldest record") {
  SmallRing r(4);
  for (u64 i = 0; i < 11; ++i) {
    REQUIRE(r.put(1, i) == i);
  }
  std::set<u64> kept;
  Payload p;
  u64 seen = 0;
  for (u32 slot = 0; slot < 4; ++slot) {
    REQUIRE(r.read(slot, p, seen));
    CHECK(seen == 2 * p.in_numel + 2);
    kept.insert(p.in_numel);
  }
  CHECK(kept == std::set<u64>{7, 8, 9, 10});
  CHECK(r.skipped == 0);
}

TEST_CASE("a slot whose writer stalls is stepped over and counted") {
  SmallRing r(4);
  for (u64 i = 0; i < 4; ++i) {
    r.put(1, i);
  }
  const u64 stalled = r.ring.claim();
  REQUIRE(stalled == 4);  // slot 0
  for (u64 t = 5; t < 8; ++t) {
    CHECK(r.put(1, t) == t);
  }
  CHECK(r.put(1, 9) == 9);  // 8 would be slot 0
  CHECK(r.skipped == 1);
  CHECK(r.seq(0) == 2 * stalled + 1);
  Payload p{};
  p.in_numel = 77;
  r.ring.publish(stalled, p);  // late, but into its own slot
  u64 seen = 0;
  REQUIRE(r.read(0, p, seen));
  CHECK(p.in_numel == 77);
  CHECK(seen == 2 * stalled + 2);
}

TEST_CASE("a writer that comes late does not take a slot from a newer ticket") {
  SmallRing r(4);
  const u64 late = r.head.fetch_add(1);  // took a ticket, then slept before its claim
  for (u64 t = 1; t < 6; ++t) {
    REQUIRE(r.put(1, t) == t);
  }
  CHECK_FALSE(r.ring.try_claim(late));
  CHECK(r.seq(4) == 2 * 4 + 2);
}

TEST_CASE("a lap of stalled slots drops the operation, the frontier still counts it") {
  Rig rig(64);
  const u32 g = rig.group("g");
  const fr_ticket before = rig.collective(g);
  std::vector<u64> stalled;
  for (u32 i = 0; i < 64; ++i) {
    const u64 t = rig.hot.ring.claim();
    if (t != kNoTicket) {
      stalled.push_back(t);
    }
  }
  const u64 lost_by_claims = 64 - stalled.size();  // the record of `before` stays protected
  CHECK(lost_by_claims == 1);
  const u64 head = rig.header().head;
  const fr_ticket t = rig.collective(g);
  CHECK(t.ticket == kNoTicket);
  CHECK(t.seq == before.seq + 1);
  CHECK(is_counted(t));
  CHECK(rig.row(g).dropped == 1);
  CHECK(rig.header().dropped == 1);
  CHECK(rig.header().head - head <= 66);
  CHECK((rig.row(g).issued & kSeqMask) == 2);
  fr::end(rig.hot, t, State::kCompleted, 0);
  CHECK(rig.row(g).completed_seq == 2);
  CHECK(rig.row(g).ended == 1);
  rig.hot.ring.publish(stalled[0], Payload{});  // one wakes up: recording goes on
  CHECK(rig.collective(g).ticket != 0);
}

TEST_CASE("a chatty group cannot evict the last 64 records of a quiet one") {
  Rig rig(1024);
  const u32 quiet = rig.group("quiet");
  const u32 chatty = rig.group("chatty");
  for (int i = 0; i < 100; ++i) {
    rig.collective(quiet);
  }
  for (int i = 0; i < 20'000; ++i) {
    REQUIRE(rig.collective(chatty).ticket != 0);
  }
  std::set<u64> kept;
  u32 kept_chatty = 0;
  u64 newest = 0;
  for (const RecordCopy& r : rig.read_all()) {
    if (r.payload.group == quiet) {
      kept.insert(r.payload.seq);
    } else if (r.payload.group == chatty) {
      ++kept_chatty;
      newest = std::max(newest, r.payload.seq);
    }
  }
  REQUIRE(kept.size() == kQuietQuota);
  CHECK(*kept.begin() == 37);
  CHECK(*kept.rbegin() == 100);
  CHECK(kept_chatty == 1024 - kQuietQuota);
  CHECK(newest == 20'000);
  CHECK(rig.header().dropped == 0);

  SECTION("and the quiet group's next records replace its own oldest") {
    for (int i = 0; i < 10; ++i) {
      rig.collective(quiet);
    }
    for (int i = 0; i < 5'000; ++i) {
      rig.collective(chatty);
    }
    kept.clear();
    for (const RecordCopy& r : rig.read_all()) {
      if (r.payload.group == quiet) {
        kept.insert(r.payload.seq);
      }
    }
    REQUIRE(kept.size() == kQuietQuota);
    CHECK(*kept.rbegin() == 110);
  }
}

TEST_CASE("the protection survives the wrap of the group's 24-bit index") {
  SmallRing r(256, 16);
  r.groups[1].issued.store((u64{kIndexMask} - 7) << kIndexShift);  // 8 records before the wrap
  for (u64 i = 0; i < 16; ++i) {
    REQUIRE(r.put(1, i) != kNoTicket);
  }
  for (u64 i = 0; i < 4'000; ++i) {
    REQUIRE(r.put(2, i) != kNoTicket);
  }
  CHECK(r.count(1) == 16);
}

TEST_CASE("a quota of 0 protects nothing") {
  SmallRing r(64, 0);
  r.put(1);
  for (u64 i = 0; i < 64; ++i) {
    r.put(2);
  }
  CHECK(r.count(1) == 0);
  CHECK(r.skipped == 0);
}

// ---------------------------------------------------------------- observe

TEST_CASE("observe: a status goes from started to a final state and stays") {
  SmallRing r(4);
  const u64 t = r.put(1);
  Status& s = r.status[0];
  REQUIRE(r.ring.observe(t, State::kStarted, 100, 0, 7));
  CHECK(s.tag == ((t + 1) << 3 | static_cast<u64>(State::kStarted)));
  CHECK(s.started_ticks == 100);
  CHECK(s.ended_ticks == 0);
  REQUIRE(r.ring.observe(t, State::kFailed, 200, 5, 8));
  CHECK(s.started_ticks == 100);
  CHECK(s.ended_ticks == 200);
  CHECK(s.error == 5);
  CHECK(s.tid == 8);
  for (const State later : {State::kCompleted, State::kReleased, State::kStarted, State::kIdle}) {
    CHECK(r.ring.observe(t, later, 300, 0, 9));
    CHECK(s.tag == ((t + 1) << 3 | static_cast<u64>(State::kFailed)));
    CHECK(s.ended_ticks == 200);
  }
}

TEST_CASE("observe: an end without a start has no start time") {
  SmallRing r(4);
  const u64 first = r.put(1);
  r.ring.observe(first, State::kStarted, 100, 0, 7);
  for (int i = 0; i < 3; ++i) {
    r.put(1);
  }
  const u64 second = r.put(1);  // the same slot
  REQUIRE((second & 3) == (first & 3));
  REQUIRE(r.ring.observe(second, State::kCompleted, 500, 0, 7));
  CHECK(r.status[0].started_ticks == 0);  // not the first one's 100
  CHECK(r.status[0].ended_ticks == 500);
}

TEST_CASE("observe: waiting and idle alternate, then an end") {
  SmallRing r(4);
  const u64 t = r.put(1);
  REQUIRE(r.ring.observe(t, State::kWaiting, 10, 0, 1));
  CHECK(r.status[0].started_ticks == 10);
  REQUIRE(r.ring.observe(t, State::kIdle, 20, 0, 1));
  REQUIRE(r.ring.observe(t, State::kWaiting, 30, 0, 1));
  CHECK(r.status[0].started_ticks == 30);
  REQUIRE(r.ring.observe(t, State::kCompleted, 40, 0, 1));
  REQUIRE(r.ring.observe(t, State::kIdle, 50, 0, 1));
  CHECK((r.status[0].tag & 7) == static_cast<u64>(State::kCompleted));
  CHECK(r.status[0].ended_ticks == 40);
}

TEST_CASE("observe: a ticket whose slot is another's by now is refused") {
  SmallRing r(4);
  const u64 old = r.put(1);
  for (int i = 0; i < 4; ++i) {
    r.put(1);
  }
  CHECK_FALSE(r.ring.observe(old, State::kCompleted, 1, 0, 1));
  CHECK(r.status[0].tag == 0);
  CHECK(r.ring.observe(4, State::kCompleted, 1, 0, 1));
  CHECK_FALSE(r.ring.observe(old, State::kFailed, 1, 0, 1));
  CHECK(r.status[0].tag == (5u << 3 | static_cast<u64>(State::kCompleted)));
}

TEST_CASE("observe: a record that is only claimed is refused") {
  SmallRing r(4);
  const u64 t = r.ring.claim();
  CHECK_FALSE(r.ring.observe(t, State::kCompleted, 1, 0, 1));
}

TEST_CASE("observe: a status that another observer has locked is refused") {
  SmallRing r(4);
  const u64 t = r.put(1);
  r.status[0].tag = (t + 1) << 3 | static_cast<u64>(State::kLocked);
  CHECK_FALSE(r.ring.observe(t, State::kCompleted, 1, 0, 1));
  CHECK(r.status[0].ended_ticks == 0);
}

TEST_CASE("a lost status is counted in the header") {
  Rig rig(64);
  const u32 g = rig.group("g");
  const fr_ticket old = rig.collective(g);
  for (int i = 0; i < 200; ++i) {
    rig.collective(g);
  }
  fr::end(rig.hot, old, State::kCompleted, 0);
  CHECK(rig.header().status_lost == 1);
  CHECK(rig.row(g).completed_seq == 1);  // the frontier knows it all the same
}

TEST_CASE("many threads: every ticket is whole, unique and its writer's own") {
  Rig rig(256);
  constexpr u32 kThreads = 4;
  constexpr u64 kEach = 20'000;
  std::vector<u32> groups;
  for (const char* name : {"a", "b", "c", "d"}) {
    groups.push_back(rig.group(name));
  }
  std::atomic<bool> done{false};
  u64 wrong = 0;
  std::thread reader([&] {
    RecordCopy r;
    while (!done) {
      for (u32 slot = 0; slot < 256; ++slot) {
        if (rig.view.read(slot, r) == Slot::kWhole) {
          wrong +=
              r.payload.in_numel != r.payload.seq || r.payload.out_numel != ~r.payload.seq ? 1 : 0;
        }
      }
    }
  });
  std::vector<std::thread> writers;
  for (u32 w = 0; w < kThreads; ++w) {
    writers.emplace_back([&, w] {
      for (u64 i = 1; i <= kEach; ++i) {
        fr_op op = make_op(groups[w]);
        op.in_numel = i;
        op.out_numel = ~i;
        const fr_ticket t = rig.begin(op);
        fr::end(rig.hot, t, State::kCompleted, 0);
      }
    });
  }
  for (auto& w : writers) {
    w.join();
  }
  done = true;
  reader.join();
  CHECK(wrong == 0);
  std::set<u64> tickets;
  for (const RecordCopy& r : rig.read_all()) {
    CHECK(tickets.insert(r.ticket).second);
    CHECK(r.payload.out_numel == ~r.payload.in_numel);
  }
  for (const u32 g : groups) {
    CHECK((rig.row(g).issued & kSeqMask) == kEach);
    CHECK(rig.row(g).completed_seq == kEach);
    CHECK(rig.row(g).ended == kEach);
  }
}
