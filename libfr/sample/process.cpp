// process.cpp - reads /proc/PID/task/PID/stat.
#include "sample/process.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "format/text.hpp"
#include "sample/small_file.hpp"

namespace fr {
namespace {

// The state letter in /proc/<pid>/stat and what follows; nullptr when there is no such process.
const char* read_stat(i32 pid, char* text, std::size_t bytes) noexcept {
  char path[64];
  // Read the first thread's, which says the same: emulators answer for /proc/PID/stat themselves,
  // and give a forked child its parent's start.
  format(path, sizeof path, "/proc/%d/task/%d/stat", pid, pid);
  if (read_small_file(path, text, bytes) == 0) {
    return nullptr;
  }
  // pid (comm) state ppid ...: comm may hold anything, so count fields behind the last ')'
  const char* at = std::strrchr(text, ')');
  return at == nullptr || at[1] == '\0' ? nullptr : at + 2;
}

}  // namespace

void process_name(i32 pid, char* to, std::size_t size) noexcept {
  char path[48];
  format(path, sizeof path, "/proc/%d/comm", pid);
  if (const std::size_t n = read_small_file(path, to, size); n != 0) {
    to[n - 1] = '\0';  // the line's end
  }
}

u64 pid_namespace() noexcept {
  struct stat st;
  return stat("/proc/self/ns/pid", &st) == 0 ? st.st_ino : 0;
}

bool has_living_rank(const Control& page) noexcept {
  for (const PeerRow& row : page.peers) {
    const u32 state = row.state.load(std::memory_order_acquire);
    if ((state == kPeerLive || state == kPeerClaimed) &&
        is_alive(row.pid.load(), row.proc_start.load())) {
      return true;
    }
  }
  return false;
}

char process_state(i32 pid) noexcept {
  char text[1024];
  const char* at = read_stat(pid, text, sizeof text);
  return at != nullptr ? *at : ' ';
}

bool is_stopped(i32 pid) noexcept {
  return process_state(pid) == 'T';
}

namespace {

u64 start_in(const char* at) noexcept {
  if (at == nullptr || *at == 'Z' || *at == 'X') {
    return 0;
  }
  for (int field = 3; field < 22; ++field) {
    at = std::strchr(at, ' ');
    if (at == nullptr) {
      return 0;
    }
    ++at;
  }
  u64 start = 0;
  while (*at >= '0' && *at <= '9') {
    start = start * 10 + static_cast<u64>(*at++ - '0');
  }
  return start;
}

}  // namespace

u64 process_start(i32 pid) noexcept {
  char text[1024];
  return start_in(read_stat(pid, text, sizeof text));
}

bool is_alive(i32 pid, u64 start) noexcept {
  if (pid <= 0) {
    return false;
  }
  char text[1024];
  if (const char* at = read_stat(pid, text, sizeof text)) {
    const u64 found = start_in(at);
    return start != 0 ? found == start : found != 0;
  }
  return kill(pid, 0) == 0 || errno == EPERM;
}

}  // namespace fr
