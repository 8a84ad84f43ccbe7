// memory_read.hpp - reads memory that may not be there: a bad address is an answer, not a fault.
// Async-signal-safe; costs a system call.
#pragma once

#include <cstddef>

#include "format/layout.hpp"

namespace fr {

// Once per process, before the first peek; again in a forked child.
void prepare_peek() noexcept;

// While one lives, what this thread peeks at is the memory of that process, where the kernel lets a
// parent (or an owner) read it.
class PeekOther {
 public:
  explicit PeekOther(i32 pid) noexcept;
  ~PeekOther();
  PeekOther(const PeekOther&) = delete;
  PeekOther& operator=(const PeekOther&) = delete;
};

// Copies what is readable from address on, at most `bytes`; returns how much that was.
std::size_t peek_some(u64 address, void* to, std::size_t bytes) noexcept;
// All of it, or false.
inline bool peek(u64 address, void* to, std::size_t bytes) noexcept {
  return peek_some(address, to, bytes) == bytes;
}
// A text of at most size - 1 bytes; false when it is not readable up to its end or that many.
bool peek_text(u64 address, char* to, std::size_t size) noexcept;

}  // namespace fr
