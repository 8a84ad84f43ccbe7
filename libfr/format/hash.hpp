// hash.hpp - the hashes of the project: words of a shape, bytes of a string; a process.
#pragma once

#include <cstddef>
#include <cstring>

#include "format/layout.hpp"

namespace fr {

inline u64 mix(u64 h, u64 value) noexcept {
  h = (h ^ value) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 29);
}

inline u32 hash_words(const u32* words, u32 n) noexcept {
  u64 h = n;
  u32 i = 0;
  for (; i + 2 <= n; i += 2) {
    h = mix(h, words[i] | static_cast<u64>(words[i + 1]) << 32);
  }
  if (i < n) {
    h = mix(h, words[i]);
  }
  return static_cast<u32>(h ^ (h >> 32));
}

inline u64 hash_bytes(const char* text, std::size_t n) noexcept {
  u64 h = n;
  while (n >= 8) {
    u64 word = 0;
    std::memcpy(&word, text, 8);
    h = mix(h, word);
    text += 8;
    n -= 8;
  }
  u64 word = 0;
  if (n != 0) {  // the text of none may be null, which memcpy does not take
    std::memcpy(&word, text, n);
  }
  h = mix(h, word);
  return h != 0 ? h : 1;  // 0 means empty in the tables
}

// Distinguishes the handles that one process gives NCCL from those of others; never 0.
inline u32 handle_salt(i32 pid, u64 proc_start) noexcept {
  return static_cast<u32>(mix(static_cast<u64>(pid), proc_start) >> 40 & 0xffff) | 1;
}

}  // namespace fr
