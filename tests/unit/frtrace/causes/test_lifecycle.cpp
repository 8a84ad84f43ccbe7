// test_lifecycle.cpp - calls on groups: made in different orders, or never returning.
#include "catch.hpp"
#include "device_builder.hpp"
#include "jobs.hpp"
#include "thread_stacks.hpp"

using namespace frtest;

TEST_CASE("stuck in destroy_process_group") {
  const Op destroy{.op = "destroy_process_group",
                   .line = 60,
                   .numel = 0,
                   .dtype = "",
                   .reduce_op = "",
                   .kind = Kind::kLifecycle};
  SECTION("all are in it") {
    JobBuilder j(2);
    iterations(j, 2);
    j.issue(0, -1, destroy);
    j.issue(1, -1, destroy);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kUndecided);
    CHECK(r.summary.find("destroy_process_group") != std::string::npos);
  }
  SECTION("one never came") {
    JobBuilder j(3);
    iterations(j, 2);
    j.issue(0, -1, destroy);
    j.issue(2, -1, destroy);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{1});
    CHECK(r.confidence == Confidence::kPossible);
  }
  SECTION("nobody else has to come") {
    JobBuilder j(3);
    iterations(j, 2);
    Op free = destroy;
    free.op = "ncclMemFree";
    j.issue(0, -1, free);
    j.issue(2, -1, free);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kUndecided);
    CHECK(r.ranks.empty());
    CHECK(r.summary.find("ncclMemFree") != std::string::npos);
  }
}

TEST_CASE("a rank that was started with another world size") {
  const bool in_call = GENERATE(true, false);
  JobBuilder j(4);
  j.rank(2).id.world_size = 5;
  if (in_call) {
    for (Rank r = 0; r < 4; ++r) {
      j.issue(r, -1, {.op = "init_process_group", .kind = Kind::kLifecycle});
    }
  }
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == (in_call ? Verdict::kMismatch : Verdict::kOk));
  CHECK(r.ranks == (in_call ? Ranks{2} : Ranks{}));
  CHECK((r.summary == "rank 2 was started with world size 5, ranks 0,1,3 with 4") == in_call);
}

TEST_CASE("who does not know how many ranks there are has no say in it") {
  JobBuilder j(4);
  iterations(j, 3);
  j.some({0, 1, 2}, kWorld, kLoss);
  for (const Rank r : {0, 1}) {
    j.rank(r).id.world_size = 0;
  }
  j.lose_file(3);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kExited);
  CHECK(r.ranks == Ranks{3});
}

TEST_CASE("a group that a member does not make: who waits in new_group is not to blame") {
  JobBuilder j(4);
  const Op make{.op = "new_group", .line = 15, .kind = Kind::kLifecycle};
  for (const Rank r : {1, 2}) {  // no members
    j.issue(r, -1, make, State::kCompleted);
  }
  j.issue(0, -1, make);
  j.some({1, 2, 3}, kWorld, kLoss);
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{3});
}

TEST_CASE("a communicator's end waits for graphs that captured its operations") {
  for (const bool captured : {true, false}) {
    DeviceJob j(2);
    iterations(j, 2);
    j.comm(kWorld, {0, 1});
    for (Rank r = 0; r < 2; ++r) {
      j.rank(r).device.comms[1].captured = captured || r == 0 ? 3 : 0;
      j.issue(r, kWorld, {.op = "ncclCommFinalize", .kind = Kind::kLifecycle});
    }
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kUndecided);
    CHECK(r.ranks.empty());
    CHECK((r.summary.find("graph") != std::string::npos) == captured);
  }
}

TEST_CASE("one that left new_group out and waits for a rank that is in it") {
  JobBuilder j(4);
  iterations(j, 3);
  const int pair = j.group("1", {2, 3});
  const Op call{.op = "new_group",
                .line = 10,
                .numel = 0,
                .dtype = "",
                .reduce_op = "",
                .kind = Kind::kLifecycle};
  j.some({0, 1, 3}, -1, call);
  j.issue(2, pair, {.line = 12});
  j.advance(20);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
  CHECK(has(r, "elsewhere", "rank 3 is in new_group"));
}

