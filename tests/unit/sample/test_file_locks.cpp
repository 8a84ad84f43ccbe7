// test_file_locks.cpp - the locks of files that a process waits for or holds.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "catch.hpp"
#include "sample/file_locks.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("file locks: lines of /proc/locks") {
  LockLine line{};
  REQUIRE(parse_lock_line("1: POSIX  ADVISORY  WRITE 13987 fe:00:2146393 0 EOF", line));
  CHECK_FALSE(line.waits);
  CHECK(std::string(line.kind) == "POSIX");
  CHECK(line.pid == 13987);
  CHECK(line.inode == 2146393);
  REQUIRE(parse_lock_line("12:  -> FLOCK  ADVISORY  READ  14030 00:1b:5 0 EOF", line));
  CHECK(line.waits);
  CHECK(std::string(line.kind) == "FLOCK");
  CHECK(line.pid == 14030);
  CHECK(line.inode == 5);
  REQUIRE(parse_lock_line("3: OFDLCK ADVISORY  WRITE -1 00:1b:5 0 9", line));
  CHECK(line.pid == -1);
  for (const char* damaged :
       {"", "1:", "1: FLOCK", "1: -> ", "1: FLOCK ADVISORY WRITE x y 0 EOF"}) {
    CHECK_FALSE(parse_lock_line(damaged, line));
  }
}

TEST_CASE("file locks: who waits, who holds, for which file, flock() and fcntl()") {
  const bool by_fcntl = GENERATE(false, true);
  CAPTURE(by_fcntl);
  TempDir dir;
  const std::string path = dir.path() + "/data.lock";
  const int own = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  struct flock whole{};
  whole.l_type = F_WRLCK;
  REQUIRE((by_fcntl ? fcntl(own, F_SETLK, &whole) : flock(own, LOCK_EX)) == 0);
  pid_t waiters[2];
  for (pid_t& waiter : waiters) {
    waiter = fork();
    if (waiter == 0) {
      close(own);
      const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
      _exit((by_fcntl ? fcntl(fd, F_SETLKW, &whole) : flock(fd, LOCK_EX)) == 0 ? 0 : 1);
    }
  }
  const auto report = std::make_unique<ThreadReport>();
  for (const pid_t waiter : waiters) {
    REQUIRE(eventually([&] {
      sample_file_locks(waiter, *report);
      return report->n_locks == 1;
    }));
    const LockRow& row = report->locks[0];
    CHECK(row.waits);
    CHECK(row.holder == getpid());
    CHECK(std::string(row.kind) == (by_fcntl ? "POSIX" : "FLOCK"));
    CHECK(std::string(row.file) == path);
    CHECK(std::string(row.holder_name).substr(0, 8) == "fr_tests");
  }
  sample_file_locks(getpid(), *report);
  REQUIRE(report->n_locks == 1);
  CHECK_FALSE(report->locks[0].waits);
  CHECK(report->locks[0].holder == getpid());
  CHECK(std::string(report->locks[0].file) == path);
  close(own);
  for (const pid_t waiter : waiters) {
    int status = 0;
    waitpid(waiter, &status, 0);
    CHECK(status == 0);
  }
}
