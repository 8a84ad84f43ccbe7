#include "sample/files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <ctime>

namespace fr {

u64 unix_now_ns() noexcept {
  timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  return static_cast<u64>(ts.tv_sec) * 1'000'000'000ull + static_cast<u64>(ts.tv_nsec);
}

std::size_t format(char* out, std::size_t bytes, const char* text, ...) noexcept {
  std::size_t n = 0;
  const auto put = [&](char c) {
    if (n + 1 < bytes) {
      out[n++] = c;
    }
  };
  const auto put_number = [&](u64 value) {
    char digits[24];
    int i = 0;
    do {
      digits[i++] = static_cast<char>('0' + value % 10);
      value /= 10;
    } while (value != 0);
    while (i > 0) {
      put(digits[--i]);
    }
  };
  va_list args;
  va_start(args, text);
  for (; *text != '\0'; ++text) {
    if (*text != '%') {
      put(*text);
      continue;
    }
    switch (*++text) {
      case 's':
        for (const char* s = va_arg(args, const char*); *s != '\0'; ++s) {
          put(*s);
        }
        break;
      case 'd': {
        const int value = va_arg(args, int);
        if (value < 0) {
          put('-');
        }
        put_number(static_cast<u64>(value < 0 ? -static_cast<long long>(value) : value));
        break;
      }
      case 'u':
        put_number(va_arg(args, unsigned));
        break;
      case 'l':
        put_number(va_arg(args, u64));
        break;
      default:
        put('%');
    }
  }
  va_end(args);
  if (bytes > 0) {
    out[n] = '\0';
  }
  return n;
}

bool each_entry(const char* dir, void (*visit)(const char*, void*), void* context) noexcept {
  const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  alignas(8) char buffer[16384];  // readdir() would allocate
  for (;;) {
    const long n = syscall(SYS_getdents64, fd, buffer, sizeof buffer);
    if (n <= 0) {
      close(fd);
      return n == 0;
    }
    for (long at = 0; at < n;) {
      // struct linux_dirent64: ino u64, off i64, reclen u16, type u8, name
      u16 length = 0;
      std::memcpy(&length, buffer + at + 16, sizeof length);
      const char* name = buffer + at + 19;
      if (std::strcmp(name, ".") != 0 && std::strcmp(name, "..") != 0) {
        visit(name, context);
      }
      at += length;
    }
  }
}

bool parse_name(const char* name, NameParts& parts) noexcept {
  // job has no dots (options.cpp sees to it), so the parts are counted from the left
  const auto number = [](const char*& at, u64& value) {
    const char* first = at;
    value = 0;
    while (*at >= '0' && *at <= '9' && at - first < 19) {
      value = value * 10 + static_cast<u64>(*at++ - '0');
    }
    return at != first;
  };
  const char* dot = std::strchr(name, '.');
  if (dot == nullptr || dot == name || static_cast<std::size_t>(dot - name) >= sizeof parts.job) {
    return false;
  }
  std::memcpy(parts.job, name, static_cast<std::size_t>(dot - name));
  parts.job[dot - name] = '\0';
  u64 value = 0;
  const char* at = dot + 1;
  if (*at++ != 'a' || !number(at, value)) {
    return false;
  }
  parts.attempt = static_cast<i32>(value);
  if (std::strncmp(at, ".r", 2) != 0) {
    return false;
  }
  at += 2;
  if (*at == 'x') {
    parts.rank = -1;
    ++at;
  } else if (number(at, value)) {
    parts.rank = static_cast<i32>(value);
  } else {
    return false;
  }
  if (*at++ != '.' || !number(at, parts.number)) {
    return false;
  }
  parts.is_fr = std::strcmp(at, ".fr") == 0;
  return parts.is_fr || std::strcmp(at, ".ring") == 0;
}

void format_name(char* out, std::size_t bytes, const char* job, i32 attempt, i32 rank, u64 number,
                 const char* ending) noexcept {
  if (rank >= 0) {
    format(out, bytes, "%s.a%d.r%d.%l.%s", job, attempt, rank, number, ending);
  } else {
    format(out, bytes, "%s.a%d.rx.%l.%s", job, attempt, number, ending);
  }
}

namespace {

// The state letter in /proc/<pid>/stat and what follows; nullptr when there is no such process.
const char* read_stat(i32 pid, char* text, std::size_t bytes) noexcept {
  char path[64];
  // Of its first thread, which says the same: emulators answer for /proc/PID/stat themselves, and
  // give a forked child its parent's start.
  format(path, sizeof path, "/proc/%d/task/%d/stat", pid, pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    return nullptr;
  }
  const ssize_t n = read(fd, text, bytes - 1);
  close(fd);
  if (n <= 0) {
    return nullptr;
  }
  text[n] = '\0';
  // pid (comm) state ppid ...: comm may hold anything, so count fields behind the last ')'
  const char* at = std::strrchr(text, ')');
  return at == nullptr || at[1] == '\0' ? nullptr : at + 2;
}

}  // namespace

bool is_stopped(i32 pid) noexcept {
  char text[1024];
  const char* at = read_stat(pid, text, sizeof text);
  return at != nullptr && *at == 'T';
}

u64 process_start(i32 pid) noexcept {
  char text[1024];
  const char* at = read_stat(pid, text, sizeof text);
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

bool make_directories(const char* path) noexcept {
  char buffer[PATH_MAX];
  const std::size_t n = std::strlen(path);
  if (n + 1 > sizeof buffer) {
    errno = ENAMETOOLONG;
    return false;
  }
  std::memcpy(buffer, path, n + 1);
  for (std::size_t i = 1; i <= n; ++i) {
    if (buffer[i] == '/' || buffer[i] == '\0') {
      const char kept = buffer[i];
      buffer[i] = '\0';
      if (mkdir(buffer, 0777) != 0 && errno != EEXIST) {
        struct stat st;  // a parent we may not create in, but that is there
        const int error = errno;
        if (stat(buffer, &st) != 0) {
          errno = error;
          return false;
        }
      }
      buffer[i] = kept;
    }
  }
  return true;
}

bool write_durably(const char* dir, const char* name, const void* data, std::size_t bytes,
                   char* path, std::size_t path_bytes, Existing existing) noexcept {
  if (!make_directories(dir)) {
    return false;
  }
  char temporary[PATH_MAX];
  // the pid: a peer may be salvaging under the same final name
  if (format(temporary, sizeof temporary, "%s/.%s.%d.tmp", dir, name, getpid()) + 1 ==
          sizeof temporary ||
      format(path, path_bytes, "%s/%s", dir, name) + 1 == path_bytes) {
    errno = ENAMETOOLONG;
    return false;
  }
  unlink(temporary);
  const int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) {
    return false;
  }
  const char* at = static_cast<const char*>(data);
  int error = 0;
  while (bytes > 0 && error == 0) {
    const ssize_t n = write(fd, at, bytes);
    if (n > 0) {
      at += n;
      bytes -= static_cast<std::size_t>(n);
    } else if (n == 0 || errno != EINTR) {
      error = n == 0 ? EIO : errno;
    }
  }
  if (error == 0 && fsync(fd) != 0) {
    error = errno;
  }
  if (close(fd) != 0 && error == 0) {
    error = errno;
  }
  if (error == 0 && existing == Existing::kKeep) {
    // a link never replaces; where the file system has none, look first
    const bool linked = link(temporary, path) == 0;
    error = linked ? 0 : errno;
    if (!linked && error != EEXIST) {
      error = access(path, F_OK) == 0 ? EEXIST : rename(temporary, path) != 0 ? errno : 0;
    } else if (linked) {
      unlink(temporary);
    }
  } else if (error == 0 && rename(temporary, path) != 0) {
    error = errno;
  }
  if (error != 0) {
    unlink(temporary);
    errno = error;
    return false;
  }
  const int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dirfd >= 0) {
    fsync(dirfd);  // some file systems refuse; the file itself is safe
    close(dirfd);
  }
  return true;
}

}  // namespace fr
