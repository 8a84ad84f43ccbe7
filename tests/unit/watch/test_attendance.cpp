// The members that have issued an operation, over nodes: when each node knows them, after how many
// messages. The test simulates the network, which loses some messages; no socket, no clock.
#include <cstdio>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "catch.hpp"
#include "watch/attendance.hpp"

using namespace fr;

namespace {

constexpr u64 kTurn_ns = 100'000'000;
constexpr u64 kSecond = 1'000'000'000;
constexpr u64 kGroupKey = 77;
constexpr u32 kPerNode = 8;

struct FakeEyes final : Eyes {
  Here here;
  bool is_known = true;
  u32 looks = 0;
  bool look(u64, u64, u64, Here& to) noexcept override {
    ++looks;
    to = here;
    return is_known;
  }
};

// Nodes of eight ranks each, all in one group.
class JobNodes {
 public:
  explicit JobNodes(u32 n, double loss = 0, u32 world = 0) : rows_(n), loss_(loss) {
    group_ = {0, n * kPerNode, 1};
    for (u32 i = 0; i < n; ++i) {
      rows_[i].first_rank = static_cast<i32>(i * kPerNode);
      rows_[i].n_ranks = kPerNode;
      rows_[i].stride = 1;
      nodes_.push_back(std::make_unique<Node>());
      const u32 ranks = world != 0 ? world : n * kPerNode;
      REQUIRE(nodes_[i]->attendance.init(rows_.data(), n, i, static_cast<i32>(ranks)));
      Here& here = nodes_[i]->eyes.here;
      here.members = here.came = kPerNode;
      here.n_ranks = static_cast<i32>(n * kPerNode);
      here.ranks = group_;
    }
  }
  ~JobNodes() {
    for (auto& node : nodes_) {
      node->attendance.release();
    }
  }
  struct Node {
    Attendance attendance;
    FakeEyes eyes;
    Posts out;
    bool wants = true, is_dead = false;
  };
  Node& operator[](u32 i) { return *nodes_[i]; }
  // A rank of that node has not issued the operation, and no rank there waits in it.
  Here& leaves(u32 i) {
    Here& here = nodes_[i]->eyes.here;
    here.came = kPerNode - 1;
    here.absent = static_cast<i32>(i * kPerNode + 3);
    nodes_[i]->wants = false;
    return here;
  }

  // Until the given time; a message takes one tick.
  void run(u64 until_ns, u64 seq = 41) {
    for (; now_ < until_ns; now_ += kTurn_ns) {
      std::deque<Post> arriving;
      arriving.swap(flying_);
      for (const Post& p : arriving) {
        const u32 to = p.node >> 16;
        Post heard = p;
        heard.node = p.node & 0xffff;
        nodes_[to]->attendance.hear(heard, now_);
      }
      for (u32 i = 0; i < nodes_.size(); ++i) {
        Node& node = *nodes_[i];
        if (node.is_dead) {
          continue;
        }
        if (node.wants) {
          node.attendance.want(kGroupKey, seq, now_);
        }
        node.attendance.turn(now_, node.eyes, node.out);
        Post p;
        while (node.out.take(p)) {
          ++sent;
          const u32 to = p.node;
          last[p.kind] = p;
          p.node = to << 16 | i;
          if (!nodes_[to]->is_dead && std::uniform_real_distribution<>()(random_) >= loss_) {
            flying_.push_back(p);
          }
        }
      }
    }
  }
  const Attendance::Answer* answer(u32 node, u64 seq = 41) {
    return nodes_[node]->attendance.answer(kGroupKey, seq, now_);
  }
  Others others(u32 node) {
    const auto* a = answer(node);
    return a != nullptr ? a->others : Others::kUnseen;
  }
  u32 knowing(Others what) {
    u32 n = 0;
    for (u32 i = 0; i < nodes_.size(); ++i) {
      n += others(i) == what ? 1 : 0;
    }
    return n;
  }
  u64 now() const { return now_; }

  u64 sent = 0;
  Post last[16] = {};

