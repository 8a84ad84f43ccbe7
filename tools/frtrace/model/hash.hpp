// hash.hpp - mixing of hashes.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace frtrace {

inline std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
  return h * 0xff51afd7ed558ccdull;
}

inline std::uint64_t mix(std::uint64_t h, std::string_view s) {
  return mix(h, std::hash<std::string_view>{}(s));
}

}  // namespace frtrace
