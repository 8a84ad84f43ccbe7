// The life of an incident: the first dump of a hang stays, what comes later lies beside it, a hang
// that goes on is marked as over.
#include <setjmp.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

#include "catch.hpp"
#include "recorder/recorder.hpp"
#include "support.hpp"
#include "watch/control_page.hpp"
#include "watch/ranks.hpp"

using namespace fr;
using namespace fr::test;

namespace {

std::string beside(const Scene& scene, int rank, int incident, const char* what) {
  std::string path = scene.dump_path(rank, incident);
  return path.insert(path.size() - 2, std::string(what) + ".");
}

// Begins an operation and ends it when the board's cell 0 is 1; `then` is the rest of the program.
std::function<int()> hangs(Scene& scene, const std::function<int()>& then) {
  return [&scene, then] {
    const fr_ticket t = child_begin(child_group());
    scene.board.cell[1] = 1;
    while (scene.board.cell[0] == 0) {
      usleep(1000);
    }
    fr_end(&t, FR_OK, nullptr);
    return then();
  };
}

}  // namespace

TEST_CASE("incident: a hang that goes on is marked as over, and said so once") {
  Scene scene;
  Child child = scene.start(0, kFast, hangs(scene, [&] {
                              while (scene.board.cell[2] == 0) {
                                usleep(1000);
                              }
                              return 0;
                            }));
  REQUIRE(eventually([&] { return exists(scene.dump_path(0, 1)); }));
  const std::string first = read_file(scene.dump_path(0, 1));
  scene.board.cell[0] = 1;
  REQUIRE(eventually([&] { return exists(beside(scene, 0, 1, "later")); }));
  const Dump later = Dump::load(beside(scene, 0, 1, "later"));
  CHECK(later["trigger"].text() == "went_on");
  CHECK(later["reason"].text().find("went on after ") == 0);
  CHECK(later["incident"].integer() == 1);
  CHECK(read_file(scene.dump_path(0, 1)) == first);
  CHECK(eventually([&] { return scene.log(0).find("incident 1 is over: ") != std::string::npos; }));
  scene.board.cell[2] = 1;
  CHECK(child.wait().status == 0);
}

TEST_CASE("incident: a clean exit right after the hang marks it too") {
  Scene scene;
  Child child = scene.start(0, kFast, hangs(scene, [] { return 0; }));
  REQUIRE(eventually([&] { return exists(scene.dump_path(0, 1)); }));
  scene.board.cell[0] = 1;
  CHECK(child.wait().status == 0);
  CHECK(Dump::load(beside(scene, 0, 1, "later"))["trigger"].text() == "went_on");
}

TEST_CASE("incident: what an error ended did not go on") {
  Scene scene;
  Child child = scene.start(0, kFast, [&] {
    const fr_ticket t = child_begin(child_group());
    while (scene.board.cell[0] == 0) {
      usleep(1000);
    }
    fr_end(&t, FR_FAILED, "timed out");
    return 1;
  });
  REQUIRE(eventually([&] { return exists(scene.dump_path(0, 1)); }));
  const std::string first = read_file(scene.dump_path(0, 1));
  scene.board.cell[0] = 1;
  CHECK(child.wait().status == 1);
  CHECK(read_file(scene.dump_path(0, 1)) == first);
  const std::string trigger = Dump::load(beside(scene, 0, 1, "later"))["trigger"].text();
  CHECK((trigger == "failure" || trigger == "exit"));
  CHECK(scene.log(0).find("is over") == std::string::npos);
}

TEST_CASE("incident: a signal long after the dump of the hang belongs to that incident") {
  Scene scene;
  Child child = scene.start(0, kFast, [&] {
    child_begin(child_group());
    while (scene.board.cell[0] == 0) {
      usleep(1000);
    }
    recorder()->control->page().incident_unix_ns -= 3600'000'000'000ull;
    scene.board.cell[1] = 1;
    sleep_for_ever();
    return 0;
  });
  REQUIRE(eventually([&] { return exists(scene.dump_path(0, 1)); }));
  const std::string first = read_file(scene.dump_path(0, 1));
  scene.board.cell[0] = 1;
  REQUIRE(scene.reached(1, 1));
  child.kill(SIGTERM);
  CHECK(child.wait().signal == SIGTERM);
  CHECK(read_file(scene.dump_path(0, 1)) == first);
  CHECK(Dump::load(beside(scene, 0, 1, "later"))["exit"]["signal"].integer() == SIGTERM);
  CHECK_FALSE(exists(scene.dump_path(0, 2)));
}

