// test_thread_sampler.cpp - threads of this process are sampled wherever they are, and go on.
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
#include "sample/thread_sampler.hpp"
#include "sample/threads_at_work.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

[[maybe_unused]] constexpr u64 kPatience_ns = 30'000'000'000;  // a thread of a busy machine

[[maybe_unused]] const ThreadRow* row_of(const ThreadReport& report, i32 tid) {
  for (u32 i = 0; i < report.n_threads; ++i) {
    if (report.threads[i].task.tid == tid) {
      return &report.threads[i];
    }
  }
  return nullptr;
}

[[maybe_unused]] std::vector<std::string> functions(const ThreadReport& report,
                                                    const ThreadRow& row) {
  std::vector<std::string> out;
  for (u32 i = 0; i < row.n_frames; ++i) {
    out.emplace_back(report.text + report.frames[report.stack[row.first_frame + i]].function);
  }
  return out;
}

[[maybe_unused]] bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

#ifndef __SANITIZE_THREAD__  // handlers run in a frame of its own there, often later

TEST_CASE("threads: each is asked for its stack, in its system call, and goes on") {
  static ThreadStacks stacks;
  REQUIRE(stacks.init(true, false, kPatience_ns));
  int fds[2];
  REQUIRE(pipe(fds) == 0);
  std::atomic<int> read_ok{0};
  Worker reads([&] {
    char c = 0;
    read_ok = static_cast<int>(read(fds[0], &c, 1));  // SA_RESTART: never EINTR
  });
  Worker deaf([&] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    char c = 0;
    [[maybe_unused]] const ssize_t n = read(fds[0], &c, 1);
  });
  REQUIRE(sleeps(reads.tid));
  REQUIRE(sleeps(deaf.tid));
  u64 before = 0;
  for (int round = 0; round < 50; ++round) {
    before = allocations();
    const ThreadReport* report = stacks.collect();
    CHECK(allocations() == before);
    REQUIRE(report != nullptr);
    CHECK(report->signal == stacks.signal());
    const ThreadRow* row = row_of(*report, reads.tid);
    REQUIRE(row != nullptr);
    CHECK(row->answer == Answer::kAnswered);
    CHECK(row->whole);
    const auto names = functions(*report, *row);
    CHECK((contains(names, "read") || contains(names, "__read")));
    const ThreadRow* other = row_of(*report, deaf.tid);
    REQUIRE(other != nullptr);
    CHECK(other->answer == Answer::kBlocked);
    CHECK(other->n_frames == 0);
    CHECK(std::string(syscall_name(other->task.syscall)) == "read");
    CHECK(row_of(*report, own_thread())->answer == Answer::kOwn);
  }
  CHECK(write(fds[1], "xx", 2) == 2);
  reads.thread.join();
  deaf.thread.join();
  CHECK(read_ok == 1);
  close(fds[0]);
  close(fds[1]);
}

// Threads in calls that the kernel does not restart after a handler: none may notice.
class Sleepers {
 public:
  Sleepers() {
    struct sigaction wake{};
    wake.sa_handler = [](int) {};
    REQUIRE(sigaction(SIGUSR1, &wake, &kept_) == 0);
    REQUIRE(pipe(fds_) == 0);
    epoll_ = epoll_create1(0);
    start([] { sleep(1000); });
    start([] { usleep(900'000'000); });
    start([] {
      const timespec t{1000, 0};
      clock_nanosleep(CLOCK_MONOTONIC, 0, &t, nullptr);
    });
    start([this] {
      pollfd p{fds_[0], POLLIN, 0};
      poll(&p, 1, -1);
    });
    start([this] {
      fd_set set;
      FD_ZERO(&set);
      FD_SET(fds_[0], &set);
      timeval t{1000, 0};
      select(fds_[0] + 1, &set, nullptr, nullptr, &t);
    });
    start([this] {
      epoll_event event{};
      epoll_wait(epoll_, &event, 1, 1'000'000);
    });
    start([] { pause(); });
  }
  // They are interrupted as ever by the process's own signals.
  ~Sleepers() {
    for (const auto& w : workers) {
      pthread_kill(w->thread.native_handle(), SIGUSR1);
      w->thread.join();
    }
    CHECK(returned == static_cast<int>(workers.size()));
    sigaction(SIGUSR1, &kept_, nullptr);
    close(fds_[0]);
    close(fds_[1]);
    close(epoll_);
  }

  std::atomic<int> returned{0};
  std::vector<std::unique_ptr<Worker>> workers;

