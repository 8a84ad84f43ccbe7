// Rings of several ranks, compared while they record.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>

#include "catch.hpp"
#include "support.hpp"
#include "watch/agreement.hpp"

using namespace fr;
using namespace fr::test;

namespace {

constexpr u64 kSecond_ns = 1'000'000'000;
constexpr u8 kFloat = 7;  // torch's codes + 1
constexpr u8 kInt = 4;
constexpr u8 kSum = 1;
constexpr u8 kMax = 5;

struct Ranks {
  explicit Ranks(u32 n, u32 n_records = 1024, const char* group = "0") {
    std::vector<i32> members;
    for (u32 i = 0; i < n; ++i) {
      members.push_back(static_cast<i32>(i));
    }
    REQUIRE(agreement.init());
    for (u32 i = 0; i < n; ++i) {
      rigs.push_back(std::make_unique<Rig>(n_records));
      rigs[i]->header().rank.store(static_cast<i32>(i));
      world = rigs[i]->group(group, members);
      agreement.attach(i, rigs[i]->view, 0);
    }
  }
  ~Ranks() { agreement.release(); }

  u32 stack(u32 rank, u32 line) {
    Rig& rig = *rigs[rank];
    const fr_frame frame{rig.intern("/home/user/train.py"), rig.intern("step"), line};
    return rig.tables->stack(&frame, 1);
  }
  fr_op all_reduce(u32 rank, u32 line) {
    fr_op op = make_op(world, FR_COLLECTIVE, rigs[rank]->intern("all_reduce"));
    op.in_numel = op.out_numel = 1024;
    op.in_dtype = op.out_dtype = kFloat;
    op.reduce_op = kSum;
    op.stack = stack(rank, line);
    return op;
  }
  void all(u32 line, u32 times = 1) {
    for (u32 n = 0; n < times; ++n) {
      for (u32 i = 0; i < rigs.size(); ++i) {
        rigs[i]->begin(all_reduce(i, line));
      }
    }
  }
  // The warnings given so far; "" if there are none.
  std::string told() {
    std::string out;
    char text[600];
    for (int i = 0; i < 3; ++i) {
      now += kSecond_ns;
      agreement.read_all(now);
      while (agreement.tell(now, text, sizeof text)) {
        out += out.empty() ? text : std::string("\n") + text;
      }
    }
    return out;
  }

  Agreement agreement;
  std::vector<std::unique_ptr<Rig>> rigs;
  u32 world = 0;
  u64 now = kSecond_ns;
};

fr_op make_step(u64 number) {
  fr_op op = make_op(0, FR_STEP, 0);
  op.seq = number;
  return op;
}

}  // namespace

TEST_CASE("agreement: another reduce op, dtype, root, size or operation is told of, once") {
  Ranks r(4);
  r.all(10, 5);
  CHECK(r.told().empty());
  struct {
    void (*change)(fr_op&, Rig&);
    const char* own;
    const char* others;
  } const cases[] = {
      {[](fr_op& op, Rig&) { op.reduce_op = kMax; }, ", reduce op MAX", ", reduce op SUM"},
      {[](fr_op& op, Rig&) { op.in_dtype = op.out_dtype = kInt; }, ", dtype Int", ", dtype Float"},
      {[](fr_op& op, Rig&) { op.peer = 1; }, ", root 1", ", root -1"},
      {[](fr_op& op, Rig&) { op.in_numel = op.out_numel = 7; }, ", 7 elements", ", 1024 elements"},
      {[](fr_op& op, Rig& rig) { op.op = rig.intern("broadcast"); }, "", ""}};
  for (const auto& c : cases) {
    Ranks one(4);
    one.all(10, 5);
    for (u32 i = 0; i < 4; ++i) {
      fr_op op = one.all_reduce(i, i == 2 ? 20 : 10);
      if (i == 2) {
        c.change(op, *one.rigs[i]);
      }
      one.rigs[i]->begin(op);
    }
    const std::string op = *c.own != '\0' ? "all_reduce" : "broadcast";
    CHECK(one.told() == "mismatch: rank 2 issued " + op + " #6 of desc at train.py:20 (step)" +
                            c.own + "; ranks 0,1,3 issued all_reduce #6 at train.py:10 (step)" +
                            c.others);
    one.all(10, 100);
    CHECK(one.told().empty());
  }
}

