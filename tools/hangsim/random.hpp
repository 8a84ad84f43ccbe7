// random.hpp - numbers by seed, the same on any machine (the standard's distributions are not).
#pragma once

#include <cstdint>
#include <string_view>

namespace hangsim {

inline std::uint64_t scramble(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

inline std::uint64_t scramble(std::uint64_t a, std::uint64_t b) {
  return scramble(a ^ scramble(b));
}

inline std::uint64_t scramble(std::string_view text) {
  std::uint64_t h = 0;
  for (const char c : text) {
    h = scramble(h, static_cast<unsigned char>(c));
  }
  return h;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(scramble(seed)) {}
  std::uint64_t next() { return scramble(state_++); }
  // 0 ... n-1
  int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }
  template <class List>
  auto pick(const List& list) {
    return list[static_cast<std::size_t>(below(static_cast<int>(list.size())))];
  }

 private:
  std::uint64_t state_;
};

}  // namespace hangsim
