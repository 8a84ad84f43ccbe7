// thread_sampler.hpp - where every thread of this process is: native and Python frames, system
// call, GIL.
//
//   watchdog                                  the thread
//   two samples of /proc
//   slot.word = requested      --signal-->    registers, top of the stack, Python frames -> slot
//   walks the copy, names it   <--futex---    slot.word = answered, goes on
//
// The thread does nothing but copy: it takes no lock, allocates nothing, and needs no GIL. A thread
// that blocks the signal, or sleeps uninterruptibly, is known by /proc alone. All memory is mapped
// by init(); collect() takes no lock and allocates nothing.
#pragma once

#include <signal.h>

#include "format/thread_report.hpp"
#include "fr/fr.h"
#include "sample/proc_task.hpp"
#include "sample/unwind.hpp"

namespace fr {

class ThreadStacks {
 public:
  static constexpr u64 kSampling_ns = 200'000'000;

  // Maps the memory, installs the handler. by_signal: false interrupts no thread. sampling_ns: how
  // long all threads together have for their answers.
  bool init(bool by_signal, bool variables, u64 sampling_ns = kSampling_ns) noexcept;
  int signal() const noexcept;  // 0: none, no thread is interrupted
  // Threads of this process, as seen from the calling one; nullptr without memory.
  const ThreadReport* collect() noexcept;
  // Threads of another process, from /proc alone.
  const ThreadReport* sample_process(i32 pid) noexcept;
  // In a handler: the calling thread alone, as it was interrupted.
  const ThreadReport* collect_own(const ucontext_t& context) noexcept;

 private:
  struct Work;
  void list(i32 pid) noexcept;
  void second_sample(i32 pid, u64 first_ns) noexcept;
  struct Round;
  static void empty_slots(Round& round) noexcept;
  bool take_answers(Round& round) noexcept;
  bool request(Round& round, u32 slot, ThreadRow& row) noexcept;
  void request_all(Round& round) noexcept;
  void signal_all() noexcept;
  void take(u32 slot, ThreadRow& row) noexcept;
  void name_all() noexcept;
  void reset() noexcept;

  Work* work_ = nullptr;
  ThreadReport* report_ = nullptr;
  bool asks_ = false;
  bool variables_ = false;
  u64 sampling_ns_ = kSampling_ns;
};

// Lives in a handler that has a dump written: sampled meanwhile, its thread reports where it was
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

// Called in a handler when a tool outside requests a dump by our signal. Async-signal-safe itself.
void on_dump_request(void (*requested)(int signal, u64 what) noexcept) noexcept;

void set_python(const fr_python* python) noexcept;
const fr_python* python() noexcept;

}  // namespace fr
