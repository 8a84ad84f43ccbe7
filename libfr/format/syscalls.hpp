// syscalls.hpp - names of system calls that may wait, and what their arguments tell.
#pragma once

#include "format/layout.hpp"

namespace fr {

// The meaning of a call's first argument, or where the call has the time that it sleeps.
enum class SyscallArgument : u8 {
  kNothing,
  kDescriptor,
  kPathFirst,
  kPathSecond,
  kFutex,
  kPollSet,
  kProcess,
  kSleep,       // nanosleep: args[0]
  kClockSleep,  // clock_nanosleep: clock, flags, args[2]
  kSelect       // pselect6: args[4]
};

// "futex", "read"...; "" for those that do not wait for anything.
const char* syscall_name(i64 number) noexcept;
SyscallArgument syscall_argument(i64 number) noexcept;

}  // namespace fr
