// directory.cpp - getdents64 into a buffer on the stack.
#include "sample/directory.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "format/layout.hpp"

namespace fr {

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

}  // namespace fr