TEST_CASE("agreement: ranks that are in different steps are told of once") {
  for (const bool always : {true, false}) {
    Ranks r(3);
    for (u64 n = 0; n < 10; ++n) {
      for (u32 i = 0; i < 3; ++i) {
        const bool late = i == 1 && (always || n == 4);
        r.rigs[i]->begin(make_step(late ? n + 20 : n + 30));
        r.rigs[i]->begin(r.all_reduce(i, 10));
      }
    }
    CHECK(r.told() == (always
                           ? "steps differ: in all_reduce #1 of desc at train.py:10 (step) rank 1 "
                             "is in step 20, ranks 0,2 are in step 30"
                           : ""));
    CHECK(r.told().empty());
  }
}

TEST_CASE("agreement: of two ranks that differ neither is named as wrong") {
  Ranks r(2);
  r.rigs[0]->begin(r.all_reduce(0, 10));
  fr_op op = r.all_reduce(1, 10);
  op.reduce_op = kMax;
  r.rigs[1]->begin(op);
  CHECK(r.told() ==
        "mismatch: nothing tells which is right: rank 0 issued all_reduce #1 of desc at "
        "train.py:10 (step), reduce op SUM; rank 1 issued all_reduce #1 at train.py:10 (step), "
        "reduce op MAX");
}

TEST_CASE("agreement: two equal operations exchanged by one rank") {
  Ranks r(3);
  for (int step = 0; step < 10; ++step) {
    r.all(10);
    r.all(12);
  }
  CHECK(r.told().empty());
  for (u32 i = 0; i < 3; ++i) {
    r.rigs[i]->begin(r.all_reduce(i, i == 1 ? 12 : 10));
    r.rigs[i]->begin(r.all_reduce(i, i == 1 ? 10 : 12));
  }
  CHECK(r.told() ==
        "mismatch: rank 1 issued all_reduce #21 of desc at train.py:12 (step) and #22 at "
        "train.py:10 (step); ranks 0,2 issued all_reduce #21 at train.py:10 (step) and #22 at "
        "train.py:12 (step); two equal operations are exchanged");
}

TEST_CASE("agreement: call sites that differ by right") {
  Ranks r(3);
  // The root, in turns, has a branch of its own; a broadcast made of sums.
  for (u32 n = 0; n < 300; ++n) {
    for (u32 i = 0; i < 3; ++i) {
      r.rigs[i]->begin(r.all_reduce(i, n % 3 == i ? 10 : 12));
    }
  }
  CHECK(r.told().empty());
  // A rank that now and then has nothing to give.
  Ranks uneven(3);
  for (u32 n = 0; n < 300; ++n) {
    for (u32 i = 0; i < 3; ++i) {
      uneven.rigs[i]->begin(uneven.all_reduce(i, n * 7 % 11 == i ? 10 : 12));
    }
  }
  CHECK(uneven.told().empty());
}

TEST_CASE("agreement: what differs by right in sizes") {
  Ranks r(2);
  for (u32 n = 0; n < 20; ++n) {
    for (u32 i = 0; i < 2; ++i) {
      fr_op op = r.all_reduce(i, 10);
      op.op = r.rigs[i]->intern("c10d::alltoall_base_");
      op.in_numel = 100 + i * n;
      op.out_numel = 100 + (1 - i) * n;
      r.rigs[i]->begin(op);
      op.op = r.rigs[i]->intern("c10d::allgather_");  // uneven inputs, the same total
      op.in_numel = 10 + i;
      op.out_numel = 21;
      r.rigs[i]->begin(op);
      op.op = r.rigs[i]->intern("c10d::scatter_");
      op.in_numel = i == 0 ? 20 : 0;
      op.in_dtype = i == 0 ? kFloat : 0;
      op.out_numel = 10;
      op.peer = 0;
      r.rigs[i]->begin(op);
      op = r.all_reduce(i, 10 + i);  // sends and receives are of a lane
      op.kind = i == 0 ? FR_SEND : FR_RECV;
      op.peer = static_cast<i32>(1 - i);
      r.rigs[i]->begin(op);
    }
  }
  CHECK(r.told().empty());
}

