// How a recording process may end, and what it leaves: clean exit, exit with
// something wrong, signals.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "catch.hpp"
#include "format/call_site.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

// A child that has one operation in flight and then waits to be ended.
Child start_hanging(Scene& scene, int rank = 0, const Environment& options = {},
                    int world_size = 1) {
  Child child = scene.start(
      rank, options,
      [&scene, rank] {
        child_begin(child_group());
        scene.board.cell[rank] = 1;
        sleep_for_ever();
        return 0;
      },
      world_size);
  REQUIRE(scene.reached(rank, 1));
  return child;
}

// The dump that a signal left: the operation in flight, who sent the signal, where the thread was.
void check_signal_dump(const Scene& scene, const std::string& name, int signal) {
  CAPTURE(name);
  const Dump d = Dump::load(scene.dump_dir + "/" + name);
  CHECK(d["trigger"].text() == "signal");
  CHECK(d["exit"]["signal"].integer() == signal);
  CHECK(d["exit"]["state"].text() == "signalled");
  CHECK(d["exit"]["sender_pid"].integer() == getpid());
  CHECK(d["exit"]["kind"].text() == "signal");
  CHECK(d["exit"]["message"].text().find("sent by process " + std::to_string(getpid()) + " (") ==
        0);
  const std::size_t last = d.rows("records") - 1;
  CHECK(d.string(d.cell("records", last, "op")) == "all_reduce");
}

void check_ring_copy(const Scene& scene, const std::string& name, int signal) {
  CAPTURE(name);
  const RingFile ring(scene.dump_dir + "/" + name);
  REQUIRE(ring.view().ok());
  CHECK(ring.view().header().exit.signal.load() == signal);
  CHECK((ring.view().group(1)->issued.load() & kSeqMask) == 1);
  RecordCopy last;
  REQUIRE(last_operation(ring.view(), last));
  CHECK(ring.view().string(last.payload.op) == "all_reduce");
}

}  // namespace

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
  CHECK(d["exit"]["status"].integer() == 1);
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

// ---------------------------------------------------------------- signals

TEST_CASE("end: SIGTERM leaves a dump, then the process dies of it") {
  Scene scene;
  Child child = start_hanging(scene);
  child.kill(SIGTERM);
  const Ending e = child.wait();
  CHECK(e.signal == SIGTERM);
  REQUIRE(scene.dumps() == std::vector<std::string>{"job.a0.r0.1.fr"});
  check_signal_dump(scene, "job.a0.r0.1.fr", SIGTERM);
  CHECK(scene.ring_copies().empty());
  CHECK(scene.rings().empty());
}

TEST_CASE("end: SIGTERM where no dump can be written in time leaves a copy of the ring") {
  Scene scene;
  Child child = scene.start(0, {}, [&scene] {
    fr_replace_file_writer(
        [](const char*, const void*, std::size_t, void*) {
          sleep_for_ever();
          return 0;
        },
        nullptr);
    child_begin(child_group());
    scene.board.cell[0] = 1;
    sleep_for_ever();
    return 0;
  });
  REQUIRE(scene.reached(0, 1));
  child.kill(SIGTERM);
  // it is there before the dump is tried
  REQUIRE(eventually([&] { return scene.ring_copies().size() == 1; }));
  check_ring_copy(scene, "job.a0.r0.1.ring", SIGTERM);
  CHECK(child.wait().signal == SIGTERM);
  CHECK(scene.ring_copies() == std::vector<std::string>{"job.a0.r0.1.ring"});
  const RingFile ring(scene.dump_dir + "/job.a0.r0.1.ring");
  CHECK(ring.view().header().exit.sender_pid.load() == getpid());
  CHECK(ring.view().header().exit.state.load() == kSignalled);
  CHECK(scene.rings().empty());
}

TEST_CASE("end: SIGINT likewise") {
  Scene scene;
  Child child = start_hanging(scene);
  child.kill(SIGINT);
  CHECK(child.wait().signal == SIGINT);
  REQUIRE(scene.dumps().size() == 1);
  check_signal_dump(scene, "job.a0.r0.1.fr", SIGINT);
}

TEST_CASE("end: at SIGTERM the handler that was there before is called") {
  static Board* board;
  for (const bool with_info : {false, true}) {
    Scene scene;
    board = &scene.board;
    Child child = scene.start(0, {}, [&] {
      struct sigaction before{};
      if (with_info) {
        before.sa_flags = SA_SIGINFO;
        before.sa_sigaction = [](int, siginfo_t* info, void*) {
          board->cell[2] = static_cast<u64>(info->si_pid);
          board->cell[1].fetch_add(1);
        };
      } else {
        before.sa_handler = [](int) { board->cell[1].fetch_add(1); };
      }
      sigaction(SIGTERM, &before, nullptr);
      child_begin(child_group());
      scene.board.cell[0] = 1;
      while (scene.board.cell[3] == 0) {
      }
      fr_shutdown(7);
      _exit(7);
      return 0;
    });
    REQUIRE(scene.reached(0, 1));
    child.kill(SIGTERM);
    REQUIRE(scene.reached(1, 1));
    // before the handler ran; a disk may take its time, then the copy of the ring stays
    const auto evidence = [&] { return scene.ring_copies().size() + scene.dumps().size(); };
    CHECK(evidence() > 0);
    if (with_info) {
      CHECK(scene.board.cell[2] == static_cast<u64>(getpid()));
    }
    child.kill(SIGTERM);  // and again: the handler still is called, the evidence is kept
    REQUIRE(scene.reached(1, 2));
    CHECK(evidence() > 0);
    scene.board.cell[3] = 1;
    CHECK(child.wait().status == 7);
  }
}