 private:
  std::vector<NodeRow> rows_;
  std::vector<u32> group_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::deque<Post> flying_;
  std::mt19937 random_{1};
  double loss_;
  u64 now_ = 100 * kSecond;
};

}  // namespace

TEST_CASE("attendance: all have come, on every node, since the last one did") {
  JobNodes net(3);
  for (u32 i = 0; i < 3; ++i) {
    net[i].eyes.here.came_ago_ns = (4 + i) * kSecond;
  }
  net.run(105 * kSecond);
  for (u32 i = 0; i < 3; ++i) {
    CAPTURE(i);
    REQUIRE(net.others(i) == Others::kCame);
    CHECK(net.answer(i)->came_ns >= 95 * kSecond);
    CHECK(net.answer(i)->came_ns <= 100 * kSecond);
  }
  const u64 sent = net.sent;
  CHECK(sent < 20);
  net.run(200 * kSecond);
  CHECK(net.sent == sent);  // it stays so: nothing more is to be told
}

TEST_CASE("attendance: nothing is sent where nobody waits") {
  JobNodes net(3);
  for (u32 i = 0; i < 3; ++i) {
    net[i].wants = false;
  }
  net.run(200 * kSecond);
  CHECK(net.sent == 0);
  CHECK(net[0].eyes.looks == 0);
}

TEST_CASE("attendance: what one does that has not come is asked of its node") {
  for (const u32 late : {0u, 2u}) {  // the home is one like any other
    JobNodes net(4);
    Here& here = net.leaves(late);
    const i32 rank = here.absent;
    CAPTURE(late);
    here.busy = rank;
    net.run(107 * kSecond);
    CHECK(net.knowing(Others::kBusy) >= 3);
    CHECK(net.answer(1)->absent == rank);
    CHECK(net.answer(1)->busy == rank);
    here.busy = -1;
    here.is_asleep = true;
    net.run(114 * kSecond);
    CHECK(net.knowing(Others::kAsleep) >= 3);
    CHECK(net.answer(1)->absent == rank);
    here.is_asleep = false;
    here.is_gone = true;
    net.run(121 * kSecond);
    CHECK(net.knowing(Others::kGone) >= 3);
    CHECK(net.answer(1)->absent == rank);
    here.is_gone = false;
    here.came = kPerNode;
    net.run(128 * kSecond);
    CHECK(net.knowing(Others::kCame) >= 3);
  }
}

TEST_CASE("attendance: a first look does not tell who computes") {
  JobNodes net(2);
  Here& here = net.leaves(1);
  here.is_first = true;
  here.busy = here.absent;
  net.run(104 * kSecond);
  CHECK(net.others(0) == Others::kUnseen);
  here.is_first = false;
  net.run(106 * kSecond);
  CHECK(net.others(0) == Others::kBusy);
}

TEST_CASE("attendance: a process that computes elsewhere may be what the sleeping one waits for") {
  JobNodes net(3);
  net.leaves(1).is_asleep = true;
  net[2].eyes.here.busy = 17;
  net.run(110 * kSecond);
  CHECK(net.others(0) == Others::kBusy);
  CHECK(net.answer(0)->absent == 11);
}

TEST_CASE("attendance: ranks that all wait elsewhere hang where the group is the job") {
  JobNodes job(3);
  job.leaves(1);
  job.run(110 * kSecond);
  CHECK(job.others(0) == Others::kAsleep);
  JobNodes part(3, 0, 100);
  part.leaves(1);
  part.run(110 * kSecond);
  CHECK(part.others(0) == Others::kUnseen);
}

TEST_CASE("attendance: nothing is known of a node that is silent, and not for long what it said") {
  JobNodes net(3);
  net[2].is_dead = true;
  net.run(120 * kSecond);
  CHECK(net.others(0) == Others::kUnseen);
  CHECK(net.others(1) == Others::kUnseen);
  JobNodes then(3);
  then.leaves(2).is_asleep = true;
  then.run(110 * kSecond);
  REQUIRE(then.others(1) == Others::kAsleep);
  then[2].is_dead = true;
  then.run(110 * kSecond + 3 * Attendance::fresh_ns(3));
  CHECK(then.others(1) == Others::kUnseen);
  JobNodes without_home(3);
  without_home[0].is_dead = true;
  without_home.run(120 * kSecond);
  CHECK(without_home.answer(1) == nullptr);
}

