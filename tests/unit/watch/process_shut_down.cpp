// process_shut_down.cpp - exits of a recording process, and the evidence that it leaves.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "catch.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("end: a clean exit removes the ring and leaves no dump") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    const fr_group_t g = child_group();
    for (int i = 0; i < 100; ++i) {
      const fr_ticket t = child_begin(g);
      fr_end(&t, FR_OK, nullptr);
    }
    scene.board.cell[0] = scene.rings().size();
    return 0;
  });
  const Ending e = child.wait();
  CHECK(e.exited);
  CHECK(e.status == 0);
  CHECK(scene.board.cell[0] == 1);
  CHECK(list(scene.ring_dir()).empty());
  CHECK(list(scene.dump_dir).empty());
  CHECK(scene.log(0).empty());
}

TEST_CASE("end: a process that only starts the recorder leaves nothing") {
  Scene scene;
  CHECK(scene.start(0, {}, [] { return fr_start() == 1 ? 0 : 1; }).wait().status == 0);
  CHECK(list(scene.ring_dir()).empty());
  CHECK(list(scene.dump_dir).empty());
}

TEST_CASE("end: recording switched off leaves nothing and records nothing") {
  for (const Environment& off :
       {Environment{{"FR_ENABLE", "0"}}, Environment{{"TORCH_FR_BUFFER_SIZE", "0"}}}) {
    Scene scene;
    Child child = scene.start(0, off, [] {
      const bool silent = fr_start() == 0 && child_group() == 0 && fr_enabled() == 0 &&
                          child_begin(0).ticket == 0 && fr_dump("x", nullptr, 0) == 0 &&
                          fr_region(nullptr) == nullptr;
      fr_note("text", 4);
      fr_step(1);
      fr_span_begin(1);
      fr_span_end();
      char json[4096];
      fr_status(json, sizeof json);
      return silent && std::string(json).find("\"on\": false") != std::string::npos ? 0 : 1;
    });
    CHECK(child.wait().status == 0);
    CHECK(list(scene.shm.path()).empty());
    CHECK(list(scene.dump_dir).empty());
  }
}

TEST_CASE("end: exit with an operation in flight dumps") {
  Scene scene;
  Child child = scene.start(0, {}, [] {
    child_begin(child_group());
    return 0;
  });
  CHECK(child.wait().status == 0);
  REQUIRE(scene.dumps() == std::vector<std::string>{"job.a0.r0.1.fr"});
  const Dump d = Dump::load(scene.dump_path(0, 1));
  CHECK(d["trigger"].text() == "exit");
  CHECK(d["reason"].text().find("1 operations in flight") != std::string::npos);
  CHECK(d["exit"]["state"].text() == "exiting");
  CHECK(d["exit"]["status"].integer() == 0);
  CHECK(scene.rings().empty());
}

TEST_CASE("end: an exit status other than 0 dumps") {
  Scene scene;
  Child child = scene.start(0, {}, [] {
    child_group();
    return 3;
  });
  CHECK(child.wait().status == 3);
  REQUIRE(scene.dumps().size() == 1);
  const Dump d = Dump::load(scene.dump_path(0, 1));
  CHECK(d["exit"]["status"].integer() == 3);
  CHECK(scene.rings().empty());
}

TEST_CASE("end: a failed operation dumps, with the message") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    const fr_ticket t = child_begin(child_group());
    fr_end(&t, FR_FAILED, "connection closed by peer");
    while (scene.board.cell[0] == 0) {
      usleep(1000);
    }
    return 0;
  });
  REQUIRE(eventually([&] { return exists(scene.dump_path(0, 1)); }));
  const Dump d = Dump::load(scene.dump_path(0, 1));
  scene.board.cell[0] = 1;
  CHECK(child.wait().status == 0);
  CHECK(scene.dumps().size() >= 1);
  CHECK(d["trigger"].text() == "failure");
  CHECK(d["reason"].text().find("all_reduce #1") != std::string::npos);
  const std::size_t last = d.rows("records") - 1;
  CHECK(d.cell("records", last, "state").text() == "failed");
  CHECK(d.string(d.cell("records", last, "error")) == "connection closed by peer");
}

TEST_CASE(
    "end: evidence of a failed operation is left also by a process that exits at once with 0") {
  for (int round = 0; round < 5; ++round) {
    Scene scene;
    Child child = scene.start(0, {}, [] {
      const fr_ticket t = child_begin(child_group());
      fr_end(&t, FR_FAILED, "connection closed by peer");
      return 0;
    });
    CHECK(child.wait().status == 0);
    CHECK(scene.dumps().size() + scene.rings().size() >= 1);
  }
}

TEST_CASE("end: the first noted cause is kept and dumped at once") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    child_group();
    fr_exit_record("exception", "ValueError", "bad shape", 0);
    scene.board.cell[0] = exists(scene.dump_path(0, 1)) ? 1 : 0;
    fr_exit_record("exit", "SystemExit", "what followed", 0);
    return 1;
  });
  CHECK(child.wait().status == 1);
  CHECK(scene.board.cell[0] == 1);
  const Dump d = Dump::load(scene.dump_dir + "/" + scene.dumps().back());
  CHECK(d["exit"]["kind"].text() == "exception");
  CHECK(d["exit"]["type"].text() == "ValueError");
  CHECK(d["exit"]["message"].text() == "bad shape");
  CHECK(scene.dumps().size() == 1);  // its end after that adds nothing new
}

TEST_CASE("end: fr_shutdown is idempotent, and what comes later is harmless") {
  Scene scene;
  Child child = scene.start(0, {}, [] {
    const fr_group_t g = child_group();
    const fr_ticket t = child_begin(g);
    fr_end(&t, FR_OK, nullptr);
    fr_shutdown(0);
    fr_shutdown(5);
    const fr_ticket late = child_begin(g);
    fr_end(&late, FR_OK, nullptr);
    fr_end(&t, FR_OK, nullptr);
    fr_note("late", 4);
    return fr_enabled() == 0 && late.ticket == 0 && fr_start() == 0 ? 0 : 1;
  });
  CHECK(child.wait().status == 0);
  CHECK(list(scene.ring_dir()).empty());
  CHECK(scene.dumps().empty());
}

TEST_CASE("end: threads that go on recording during exit do no harm") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    const fr_group_t g = child_group();
    for (int i = 0; i < 3; ++i) {
      std::thread([&scene, g] {
        for (;;) {
          const fr_ticket t = child_begin(g);
          fr_end(&t, FR_OK, nullptr);
          scene.board.cell[0].fetch_add(1);
        }
      }).detach();
    }
    while (scene.board.cell[0] < 1'000) {
    }
    fr_shutdown(0);
    _exit(0);  // past the destructors, which are the host's business
    return 0;
  });
  CHECK(child.wait().status == 0);
  CHECK(list_ending(scene.ring_dir(), ".ring").empty());
}
