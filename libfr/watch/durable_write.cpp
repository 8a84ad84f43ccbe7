// durable_write.cpp - temporary file, fsync, rename. Readers never see half a dump.
#include "watch/durable_write.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

#include "format/text.hpp"

namespace fr {

namespace {

// Less the umask. Never for all to write: a file name there opens an incident on every node.
constexpr mode_t kDirectoryMode = 0775;

}  // namespace

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
      if (mkdir(buffer, kDirectoryMode) != 0 && errno != EEXIST) {
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

bool make_private_parent(const char* path) noexcept {
  char parent[PATH_MAX];
  const char* slash = std::strrchr(path, '/');
  const std::size_t n = slash != nullptr ? static_cast<std::size_t>(slash - path) : 0;
  if (n == 0 || n >= sizeof parent) {
    errno = EINVAL;
    return false;
  }
  std::memcpy(parent, path, n);
  parent[n] = '\0';
  struct stat st;
  if ((mkdir(parent, 0700) != 0 && errno != EEXIST) || lstat(parent, &st) != 0) {
    return false;
  }
  if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022) != 0) {
    errno = EPERM;
    return false;
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
  // A sandbox or a file system that knows no fsync: the data outlive the process all the same.
  if (error == 0 && fsync(fd) != 0 && errno != EPERM && errno != ENOSYS && errno != EINVAL) {
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