TEST_CASE("end: a handler set after the start hides ours only until the watchdog looks") {
  static Board* board;
  Scene scene;
  board = &scene.board;
  Child child = scene.start(0, {}, [&] {
    child_begin(child_group());
    struct sigaction late{};
    late.sa_handler = [](int) { board->cell[1].fetch_add(1); };
    sigaction(SIGTERM, &late, nullptr);
    struct sigaction now;
    do {
      sigaction(SIGTERM, nullptr, &now);
    } while (now.sa_handler == late.sa_handler);
    scene.board.cell[0] = 1;
    sleep_for_ever();
    return 0;
  });
  REQUIRE(scene.reached(0, 1));
  child.kill(SIGTERM);
  REQUIRE(scene.reached(1, 1));
  CHECK(scene.ring_copies().size() + scene.dumps().size() > 0);  // a disk may take its time
}

TEST_CASE("end: SIGTERM that the process ignores stays ignored") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    signal(SIGTERM, SIG_IGN);
    child_begin(child_group());
    scene.board.cell[0] = 1;
    while (scene.board.cell[1] == 0) {
    }
    struct sigaction now;
    sigaction(SIGTERM, nullptr, &now);
    _exit(now.sa_handler == SIG_IGN ? 11 : 12);
    return 0;
  });
  REQUIRE(scene.reached(0, 1));
  child.kill(SIGTERM);
  scene.board.cell[1] = 1;
  CHECK(child.wait().status == 11);
  CHECK(scene.ring_copies().empty());
  CHECK(scene.dumps().empty());
}

TEST_CASE("end: SIGTERM on the small alternate stack of faulthandler and others") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    // 16 KiB like Python's faulthandler, below it a page that must not be touched
    constexpr std::size_t kStack = 16 * 1024;
    auto* memory = static_cast<char*>(
        mmap(nullptr, 4096 + kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(memory, 4096, PROT_NONE);
    stack_t stack{};
    stack.ss_sp = memory + 4096;
    stack.ss_size = kStack;
    sigaltstack(&stack, nullptr);
    child_begin(child_group());
    scene.board.cell[0] = 1;
    sleep_for_ever();
    return 0;
  });
  REQUIRE(scene.reached(0, 1));
  child.kill(SIGTERM);
  CHECK(child.wait().signal == SIGTERM);
  CHECK(scene.dumps().size() == 1);
}

TEST_CASE("end: SIGTERM without a writable directory keeps the ring where it is") {
  Scene scene;
  Child child =
      start_hanging(scene, 0, {{"FR_DUMP_DIR", "/proc/fr-none"}, {"TMPDIR", "/proc/fr-none"}});
  child.kill(SIGTERM);
  CHECK(child.wait().signal == SIGTERM);
  REQUIRE(scene.rings().size() == 1);
  CHECK(RingFile(scene.ring_dir() + "/" + scene.rings()[0]).view().ok());
}

TEST_CASE("end: SIGTERM to one rank also saves the ring of a dead one") {
  Scene scene;
  Child dead = start_hanging(scene, 1, {}, 2);
  Child living = start_hanging(scene, 0, {}, 2);
  dead.kill(SIGKILL);
  dead.wait();
  living.kill(SIGTERM);
  CHECK(living.wait().signal == SIGTERM);
  REQUIRE(scene.dumps().front() == "job.a0.r0.1.fr");
  check_signal_dump(scene, "job.a0.r0.1.fr", SIGTERM);
  REQUIRE(scene.ring_copies() == std::vector<std::string>{"job.a0.r1.1.ring"});
  check_ring_copy(scene, "job.a0.r1.1.ring", 0);
  CHECK(scene.rings().empty());
}

TEST_CASE("end: ranks that get SIGTERM together share one incident") {
  Scene scene;
  std::vector<Child> children;
  for (int rank = 0; rank < 3; ++rank) {
    children.push_back(start_hanging(scene, rank, {}, 3));
  }
  for (auto& c : children) {
    c.kill(SIGTERM);
  }
  for (auto& c : children) {
    CHECK(c.wait().signal == SIGTERM);
  }
  CHECK(scene.dumps() ==
        std::vector<std::string>{"job.a0.r0.1.fr", "job.a0.r1.1.fr", "job.a0.r2.1.fr"});
}

TEST_CASE("end: SIGTERM while a thread records and the handler's thread is inside fr_begin") {
  for (int round = 0; round < 10; ++round) {
    Scene scene;
    Child child = scene.start(0, {{"FR_BUFFER_SIZE", "64"}}, [&] {
      const fr_group_t g = child_group();
      for (;;) {
        const fr_ticket t = child_begin(g);
        fr_end(&t, FR_OK, nullptr);
        scene.board.cell[0].fetch_add(1);
      }
      return 0;
    });
    REQUIRE(scene.reached(0, 1'000));
    child.kill(SIGTERM);
    CHECK(child.wait().signal == SIGTERM);
    REQUIRE(scene.dumps().size() == 1);
    CHECK(Dump::load(scene.dump_path(0, 1))["trigger"].text() == "signal");
  }
}
