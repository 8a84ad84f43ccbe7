// siphash.hpp - SipHash-2-4 with 128 bits of output: the keyed digest of a message between nodes.
//
// A digest, not the token itself, so that whoever reads one message cannot write another. SipHash,
// because it is made for short messages, is secure as a MAC under a secret key of 128 bits, takes
// some hundred nanoseconds here, and is short enough to be read; an HMAC would need a library.
#pragma once

#include <bit>
#include <cstddef>

#include "format/layout.hpp"

namespace fr::net {

struct Token {
  u8 bytes[16];
};

struct Digest {
  u8 bytes[16];
};

inline u64 load_le(const u8* from, std::size_t bytes) noexcept {
  u64 value = 0;
  for (std::size_t i = 0; i < bytes; ++i) {
    value |= static_cast<u64>(from[i]) << (8 * i);
  }
  return value;
}

inline void store_le(u8* to, u64 value, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; ++i) {
    to[i] = static_cast<u8>(value >> (8 * i));
  }
}

inline Digest siphash(const Token& key, const u8* data, std::size_t bytes) noexcept {
  const u64 k0 = load_le(key.bytes, 8);
  const u64 k1 = load_le(key.bytes + 8, 8);
  u64 v0 = k0 ^ 0x736f6d6570736575ull;
  u64 v1 = k1 ^ 0x646f72616e646f6dull ^ 0xee;  // 0xee: 128 bits of output
  u64 v2 = k0 ^ 0x6c7967656e657261ull;
  u64 v3 = k1 ^ 0x7465646279746573ull;
  const auto rounds = [&](int n) {
    for (; n > 0; --n) {
      v0 += v1;
      v1 = std::rotl(v1, 13) ^ v0;
      v0 = std::rotl(v0, 32);
      v2 += v3;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 += v3;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 += v1;
      v1 = std::rotl(v1, 17) ^ v2;
      v2 = std::rotl(v2, 32);
    }
  };
  const auto absorb = [&](u64 word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  };
  std::size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    absorb(load_le(data + at, 8));
  }
  absorb(load_le(data + at, bytes - at) | static_cast<u64>(bytes) << 56);
  Digest out;
  v2 ^= 0xee;
  rounds(4);
  store_le(out.bytes, v0 ^ v1 ^ v2 ^ v3, 8);
  v1 ^= 0xdd;
  rounds(4);
  store_le(out.bytes + 8, v0 ^ v1 ^ v2 ^ v3, 8);
  return out;
}

// In a time that does not depend on where the two differ.
inline bool is_equal(const Digest& a, const u8* b) noexcept {
  u8 differ = 0;
  for (std::size_t i = 0; i < sizeof a.bytes; ++i) {
    differ = static_cast<u8>(differ | (a.bytes[i] ^ b[i]));
  }
  return differ == 0;
}

}  // namespace fr::net
