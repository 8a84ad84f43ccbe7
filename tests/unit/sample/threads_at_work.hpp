// threads_at_work.hpp - threads that do something known, for the tests that sample them.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "catch.hpp"
#include "sample/proc_task.hpp"
#include "support.hpp"

namespace fr::test {

inline i32 own_thread() {
  return static_cast<i32>(syscall(SYS_gettid));
}

// Until /proc says that the thread sleeps in a system call.
inline bool sleeps(i32 tid) {
  return eventually([tid] {
    Task t{};
    t.tid = tid;
    return sample_first(getpid(), t) && t.state == 'S';
  });
}

// A thread that works until the test ends it.
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

[[gnu::noinline]] inline void deeper(int n, void (*leaf)()) {
  if (n > 0) {
    deeper(n - 1, leaf);
  } else {
    leaf();
  }
  asm volatile("");
}

}  // namespace fr::test
