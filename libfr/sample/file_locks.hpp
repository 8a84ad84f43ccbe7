// file_locks.hpp - the file locks that a process waits for or holds: flock() and fcntl(), from
// /proc/locks, which names the holder of each; of locks of open file descriptions, which have no
// holder there, those that it waits for, with a process that has the description.
// Async-signal-safe.
#pragma once

#include "format/thread_report.hpp"

namespace fr {

// Fills locks and locks_lost; threads are those of that process.
void sample_file_locks(i32 pid, ThreadReport& to) noexcept;

// One line of /proc/locks: "1: -> FLOCK  ADVISORY  WRITE 1011 fe:00:2146384 0 EOF".
struct LockLine {
  bool waits;  // for the lock of the last line before it that does not
  char kind[8];
  i32 pid;  // -1: of an open file description
  u64 inode;
};
bool parse_lock_line(const char* line, LockLine& to) noexcept;

}  // namespace fr