TEST_CASE("a hang in a call that makes a group is still one after all were killed") {
  for (const bool one_died : {false, true}) {
    JobBuilder j(4);
    iterations(j, 5);
    j.advance(1);
    j.rank(3).written = one_died ? j.now() : 0;
    j.some({0, 1, 2}, -1, {.op = "new_group", .line = 60, .numel = 0, .kind = Kind::kLifecycle});
    j.advance(20);
    for (const Rank r : {0, 1, 2, 3}) {
      j.gone(r);
    }
    const Report r = j.diagnose();
    CHECK(r.kind == (one_died ? Verdict::kExited : Verdict::kMissing));
    CHECK(r.ranks == Ranks{3});
  }
}

namespace {

constexpr const char* kRendezvous = "/usr/lib/site-packages/torch/distributed/rendezvous.py";

// Ranks in their first init_process_group; rank 0 with the stack of its main thread.
void init(JobBuilder& j, const Ranks& who, bool past_the_store = false) {
  for (const Rank r : who) {
    j.issue(r, -1,
            {.op = "init_process_group",
             .line = 4,
             .numel = 0,
             .dtype = "",
             .reduce_op = "",
             .kind = Kind::kLifecycle});
    j.rank(r).id.local_world_size = 4;
    if (r == 0) {
      ThreadStack t;
      t.tid = j.rank(r).id.pid;
      t.activity = fr::Activity::kPolling;
      t.answer = fr::Answer::kAnswered;
      t.stack = {0, 1, 2};
      t.variables = {{0, {{"hostname", "'n1'"}, {"port", "29500"}}}};
      j.rank(r).threads.present = true;
      j.rank(r).threads.frames = {
          past_the_store
              ? py("torch/distributed/distributed_c10d.py", 2169, "_new_process_group_helper")
              : py(kRendezvous, 199, "_create_c10d_store"),
          past_the_store ? py("torch/distributed/distributed_c10d.py", 1899, "init_process_group")
                         : py(kRendezvous, 280, "_env_rendezvous_handler"),
          py("/home/u/train.py", 4, "main")};
      j.rank(r).threads.threads.push_back(t);
    }
  }
}

}  // namespace