TEST_CASE("agreement: a rank with groups of its own, and groups of one name and other ranks") {
  Ranks r(3);
  const u32 alone = r.rigs[0]->group("evaluation", {0});
  const u32 left = r.rigs[0]->group("half", {0, 1});
  const u32 right = r.rigs[2]->group("half", {2, 3});
  for (u32 n = 0; n < 50; ++n) {
    r.all(10);
    fr_op op = r.all_reduce(0, 30);
    op.group = alone;
    op.in_numel = n;
    r.rigs[0]->begin(op);
    op.group = left;
    r.rigs[0]->begin(op);
    op = r.all_reduce(2, 30);
    op.group = right;
    op.reduce_op = kMax;
    r.rigs[2]->begin(op);
  }
  CHECK(r.told().empty());
}

TEST_CASE("agreement: records that were overwritten are not compared, and said to be lost") {
  Ranks r(2, 64);
  r.all(10, 8);
  CHECK(r.told().empty());
  for (u32 i = 0; i < 2; ++i) {
    for (u32 n = 0; n < 500; ++n) {
      fr_op op = r.all_reduce(i, 10);
      op.reduce_op = i == 1 && n == 3 ? kMax : kSum;  // gone before anybody looks
      r.rigs[i]->begin(op);
    }
  }
  CHECK(r.told().empty());
  CHECK(r.agreement.passed_by() != 0);
  r.rigs[0]->begin(r.all_reduce(0, 10));
  fr_op op = r.all_reduce(1, 10);
  op.reduce_op = kMax;
  r.rigs[1]->begin(op);
  CHECK(r.told().find("rank 1 issued all_reduce #509") != std::string::npos);
}

TEST_CASE("agreement: a rank far ahead, and one that joins late") {
  Ranks r(3);
  for (u32 n = 0; n < 800; ++n) {
    r.rigs[0]->begin(r.all_reduce(0, 10));
  }
  CHECK(r.told().empty());
  for (u32 n = 0; n < 800; ++n) {
    fr_op op = r.all_reduce(1, 10);
    op.in_numel += n == 799 ? 1 : 0;
    r.rigs[1]->begin(op);
    r.rigs[2]->begin(r.all_reduce(2, 10));
  }
  CHECK(r.told().find("rank 1 issued all_reduce #800") != std::string::npos);
}

TEST_CASE("agreement: threads that issue into one group at the same time") {
  Ranks r(2, 16384);
  for (u32 i = 0; i < 2; ++i) {
    const fr_op op = r.all_reduce(i, 10);
    const auto issue = [&] {
      for (u32 n = 0; n < 4000; ++n) {
        r.rigs[i]->begin(op);
      }
    };
    std::thread other(issue);
    issue();
    other.join();
    CHECK(r.told().empty());
  }
  CHECK(r.agreement.compared() > 8000);
  CHECK(r.agreement.passed_by() == 0);
}

TEST_CASE("agreement: more groups than it has room for") {
  Ranks r(2, 16384);
  for (u32 n = 0; n < 1500; ++n) {
    const std::string name = "g" + std::to_string(n);
    u32 row[2];
    for (u32 i = 0; i < 2; ++i) {
      row[i] = r.rigs[i]->group(name.c_str());
      for (u32 k = 0; k < 3; ++k) {
        fr_op op = r.all_reduce(i, 10);
        op.group = row[i];
        op.reduce_op = n == 1400 && i == 1 && k == 2 ? kMax : kSum;
        fr::end(r.rigs[i]->hot, r.rigs[i]->begin(op), State::kCompleted, 0);
      }
    }
    CHECK(r.told().empty() == (n != 1400));
    for (u32 i = 0; i < 2; ++i) {
      r.rigs[i]->row(row[i]).destroyed_ticks.store(ticks_now(r.rigs[i]->hot.clock));
    }
  }
}

namespace {

// Records the adapter's sample of an issued operation.
void sample(Ranks& r, u32 rank, const fr_op& of, u64 seq, u32 side, u64 nan, u64 sum = 5) {
  u32 words[FR_SAMPLE_WORDS] = {side};
  words[FR_SAMPLE_NAN] = static_cast<u32>(nan);
  words[FR_SAMPLE_SUM] = static_cast<u32>(sum);
  fr_op op = of;
  op.kind = FR_SAMPLE;
  op.seq = seq;
  op.shape = words;
  op.n_shape = FR_SAMPLE_WORDS;
  r.rigs[rank]->begin(op);
}

// One sampled all_reduce; nan: the rank with NaN in its input, -1 for none.
void reduce(Ranks& r, u32 line, i32 nan, bool nan_before = false, i32 wrong = -1) {
  for (u32 i = 0; i < r.rigs.size(); ++i) {
    const fr_op op = r.all_reduce(i, line);
    const u64 seq = r.rigs[i]->begin(op).seq;
    sample(r, i, op, seq, FR_SAMPLE_INPUT, nan_before || nan == static_cast<i32>(i) ? 2 : 0);
    sample(r, i, op, seq, FR_SAMPLE_SAME_OUTPUT, nan_before || nan >= 0 ? 1024 : 0,
           wrong == static_cast<i32>(i) ? 6 : 5);
  }
}

}  // namespace