TEST_CASE("incident: an end of its own after a hang that went on opens a new one") {
  Scene scene;
  Child child = scene.start(0, kFast, hangs(scene, [&] {
                              while (scene.board.cell[2] == 0) {
                                usleep(1000);
                              }
                              return 3;
                            }));
  REQUIRE(eventually([&] { return exists(scene.dump_path(0, 1)); }));
  scene.board.cell[0] = 1;
  REQUIRE(eventually([&] { return scene.log(0).find("is over") != std::string::npos; }));
  scene.board.cell[2] = 1;
  CHECK(child.wait().status == 3);
  CHECK(Dump::load(scene.dump_path(0, 2))["trigger"].text() == "exit");
}

#ifndef __SANITIZE_THREAD__  // handlers run in a frame of its own there, often later
TEST_CASE("incident: a second signal does not cut the evidence of the first one short") {
  for (const int second : {SIGTERM, SIGQUIT, SIGINT}) {
    Scene scene;
    Child child = scene.start(0, {}, [&scene] {
      fr_replace_file_writer(
          [](const char*, const void*, std::size_t, void* board) {
            auto& cell = static_cast<Board*>(board)->cell;
            cell[1] = 1;
            while (cell[2] == 0) {
              usleep(1000);
            }
            cell[3] = 1;
            return 0;
          },
          &scene.board);
      child_begin(child_group());
      std::thread([] { sleep_for_ever(); }).detach();  // the second signal may interrupt this one
      scene.board.cell[0] = 1;
      sleep_for_ever();
      return 0;
    });
    REQUIRE(scene.reached(0, 1));
    child.kill(SIGTERM);
    REQUIRE(scene.reached(1, 1));  // the dump is being written
    child.kill(second);
    usleep(50'000);  // nothing can be awaited: the signal must have no effect
    scene.board.cell[2] = 1;
    const int by = child.wait().signal;
    CHECK((by == SIGTERM || by == second));  // both are let go when the evidence is there
    CHECK(scene.board.cell[3] == 1);
  }
}
#endif  // __SANITIZE_THREAD__

TEST_CASE("incident: a rank that cannot write its dump is salvaged by a peer, as such") {
  Scene scene;
  const auto body = [&scene](int rank) {
    return [&scene, rank] {
      child_begin(child_group("0", rank, 2));
      if (rank == 1) {
        const rlimit none{0, 0};
        setrlimit(RLIMIT_NOFILE, &none);
      }
      scene.board.cell[rank] = 1;
      while (scene.board.cell[10] == 0) {
        usleep(1000);
      }
      if (rank == 0) {
        char path[512];
        fr_dump("test", path, sizeof path);
      }
      sleep_for_ever();
      return 0;
    };
  };
  Child first = scene.start(0, {}, body(0), 2);
  Child second = scene.start(1, {}, body(1), 2);
  REQUIRE(scene.reached(0, 1));
  REQUIRE(scene.reached(1, 1));
  scene.board.cell[10] = 1;
  REQUIRE(eventually([&] { return exists(scene.dump_path(1, 1)); }));
  CHECK(Dump::load(scene.dump_path(1, 1))["salvage"]["why"].text() == "unwritten");
}

#ifndef __SANITIZE_THREAD__  // likewise, and a longjmp out of one is not known there
namespace {

sigjmp_buf g_back;
Board* g_board;

}  // namespace

TEST_CASE("incident: a crash that the process survives is taken back, and the next one recorded") {
  for (const bool jumps : {false, true}) {
    CAPTURE(jumps);
    Scene scene;
    g_board = &scene.board;
    Child child = scene.start(0, {}, [&] {
      struct sigaction before{};
      before.sa_handler =
          jumps ? [](int) { siglongjmp(g_back, 1); } : [](int) { g_board->cell[3].fetch_add(1); };
      sigaction(SIGFPE, &before, nullptr);
      const fr_group_t g = child_group();
      for (int crash = 0; crash < 2; ++crash) {
        if (sigsetjmp(g_back, 1) == 0) {
          raise(SIGFPE);
        }
        const u64 cell = static_cast<u64>(crash);
        scene.board.cell[1] = cell + 1;
        while (scene.board.cell[2] <= cell) {
          const fr_ticket t = child_begin(g);
          fr_end(&t, FR_OK, nullptr);
          usleep(1000);
        }
      }
      return 0;
    });
    for (int crash = 1; crash <= 2; ++crash) {
      REQUIRE(scene.reached(1, static_cast<u64>(crash)));
      REQUIRE(eventually([&] { return exists(beside(scene, 0, crash, "later")); }));
      const Dump later = Dump::load(beside(scene, 0, crash, "later"));
      CHECK(later["trigger"].text() == "went_on");
      CHECK(later["exit"].is_nil());
      CHECK(Dump::load(scene.dump_path(0, crash))["trigger"].text() == "crash");
      scene.board.cell[2] = static_cast<u64>(crash);
    }
    CHECK(child.wait().status == 0);
  }
}
#endif  // __SANITIZE_THREAD__
