// test_process.cpp - what /proc says of a process.
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>

#include "catch.hpp"
#include "sample/process.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("process_start: the same for a living process, 0 for the dead and for zombies") {
  const u64 own = process_start(getpid());
  CHECK(own != 0);
  CHECK(process_start(getpid()) == own);
  CHECK(is_alive(getpid(), own));
  CHECK_FALSE(is_alive(getpid(), own + 1));
  CHECK(is_alive(getpid(), 0));  // it could not read its own
  CHECK_FALSE(is_alive(0, own));
  CHECK_FALSE(is_alive(-1, own));

  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const u64 start = process_start(child);
  CHECK(start >= own);
  CHECK(is_alive(child, start));
  kill(child, SIGKILL);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT);
  CHECK(process_start(child) == 0);  // a zombie
  CHECK_FALSE(is_alive(child, 0));
  waitpid(child, nullptr, 0);
  CHECK(process_start(child) == 0);  // gone
}

TEST_CASE("is_alive: a living process does not look dead to one without descriptors") {
  const u64 own = process_start(getpid());
  const pid_t parent = getpid();
  const pid_t dead = fork();
  if (dead == 0) {
    _exit(0);
  }
  waitpid(dead, nullptr, 0);
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_NOFILE, &none);
    _exit((process_start(parent) == 0 ? 0 : 1) + (is_alive(parent, own) ? 0 : 2) +
          (is_alive(dead, own) ? 4 : 0));
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("process_start survives names with spaces and brackets") {
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const int fd = open("/proc/self/comm", O_WRONLY);
    [[maybe_unused]] ssize_t n = write(fd, ") Z 1 (", 7);
    n = write(ready[1], "x", 1);
    pause();
    _exit(0);
  }
  char x;
  REQUIRE(read(ready[0], &x, 1) == 1);
  CHECK(process_start(child) >= process_start(getpid()));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
}