TEST_CASE("agreement: where NaN came in") {
  Ranks r(3);
  for (u32 i = 0; i < 3; ++i) {
    fr::step(r.rigs[i]->hot, 7);
  }
  reduce(r, 10, -1);
  CHECK(r.told().empty());
  reduce(r, 10, 2);
  reduce(r, 12, 2, true);  // another place proves nothing
  CHECK(r.told().empty());
  reduce(r, 10, 2, true);
  CHECK(r.told() ==
        "NaN entered at rank 2, step 7, all_reduce #2 of desc at train.py:10 (step); everybody "
        "has it since");
  reduce(r, 10, 1, true);
  CHECK(r.told().empty());
}

TEST_CASE("agreement: NaN that is gone with the next step, and that came in between samples") {
  Ranks r(2);
  for (u32 n = 0; n < 5; ++n) {
    reduce(r, 10, 1);
    CHECK(r.told().empty());
    reduce(r, 10, -1);
    CHECK(r.told().empty());
  }
  reduce(r, 10, 0, true);
  reduce(r, 10, 0, true);
  CHECK(r.told() ==
        "NaN entered before all_reduce #11 of desc at train.py:10 (step): the inputs of ranks 0,1 "
        "have it at once; FR_FINGERPRINT=1 tells whose was first");
}

TEST_CASE("agreement: a rank that missed samples is not where NaN came in") {
  for (const bool is_clean_since : {false, true}) {
    Ranks r(2);
    reduce(r, 10, -1);
    sample(r, 1, r.all_reduce(1, 10), 1, FR_SAMPLE_MISSED, 0);
    if (is_clean_since) {
      reduce(r, 10, -1);
    }
    reduce(r, 10, 1);
    reduce(r, 10, 1);
    const bool is_told = r.told().find("entered at rank 1") != std::string::npos;
    CHECK(is_told == is_clean_since);
  }
}

TEST_CASE("agreement: NaN may have come by a receive, which is not sampled") {
  for (const bool is_clean_since : {false, true}) {
    Ranks r(2);
    reduce(r, 10, -1);
    fr_op op = make_op(r.world, FR_RECV, r.rigs[1]->intern("recv"));
    op.peer = 0;
    r.rigs[1]->begin(op);
    if (is_clean_since) {
      reduce(r, 10, -1);
    }
    reduce(r, 10, 1);
    reduce(r, 10, 1);
    CHECK(r.told().starts_with(is_clean_since
                                   ? "NaN entered at rank 1, all_reduce #3"
                                   : "NaN entered at rank 1, or came to it by a receive, all_"));
  }
}

TEST_CASE("agreement: a rank whose samples the ring no longer has is not where NaN came in") {
  Ranks r(2);
  reduce(r, 10, -1);
  CHECK(r.told().empty());
  for (u32 n = 0; n < 2 * r.rigs[1]->view.n_slots(); ++n) {
    fr::step(r.rigs[1]->hot, 1);
  }
  reduce(r, 10, 1);
  reduce(r, 10, 1);
  CHECK(r.told().empty());
}

TEST_CASE("agreement: a sample that comes late is of the step of its operation") {
  Ranks r(2);
  for (u32 n = 0; n < 2; ++n) {
    fr_op op[2];
    u64 seq = 0;
    for (u32 i = 0; i < 2; ++i) {
      fr::step(r.rigs[i]->hot, 7 + n);
      op[i] = r.all_reduce(i, 10);
      seq = r.rigs[i]->begin(op[i]).seq;
      fr::step(r.rigs[i]->hot, 107 + n);
    }
    for (u32 i = 0; i < 2; ++i) {
      sample(r, i, op[i], seq, FR_SAMPLE_INPUT, i);
      sample(r, i, op[i], seq, FR_SAMPLE_SAME_OUTPUT, 64);
    }
  }
  CHECK(r.told().find("entered at rank 1, step 7, all_reduce #1") != std::string::npos);
}

