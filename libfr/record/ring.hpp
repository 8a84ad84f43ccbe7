// ring.hpp - the overwriting ring of records: many writers, any reader, no lock.
//
//   tickets   ... 5   6   7   8   9  10  11          head = 12, the next ticket
//   slot        [ 5 | 6 | 7 | 8 | 9 |10 |11 | 4 ]    slot = ticket mod size
//   seq          12  14  16  18  20  22  23  10      23: ticket 11 is being written (odd)
//                                              `-- protected: its group is quiet, so it stays
//                                                  while tickets 4+8, 4+16... pass it over
//
// A writer takes a ticket, then *claims* the slot: it changes seq from the old, even value to
// 2t+1 by compare-and-swap, stores the payload, and publishes 2t+2.
//   * A claim fails where another writer sits in the slot (odd: stalled, or dead) or has gone by
//     (newer). Then the next ticket is tried; the passed one is counted in `skipped`.
//     Without the claim a lapped, stalled writer resumes into a slot that a later ticket has
//     published, and the mixture reads as whole; tests/stress shows that variant failing.
//   * A record among the last `quota` of its group is not overwritten (a chatty group must not
//     evict a quiet one's). Half of the ring is never protected, so a lap always finds room.
//   * After a lap without room the operation is dropped and counted.
//
// Invariants: seq of a slot only grows; payload words change only while seq is odd; a reader that
// sees the same even seq before and after its copy has a whole record.
//
// Memory order: claim = acquire (stores stay behind it, with the release fence), publish = release,
// readers: acquire load, relaxed copies, acquire fence, reload.
#pragma once

#include <bit>
#include <cstring>

#include "format/layout.hpp"

namespace fr {

inline constexpr u64 kNoTicket = ~0ull;

inline u64 two(u32 low, u32 high) noexcept {
  return low | static_cast<u64>(high) << 32;
}

struct Ring {
  std::atomic<u64>* head = nullptr;
  std::atomic<u64>* skipped = nullptr;
  Record* records = nullptr;
  Status* status = nullptr;
  const GroupRow* groups = nullptr;
  u32 mask = 0;
  std::atomic<u32> quota{0};

  // Is the record in this slot among the last `quota` of its group?
  bool is_protected(const Record& record) const noexcept {
    constexpr u32 kGroupWord = offsetof(Payload, group) / 8;
    constexpr u32 kIndexWord = offsetof(Payload, group_index) / 8;
    static_assert(offsetof(Payload, group) % 8 == 0 && offsetof(Payload, group_index) % 8 == 0);
    static_assert(std::endian::native == std::endian::little);
    const u32 group = static_cast<u32>(record.payload[kGroupWord].load(std::memory_order_relaxed));
    const u32 index = static_cast<u32>(record.payload[kIndexWord].load(std::memory_order_relaxed));
    if (group >= kGroups) {
      return false;
    }
    const u64 issued = groups[group].issued.load(std::memory_order_relaxed) >> kIndexShift;
    const u32 age = (static_cast<u32>(issued) - index) & kIndexMask;
    return age <= quota.load(std::memory_order_relaxed);
  }

  bool try_claim(u64 ticket) const noexcept {
    Record& record = records[ticket & mask];
    u64 seen = record.seq.load(std::memory_order_acquire);
    if ((seen & 1) != 0 || seen > 2 * ticket || (seen != 0 && is_protected(record))) [[unlikely]] {
      return false;
    }
    return record.seq.compare_exchange_strong(seen, 2 * ticket + 1, std::memory_order_acquire,
                                              std::memory_order_relaxed);
  }

  // The slot of the first ticket could not be had: takes the next ones, at most a lap.
  [[gnu::cold, gnu::noinline]] u64 claim_slow() const noexcept {
    for (u32 i = 0; i <= mask; ++i) {
      skipped->fetch_add(1, std::memory_order_relaxed);
      const u64 ticket = head->fetch_add(1, std::memory_order_relaxed);
      if (try_claim(ticket)) {
        return ticket;
      }
    }
    return kNoTicket;
  }

