// message.cpp - datagrams written and read. Nothing is believed before the digest is right.
#include "net/message.hpp"

#include <cstring>

namespace fr::net {
namespace {

constexpr u32 kMagic = 0x316e5246;  // "FRn1"
constexpr u8 kVersion = 1;

}  // namespace

std::size_t encode(const Message& m, const Token& token, u8* to) noexcept {
  const std::size_t reason = is_post(m.kind)             ? m.reason_bytes
                             : m.kind == Kind::kIncident ? strnlen(m.reason, kReasonBytes)
                                                         : std::size_t{0};
  store_le(to, kMagic, 4);
  to[4] = kVersion;
  to[5] = static_cast<u8>(m.kind);
  to[6] = static_cast<u8>(m.answered);
  to[7] = 0;
  store_le(to + 8, static_cast<u32>(m.attempt), 4);
  store_le(to + 12, m.sender, 4);
  store_le(to + 16, m.receiver, 4);
  store_le(to + 20, m.port, 2);
  store_le(to + 22, reason, 2);
  store_le(to + 24, m.epoch, 8);
  store_le(to + 32, m.number, 8);
  store_le(to + 40, static_cast<u32>(m.rank), 4);
  std::memcpy(to + kHeadBytes, m.reason, reason);
  const std::size_t signed_bytes = kHeadBytes + reason;
  const Digest digest = siphash(token, to, signed_bytes);
  std::memcpy(to + signed_bytes, digest.bytes, sizeof digest.bytes);
  return signed_bytes + sizeof digest.bytes;
}

bool decode(const u8* bytes, std::size_t n, const Token& token, Message& to) noexcept {
  if (n < kHeadBytes + sizeof(Digest) || n > kMostBytes) {
    return false;
  }
  const std::size_t signed_bytes = n - sizeof(Digest);
  if (load_le(bytes, 4) != kMagic || bytes[4] != kVersion ||
      load_le(bytes + 22, 2) != signed_bytes - kHeadBytes ||
      !is_equal(siphash(token, bytes, signed_bytes), bytes + signed_bytes)) {
    return false;
  }
  const auto is_kind = [](u8 kind, Kind last) {
    return kind >= static_cast<u8>(Kind::kIncident) && kind <= static_cast<u8>(last);
  };
  if (!is_kind(bytes[5], Kind::kAttendance) || !is_kind(bytes[6], Kind::kAnswer)) {
    return false;
  }
  to.kind = static_cast<Kind>(bytes[5]);
  to.answered = static_cast<Kind>(bytes[6]);
  to.attempt = static_cast<i32>(load_le(bytes + 8, 4));
  to.sender = static_cast<u32>(load_le(bytes + 12, 4));
  to.receiver = static_cast<u32>(load_le(bytes + 16, 4));
  to.port = static_cast<u16>(load_le(bytes + 20, 2));
  to.epoch = load_le(bytes + 24, 8);
  to.number = load_le(bytes + 32, 8);
  to.rank = static_cast<i32>(load_le(bytes + 40, 4));
  to.reason_bytes = static_cast<u16>(signed_bytes - kHeadBytes);
  std::memcpy(to.reason, bytes + kHeadBytes, signed_bytes - kHeadBytes);
  to.reason[signed_bytes - kHeadBytes] = '\0';
  return true;
}

}  // namespace fr::net
