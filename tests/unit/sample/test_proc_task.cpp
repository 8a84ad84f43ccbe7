// test_proc_task.cpp - a thread's state, system call and reason of its wait, from /proc.
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "catch.hpp"
#include "format/syscalls.hpp"
#include "sample/proc_task.hpp"
#include "sample/threads_at_work.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("tasks: who was woken in the wait for a file lock still sleeps") {
  Task t{};
  t.state = 'S';
  t.looked_ns = 20'000'000;
  t.voluntary_switches = 1;
  t.syscall = SYS_clock_nanosleep;
  CHECK(activity(t) == Activity::kPolling);
  t.syscall = SYS_flock;
  CHECK(activity(t) == Activity::kAsleep);
  t.syscall = SYS_fcntl;
  t.args[1] = F_SETLKW;
  CHECK(activity(t) == Activity::kAsleep);
  t.args[1] = F_SETLK;
  CHECK(activity(t) == Activity::kPolling);
}

TEST_CASE("tasks: what a thread sleeps in and on") {
  TempDir dir;
  const std::string path = dir.path() + "/pipe";
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  int fds[2];
  REQUIRE(pipe(fds) == 0);
  Worker opens([&] { close(open(path.c_str(), O_RDONLY)); });
  Worker reads([&] {
    char c = 0;
    [[maybe_unused]] const ssize_t n = read(fds[0], &c, 1);
  });
  std::atomic<bool> stop{false};
  Worker spins([&] {
    while (!stop.load(std::memory_order_relaxed)) {
    }
  });
  REQUIRE(sleeps(opens.tid));
  REQUIRE(sleeps(reads.tid));
  const auto two_looks = [](i32 tid) {
    Task t{};
    t.tid = tid;
    REQUIRE(sample_first(getpid(), t));
    const u64 first = monotonic_ns();
    REQUIRE(eventually([first] { return monotonic_ns() - first > 20'000'000; }));
    REQUIRE(sample_again(getpid(), t, first, monotonic_ns()));
    return t;
  };
  const Task o = two_looks(opens.tid);
  CHECK(std::string(syscall_name(o.syscall)).substr(0, 4) == "open");
  CHECK(o.target == path);
  CHECK(activity(o) == Activity::kAsleep);
  const Task r = two_looks(reads.tid);
  CHECK(std::string(syscall_name(r.syscall)) == "read");
  CHECK(std::string(r.target).substr(0, 5) == "pipe:");
  // On a busy machine it may wait for a processor all the while; that counts when it gets one.
  CHECK(eventually([&] {
    const Task s = two_looks(spins.tid);
    const bool counted = s.cpu_ns + s.runqueue_ns > s.looked_ns / 2;
    CHECK((activity(s) == Activity::kRunning || activity(s) == Activity::kRunnable));
    return counted && activity(s) == Activity::kRunning;
  }));
  stop = true;
  close(open(path.c_str(), O_WRONLY));
  CHECK(write(fds[1], "x", 1) == 1);
  opens.thread.join();
  reads.thread.join();
  spins.thread.join();
  close(fds[0]);
  close(fds[1]);
  Task gone{};
  gone.tid = opens.tid;
  CHECK(eventually([&] { return !sample_first(getpid(), gone); }));
}