TEST_CASE("a rank that never came to init_process_group is named") {
  JobBuilder j(8);
  SECTION("its sisters are there") {
    init(j, {0, 1, 2, 4, 5, 6, 7});
    j.lose_file(3);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{3});
    CHECK(r.confidence == Confidence::kLikely);
    CHECK(r.blamed[0].why == "never_started");
    CHECK(r.blamed[0].op == "init_process_group");
    CHECK(r.summary ==
          "rank 3 has not entered init_process_group (not started, or cannot reach the store at "
          "n1:29500); ranks 0-2,4-7 wait there");
  }
  SECTION("a node without any file: its files may be elsewhere") {
    init(j, {0, 1, 2, 3});
    for (const Rank r : {4, 5, 6, 7}) {
      j.lose_file(r);
    }
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{4, 5, 6, 7});
    CHECK(r.confidence == Confidence::kPossible);
  }
  SECTION("another node without any file, and no stack that shows where rank 0 is") {
    init(j, {0, 1, 2, 3});
    j.rank(0).threads = {};
    for (const Rank r : {4, 5, 6, 7}) {
      j.lose_file(r);
    }
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kUndecided);
  }
  SECTION("rank 0, which has the store") {
    init(j, {1, 2, 3, 4, 5, 6, 7});
    j.lose_file(0);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{0});
    CHECK(r.confidence == Confidence::kPossible);  // without a stack
  }
  SECTION("rank 0, where the launcher has the store: all wait there for its address") {
    init(j, {1, 2, 3, 4, 5, 6, 7});
    j.lose_file(0);
    const bool waits = GENERATE(true, false);  // or one of them for something else
    for (const Rank r : {1, 2, 3, 4, 5, 6, 7}) {
      j.rank(r).threads =
          rank({native(r != 5 || waits ? "c10d::TCPStore::wait" : "gloo::transport::tcp::connect"),
                py("torch/distributed/distributed_c10d.py", 2169, "_new_process_group_helper"),
                py("/home/u/train.py", 4, "main")})
              .threads;
      j.rank(r).threads.threads[0].tid = j.rank(r).id.pid;
    }
    j.advance(20);
    CHECK(j.diagnose().ranks == (waits ? Ranks{0} : Ranks{}));
  }
  SECTION("rank 0 got past the store: all have come there, and the file is lost") {
    init(j, {0, 1, 2, 4, 5, 6, 7}, true);
    j.rank(0).threads.threads.emplace_back().name = "pt_tcpstore_uv";
    j.lose_file(3);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kUndecided);
  }
  SECTION("another process has taken its rank for that of another one") {
    init(j, {0, 1, 2, 4, 5, 6, 7});
    j.rank(0).peers.push_back({1, 1001, PeerState::kLive, 0, 0, 0, "", ""});
    j.rank(0).peers.push_back({1, 1099, PeerState::kLive, 0, 0, 0, "", ""});
    j.lose_file(3);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.ranks == Ranks{3});
    CHECK(std::ranges::count(r.blamed[0].evidence,
                             "processes 1001, 1099 all call themselves rank 1") == 1);
  }
  SECTION("the launcher has the store: nobody waits there for the others") {
    init(j, {0, 1, 2, 4, 5, 6, 7}, true);
    j.lose_file(3);
    j.advance(20);
    const bool killed = GENERATE(false, true);  // likewise where the rings of a killed job are read
    for (const Rank r : {0, 1, 2, 4, 5, 6, 7}) {
      if (killed) {
        j.gone(r);
      }
    }
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{3});
    CHECK(r.confidence == Confidence::kPossible);
  }
  SECTION("a rank of its node saw its process") {
    init(j, {0, 1, 2, 4, 5, 6, 7});
    j.rank(1).peers.push_back({3, 1003, PeerState::kLive, 0, 0, 0, "", ""});
    j.lose_file(3);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kUndecided);
  }
  SECTION("one is past the call") {
    init(j, {0, 1, 2, 4, 5, 6});
    j.all(kWorld, kLoss);
    j.lose_file(3);
    j.advance(20);
    CHECK(j.diagnose().summary.find("not come to") == std::string::npos);
  }
  SECTION("all are there") {
    init(j, {0, 1, 2, 3, 4, 5, 6, 7});
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kUndecided);
  }
}

TEST_CASE("a process that its threads keep alive is named") {
  JobBuilder j(4);
  iterations(j, 2);
  j.issue(2, -1, {.op = "destroy_process_group", .kind = Kind::kLifecycle}, State::kCompleted);
  j.issue(2, -1, {.op = "interpreter_exit", .kind = Kind::kLifecycle});
  for (const Rank r : {0, 1, 3}) {
    j.rank(2).peers.push_back({r, 1000 + r, PeerState::kExitedClean, 0, 0, 0, "", ""});
    j.lose_file(r);
  }
  j.advance(60);
  SECTION("for longer than the timeout") {
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == Ranks{2});
    CHECK(
        r.summary ==
        "rank 2 does not exit: it has destroyed its process groups, and Python waits for its other "
        "threads to end");
  }
  SECTION("a dump for another reason shows no fault") {
    j.rank(2).trigger = Trigger::kManual;
    CHECK(j.diagnose().ranks.empty());
  }
}

namespace {

// new_group calls of one rank: the ordinal is the place in the list.
void make_groups(JobBuilder& j, Rank r, const std::vector<std::vector<Rank>>& lists,
                 std::size_t last_in_flight = SIZE_MAX) {
  for (std::size_t i = 0; i < lists.size(); ++i) {
    Op call{.op = "new_group", .kind = Kind::kLifecycle};
    call.peer = static_cast<int>(i + 1);
    call.shape = {1 | 1u << 12 | 1u << 24, static_cast<std::uint32_t>(3 * lists[i].size())};
    for (const Rank member : lists[i]) {
      call.shape.insert(call.shape.end(), {static_cast<std::uint32_t>(member), 1, 1});
    }
    j.issue(r, -1, call, i == last_in_flight ? State::kEnqueued : State::kCompleted);
    if (i == last_in_flight) {
      return;
    }
  }
}

}  // namespace

