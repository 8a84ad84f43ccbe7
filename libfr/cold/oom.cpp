#include "cold/oom.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <climits>
#include <cstring>

#include "cold/files.hpp"

namespace fr {
namespace {

bool read_text(const char* path, char* to, std::size_t size) noexcept {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  const ssize_t n = read(fd, to, size - 1);
  close(fd);
  to[n > 0 ? n : 0] = '\0';
  return n > 0;
}

// "oom_kill 3" at the start of a line.
i64 counter(const char* path) noexcept {
  char text[1024];
  if (!read_text(path, text, sizeof text)) {
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

}  // namespace

i64 oom_kills() noexcept {
  char text[4096];
  if (!read_text("/proc/self/cgroup", text, sizeof text)) {
    return -1;
  }
  // Lines "number:controllers:path": of version 2 "0::/path", of version 1 "7:memory:/path".
  for (char* line = text; line != nullptr && *line != '\0';) {
    char* end = std::strchr(line, '\n');
    if (end != nullptr) {
      *end = '\0';
    }
    const char* controllers = std::strchr(line, ':');
    const char* group = controllers != nullptr ? std::strchr(controllers + 1, ':') : nullptr;
    if (group != nullptr) {
      ++group;
      const bool v2 = controllers[1] == ':';
      char path[PATH_MAX];
      if (v2 || std::strstr(controllers, "memory") != nullptr) {
        const char* root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
        const char* file = v2 ? "memory.events" : "memory.oom_control";
        format(path, sizeof path, "%s%s/%s", root, group, file);
        i64 n = counter(path);
        if (n < 0) {  // within a container its own group is mounted as the root
          format(path, sizeof path, "%s/%s", root, file);
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
