// process.hpp - what /proc says of a process as a whole: whether it lives, since when, whether it is
// stopped; whether a process of a control page lives. Async-signal-safe.
#pragma once

#include "format/layout.hpp"

namespace fr {

// Start time of a living process in clock ticks since boot; 0 when it is gone or a zombie. With the
// pid it names a process for good: pids come again, the pair does not.
u64 process_start(i32 pid) noexcept;
// Where /proc cannot be read (no descriptor left, another root), whatever has that pid counts: taking
// a living process for dead would remove its ring. So it does where it could not read its own start,
// and has none (0).
bool is_alive(i32 pid, u64 start) noexcept;

// Its name in /proc/PID/comm, 15 bytes and the line's end at most; "" unknown.
void process_name(i32 pid, char* to, std::size_t size) noexcept;

// The state letter in /proc/PID/stat: R S D Z T t X ...; ' ' when there is no such process.
char process_state(i32 pid) noexcept;

// Inode of /proc/self/ns/pid, 0 unknown: pids mean something only within one namespace.
u64 pid_namespace() noexcept;

// Whether a rank of this page lives, or one is just entering it. Same pid namespace only.
bool has_living_rank(const Control& page) noexcept;

// Stopped by a signal (SIGSTOP, SIGTSTP), not by a debugger.
bool is_stopped(i32 pid) noexcept;

}  // namespace fr
