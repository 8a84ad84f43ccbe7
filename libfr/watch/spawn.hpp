// spawn.hpp - starts a program that has nothing more to do with this process.
#pragma once

namespace fr {

// Async-signal-safe. The program gets a session of its own, /dev/null as standard input, this
// process's standard error as its output and error, no other descriptor, a lower priority, at most
// kSpawnedMemory_bytes of address space and kSpawnedCpu_s seconds of CPU, and all signals blocked,
// as those of the thread that calls are. It is no child of this process: no SIGCHLD, nothing for
// the host's wait(). False: it could not be started.
inline constexpr unsigned long kSpawnedMemory_bytes = 4ul << 30;
inline constexpr unsigned long kSpawnedCpu_s = 60;
inline constexpr int kSpawnedNice = 10;  // 19 would starve beside ranks that spin
bool spawn(const char* path, const char* const* arguments, const char* const* environment) noexcept;

}  // namespace fr