  // Returns the claimed ticket, kNoTicket when a whole lap had no room.
  u64 claim() const noexcept {
    const u64 ticket = head->fetch_add(1, std::memory_order_relaxed);
    if (try_claim(ticket)) [[likely]] {
      return ticket;
    }
    return claim_slow();
  }

  void publish(u64 ticket, const Payload& payload) const noexcept {
    Record& record = records[ticket & mask];
    const Payload& p = payload;
    // Put together in registers: reading 8 bytes back from two 4-byte stores stalls
    // (12 ns measured).
    const u64 words[kPayloadWords] = {
        p.ticks,
        p.seq,
        two(p.group, p.op),
        two(p.stack, p.tid),
        two(static_cast<u32>(p.peer), p.kind | static_cast<u32>(p.flags) << 16),
        p.in_numel,
        p.out_numel,
        two(p.in_dtype | static_cast<u32>(p.out_dtype) << 8 | static_cast<u32>(p.reduce_op) << 16 |
                static_cast<u32>(p.reserved) << 24,
            p.timeout_ms),
        two(p.group_index, p.n_shape),
        two(p.shape_hash, p.lane),
        two(p.words[0], p.words[1]),
        two(p.words[2], p.words[3]),
        two(p.words[4], p.words[5]),
        two(p.words[6], p.words[7]),
        two(p.words[8], p.words[9])};
    std::atomic_thread_fence(std::memory_order_release);  // readers see 2t+1 before any new word
    for (u32 i = 0; i < kPayloadWords; ++i) {
      record.payload[i].store(words[i], std::memory_order_relaxed);
    }
    record.seq.store(2 * ticket + 2, std::memory_order_release);
    prefetch(records[(ticket + 1) & mask]);
  }

  // A ring larger than the second cache comes from memory slot by slot, and the claim waits for it:
  // a third of a record's cost inside a real program. The next slot is fetched while the program
  // goes on.
  static void prefetch(const Record& record) noexcept {
    const auto* bytes = reinterpret_cast<const char*>(&record);
    __builtin_prefetch(bytes, 1);
    __builtin_prefetch(bytes + 64, 1);
  }

  // Sets what became of a ticket. Observers only; false when the record or the status is another's
  // by now. A final state stays; kWaiting and kStarted set started_ticks, final states ended_ticks.
  bool observe(u64 ticket, State state, u64 ticks, u32 error, u32 tid) const noexcept {
    if (records[ticket & mask].seq.load(std::memory_order_acquire) != 2 * ticket + 2) {
      return false;
    }
    Status& s = status[ticket & mask];
    const u64 mine = (ticket + 1) << 3;
    u64 old = s.tag.load(std::memory_order_acquire);
    const State before = static_cast<State>(old & 7);
    const bool same = (old >> 3) == ticket + 1;
    if ((old >> 3) > ticket + 1 || (before == State::kLocked && old != 0)) {
      return false;  // a later ticket's, or an observer died or stalled in here
    }
    if (same &&
        (before == State::kCompleted || before == State::kFailed || before == State::kReleased)) {
      return true;
    }
    if (!s.tag.compare_exchange_strong(old, mine | static_cast<u64>(State::kLocked),
                                       std::memory_order_acquire, std::memory_order_relaxed)) {
      return false;
    }
    std::atomic_thread_fence(std::memory_order_release);
    const bool begins = state == State::kStarted || state == State::kWaiting;
    if (begins || !same) {
      s.started_ticks.store(begins ? ticks : 0, std::memory_order_relaxed);
    }
    s.ended_ticks.store(begins ? 0 : ticks, std::memory_order_relaxed);
    s.error.store(error, std::memory_order_relaxed);
    s.tid.store(tid, std::memory_order_relaxed);
    s.tag.store(mine | static_cast<u64>(state), std::memory_order_release);
    return true;
  }

  // Takes back kReleased: the ticket has no status, as when it was published.
  bool reopen(u64 ticket) const noexcept {
    u64 released = (ticket + 1) << 3 | static_cast<u64>(State::kReleased);
    return status[ticket & mask].tag.compare_exchange_strong(released, 0,
                                                             std::memory_order_acq_rel);
  }
};

}  // namespace fr
