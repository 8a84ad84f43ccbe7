// small_ring.hpp - a Ring over arrays of its own, of any power-of-two size, for what regions are
// too large for (they start at 64 records).
#pragma once

#include <memory>
#include <vector>

#include "record/ring.hpp"

namespace fr::test {

struct SmallRing {
  explicit SmallRing(u32 n, u32 quota = 0)
      : records(n), status(n), groups(std::make_unique<GroupRow[]>(kGroups)) {
    ring.head = &head;
    ring.skipped = &skipped;
    ring.records = records.data();
    ring.status = status.data();
    ring.groups = groups.get();
    ring.mask = n - 1;
    ring.quota.store(quota);
  }

  // The ring's part of begin(): writes the next record of a group. kNoTicket if there is no room.
  u64 put(u32 group, u64 value = 0) {
    Payload p{};
    p.group = group;
    p.group_index =
        static_cast<u32>(groups[group].issued.fetch_add(1ull << kIndexShift | 1) >> kIndexShift) &
        kIndexMask;
    p.in_numel = value;
    const u64 ticket = ring.claim();
    if (ticket != kNoTicket) {
      ring.publish(ticket, p);
    }
    return ticket;
  }

  u64 seq(u64 ticket) const { return records[ticket & ring.mask].seq.load(); }

  // View::read's recipe; false when the slot is empty or being written.
  bool read(u32 slot, Payload& out, u64& seq_seen) const {
    const Record& r = records[slot];
    const u64 before = r.seq.load(std::memory_order_acquire);
    u64 words[kPayloadWords];
    for (u32 i = 0; i < kPayloadWords; ++i) {
      words[i] = r.payload[i].load(std::memory_order_relaxed);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before == 0 || (before & 1) != 0 || r.seq.load(std::memory_order_relaxed) != before) {
      return false;
    }
    std::memcpy(&out, words, sizeof out);
    seq_seen = before;
    return true;
  }

  u32 count(u32 group) const {
    u32 n = 0;
    Payload p;
    u64 seen = 0;
    for (u32 slot = 0; slot <= ring.mask; ++slot) {
      n += read(slot, p, seen) && p.group == group ? 1 : 0;
    }
    return n;
  }

  std::atomic<u64> head{0};
  std::atomic<u64> skipped{0};
  std::vector<Record> records;
  std::vector<Status> status;
  std::unique_ptr<GroupRow[]> groups;
  Ring ring;
};

}  // namespace fr::test
