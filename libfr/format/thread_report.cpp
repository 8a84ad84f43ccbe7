// thread_report.cpp - what a thread does, by two samples of it.
#include "format/thread_report.hpp"

#include <fcntl.h>
#include <sys/syscall.h>

namespace fr {
namespace {

// Such a call has no time limit. A context switch in it is no poll: when a signal reaches one
// thread that waits for a lock, the sampling signal included, the kernel wakes all of them.
bool waits_for_file_lock(const Task& t) noexcept {
  return t.syscall == SYS_flock ||
         (t.syscall == SYS_fcntl && (t.args[1] == F_SETLKW || t.args[1] == F_OFD_SETLKW));
}

}  // namespace

Activity activity(const Task& t) noexcept {
  switch (t.state) {
    case 'T':
    case 't':
      return Activity::kStopped;
    case 'X':
    case 'Z':
      return Activity::kGone;
    case 'D':
      return Activity::kUninterruptible;
    default:
      break;
  }
  if (t.looked_ns != 0 && (t.cpu_ns + t.runqueue_ns) * 2 > t.looked_ns) {
    return t.cpu_ns >= t.runqueue_ns / 8 ? Activity::kRunning : Activity::kRunnable;
  }
  if (t.voluntary_switches > 0 && !waits_for_file_lock(t)) {
    return Activity::kPolling;  // also when the look met it awake
  }
  return t.state == 'R' ? Activity::kRunnable : Activity::kAsleep;
}

}  // namespace fr