TEST_CASE("agreement: an output that differs") {
  Ranks r(4);
  for (u32 n = 0; n < 100; ++n) {
    reduce(r, 10, -1);
  }
  CHECK(r.told().empty());
  reduce(r, 10, -1, false, 3);
  CHECK(r.told() ==
        "output of all_reduce #101 of desc at train.py:10 (step) differs on rank 3, ranks 0-2 "
        "agree: its device, its links, or a write to the buffer before the wait");
  reduce(r, 10, -1, false, 3);
  CHECK(r.told().empty());
  Ranks two(2);
  reduce(two, 10, -1, false, 1);
  CHECK(two.told() ==
        "output of all_reduce #1 of desc at train.py:10 (step) differs between ranks, nothing "
        "tells which is right: rank 1 and rank 0");
}

namespace {

// Nodes of two ranks each, all in one group, between which posts are lost as told.
struct NodesOfTwo {
  explicit NodesOfTwo(u32 n) : rows(n) {
    std::vector<i32> members;
    for (u32 i = 0; i < 2 * n; ++i) {
      members.push_back(static_cast<i32>(i));
    }
    for (u32 i = 0; i < n; ++i) {
      rows[i].first_rank = static_cast<i32>(2 * i);
      rows[i].n_ranks = 2;
      rows[i].stride = 1;
      std::snprintf(rows[i].host, sizeof rows[i].host, "n%u", i);
      nodes.push_back(std::make_unique<Ranks>(2));
      for (u32 k = 0; k < 2; ++k) {
        Rig& rig = *nodes[i]->rigs[k];
        rig.header().rank.store(static_cast<i32>(2 * i + k));
        nodes[i]->world = rig.group("all", members);
      }
    }
    for (u32 i = 0; i < n; ++i) {
      nodes[i]->agreement.set_nodes(rows.data(), n, i);
    }
  }
  void all(u32 times, u32 wrong_node = ~0u) {
    for (u32 n = 0; n < times; ++n) {
      for (u32 i = 0; i < nodes.size(); ++i) {
        for (u32 k = 0; k < 2; ++k) {
          fr_op op = nodes[i]->all_reduce(k, i == wrong_node ? 20 : 10);
          op.reduce_op = i == wrong_node ? kMax : kSum;
          nodes[i]->rigs[k]->begin(op);
        }
      }
    }
  }
  // Lets some seconds pass; the warnings that the nodes gave.
  std::string told(u32 seconds = 8) {
    std::string out;
    char text[600];
    for (u32 t = 0; t < 10 * seconds; ++t) {
      now += kSecond_ns / 10;
      for (u32 i = 0; i < nodes.size(); ++i) {
        Agreement& a = nodes[i]->agreement;
        a.read_all(now);
        Post post;
        while (to[i].take(post)) {
          a.hear(post, now, from[i]);
        }
        a.talk(now, from[i]);
        while (from[i].take(post)) {
          const u32 receiver = post.node;
          post.node = i;
          ++sent;
          if (!is_lost(post)) {
            to[receiver].give(post);
          }
        }
        while (a.tell(now, text, sizeof text)) {
          out += out.empty() ? text : std::string("\n") + text;
        }
      }
    }
    return out;
  }

  std::vector<NodeRow> rows;
  std::vector<std::unique_ptr<Ranks>> nodes;
  Posts to[4], from[4];
  std::function<bool(const Post&)> is_lost = [](const Post&) { return false; };
  u64 sent = 0;
  u64 now = kSecond_ns;
};

}  // namespace

TEST_CASE("agreement: between nodes, one that issues another operation is named") {
  NodesOfTwo n(3);
  const u32 before = GENERATE(2u, 250u, 900u);
  n.all(before);
  CHECK(n.told().empty());
  n.all(1, 1);
  n.all(20);
  CHECK(n.told() == "mismatch: in #" + std::to_string(before + 1) +
                        " of desc ranks 2,3 issued all_reduce at train.py:20 (step) on n1, reduce "
                        "op MAX; ranks 0,1 issued all_reduce at train.py:10 (step) on n0, reduce "
                        "op SUM (and 2 ranks of other nodes)");
  n.all(20);
  CHECK(n.told().empty());
}

