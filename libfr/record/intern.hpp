// intern.hpp - the lock-free hit path of the string table: text -> id.
//
// Open addressing over private memory; ids lead into the region. Filled by tables.cpp under its
// lock: id first, then hash with release, so that a reader that sees a hash sees its id.
#pragma once

#include <cstring>

#include "format/hash.hpp"
#include "format/layout.hpp"

namespace fr {

struct StringIndex {
  std::atomic<u64> hash[kStringBuckets];
  std::atomic<u32> id[kStringBuckets];
  const StringRow* rows;  // of the region
  const char* bytes;

  bool is(u32 string, const char* text, std::size_t n) const noexcept {
    return rows[string].bytes == n && std::memcmp(bytes + rows[string].offset, text, n) == 0;
  }

  // 0 = not there yet.
  u32 find(u64 h, const char* text, std::size_t n) const noexcept {
    for (u32 at = static_cast<u32>(h) & (kStringBuckets - 1);;
         at = (at + 1) & (kStringBuckets - 1)) {
      const u64 seen = hash[at].load(std::memory_order_acquire);
      if (seen == 0) {
        return 0;
      }
      if (seen == h && is(id[at].load(std::memory_order_relaxed), text, n)) {
        return id[at].load(std::memory_order_relaxed);
      }
    }
  }

  // Under the tables' lock.
  void insert(u64 h, u32 string) noexcept {
    u32 at = static_cast<u32>(h) & (kStringBuckets - 1);
    while (hash[at].load(std::memory_order_relaxed) != 0) {
      at = (at + 1) & (kStringBuckets - 1);
    }
    id[at].store(string, std::memory_order_relaxed);
    hash[at].store(h, std::memory_order_release);
  }
};
static_assert(kStrings < kStringBuckets, "find() ends at an empty bucket");

}  // namespace fr
