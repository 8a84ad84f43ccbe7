// Stacks of threads without Python: reading memory that may not be there,
// unwinding, naming, asking.
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
#include "sample/memory_read.hpp"
#include "sample/modules.hpp"
#include "sample/proc_task.hpp"
#include "sample/thread_sampler.hpp"
#include "sample/unwind.hpp"
#include "support.hpp"

using namespace fr;
using namespace fr::test;

namespace {

i32 own_thread() {
  return static_cast<i32>(syscall(SYS_gettid));
}

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

// Until /proc says that the thread sleeps in a system call.
bool sleeps(i32 tid) {
  return eventually([tid] {
    Task t{};
    t.tid = tid;
    return sample_first(getpid(), t) && t.state == 'S';
  });
}

// A thread that does something until it is told to end.
struct Worker {
  template <class Fn>
  explicit Worker(Fn fn)
      : thread([this, fn] {
          tid.store(own_thread());
          fn();
        }) {
    REQUIRE(eventually([this] { return tid.load() != 0; }));
  }
  std::atomic<i32> tid{0};
  std::thread thread;
};

[[gnu::noinline]] void deeper(int n, void (*leaf)()) {
  if (n > 0) {
    deeper(n - 1, leaf);
  } else {
    leaf();
  }
  asm volatile("");
}

std::unique_ptr<ModuleTable> g_modules;
std::unique_ptr<Unwinder> g_unwinder;
u64 g_pcs[128];
u32 g_n = 0;
bool g_whole = false;
void* g_expected[128];
int g_n_expected = 0;

void unwind_here() {
  ucontext_t context;
  getcontext(&context);
  g_n = g_unwinder->walk(Registers::of(context), {}, g_pcs, 128, &g_whole);
  g_n_expected = backtrace(g_expected, 128);
}

}  // namespace

TEST_CASE("peek: bad addresses are an answer") {
  prepare_peek();
  u64 value = 7;
  u64 copy = 0;
  CHECK(peek(reinterpret_cast<u64>(&value), &copy, 8));
  CHECK(copy == 7);
  CHECK_FALSE(peek(0, &copy, 8));
  CHECK_FALSE(peek(8, &copy, 8));
  CHECK_FALSE(peek(~0ull - 3, &copy, 8));
  auto* pages = static_cast<char*>(
      mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  REQUIRE(pages != MAP_FAILED);
  std::memset(pages, 'x', 8192);
  REQUIRE(mprotect(pages + 4096, 4096, PROT_NONE) == 0);
  char text[64];
  CHECK(peek_some(reinterpret_cast<u64>(pages) + 4086, text, sizeof text) == 10);
  CHECK_FALSE(peek_text(reinterpret_cast<u64>(pages) + 4086, text, sizeof text));
  pages[4090] = '\0';
  CHECK(peek_text(reinterpret_cast<u64>(pages) + 4086, text, sizeof text));
  CHECK(std::string(text) == "xxxx");
  munmap(pages, 8192);
}

TEST_CASE("modules: the file and the function of an address, as the loader knows them") {
  prepare_peek();
  auto modules = std::make_unique<ModuleTable>();
  modules->read();
  std::vector<Symbol> symbols;
  for (void* p : {reinterpret_cast<void*>(&::strtol), reinterpret_cast<void*>(&::qsort),
                  reinterpret_cast<void*>(&::pthread_create)}) {
    symbols.push_back({reinterpret_cast<u64>(p) + 3, 0, 0});
  }
  symbols.push_back({16, 0, 0});
  std::sort(symbols.begin(), symbols.end(),
            [](const Symbol& a, const Symbol& b) { return a.pc < b.pc; });
  modules->name(symbols.data(), static_cast<u32>(symbols.size()));
  for (const Symbol& s : symbols) {
    Dl_info info{};
    const bool known = dladdr(reinterpret_cast<void*>(s.pc), &info) != 0;
    const Module* m = modules->find(s.pc);
    REQUIRE((m != nullptr) == known);
    if (known) {
      CHECK(m->bias == reinterpret_cast<u64>(info.dli_fbase));
      CHECK(s.start == reinterpret_cast<u64>(info.dli_saddr));
    } else {
      CHECK(s.name == 0);
    }
  }
}

TEST_CASE("unwind: as the compiler's own unwinder sees it") {
  prepare_peek();
  g_modules = std::make_unique<ModuleTable>();
  g_modules->read();
  g_unwinder = std::make_unique<Unwinder>(g_modules.get());
  for (const int depth : {0, 5, 60}) {
    CAPTURE(depth);
    deeper(depth, unwind_here);
    REQUIRE(g_whole);
    // sanitizers put a frame of their own before it
    const int more = g_n_expected - static_cast<int>(g_n);
    REQUIRE((more == 0 || more == 1));
    for (u32 i = 1; i < g_n; ++i) {  // the first is where each was called in the same function
      CHECK(g_pcs[i] + 1 == reinterpret_cast<u64>(g_expected[i + static_cast<u32>(more)]));
    }
  }
  // a limit is kept, and a stack that leads nowhere ends
  ucontext_t context;
  getcontext(&context);
  Registers r = Registers::of(context);
  CHECK(g_unwinder->walk(r, {}, g_pcs, 2, &g_whole) == 2);
  CHECK_FALSE(g_whole);
  r.r[Registers::kSp] = 64;
  r.r[Registers::kFp] = 64;
  CHECK(g_unwinder->walk(r, {}, g_pcs, 128, &g_whole) <= 2);
  r.r[Registers::kReturn] = 0;  // where a register has the caller
  r.pc = 0x10;
  CHECK(g_unwinder->walk(r, {}, g_pcs, 128, &g_whole) == 1);
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
  CHECK(std::string(activity(o)) == "asleep");
  const Task r = two_looks(reads.tid);
  CHECK(std::string(syscall_name(r.syscall)) == "read");
  CHECK(std::string(r.target).substr(0, 5) == "pipe:");
  // On a busy machine it may wait for a processor all the while; that counts when it gets one.
  CHECK(eventually([&] {
    const Task s = two_looks(spins.tid);
    const bool counted = s.cpu_ns + s.runqueue_ns > s.looked_ns / 2;
    CHECK(std::string(activity(s)).substr(0, 3) == "run");
    return counted && std::string(activity(s)) == "running";
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

#ifndef __SANITIZE_THREAD__  // handlers run in a frame of its own there, often later

TEST_CASE("threads: each is asked for its stack, in its system call, and goes on") {
  static ThreadStacks stacks;
  REQUIRE(stacks.init(true, false));
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
  REQUIRE(stacks.init(true, false));
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
  CHECK(std::string(activity(row(*report, stopped)->task)) == "stopped");
  kill(stopped, SIGKILL);
  for (const pid_t pid : {ended, killed, stopped}) {
    CHECK(waitpid(pid, nullptr, 0) == pid);
  }
  CHECK(row(*stacks.collect(), ended) == nullptr);
}
