// files.hpp - durable files, and what /proc says of a process. All of it async-signal-safe:
// used by the watchdog and by signal handlers alike.
#pragma once

#include <cstddef>

#include "format/layout.hpp"

namespace fr {

// Start time of a living process in clock ticks since boot; 0 when it is gone or a zombie.
u64 process_start(i32 pid) noexcept;
inline bool is_alive(i32 pid, u64 start) noexcept {
  return pid > 0 && start != 0 && process_start(pid) == start;
}

// mkdir -p. False with errno.
bool make_directories(const char* path) noexcept;

// Stopped by a signal (SIGSTOP, SIGTSTP), not by a debugger.
bool is_stopped(i32 pid) noexcept;

// Writes dir/name whole: temporary name, fsync, rename, fsync of the directory. On failure no file
// stays and errno says why. path[] gets the final path.
enum class Existing { kReplace, kKeep };  // kKeep: EEXIST where the name is taken
bool write_durably(const char* dir, const char* name, const void* data, std::size_t bytes,
                   char* path, std::size_t path_bytes,
                   Existing existing = Existing::kReplace) noexcept;

// Calls visit(name, context) for every entry of a directory but . and ..; false when it cannot be
// read.
bool each_entry(const char* dir, void (*visit)(const char* name, void* context),
                void* context) noexcept;

// What a file name of ours says: <job>.a<attempt>.r<rank>.<number>.fr|ring. False when it is none.
struct NameParts {
  char job[128];
  i32 attempt;
  i32 rank;    // -1: "rx"
  u64 number;  // incident of a dump, pid of a live ring
  bool is_fr;  // ends in .fr, else .ring
};
bool parse_name(const char* name, NameParts& parts) noexcept;
void format_name(char* out, std::size_t bytes, const char* job, i32 attempt, i32 rank, u64 number,
                 const char* ending) noexcept;

// Formats like snprintf, but async-signal-safe; knows %s %d %u %l (u64) only.
std::size_t format(char* out, std::size_t bytes, const char* text, ...) noexcept;

u64 unix_now_ns() noexcept;

}  // namespace fr