TEST_CASE("attendance: a node whose ranks do not know the group says nothing") {
  JobNodes net(3);
  net[1].eyes.is_known = false;
  net[1].wants = false;
  net.run(120 * kSecond);
  CHECK(net.others(0) == Others::kUnseen);
}

TEST_CASE("attendance: a replay of what a node said changes nothing") {
  JobNodes net(2);
  net.leaves(1).is_asleep = true;
  net.run(110 * kSecond);
  REQUIRE(net.others(0) == Others::kAsleep);
  Post old = net.last[Post::kPresent];
  old.node = 1;
  net[1].eyes.here.is_asleep = false;
  net[1].eyes.here.busy = 9;
  net.run(115 * kSecond);
  REQUIRE(net.others(0) == Others::kBusy);
  net[1].is_dead = true;
  net[0].attendance.hear(old, net.now());
  net.run(net.now() + 2 * kTurn_ns);
  CHECK(net.others(0) == Others::kBusy);
}

TEST_CASE("attendance: an answer counts from the home only, and garbage not at all") {
  JobNodes net(3);
  net[0].is_dead = true;
  net.run(105 * kSecond);
  Post forged = net.last[Post::kPresent];
  forged.kind = Post::kAttendance;
  forged.node = 2;
  net[1].attendance.hear(forged, net.now());
  CHECK(net.answer(1) == nullptr);
  forged.node = 0;
  forged.bytes = 12;
  net[1].attendance.hear(forged, net.now());
  forged.node = 99;
  net[1].attendance.hear(forged, net.now());
  CHECK(net.answer(1) == nullptr);
}

TEST_CASE("attendance: more operations than there is room for") {
  JobNodes net(2);
  for (u64 seq = 1; seq < 200; ++seq) {
    net.run(net.now() + kTurn_ns, seq);
  }
  net.run(net.now() + 5 * kSecond, 200);
  REQUIRE(net.answer(1, 200) != nullptr);
  CHECK(net.answer(1, 200)->others == Others::kCame);
  CHECK(net.answer(1, 2) == nullptr);
}

TEST_CASE("attendance: 10,000 ranks on 1,250 nodes, one datagram of ten lost") {
  constexpr u32 kNodesThere = 1250;
  {
    JobNodes net(kNodesThere, 0.1);
    net.run(108 * kSecond);
    std::printf("all came: after 8 s %u nodes know, %llu messages\n", net.knowing(Others::kCame),
                static_cast<unsigned long long>(net.sent));
    CHECK(net.knowing(Others::kCame) >= kNodesThere * 7 / 10);
    net.run(120 * kSecond);
    CHECK(net.knowing(Others::kCame) == kNodesThere);
    CHECK(net.sent < 8 * kNodesThere);
  }
  {
    JobNodes net(kNodesThere, 0.1);
    net.leaves(700).is_asleep = true;
    net.run(115 * kSecond);
    std::printf("one sleeps: after 15 s %u nodes know, %llu messages\n",
                net.knowing(Others::kAsleep), static_cast<unsigned long long>(net.sent));
    CHECK(net.knowing(Others::kAsleep) >= kNodesThere * 9 / 10);
    CHECK(net.answer(3)->absent == 700 * 8 + 3);
    CHECK(net.sent < 15 * kNodesThere);
  }
  {
    JobNodes net(kNodesThere, 0.1);
    for (u32 i = 0; i < kNodesThere; ++i) {
      if (i != 5) {
        net.leaves(i).is_asleep = true;
      }
    }
    net.run(115 * kSecond);
    std::printf("one of all came: %llu messages\n", static_cast<unsigned long long>(net.sent));
    CHECK(net.others(5) == Others::kAsleep);
    CHECK(net.sent < 15 * kNodesThere);
  }
}