TEST_CASE("of those who make a group and those who do not the fewer are wrong") {
  for (const Ranks& guilty : {Ranks{5}, Ranks{0, 1}}) {
    JobBuilder j(6);
    iterations(j, 3);
    for (Rank r = 0; r < 6; ++r) {
      if (guilty.size() == 2 ? r < 2 : r < 5) {
        make_groups(j, r, {{0, 1, 2, 3, 4, 5}}, 0);
      } else {
        j.some({r}, kWorld, kLoss);
      }
    }
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kMissing);
    CHECK(r.ranks == guilty);
  }
}

TEST_CASE("new_group in another order than on the others") {
  const std::vector<std::vector<Rank>> order = {{0, 1, 2}, {3, 4, 5}, {0, 3}, {1, 4}, {2, 5}};
  const std::vector<std::vector<Rank>> other(order.rbegin(), order.rend());
  for (Rank guilty = 0; guilty < 6; ++guilty) {
    JobBuilder j(6);
    for (Rank r = 0; r < 6; ++r) {
      make_groups(j, r, r == guilty ? other : order, r == guilty ? 1 : 0);
    }
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kDeadlock);
    CHECK(r.ranks == Ranks{guilty});
    CHECK(r.confidence == Confidence::kCertain);
  }
  SECTION("two ranks: either") {
    JobBuilder j(2);
    make_groups(j, 0, {{0}, {1}, {0, 1}}, 2);
    make_groups(j, 1, {{0, 1}, {0}, {1}}, 0);
    j.advance(20);
    const Report r = j.diagnose();
    CHECK(r.kind == Verdict::kDeadlock);
    CHECK(r.ranks == Ranks{0, 1});
    CHECK(r.confidence == Confidence::kPossible);
  }
  SECTION("the same order, and a rank that stays away, is no matter of order") {
    JobBuilder j(6);
    for (Rank r = 0; r < 6; ++r) {
      make_groups(j, r, order);
    }
    j.some({0, 1, 2, 3, 5}, kWorld, kLoss);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kMissing);
  }
  SECTION("a second world counts from the start") {
    JobBuilder j(6);
    for (Rank r = 0; r < 6; ++r) {
      make_groups(j, r, r == 2 ? other : order);
      j.issue(r, -1, {.op = "init_process_group", .kind = Kind::kLifecycle}, State::kCompleted);
      make_groups(j, r, order);
    }
    j.some({0, 1, 2, 3, 5}, kWorld, kLoss);
    j.advance(20);
    CHECK(j.diagnose().ranks == Ranks{4});
  }
  SECTION("nothing is stuck") {
    JobBuilder j(6);
    for (Rank r = 0; r < 6; ++r) {
      make_groups(j, r, r == 3 ? other : order);
    }
    j.all(kWorld, kLoss);
    j.advance(20);
    CHECK(j.diagnose().kind == Verdict::kOk);
  }
}

TEST_CASE("a rank inside init_process_group waits, too: it is not absent") {
  JobBuilder j(3);
  const Op init_op{.op = "init_process_group",
                   .line = 4,
                   .numel = 0,
                   .dtype = "",
                   .reduce_op = "",
                   .kind = Kind::kLifecycle};
  j.issue(0, -1, init_op, State::kCompleted);
  j.issue(1, -1, init_op);
  SECTION("the third has not entered it") {}
  SECTION("the third is in it, and its process is stopped") {
    j.issue(2, -1, init_op);
    j.rank(2).salvaged = true;
    j.rank(2).salvage = Salvage::kUnresponsive;
  }
  j.some({0}, kWorld, kLoss);
  j.advance(30);
  const Report r = j.diagnose();
  CHECK(r.kind == Verdict::kMissing);
  CHECK(r.ranks == Ranks{2});
  CHECK(r.summary.starts_with("rank 2 "));
}
