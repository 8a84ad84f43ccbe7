// process_requests.cpp - dumps by hand: pipe, signal, call.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "catch.hpp"
#include "support.hpp"
#include "watch/ranks.hpp"

using namespace fr;
using namespace fr::test;

namespace {

Scene* g_scene;  // for callbacks in children

}  // namespace

TEST_CASE("dump by hand: a byte through FR_PIPE") {
  Scene scene;
  const std::string prefix = scene.home.path() + "/pipe_";
  Child child = start_idle(scene, {{"FR_PIPE", prefix}});
  REQUIRE(wait_for(prefix + "0.pipe"));
  struct stat st;
  REQUIRE(stat((prefix + "0.pipe").c_str(), &st) == 0);
  CHECK(S_ISFIFO(st.st_mode));
  for (int incident = 1; incident <= 2; ++incident) {
    // The name is there a moment before its reader; this open waits for that.
    const int fd = open((prefix + "0.pipe").c_str(), O_WRONLY);
    REQUIRE(fd >= 0);
    CHECK(write(fd, "1", 1) == 1);
    close(fd);
    REQUIRE(wait_for(scene.dump_path(0, incident)));
    CHECK(Dump::load(scene.dump_path(0, incident))["trigger"].text() == "pipe");
  }
  scene.board.cell[1] = 1;
  CHECK(child.wait().status == 0);
  CHECK_FALSE(exists(prefix + "0.pipe"));
}

TEST_CASE("dump by hand: the signal of FR_SIGNAL, and the process goes on") {
  Scene scene;
  Child child = start_idle(scene, {{"FR_SIGNAL", "USR2"}});
  for (int incident = 1; incident <= 2; ++incident) {
    child.kill(SIGUSR2);
    REQUIRE(wait_for(scene.dump_path(0, incident)));
    CHECK(Dump::load(scene.dump_path(0, incident))["trigger"].text() == "signal");
  }
  scene.board.cell[1] = 1;
  CHECK(child.wait().status == 0);
}

TEST_CASE("dump by hand: FR_SIGNAL calls the handler that was there") {
  Scene scene;
  g_scene = &scene;
  Child child = scene.start(0, {{"FR_SIGNAL", "USR1"}}, [&scene] {
    signal(SIGUSR1, [](int) { g_scene->board.cell[2].fetch_add(1); });
    child_group();
    scene.board.cell[0] = 1;
    sleep_for_ever();
    return 0;
  });
  REQUIRE(scene.reached(0, 1));
  child.kill(SIGUSR1);
  CHECK(wait_for(scene.dump_path(0, 1)));
  CHECK(scene.reached(2, 1));
}

TEST_CASE("dump by hand: fr_dump returns the path, many threads at once each get one") {
  Scene scene;
  Child child = scene.start(0, {{"FR_KEEP_DUMPS", "16"}}, [] {
    child_group();
    std::atomic<int> good{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
      threads.emplace_back([&] {
        char path[4096];
        good += fr_dump("many", path, sizeof path) == 1 && exists(path) ? 1 : 0;
      });
    }
    for (auto& t : threads) {
      t.join();
    }
    return good.load();
  });
  CHECK(child.wait().status == 6);
  for (const auto& name : scene.dumps()) {
    CHECK_NOTHROW(Dump::load(scene.dump_dir + "/" + name));
  }
  CHECK(list(scene.dump_dir).size() == scene.dumps().size());  // no temporary file stays
}
