// oom.cpp - the cgroup's counter of OOM kills.
#include "watch/oom.hpp"

#include <unistd.h>

#include <climits>
#include <cstring>

#include "format/text.hpp"
#include "sample/small_file.hpp"

namespace fr {
namespace {

// "oom_kill 3" at the start of a line.
i64 counter(const char* path) noexcept {
  char text[1024];
  if (read_small_file(path, text, sizeof text) == 0) {
    return -1;
  }
  for (const char* line = text; line != nullptr; line = std::strchr(line, '\n')) {
    line += *line == '\n' ? 1 : 0;
    if (std::strncmp(line, "oom_kill ", 9) == 0) {
      i64 n = 0;
      for (line += 9; *line >= '0' && *line <= '9'; ++line) {
        n = n * 10 + (*line - '0');
      }
      return n;
    }
  }
  return -1;
}

// "memory" among "cpu,memory", which end before `end`.
bool has_memory(const char* controllers, const char* end) noexcept {
  constexpr std::size_t kBytes = 6;
  for (const char* at = controllers; at < end;) {
    const char* comma = at;
    while (comma < end && *comma != ',') {
      ++comma;
    }
    if (static_cast<std::size_t>(comma - at) == kBytes && std::strncmp(at, "memory", kBytes) == 0) {
      return true;
    }
    at = comma + 1;
  }
  return false;
}

// Slurm gives each task a group of its own: a peer's end is counted in the one above it.
void leave_task(char* group) noexcept {
  char* slash = std::strrchr(group, '/');
  if (slash != nullptr && slash != group && std::strncmp(slash, "/task_", 6) == 0) {
    *slash = '\0';
  }
}

}  // namespace

i64 oom_kills(const char* root) noexcept {
  char text[4096];
  char path[PATH_MAX];
  format(path, sizeof path, "%s/proc/self/cgroup", root);
  if (read_small_file(path, text, sizeof text) == 0) {
    return -1;
  }
  // Lines "number:controllers:path": of version 2 "0::/path", of version 1 "7:memory:/path". Both
  // may be there; then the memory is version 1's where that has a line of its own.
  for (char* line = text; line != nullptr && *line != '\0';) {
    char* end = std::strchr(line, '\n');
    if (end != nullptr) {
      *end = '\0';
    }
    const char* controllers = std::strchr(line, ':');
    char* group = line;
    for (int colons = 0; *group != '\0' && colons < 2; ++group) {
      colons += *group == ':' ? 1 : 0;
    }
    if (controllers != nullptr && *group == '/') {
      const bool v2 = controllers[1] == ':';
      if (v2 || has_memory(controllers + 1, group - 1)) {
        const char* mount = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        const char* file = v2 ? "memory.events" : "memory.oom_control";
        if (v2) {
          leave_task(group);  // version 1 counts each group alone
        }
        format(path, sizeof path, "%s%s%s/%s", root, mount, group, file);
        i64 n = counter(path);
        if (n < 0) {  // within a container its own group is mounted as the root
          format(path, sizeof path, "%s%s/%s", root, mount, file);
          n = counter(path);
        }
        if (n >= 0) {
          return n;
        }
      }
    }
    line = end != nullptr ? end + 1 : nullptr;
  }
  return -1;
}

}  // namespace fr
