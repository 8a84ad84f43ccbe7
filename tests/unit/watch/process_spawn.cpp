// process_spawn.cpp - a program that is started and has nothing more to do with its starter.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "catch.hpp"
#include "support.hpp"
#include "watch/spawn.hpp"

using namespace fr;
using namespace fr::test;

namespace {

// Counts the SIGCHLD that reach the host's handler.
class CountChildren {
 public:
  CountChildren() {
    struct sigaction count{};
    count.sa_handler = [](int) { counted_.fetch_add(1); };
    counted_ = 0;
    sigaction(SIGCHLD, &count, &before_);
  }
  ~CountChildren() { sigaction(SIGCHLD, &before_, nullptr); }
  static int counted() { return counted_; }

 private:
  inline static std::atomic<int> counted_{0};
  struct sigaction before_{};
};

bool run(const std::string& script) {
  const char* const arguments[] = {"sh", "-c", script.c_str(), nullptr};
  const char* const environment[] = {"MARK=only this", nullptr};
  return spawn("/bin/sh", arguments, environment);
}

}  // namespace

TEST_CASE("spawn: no child, no signal, no descriptor, an environment and a session of its own") {
  TempDir dir;
  const CountChildren children;
  const int open_fd = dup2(open("/dev/null", O_RDONLY), 100);  // a number that `ls` never has
  const std::string out = dir.path() + "/out";
  REQUIRE(run("{ echo \"$MARK:$HOME:$PPID\"; ls /proc/self/fd; ps -o sid= -p $$; echo $$; } > " +
              out + ".tmp; mv " + out + ".tmp " + out));
  REQUIRE(eventually([&] { return exists(out); }));
  int status = 0;
  CHECK(waitpid(-1, &status, WNOHANG) == -1);
  CHECK(errno == ECHILD);
  CHECK(children.counted() == 0);
  const std::string text = read_file(out);
  CHECK(text.find("only this::") == 0);
  CHECK(text.find(":" + std::to_string(getpid()) + "\n") == std::string::npos);
  CHECK(text.find("\n" + std::to_string(open_fd) + "\n") == std::string::npos);
  close(open_fd);
}

// For a moment an intermediate process, the program's parent, runs in the host's memory.
TEST_CASE("spawn: programs that end at once run no handler of the host") {
  const CountChildren children;
  cpu_set_t one, all;
  REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
  CPU_ZERO(&one);
  CPU_SET(static_cast<unsigned>(sched_getcpu()), &one);
  sched_setaffinity(0, sizeof one, &one);  // the program often ends before its parent goes on
  const char* const arguments[] = {"true", nullptr};
  const char* const environment[] = {nullptr};
  int started = 0;
  for (int i = 0; i < 100; ++i) {
    started += spawn("/bin/true", arguments, environment) ? 1 : 0;
  }
  sched_setaffinity(0, sizeof all, &all);
  CHECK(started == 100);
  CHECK(children.counted() == 0);
}

TEST_CASE("spawn: what cannot be started is said") {
  const char* const arguments[] = {"none", nullptr};
  const char* const environment[] = {nullptr};
  CHECK_FALSE(spawn("/nowhere/none", arguments, environment));
}
