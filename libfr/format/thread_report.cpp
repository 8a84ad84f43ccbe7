// thread_report.cpp - the words that dumps have for what a thread does.
#include "format/thread_report.hpp"

#include <fcntl.h>
#include <sys/syscall.h>

namespace fr {
namespace {

// Such a call has no time limit. A switch of a thread in it is no poll: the kernel wakes all who wait
// for a lock when a signal reaches one of them, the sampling signal too.
bool waits_for_file_lock(const Task& t) noexcept {
  return t.syscall == SYS_flock ||
         (t.syscall == SYS_fcntl && (t.args[1] == F_SETLKW || t.args[1] == F_OFD_SETLKW));
}

}  // namespace

const char* activity(const Task& t) noexcept {
  switch (t.state) {
    case 'T':
    case 't':
      return "stopped";
    case 'X':
    case 'Z':
      return "gone";
    case 'D':
      return "uninterruptible";
    default:
      break;
  }
  if (t.looked_ns != 0 && (t.cpu_ns + t.runqueue_ns) * 2 > t.looked_ns) {
    return t.cpu_ns >= t.runqueue_ns / 8 ? "running" : "runnable";
  }
  if (t.voluntary_switches > 0 && !waits_for_file_lock(t)) {
    return "polling";  // also when the look met it awake
  }
  return t.state == 'R' ? "runnable" : "asleep";
}

}  // namespace fr
