// text.hpp - formats text where snprintf may not be called: in signal handlers and while the process
// hangs. No lock, no allocation, no locale.
#pragma once

#include <cstddef>

namespace fr {

// Like snprintf, but returns the length that was written; truncates. Knows %s, %.*s, %d and %u
// (int), %l (u64) and %x (u64, hexadecimal without 0x) only; anything else is written as %.
std::size_t format(char* out, std::size_t bytes, const char* text, ...) noexcept;

}  // namespace fr
