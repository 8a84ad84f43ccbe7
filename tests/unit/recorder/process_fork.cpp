// Forked children share the parent's mapping and must not write to it.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "catch.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

// Whether every other thread of this process sleeps. A thread that still starts up may hold the
// allocator's lock of AddressSanitizer, which stays locked in a child that is forked meanwhile.
bool others_sleep() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "stat");
    std::string stat;
    std::getline(file, stat);
    const std::size_t name_end = stat.rfind(") ");
    if (task.path().filename() != std::to_string(gettid()) && name_end != std::string::npos &&
        stat[name_end + 2] != 'S') {
      return false;
    }
  }
  return true;
}

// In a child: forks, runs body in the grandchild, returns its exit status.
int in_fork(const std::function<int()>& body) {
  eventually(others_sleep);
  const pid_t pid = fork();
  if (pid == 0) {
    exit(body());
  }
  int raw = 0;
  waitpid(pid, &raw, 0);
  return WIFEXITED(raw) ? WEXITSTATUS(raw) : 100 + WTERMSIG(raw);
}

}  // namespace

TEST_CASE("fork: a child records nothing and its exit leaves the parent's ring alone") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    const fr_group_t g = child_group();
    const fr_ticket t = child_begin(g);
    const auto* h = static_cast<const Header*>(fr_region(nullptr));
    const u64 head = h->head.load();
    const int status = in_fork([&] {
      if (fr_enabled() != 0 || fr_region(nullptr) != nullptr || fr_generation() != 0) {
        return 1;
      }
      const fr_ticket mine = child_begin(g);
      fr_started(&t);
      fr_end(&t, FR_FAILED, "not mine to end");
      fr_wait_begin(&t);
      fr_span_begin(1);
      fr_span_end();
      fr_exit_record("exception", "E", "m", 0);
      return mine.ticket == 0 && fr_intern("x", 1) == 0 && fr_dump("x", nullptr, 0) == 0 ? 0 : 2;
    });
    if (status != 0) {
      return status;
    }
    if (h->head.load() != head || h->failed.load() != 0 || h->exit.claimed.load() != 0) {
      return 3;
    }
    if (in_fork([] { return 9; }) != 9 || scene.rings().size() != 1) {
      return 4;  // a child's exit, whatever its status, removed or dumped something
    }
    fr_end(&t, FR_OK, nullptr);
    return fr_enabled() == 1 ? 0 : 5;
  });
  CHECK(child.wait().status == 0);
  CHECK(scene.dumps().empty());
  CHECK(list(scene.ring_dir()).empty());
}

TEST_CASE("fork: a note or a step in a DataLoader worker does not make it a second rank 0") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    child_group();
    const int status = in_fork([&] {
      fr_note("in a worker", 11);
      fr_step(5);
      return fr_enabled() == 0 && scene.rings().size() == 1 ? 0 : 1;
    });
    return status;
  });
  CHECK(child.wait().status == 0);
}

TEST_CASE("fork: a child that becomes a rank has a recorder of its own") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    const fr_group_t g = child_group();
    child_begin(g);
    const u32 generation = fr_generation();
    const int status = in_fork([&] {
      setenv("RANK", "1", 1);
      if (fr_start() != 1 || fr_generation() <= generation) {
        return 1;
      }
      const fr_group_t mine = child_group("mine", 1);
      if (mine == 0 || child_begin(mine, "broadcast").seq != 1 || scene.rings().size() != 2) {
        return 2;
      }
      char path[4096];
      fr_note("in the child", 12);
      return fr_dump("child", path, sizeof path) == 1 && std::string(path) == scene.dump_path(1, 1)
                 ? 0
                 : 3;
    });
    const auto* h = static_cast<const Header*>(fr_region(nullptr));
    if (status == 0 && (h->rank.load() != 0 || h->pid != getpid())) {
      return 4;
    }
    _exit(status);
    return 0;
  });
  CHECK(child.wait().status == 0);
  const Dump d = Dump::load(scene.dump_path(1, 1));
  CHECK(d["identity"]["rank"].integer() == 1);
  CHECK(d["identity"]["pid"].integer() != child.pid());
  CHECK(d.rows("groups") == 2);
  CHECK(d.string(d.cell("groups", 1, "name")) == "mine");
}

TEST_CASE("fork: while other threads record and intern, children come out whole") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    const fr_group_t g = child_group();
    std::atomic<bool> done{false};
    std::vector<std::thread> threads;
    for (int w = 0; w < 2; ++w) {
      threads.emplace_back([&, w] {
        for (u64 i = 0; !done; ++i) {
          const std::string text = "text " + std::to_string(w) + " " + std::to_string(i % 5'000);
          const fr_ticket t = child_begin(g, text.c_str());
          fr_end(&t, FR_OK, nullptr);
        }
      });
    }
    int status = 0;
    for (int i = 0; i < 20 && status == 0; ++i) {
      const pid_t pid = fork();
      if (pid == 0) {
        const bool ok = fr_enabled() == 0 && fr_start() == 1 && fr_intern("fresh", 5) == 1;
        fr_shutdown(0);
        _exit(ok ? 0 : 1);
      }
      int raw = 0;
      waitpid(pid, &raw, 0);
      status = WIFEXITED(raw) ? WEXITSTATUS(raw) : 100 + WTERMSIG(raw);
    }
    done = true;
    for (auto& t : threads) {
      t.join();
    }
    return status;
  });
  CHECK(child.wait().status == 0);
  CHECK(list(scene.ring_dir()).empty());
}

TEST_CASE("fork: a forked child dies of SIGTERM as it would have, leaving nothing") {
#if defined(__SANITIZE_THREAD__)
  WARN("skipped: ThreadSanitizer holds back signals in children of processes with threads");
  return;
#endif
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    child_begin(child_group());
    eventually(others_sleep);
    const pid_t pid = fork();
    if (pid == 0) {
      scene.board.cell[0] = 1;
      sleep_for_ever();
    }
    while (scene.board.cell[0] == 0) {
    }
    kill(pid, SIGTERM);
    int raw = 0;
    waitpid(pid, &raw, 0);
    const bool ok = WIFSIGNALED(raw) && WTERMSIG(raw) == SIGTERM && scene.ring_copies().empty() &&
                    scene.rings().size() == 1;
    _exit(ok ? 0 : 1);
    return 0;
  });
  CHECK(child.wait().status == 0);
}

TEST_CASE("fork: after exec the new image records on its own, the old ring is a leftover") {
  Scene scene;
  Child child = scene.start(0, {}, [&] {
    child_begin(child_group());
    execl("/bin/true", "true", nullptr);
    return 9;
  });
  CHECK(child.wait().status == 0);
  REQUIRE(scene.rings().size() == 1);
  CHECK(RingFile(scene.ring_dir() + "/" + scene.rings()[0]).view().ok());
}
