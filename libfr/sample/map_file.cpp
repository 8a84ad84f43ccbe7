// map_file.cpp - regular files only: a pipe or a device under the name of a ring could block or lie.
#include "sample/map_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fr {

Mapping map_file(const char* path) noexcept {
  Mapping m;
  m.fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
  struct stat st;
  if (m.fd < 0 || fstat(m.fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size <= 0) {
    unmap_file(m);
    return m;
  }
  void* base = mmap(nullptr, static_cast<std::size_t>(st.st_size), PROT_READ, MAP_SHARED, m.fd, 0);
  if (base == MAP_FAILED) {
    unmap_file(m);
    return m;
  }
  m.base = base;
  m.bytes = static_cast<std::size_t>(st.st_size);
  return m;
}

void unmap_file(Mapping& m) noexcept {
  if (m.base != nullptr) {
    munmap(const_cast<void*>(m.base), m.bytes);
  }
  if (m.fd >= 0) {
    close(m.fd);
  }
  m = {};
}

}  // namespace fr
