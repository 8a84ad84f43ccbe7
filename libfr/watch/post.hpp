// post.hpp - what nodes of a job tell each other of their groups, between the watchdog and the thread
// that has the node's endpoint. Both are of one process.
#pragma once

#include "format/layout.hpp"

namespace fr {

struct Post {
  enum Kind : u8 {
    kHashes,      // data: {u32 seq, u32 hash}... of all operations of the epoch up to seq
    kSignatures,  // data: u32 seq of the first, then a signature per operation; 0 not known
    kDiffers,     // data: Issued; the operation in which the sender's ranks differ from the above
    kPresent,     // data of these three: Attendance::Told. Arrivals among the sender's ranks
    kWhoCame,     // asks for the above
    kAttendance   // arrivals of all members
  };
  u8 kind;
  u8 bytes;
  u32 node;     // receiver, or sender
  u64 key;      // of the group
  i32 members;  // of the group on the sender's node
  u8 data[160];
};

// One thread gives, another takes. A post that finds no room is lost, like a datagram.
class Posts {
 public:
  static constexpr u32 kRoom = 256;

  void give(const Post& post) noexcept {
    const u32 at = given_.load(std::memory_order_relaxed);
    if (at - taken_.load(std::memory_order_acquire) < kRoom) {
      posts_[at % kRoom] = post;
      given_.store(at + 1, std::memory_order_release);
    }
  }
  bool is_empty() const noexcept { return waiting() == 0; }
  bool is_half_full() const noexcept { return waiting() >= kRoom / 2; }
  bool take(Post& post) noexcept {
    const u32 at = taken_.load(std::memory_order_relaxed);
    if (at == given_.load(std::memory_order_acquire)) {
      return false;
    }
    post = posts_[at % kRoom];
    taken_.store(at + 1, std::memory_order_release);
    return true;
  }

 private:
  u32 waiting() const noexcept { return given_.load() - taken_.load(); }
  alignas(64) std::atomic<u32> given_{0};
  alignas(64) std::atomic<u32> taken_{0};
  Post posts_[kRoom] = {};
};

// constinit: no guard of an initializer, which code of the signal handlers must not call.
inline constinit Posts posts_to_nodes;         // from the watchdog
inline constinit Posts hashes_from_nodes;      // to the watchdog: of mismatch.cpp,
inline constinit Posts attendance_from_nodes;  // and of attend.cpp

}  // namespace fr
