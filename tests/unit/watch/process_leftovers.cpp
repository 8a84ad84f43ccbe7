// process_leftovers.cpp - rings of earlier attempts are moved into the dump directory.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catch.hpp"
#include "support.hpp"
#include "watch/ranks.hpp"

using namespace fr;
using namespace fr::test;

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

TEST_CASE("peers: a leftover ring whose dump's name is taken lies beside that dump") {
  Scene scene;
  Child first = start_rank(scene, 0);
  first.kill(SIGKILL);
  first.wait();
  REQUIRE(scene.rings().size() == 1);
  mkdir(scene.dump_dir.c_str(), 0700);
  write_file(scene.dump_path(0, 1), "what the rank wrote itself");
  scene.board.cell[0] = 0;
  Environment next = kFast;
  next["TORCHELASTIC_RESTART_COUNT"] = "1";
  Child again = start_rank(scene, 0, next);
  const std::string beside = scene.dump_dir + "/job.a0.r0.1.dead.fr";
  REQUIRE(wait_for(beside));
  CHECK(Dump::load(beside)["salvage"]["why"].text() == "left over");
  CHECK(read_file(scene.dump_path(0, 1)) == "what the rank wrote itself");
  CHECK(eventually([&] { return scene.rings().size() == 1; }));  // that of the second run
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

TEST_CASE("peers: leftovers of the same name from another directory are left alone") {
  Scene scene;
  Environment there = kFast;
  there["FR_DUMP_DIR"] = scene.home.path() + "/there";
  Child stranger = start_rank(scene, 0, there);  // the same MASTER_PORT, another program
  stranger.kill(SIGKILL);
  stranger.wait();
  scene.board.cell[0] = 0;
  Child ours = start_rank(scene, 0);
  scene.board.cell[10] = 1;
  REQUIRE(wait_for(scene.dump_path(0, 2)));  // after its leftovers were looked at
  CHECK(scene.dumps().size() == 1);
  CHECK(scene.rings().size() == 2);
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

TEST_CASE("peers: control pages of dead jobs go when another job starts") {
  Scene scene;
  Environment other = kFast;
  other["FR_JOB"] = "other";
  Child stranger = start_rank(scene, 0, other);
  const auto pages = [&] {
    std::string found;
    for (const std::string& name : list(scene.ring_dir())) {
      found += name.ends_with(".ctl") ? name.substr(0, name.find('.')) + " " : "";
    }
    return found;
  };
  scene.board.cell[0] = 0;
  {
    Child ours = start_rank(scene, 0);
    CHECK(pages() == "job other ");  // it lives
    ours.kill(SIGKILL);
    ours.wait();
  }
  stranger.kill(SIGKILL);
  stranger.wait();
  scene.board.cell[0] = 0;
  Child again = start_rank(scene, 0);
  CHECK(eventually([&] { return pages() == "job "; }));
}