 private:
  template <class Call>
  void start(Call call) {
    workers.push_back(std::make_unique<Worker>([this, call] {
      call();
      ++returned;
    }));
    REQUIRE(sleeps(workers.back()->tid));
  }

  struct sigaction kept_{};
  int fds_[2] = {};
  int epoll_ = -1;
};

TEST_CASE("threads: sleeps and polls go on as if nobody had asked") {
  static ThreadStacks stacks;
  REQUIRE(stacks.init(true, false, kPatience_ns));
  const Sleepers sleepers;
  for (int round = 0; round < 20; ++round) {
    const ThreadReport* report = stacks.collect();
    for (const auto& w : sleepers.workers) {
      REQUIRE(row_of(*report, w->tid) != nullptr);
      CHECK(row_of(*report, w->tid)->answer == Answer::kAnswered);
      CHECK(row_of(*report, w->tid)->whole);
    }
    REQUIRE(sleepers.returned == 0);
  }
}

TEST_CASE("threads: whose answer comes too late goes on, too") {
  static ThreadStacks stacks;
  REQUIRE(stacks.init(true, false, 0));
  const Sleepers sleepers;
  int unanswered = 0;
  for (int round = 0; round < 20; ++round) {
    const ThreadReport* report = stacks.collect();
    for (const auto& w : sleepers.workers) {
      REQUIRE(row_of(*report, w->tid) != nullptr);
      unanswered += row_of(*report, w->tid)->answer == Answer::kUnanswered ? 1 : 0;
      REQUIRE(sleeps(w->tid));
    }
    REQUIRE(sleepers.returned == 0);
  }
  CHECK(unanswered > 0);
}

#endif  // __SANITIZE_THREAD__

TEST_CASE("threads: nobody is asked where another handler stands in the place of ours") {
  static ThreadStacks stacks;
  REQUIRE(stacks.init(true, false));
  struct sigaction kept{};
  struct sigaction theirs{};
  theirs.sa_handler = [](int) {};
  REQUIRE(sigaction(stacks.signal(), &theirs, &kept) == 0);
  const ThreadReport* report = stacks.collect();
  CHECK(report->signal == 0);
  CHECK(std::string(report->why).find("another handler") != std::string::npos);
  CHECK(report->n_threads >= 1);
  REQUIRE(sigaction(stacks.signal(), &kept, nullptr) == 0);
  CHECK(stacks.collect()->signal == stacks.signal());
}

TEST_CASE("threads: a storm of signals of that number from elsewhere does nothing") {
  static ThreadStacks stacks;
  REQUIRE(stacks.init(true, false));
  for (u64 i = 0; i < 1000; ++i) {
    sigval value{};
    value.sival_ptr = reinterpret_cast<void*>(i << 8 | (i & 0xff));
    REQUIRE(sigqueue(getpid(), stacks.signal(), value) == 0);
  }
  CHECK(stacks.collect()->n_threads >= 1);
}

TEST_CASE("threads: child processes, and how those ended that nobody has waited for") {
  static ThreadStacks stacks;
  REQUIRE(stacks.init(false, false));
  const pid_t ended = fork();
  if (ended == 0) {
    _exit(3);
  }
  const pid_t killed = fork();
  if (killed == 0) {
    pause();
    _exit(0);
  }
  const pid_t stopped = fork();
  if (stopped == 0) {
    pause();
    _exit(0);
  }
  kill(killed, SIGKILL);
  kill(stopped, SIGSTOP);
  const auto row = [](const ThreadReport& report, pid_t pid) -> const ChildRow* {
    for (u32 i = 0; i < report.n_children; ++i) {
      if (report.children[i].task.tid == pid) {
        return &report.children[i];
      }
    }
    return nullptr;
  };
  const auto state = [&](const ThreadReport& report, pid_t pid) {
    const ChildRow* r = row(report, pid);
    return r != nullptr ? r->task.state : '?';
  };
  const ThreadReport* report = nullptr;
  CHECK(eventually([&] {
    report = stacks.collect();
    return state(*report, ended) == 'Z' && state(*report, killed) == 'Z' &&
           state(*report, stopped) == 'T';
  }));
  CHECK(row(*report, ended)->wait_status == 3 << 8);
  CHECK(row(*report, killed)->wait_status == SIGKILL);
  CHECK(row(*report, stopped)->wait_status == -1);
  CHECK(activity(row(*report, stopped)->task) == Activity::kStopped);
  kill(stopped, SIGKILL);
  for (const pid_t pid : {ended, killed, stopped}) {
    CHECK(waitpid(pid, nullptr, 0) == pid);
  }
  CHECK(row(*stacks.collect(), ended) == nullptr);
}
