// dtype.hpp - the size of an element by the name of its type.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

namespace frtrace {

// Bytes of one element; 0: unknown, or less than a byte.
inline std::uint64_t bytes_of_dtype(std::string_view dtype) {
  using Size = std::pair<std::string_view, std::uint64_t>;
  static constexpr std::array<Size, 21> kSizes{{
      {"Byte", 1},           {"Char", 1},   {"Bool", 1},         {"QInt8", 1},       {"QUInt8", 1},
      {"Short", 2},          {"Half", 2},   {"BFloat16", 2},     {"UInt16", 2},      {"Int", 4},
      {"Float", 4},          {"UInt32", 4}, {"QInt32", 4},       {"ComplexHalf", 4}, {"Long", 8},
      {"Double", 8},         {"UInt64", 8}, {"ComplexFloat", 8}, {"Bits8", 1},       {"Bits16", 2},
      {"ComplexDouble", 16},
  }};
  const auto* at =
      std::find_if(kSizes.begin(), kSizes.end(), [&](const Size& s) { return s.first == dtype; });
  return at != kSizes.end() ? at->second : dtype.starts_with("Float8") ? 1 : 0;
}

}  // namespace frtrace
