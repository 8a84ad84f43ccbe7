// small_file.hpp - reads files of /proc and of cgroups whole, into memory that the caller has.
// Async-signal-safe.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>

namespace fr {

// At most size - 1 bytes and a NUL; returns the bytes, 0 where the file is empty or cannot be read.
inline std::size_t read_small_file(const char* path, char* to, std::size_t size) noexcept {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t n = fd < 0 ? 0 : read(fd, to, size - 1);
  if (fd >= 0) {
    close(fd);
  }
  const std::size_t used = n > 0 ? static_cast<std::size_t>(n) : 0;
  to[used] = '\0';
  return used;
}

}  // namespace fr