TEST_CASE("agreement: between nodes, the one that compares may be wrong, or none of two") {
  NodesOfTwo three(3);
  three.all(1, 0);
  CHECK(
      three.told().starts_with("mismatch: in #1 of desc ranks 0,1 issued all_reduce at "
                               "train.py:20 (step) on n0, reduce op MAX; ranks"));
  NodesOfTwo two(2);
  two.all(1, 0);
  CHECK(two.told().starts_with("mismatch: nothing tells which is right: in #1 of desc ranks"));
}

TEST_CASE("agreement: between nodes, lost posts and lost records make no difference") {
  NodesOfTwo n(3);
  u32 count = 0;
  n.is_lost = [&](const Post&) { return ++count % 2 == 0; };
  for (u32 round = 0; round < 20; ++round) {
    n.all(round * 17);
    CHECK(n.told(3).empty());
  }
  n.all(5000);  // more than the rings hold
  CHECK(n.told().empty());
  n.all(300);
  CHECK(n.told().empty());
  CHECK(n.sent > 40);
  n.is_lost = [](const Post&) { return false; };
  n.all(1, 2);
  n.all(5);
  CHECK(n.told().find("ranks 4,5 issued") != std::string::npos);
}

// 10^8 operations, all right: FR_TEST_OPERATIONS says how many are made.
TEST_CASE("agreement: healthy operations of all kinds") {
  const char* given = getenv("FR_TEST_OPERATIONS");
  const u64 total = given != nullptr ? std::strtoull(given, nullptr, 10) : 200'000;
  Ranks r(4, 16384);
  const u32 pairs[2] = {r.rigs[0]->group("pair", {0, 1}), r.rigs[2]->group("pair", {2, 3})};
  REQUIRE(r.rigs[1]->group("pair", {0, 1}) == pairs[0]);
  REQUIRE(r.rigs[3]->group("pair", {2, 3}) == pairs[1]);
  const char* names[] = {"c10d::allreduce_", "c10d::alltoall_base_",        "c10d::allgather_",
                         "c10d::broadcast_", "c10d::_reduce_scatter_base_", "c10d::barrier"};
  u32 ids[4][6];
  u32 stacks[4][8];
  for (u32 i = 0; i < 4; ++i) {
    for (u32 k = 0; k < 6; ++k) {
      ids[i][k] = r.rigs[i]->intern(names[k]);
    }
    for (u32 k = 0; k < 8; ++k) {
      stacks[i][k] = r.stack(i, 10 + k);
    }
  }
  u64 random = 88172645463325252ull;
  std::string said;
  for (u64 n = 0; n < total;) {
    // Each rank issues the same blocks, at times ahead of the others by one.
    const u64 block = n / 4000;
    for (u32 i = 0; i < 4; ++i) {
      u64 same = block * 0x9e3779b97f4a7c15ull | 1;
      for (u32 k = 0; k < 1000; ++k) {
        same ^= same << 13;
        same ^= same >> 7;
        same ^= same << 17;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        const u32 kind = static_cast<u32>(same % 6);
        fr_op op = make_op(same % 5 == 0 ? pairs[i / 2] : r.world, FR_COLLECTIVE, ids[i][kind]);
        op.in_dtype = op.out_dtype = static_cast<u8>(same % 2 != 0 ? kFloat : kInt);
        op.reduce_op = kSum;
        op.in_numel = kind == 1 || kind == 2 ? random % 1000 : same % 1000;  // uneven, by the data
        op.out_numel = kind == 1 ? random % 1000 : same % 1000;
        op.peer = kind == 3 ? static_cast<i32>(same % 2) : -1;
        op.stack = stacks[i][kind == 3 && op.peer == static_cast<i32>(i % 2) ? 7 : kind];
        r.rigs[i]->begin(op);
        if (random % 16 == 0) {  // pipelines
          op.kind = FR_SEND;
          op.peer = static_cast<i32>(random % 2);
          r.rigs[i]->begin(op);
        }
      }
      if (i == block % 4) {
        said += r.told();
      }
    }
    n += 4000;
  }
  said += r.told();
  CHECK(said.empty());
  INFO("compared " << r.agreement.compared() << ", passed by " << r.agreement.passed_by());
  CHECK(r.agreement.compared() + r.agreement.passed_by() > total / 2);
  if (given != nullptr) {
    WARN("compared " << r.agreement.compared() << ", passed by " << r.agreement.passed_by());
  }
}
