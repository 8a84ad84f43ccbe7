// syscalls.hpp - names of system calls that may wait, and what their first argument is.
#pragma once

#include "format/layout.hpp"

namespace fr {

// What the first argument of a call is.
enum class SyscallArgument : u8 {
  kNothing,
  kDescriptor,
  kPathFirst,
  kPathSecond,
  kFutex,
  kPollSet,
  kProcess
};

// "futex", "read"...; "" for those that do not wait for anything.
const char* syscall_name(i64 number) noexcept;
SyscallArgument syscall_argument(i64 number) noexcept;

}  // namespace fr
