// proc_task.hpp - what /proc says of the threads of a process: state, where they sleep, in
// which system call and on what, and what they did between two samples. Needs nothing of the
// threads themselves, so it also serves for stopped processes and uninterruptible sleeps. No
// allocation, no lock.
#pragma once

#include <cstddef>

#include "format/thread_report.hpp"

namespace fr {

// Fills everything but target; counters are totals. False when the thread is gone.
bool sample_first(i32 pid, Task& task) noexcept;
// The second sample: counters become differences, target is filled.
bool sample_again(i32 pid, Task& task, u64 first_look_ns, u64 now_ns) noexcept;

// Calls fn with each process that the thread has started and not yet waited for.
void each_child(i32 pid, i32 tid, void (*fn)(i32 child, void* context), void* context) noexcept;
// Work of a process so far, with its descendants to the third generation, as far as their first
// threads started them.
struct ProcessWork {
  u64 cpu_ns;
  bool is_blocked;   // its first thread sleeps uninterruptibly: in a disk or a file server
  bool is_runnable;  // it has a processor, or waits for one
};
ProcessWork process_work(i32 pid) noexcept;
// Wait status of a child that was not yet waited for; -1 unknown.
i32 wait_status(i32 pid) noexcept;

}  // namespace fr
