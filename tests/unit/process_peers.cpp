// Ranks of one job on one node: one incident, dead and silent ranks salvaged,
// earlier attempts moved.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catch.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

const Environment kFast = {{"FR_WARN_S", "0.2"}, {"FR_TIMEOUT_S", "0.4"}};

// A rank that did one operation; it hangs in the next one when the board says so.
Child start_rank(Scene& scene, int rank, const Environment& options = kFast, int world_size = 3) {
  Child child = scene.start(
      rank, options,
      [&scene, rank, world_size] {
        const fr_group_t g = child_group("0", rank, world_size);
        const fr_ticket t = child_begin(g);
        fr_end(&t, FR_OK, nullptr);
        scene.board.cell[rank] = 1;
        while (scene.board.cell[10 + rank] == 0) {
          usleep(1000);
        }
        if (scene.board.cell[10 + rank] == 1) {
          child_begin(g, "broadcast");
          sleep_for_ever();
        }
        return 0;
      },
      world_size);
  REQUIRE(scene.reached(rank, 1));
  return child;
}

bool wait_for(const std::string& path) {
  return eventually([&] { return exists(path); });
}

}  // namespace

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
  // its own dump, should it go on, replaces the salvaged one
  ranks[1].kill(SIGCONT);
  CHECK(ranks[1].wait().status == 1);
  CHECK(Dump::load(scene.dump_path(1, 1))["salvage"].is_nil());
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

TEST_CASE("peers: the next attempt moves what an earlier one left into the dump directory") {
  Scene scene;
  {
    Child first = start_rank(scene, 0);
    Child second = start_rank(scene, 1);
    first.kill(SIGKILL);
    second.kill(SIGKILL);
    first.wait();
    second.wait();
  }
  REQUIRE(scene.rings().size() == 2);
  scene.board.cell[0] = 0;
  Environment next = kFast;
  next["TORCHELASTIC_RESTART_COUNT"] = "1";
  Child again = start_rank(scene, 0, next);
  for (const int r : {0, 1}) {
    REQUIRE(wait_for(scene.dump_path(r, 1)));
    const Dump d = Dump::load(scene.dump_path(r, 1));
    CHECK(d["salvage"]["why"].text() == "left over");
    CHECK(d["identity"]["attempt"].integer() == 0);
    CHECK(d["identity"]["rank"].integer() == r);
  }
  CHECK(eventually([&] { return scene.rings().size() == 1; }));
  CHECK(scene.rings()[0].find("job.a1.r0.") == 0);
}

TEST_CASE("peers: a second run under the same name does not overwrite the first one's dumps") {
  Scene scene;
  for (int run = 1; run <= 2; ++run) {
    Child child = scene.start(0, {}, [] {
      child_begin(child_group());
      return 0;
    });
    child.wait();
    CHECK(exists(scene.dump_path(0, run)));
  }
  CHECK(scene.dumps().size() == 2);
}

TEST_CASE("peers: another job's leftovers are left alone") {
  Scene scene;
  Environment other = kFast;
  other["FR_JOB"] = "other";
  Child stranger = start_rank(scene, 0, other);
  stranger.kill(SIGKILL);
  stranger.wait();
  scene.board.cell[0] = 0;
  Child ours = start_rank(scene, 0);
  scene.board.cell[10] = 1;
  REQUIRE(wait_for(scene.dump_path(0, 1)));
  for (const std::string& name : scene.dumps()) {
    CHECK(name.find("job.a0.r0.") == 0);
  }
  CHECK(scene.rings().size() == 2);
}

TEST_CASE("peers: a rank on another node follows an incident it sees in the shared directory") {
  Scene scene;
  TempDir other_node("/dev/shm");
  Environment here = kFast;
  here["LOCAL_WORLD_SIZE"] = "1";
  Environment there = here;
  there["FR_SHM_DIR"] = other_node.path();
  Child a = start_rank(scene, 0, here, 2);
  Child b = start_rank(scene, 1, there, 2);
  scene.board.cell[10] = 1;
  REQUIRE(wait_for(scene.dump_path(0, 1)));
  REQUIRE(wait_for(scene.dump_path(1, 1)));
  const Dump d = Dump::load(scene.dump_path(1, 1));
  CHECK(d["trigger"].text() == "peer");
  CHECK(d["reason"].text().find("another node") != std::string::npos);
}

TEST_CASE("peers: a file that comes within the directory's last change of time is seen, too") {
  Scene scene;
  const TempDir dumps("/dev/shm");
  const auto changed = [&](time_t at) {  // and not read since
    const timespec times[2] = {{0, 0}, {at, 0}};
    REQUIRE(utimensat(AT_FDCWD, dumps.path().c_str(), times, 0) == 0);
  };
  const auto was_read = [&] {
    struct stat st;
    return stat(dumps.path().c_str(), &st) == 0 && st.st_atim.tv_sec != 0;
  };
  changed(1'000'000'000);
  if (list(dumps.path()).empty() && !was_read()) {
    WARN("skipped: the file system does not note who reads");
    return;
  }
  Environment there = kFast;
  there["FR_DUMP_DIR"] = dumps.path();
  there["LOCAL_WORLD_SIZE"] = "1";
  Child child = start_rank(scene, 1, there, 2);
  changed(2'000'000'000);
  REQUIRE(eventually(was_read));
  write_file(dumps.path() + "/job.a0.r0.1.fr", "of another node");
  changed(2'000'000'000);
  CHECK(wait_for(dumps.path() + "/job.a0.r1.1.fr"));
}
