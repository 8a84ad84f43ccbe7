// proc_task.hpp - what /proc says of the threads of a process: state, where they sleep, in which system
// call and on what, and what they did between two looks. Needs nothing of the threads themselves,
// so it also serves for stopped processes and uninterruptible sleeps. No allocation, no lock.
#pragma once

#include <cstddef>

#include "format/layout.hpp"

namespace fr {

struct Task {
  i32 tid;
  char name[16];
  char state;      // R S D T t Z X as /proc has it; '?' unknown
  char wchan[40];  // kernel function it sleeps in; "" none or not told
  i64 syscall;     // number; see below
  u64 args[6];
  u64 sp, pc;        // where the system call was made; 0 unknown
  char target[168];  // what the call is about: file behind a descriptor, path, address of a futex
  u64 signals_blocked;
  // growth between the two looks
  u64 looked_ns;  // time between them; 0: seen once only
  u64 cpu_ns;
  u64 runqueue_ns;  // runnable, but without a processor
  u64 voluntary_switches;
  u64 involuntary_switches;
};

enum : i64 { kNoSyscall = -1, kSyscallUnknown = -2, kOnProcessor = -3 };

// Fills everything but target; counters are totals. False when the thread is gone.
bool look_first(i32 pid, Task& task) noexcept;
// The second look: counters become differences, target is filled.
bool look_again(i32 pid, Task& task, u64 first_look_ns, u64 now_ns) noexcept;

// Calls fn with each process that the thread has started and nobody has waited for.
void each_child(i32 pid, i32 tid, void (*fn)(i32 child, void* context), void* context) noexcept;
// How a process ended that nobody has waited for, as wait() would say; -1 unknown.
i32 wait_status(i32 pid) noexcept;

// "running", "runnable", "polling", "asleep", "uninterruptible", "stopped", "gone"; by the two
// looks.
const char* activity(const Task& task) noexcept;

// "futex", "read"...; "" for those that do not wait for anything.
const char* syscall_name(i64 number) noexcept;

}  // namespace fr
