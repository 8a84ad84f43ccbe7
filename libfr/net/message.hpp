// message.hpp - what nodes tell each other, in one datagram. Pure: bytes in, values out.
//
//   offset  bytes
//        0  4      magic "FRn1"
//        4  1      version
//        5  1      kind; 6: kind that is answered; 7: 0
//        8  4      attempt
//       12  4      sender, 16: receiver; places in the job's list of nodes
//       20  2      port of the sender's endpoint; 22: bytes of the reason
//       24  8      epoch of the sender's endpoint
//       32  8      number
//       40  4      rank that opened the incident
//       44  0-160  reason
//       ..  16     digest of all before it, by the job's token
//
// Numbers are little-endian. The receiver stands in it so that a message cannot be sent on.
#pragma once

#include <cstddef>

#include "net/siphash.hpp"

namespace fr::net {

inline constexpr std::size_t kReasonBytes = 160;
inline constexpr std::size_t kHeadBytes = 44;
inline constexpr std::size_t kMostBytes = kHeadBytes + kReasonBytes + sizeof(Digest);

enum class Kind : u8 {
  kIncident = 1,  // number: of the incident; all ranks are to dump
  kMoved = 2,     // number: the epoch; another process of the node has the endpoint now
  kAnswer = 3,    // number: of what is answered
  // Operations that the ranks of a group issue (Post::Kind in watch/post.hpp); number: the group's
  // key, rank: its members on the sender's node, reason: the data. Not answered, and sent once.
  kHashes = 4,
  kSignatures = 5,
  kDiffers = 6,
  kPresent = 7,
  kWhoCame = 8,
  kAttendance = 9
};

struct Message {
  Kind kind = Kind::kIncident;
  Kind answered = Kind::kIncident;  // of an answer
  i32 attempt = 0;
  u32 sender = 0;
  u32 receiver = 0;
  u16 port = 0;
  u64 epoch = 0;
  u64 number = 0;
  i32 rank = -1;
  u16 reason_bytes = 0;  // of a post: it may hold zeros
  char reason[kReasonBytes + 1] = "";
};

inline bool is_post(Kind kind) noexcept {
  return kind >= Kind::kHashes;
}

// Writes into `to`, of kMostBytes; returns the length.
std::size_t encode(const Message& m, const Token& token, u8* to) noexcept;
// False: not a whole message of this version with this token's digest; `to` is then undefined.
bool decode(const u8* bytes, std::size_t n, const Token& token, Message& to) noexcept;

}  // namespace fr::net
