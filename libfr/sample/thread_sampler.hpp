// thread_sampler.hpp - where every thread of this process is: native and Python frames, system call, GIL.
//
//   watchdog                                  the thread
//   two looks into /proc
//   slot.word = asked          --signal-->    registers, top of the stack, Python frames -> slot
//   walks the copy, names it   <--futex---    slot.word = answered, goes on
//
// The thread does nothing but copy: it takes no lock, allocates nothing, and needs no GIL. One that
// blocks the signal, or sleeps uninterruptibly, is told of by /proc alone. All memory is mapped by
// init(); collect() takes no lock and allocates nothing.
#pragma once

#include <signal.h>

#include "format/thread_report.hpp"
#include "fr/fr.h"
#include "sample/proc_task.hpp"
#include "sample/unwind.hpp"

namespace fr {

class ThreadStacks {
 public:
  static constexpr u64 kAsking_ns = 200'000'000;

  // Maps the memory, installs the handler. ask: false leaves the threads alone. asking_ns: how long
  // all threads together have for their answers.
  bool init(bool ask, bool variables, u64 asking_ns = kAsking_ns) noexcept;
  int signal() const noexcept;  // 0: none, nobody is asked
  // Threads of this process, as seen from the calling one; nullptr without memory.
  const ThreadReport* collect() noexcept;
  // Of another process: what /proc says.
  const ThreadReport* look_at(i32 pid) noexcept;
  // In a handler: the calling thread alone, as it was interrupted.
  const ThreadReport* collect_own(const ucontext_t& context) noexcept;

 private:
  struct Work;
  void list(i32 pid) noexcept;
  void second_look(i32 pid, u64 first_ns) noexcept;
  void ask_all() noexcept;
  void take(u32 slot, ThreadRow& row) noexcept;
  void name_all() noexcept;
  void reset() noexcept;

  Work* work_ = nullptr;
  ThreadReport* report_ = nullptr;
  bool asks_ = false;
  bool variables_ = false;
  u64 asking_ns_ = kAsking_ns;
};

// A handler that has a dump written, for its life: asked meanwhile, its thread tells where it was
// when the handler's signal came. Async-signal-safe.
class Interrupted {
 public:
  explicit Interrupted(const void* context) noexcept;
  ~Interrupted();
  Interrupted(const Interrupted&) = delete;
  Interrupted& operator=(const Interrupted&) = delete;

 private:
  const ucontext_t* outer_;
};

// Called in a handler when a tool outside asks for a dump by our signal. Async-signal-safe itself.
void on_dump_request(void (*requested)(int signal) noexcept) noexcept;

void set_python(const fr_python* python) noexcept;
const fr_python* python() noexcept;

}  // namespace fr
