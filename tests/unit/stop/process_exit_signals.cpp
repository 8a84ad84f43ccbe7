// process_exit_signals.cpp - a signal ends a recording process; the evidence that it leaves.
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

// The dump that a signal left: the operation in flight, the signal's sender, the thread's stack.
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
  std::vector<std::string> first = scene.dumps();
  std::erase_if(first, [](const auto& name) { return name.find(".later.") != std::string::npos; });
  CHECK(first == std::vector<std::string>{"job.a0.r0.1.fr", "job.a0.r1.1.fr", "job.a0.r2.1.fr"});
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
