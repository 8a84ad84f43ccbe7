// process_follower.cpp - incidents of other nodes are seen in the shared directory.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "catch.hpp"
#include "support.hpp"
#include "watch/ranks.hpp"

using namespace fr;
using namespace fr::test;

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

TEST_CASE("peers: a planted file with an absurd number is not followed") {
  Scene scene;
  mkdir(scene.dump_dir.c_str(), 0700);
  write_file(scene.dump_dir + "/job.a0.r0.9999999999999999999.fr", "before the start");
  Environment there = kFast;
  there["LOCAL_WORLD_SIZE"] = "1";
  Child child = start_rank(scene, 1, there, 2);
  write_file(scene.dump_dir + "/job.a0.r0.5000.fr", "beyond what another node may be ahead");
  write_file(scene.dump_dir + "/job.a0.r0.3.fr", "of another node");
  CHECK(wait_for(scene.dump_path(1, 3)));
  scene.board.cell[11] = 1;
  CHECK(wait_for(scene.dump_path(1, 4)));
  CHECK(scene.dumps().size() == 5);
}
