// map_file.hpp - a ring of another process, or a dump, mapped for reading. Async-signal-safe.
#pragma once

#include <cstddef>

namespace fr {

struct Mapping {
  const void* base = nullptr;
  std::size_t bytes = 0;
  int fd = -1;
};
Mapping map_file(const char* path) noexcept;
void unmap_file(Mapping&) noexcept;

}  // namespace fr
