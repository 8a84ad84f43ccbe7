// pickle_values.hpp - converts the bytes of a pickle to values.
#pragma once

#include <bit>
#include <cstring>
#include <optional>

#include "input/pickle.hpp"

namespace frtrace::pickle {

template <class T>
T little(const unsigned char* p) {
  static_assert(std::endian::native == std::endian::little);
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline Value integer(std::int64_t v) {
  Value out;
  out.type = Type::kInt;
  out.i = v;
  return out;
}

inline Value boolean(bool v) {
  Value out;
  out.type = Type::kBool;
  out.i = v ? 1 : 0;
  return out;
}

inline Value real(double v) {
  Value out;
  out.type = Type::kFloat;
  out.f = v;
  return out;
}

inline Value string(Type type, const void* data, std::size_t size) {
  Value out;
  out.type = type;
  out.size = static_cast<std::uint32_t>(size);
  out.s = static_cast<const char*>(data);
  return out;
}

// Two's complement of any length; beyond 64 bits the nearest value that fits.
inline std::int64_t long_value(const unsigned char* p, std::size_t n) {
  if (n == 0) {
    return 0;
  }
  const bool negative = (p[n - 1] & 0x80) != 0;
  if (n > 8) {
    return negative ? INT64_MIN : INT64_MAX;
  }
  std::uint64_t v = negative ? ~std::uint64_t{0} : 0;
  std::memcpy(&v, p, n);
  return static_cast<std::int64_t>(v);
}

inline constexpr std::size_t kMaxNumberText = 64;  // of the text forms of protocol 0

// "12", "-3L"; beyond 64 bits the nearest value that fits. nullopt: not a number.
std::optional<std::int64_t> decimal(std::string_view text);

// Resolves the escapes that Python writes; an unknown one stays as it is.
std::string unescape(std::string_view in);

// The complete part of an input that ends too early, as `root`: a dict of the root's keys before
// the cut; if the last value is a list, its complete items. The same for a root that is a list.
// `stack`: the state of the machine, root at 1; `marks`: positions of marks in it.
bool whole_part(Arena&, std::span<Value> stack, const std::vector<std::size_t>& marks, Value& root);

}  // namespace frtrace::pickle
