// process_salvage.cpp - ranks of one job on one node: one incident, dead and silent ranks salvaged.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catch.hpp"
#include "support.hpp"
#include "watch/ranks.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("peers: when one rank dumps, the idle ones do too") {
  Scene scene;
  std::vector<Child> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.push_back(start_rank(scene, r));
  }
  scene.board.cell[11] = 1;
  for (int r = 0; r < 3; ++r) {
    CAPTURE(r);
    REQUIRE(wait_for(scene.dump_path(r, 1)));
    const Dump d = Dump::load(scene.dump_path(r, 1));
    CHECK(d["identity"]["rank"].integer() == r);
    CHECK(d["incident"].integer() == 1);
    CHECK(d["trigger"].text() == (r == 1 ? "timeout" : "peer"));
    CHECK(d["reason"].text().find(r == 1 ? "no progress" : "rank 1: no progress") == 0);
    CHECK(d["peers"].size() == 3);
    CHECK(d.cell("groups", 1, "enqueued").integer() == (r == 1 ? 2 : 1));
  }
}

TEST_CASE("peers: a killed rank's ring is salvaged by a living one") {
  Scene scene;
  std::vector<Child> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.push_back(start_rank(scene, r));
  }
  ranks[2].kill(SIGKILL);
  ranks[2].wait();
  scene.board.cell[10] = 1;
  REQUIRE(wait_for(scene.dump_path(2, 1)));
  const Dump d = Dump::load(scene.dump_path(2, 1));
  CHECK(d["identity"]["rank"].integer() == 2);
  CHECK(d["identity"]["pid"].integer() == ranks[2].pid());
  CHECK(d["salvage"]["why"].text() == "dead");
  CHECK(d["salvage"]["by_rank"].integer() != 2);
  CHECK(d["trigger"].text() == "salvage");
  CHECK(d.cell("groups", 1, "completed").integer() == 1);
  REQUIRE(wait_for(scene.dump_path(0, 1)));
  REQUIRE(wait_for(scene.dump_path(1, 1)));
  CHECK(eventually([&] { return scene.rings().size() == 2; }));
  const Dump living = Dump::load(scene.dump_path(0, 1));
  for (std::size_t i = 0; i < 3; ++i) {
    const Node peer = living["peers"][i];
    CHECK(peer["state"].text() == (peer["rank"].integer() == 2 ? "gone" : "live"));
  }
}

TEST_CASE("peers: what a rank dumped itself stays when it dies, its end goes beside it") {
  Scene scene;
  std::vector<Child> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.push_back(start_rank(scene, r, {{"FR_SIGNAL", "USR2"}}));
  }
  ranks[0].kill(SIGUSR2);  // one incident only
  REQUIRE(wait_for(scene.dump_path(2, 1)));
  const std::string own = read_file(scene.dump_path(2, 1));
  ranks[2].kill(SIGKILL);
  ranks[2].wait();
  const std::string beside = scene.dump_dir + "/job.a0.r2.1.dead.fr";
  REQUIRE(wait_for(beside));
  CHECK(read_file(scene.dump_path(2, 1)) == own);
  const Dump d = Dump::load(beside);
  CHECK(d["salvage"]["why"].text() == "dead");
  CHECK(d["incident"].integer() == 1);
  CHECK(d["identity"]["pid"].integer() == ranks[2].pid());
  CHECK(eventually([&] { return scene.rings().size() == 2; }));
}

TEST_CASE("peers: a stopped rank is salvaged by those that exit at once") {
  Scene scene;
  std::vector<Child> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.push_back(scene.start(
        r, {},
        [&scene, r] {
          child_begin(child_group("0", r, 3));
          scene.board.cell[r] = 1;
          while (scene.board.cell[10] == 0) {
            usleep(1000);
          }
          return 1;
        },
        3));
  }
  for (int r = 0; r < 3; ++r) {
    REQUIRE(scene.reached(r, 1));
  }
  ranks[1].kill(SIGSTOP);
  scene.board.cell[10] = 1;
  CHECK(ranks[0].wait().status == 1);
  CHECK(ranks[2].wait().status == 1);
  REQUIRE(exists(scene.dump_path(1, 1)));
  const Dump d = Dump::load(scene.dump_path(1, 1));
  CHECK(d["salvage"]["why"].text() == "unresponsive");
  CHECK(d["identity"]["pid"].integer() == ranks[1].pid());
  // its own dump, should it go on, lies beside: the salvaged one shows how it was
  ranks[1].kill(SIGCONT);
  CHECK(ranks[1].wait().status == 1);
  CHECK(Dump::load(scene.dump_path(1, 1))["salvage"]["why"].text() == "unresponsive");
  CHECK(Dump::load(scene.dump_dir + "/job.a0.r1.1.later.fr")["salvage"].is_nil());
}

TEST_CASE("peers: a stopped rank is salvaged as unresponsive and keeps its ring") {
  Scene scene;
  std::vector<Child> ranks;
  for (int r = 0; r < 3; ++r) {
    ranks.push_back(start_rank(scene, r));
  }
  ranks[1].kill(SIGSTOP);
  scene.board.cell[10] = 1;
  // with timeouts this short, further incidents come before the two seconds of its grace are over
  std::string salvaged;
  REQUIRE(eventually([&] {
    for (const std::string& name : scene.dumps()) {
      salvaged = name.find(".r1.") != std::string::npos ? name : salvaged;
    }
    return !salvaged.empty();
  }));
  const Dump d = Dump::load(scene.dump_dir + "/" + salvaged);
  CHECK(d["salvage"]["why"].text() == "unresponsive");
  CHECK(d["identity"]["pid"].integer() == ranks[1].pid());
  CHECK(scene.rings().size() == 3);
  scene.board.cell[11] = 2;
  ranks[1].kill(SIGCONT);
  CHECK(ranks[1].wait().status == 0);  // it can still end in order
}

TEST_CASE("peers: a rank that left in order is told of, with its last operation") {
  Scene scene;
  Child gone = start_rank(scene, 1, kFast, 2);
  Child stays = start_rank(scene, 0, kFast, 2);
  scene.board.cell[11] = 2;
  CHECK(gone.wait().status == 0);
  scene.board.cell[10] = 1;
  REQUIRE(wait_for(scene.dump_path(0, 1)));
  const Dump d = Dump::load(scene.dump_path(0, 1));
  bool told = false;
  for (std::size_t i = 0; i < d["peers"].size(); ++i) {
    const Node peer = d["peers"][i];
    if (peer["rank"].integer() == 1) {
      told = true;
      CHECK(peer["state"].text() == "exited_clean");
      CHECK(peer["last_op"].text() == "all_reduce #1");
      CHECK(peer["exit_time"].is_int());
    }
  }
  CHECK(told);
  CHECK_FALSE(exists(scene.dump_path(1, 1)));
}
