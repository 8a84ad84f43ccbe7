// process_crash.cpp - a recording process crashes: what its dump says, and that it dies as it would
// have without the recorder.
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "catch.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

// The exit record of the only dump, after the child died of that signal and its ring was removed.
Dump crashed(const Scene& scene, const Ending& end, int signal) {
  CHECK(end.signal == signal);
  CHECK(scene.rings().empty());
  REQUIRE(scene.dumps() == std::vector<std::string>{"job.a0.r0.1.fr"});
  Dump d = Dump::load(scene.dump_dir + "/job.a0.r0.1.fr");
  CHECK(d["trigger"].text() == "crash");
  CHECK(d["exit"]["kind"].text() == "crash");
  CHECK(d["exit"]["signal"].integer() == signal);
  CHECK(d["exit"]["type"].text() == std::string("SIG") + sigabbrev_np(signal));
  return d;
}

}  // namespace

TEST_CASE("crash: abort leaves a dump, then the process dies of it") {
  Scene scene;
  Child child = scene.start(0, {}, []() -> int {
    child_begin(child_group());
    std::abort();
  });
  const Dump d = crashed(scene, child.wait(), SIGABRT);
  CHECK(d["exit"]["message"].text().find("raised by the process itself; thread ") == 0);
  CHECK(d.string(d.cell("records", d.rows("records") - 1, "op")) == "all_reduce");
}

namespace {

// Volatile, so that no compiler makes a loop of it.
int descend(int depth) {  // NOLINT(misc-no-recursion)
  volatile char frame[512];
  frame[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : descend(depth + 1) + frame[0];
}

}  // namespace

TEST_CASE("crash: a full stack is named") {
  Scene scene;
  Child child = scene.start(0, {}, [] {
    child_begin(child_group());
    return descend(0);
  });
  const Dump d = crashed(scene, child.wait(), SIGSEGV);
  CHECK(d["exit"]["message"].text().find(": the thread's stack is full") != std::string::npos);
}

TEST_CASE("crash: a fault is dumped with its address and its cause") {
  Scene scene;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  Child child = scene.start(0, {}, [&scene, page] {
    child_begin(child_group());
    void* memory = mmap(nullptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    scene.board.cell[0] = reinterpret_cast<u64>(memory);
    *static_cast<volatile char*>(memory) = 1;
    return 0;
  });
  const Dump d = crashed(scene, child.wait(), SIGSEGV);
  char address[32];
  std::snprintf(address, sizeof address, "address 0x%llx",
                static_cast<unsigned long long>(scene.board.cell[0].load()));
  CHECK(d["exit"]["message"].text().find(std::string(address) + ": not permitted there; ") == 0);
}

TEST_CASE("crash: a handler that lives with the signal is called, and the crash taken back") {
  static Board* board;
  Scene scene;
  board = &scene.board;
  Child child = scene.start(0, {}, [] {
    signal(SIGABRT, [](int) { board->cell[1].fetch_add(1); });
    const fr_ticket t = child_begin(child_group());
    fr_end(&t, FR_OK, nullptr);
    raise(SIGABRT);
    fr_shutdown(0);
    _exit(static_cast<int>(board->cell[1].load()));
    return 0;
  });
  const Ending end = child.wait();
  CHECK(end.status == 1);
  // the crash left its dump when nobody knew yet; the exit that followed adds at most that it went on
  REQUIRE(!scene.dumps().empty());
  CHECK(scene.dumps().front() == "job.a0.r0.1.fr");
  CHECK((scene.dumps().size() == 1 || scene.dumps()[1] == "job.a0.r0.1.later.fr"));
  CHECK(scene.rings().empty());
}

TEST_CASE(
    "crash: the program's alternate stack of 4 KiB is enough, also while threads are sampled") {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  return;  // the sanitizer's own frames do not fit
#endif
  if (getauxval(AT_MINSIGSTKSZ) > 4096 - 512) {
    return;  // the frame that the kernel puts there does not fit on this processor
  }
  Scene scene;
  Child child = scene.start(0, {}, []() -> int {
    child_begin(child_group());
    constexpr std::size_t kPage = 4096;
    auto* pages = static_cast<char*>(
        mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(pages, kPage, PROT_NONE);  // code that needs more crashes here
    stack_t own{};
    own.ss_sp = pages + kPage;
    own.ss_size = kPage;
    if (sigaltstack(&own, nullptr) != 0) {
      return 1;
    }
    *reinterpret_cast<volatile char*>(8) = 1;
    return 0;
  });
  const Dump d = crashed(scene, child.wait(), SIGSEGV);
  CHECK(d["exit"]["message"].text().find("address 0x8: nothing is mapped there; thread ") == 0);
}

TEST_CASE("crash: with FR_CRASHES=0 the process dies without a dump") {
  Scene scene;
  Child child = scene.start(0, {{"FR_CRASHES", "0"}}, []() -> int {
    child_begin(child_group());
    std::abort();
  });
  CHECK(child.wait().signal == SIGABRT);
  CHECK(scene.dumps().empty());
}
