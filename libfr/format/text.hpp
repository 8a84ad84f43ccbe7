// text.hpp - formats text where snprintf may not be called: in signal handlers and while the process
// hangs. No lock, no allocation, no locale.
#pragma once

#include <cstddef>

namespace fr {

// Like snprintf, but returns the length that was written; truncates. Knows %s, %.*s, %d and %u
// (int), %l (u64) and %x (u64, hexadecimal without 0x) only; anything else is written as %.
std::size_t format(char* out, std::size_t bytes, const char* text, ...) noexcept;

// Bytes of the UTF-8 character at the front; 0: none that a terminal may get. Those are control
// characters (C0, DEL, C1), what is no UTF-8, and characters that turn the direction of a text,
// break its line or cannot be seen: with them evidence would show another text than it holds.
std::size_t printable_bytes(const char* text, std::size_t bytes) noexcept;

// Copies a text of evidence as one line: blanks for tabs and line breaks, \xNN for every other byte
// that is not printable. Truncates; returns the length.
std::size_t format_line(char* out, std::size_t size, const char* text, std::size_t bytes) noexcept;

}  // namespace fr
