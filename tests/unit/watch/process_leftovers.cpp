// process_leftovers.cpp - rings of earlier attempts are moved into the dump directory.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "catch.hpp"
#include "support.hpp"
#include "watch/ranks.hpp"

using namespace fr;
using namespace fr::test;

static constexpr std::size_t kNowhere = std::string::npos;

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
    CHECK(d["peers"].size() == 0);  // the page's are the ranks of attempt 1
  }
  CHECK(eventually([&] { return scene.log(0).find("attempt 0 of this job died ") != kNowhere; }));
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

TEST_CASE("peers: of other jobs the leftovers of the one that died last stay longest") {
  Scene scene;
  for (const char* job : {"first", "second"}) {
    scene.board.cell[0] = 0;
    Environment other = kFast;
    other["FR_JOB"] = job;
    Child stranger = start_rank(scene, 0, other);
    stranger.kill(SIGKILL);
    stranger.wait();
  }
  for (const std::string& name : scene.rings()) {  // as if they had died 20 and 19 minutes ago
    const std::string path = scene.ring_dir() + "/" + name;
    const u64 ago_s = name.starts_with("first.") ? 1200 : 1140;
    const int fd = open(path.c_str(), O_RDWR);
    REQUIRE(fd >= 0);
    const u64 time = unix_now_ns() - ago_s * 1'000'000'000;
    pwrite(fd, &time, sizeof time, offsetof(Header, start_unix_ns));
    pwrite(fd, &time, sizeof time, offsetof(Header, heartbeat_unix_ns));
    close(fd);
  }
  scene.board.cell[0] = 0;
  Child ours = start_rank(scene, 0);
  const auto stay = [&] {
    std::set<std::string> jobs;
    for (const std::string& name : scene.rings()) {
      jobs.insert(name.substr(0, name.find('.')));
    }
    return jobs;
  };
  CHECK(eventually([&] { return stay() == std::set<std::string>{"job", "second"}; }));
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

TEST_CASE("peers: what one rank left of one incident three times is kept three times") {
  Scene scene;
  for (int run = 0; run < 3; ++run) {
    Environment apart = kFast;  // as if it was killed before it could look for others' leftovers
    apart["FR_SHM_DIR"] = scene.home.path() + "/run" + std::to_string(run);
    mkdir(apart["FR_SHM_DIR"].c_str(), 0700);
    scene.board.cell[0] = 0;
    Child child = start_rank(scene, 0, apart);
    child.kill(SIGKILL);
    child.wait();
    const std::string dir = apart["FR_SHM_DIR"] + "/" + list(apart["FR_SHM_DIR"]).at(0);
    for (const std::string& name : list(dir)) {
      if (name.ends_with(".ring")) {
        mkdir(scene.ring_dir().c_str(), 0700);
        REQUIRE(rename((dir + "/" + name).c_str(), (scene.ring_dir() + "/" + name).c_str()) == 0);
      }
    }
  }
  REQUIRE(scene.rings().size() == 3);
  scene.board.cell[0] = 0;
  Child again = start_rank(scene, 0);
  CHECK(eventually([&] { return scene.rings().size() == 1; }));
  std::set<i64> pids;
  for (const char* name : {"job.a0.r0.1.fr", "job.a0.r0.1.dead.fr", "job.a0.r0.2.fr"}) {
    CAPTURE(scene.dumps());
    REQUIRE(wait_for(scene.dump_dir + "/" + name));
    pids.insert(Dump::load(scene.dump_dir + "/" + name)["identity"]["pid"].integer());
  }
  CHECK(pids.size() == 3);
  const std::string said = "an earlier run of this job died ";  // once, of all three
  REQUIRE(eventually([&] { return scene.log(0).find(said) != kNowhere; }));
  CHECK(scene.log(0).find(said) == scene.log(0).rfind(said));
  scene.board.cell[10] = 1;  // its own dump has a name of its own
  CHECK(wait_for(scene.dump_path(0, 4)));
}
