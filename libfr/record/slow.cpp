// slow.cpp - the exits of the record path: what is rare, or done once per thread. No lock and no
// allocation here either; learn_tid and learn_crumb make system calls, once per thread.
#include <sys/syscall.h>
#include <unistd.h>

#include "record/record.hpp"

namespace fr {
namespace {

// Row of (group, peer, direction); 0 when the table is full.
u32 find_lane(Hot& h, u32 group, i32 peer, bool is_send) noexcept {
  const u64 key = 1ull << 63 | static_cast<u64>(group) << 33 | static_cast<u64>(is_send) << 32 |
                  static_cast<u32>(peer + 1);
  u32 at = static_cast<u32>(mix(0, key)) & (kLanes - 1);
  for (u32 probe = 0; probe < 64; ++probe, at = (at + 1) & (kLanes - 1)) {
    if (at == 0) {
      continue;
    }
    std::atomic<u64>& cell = h.lanes[at].key;
    u64 seen = cell.load(std::memory_order_acquire);
    if (seen == 0 && cell.compare_exchange_strong(seen, key, std::memory_order_acq_rel)) {
      return at;
    }
    if (seen == key) {
      return at;
    }
  }
  h.header->lanes_lost.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

}  // namespace

namespace detail {

// Sends, receives, lifecycle, breadcrumbs, operations of unknown groups, and those without an
// observed end.
Issued issue_other(Hot& h, const fr_op& op, u64 ticks) noexcept {
  Issued out{};
  out.group = op.group < kGroups ? op.group : 0;
  GroupRow& row = h.groups[out.group];
  if (out.group == 0 && op.kind <= FR_RECV) {
    h.header->no_group.fetch_add(1, std::memory_order_relaxed);
  }
  u64 one = kOneRecord;
  switch (op.kind) {
    case FR_COLLECTIVE:
      one |= 1;
      row.enqueued_ticks.store(ticks, std::memory_order_relaxed);
      break;
    case FR_SEND:
    case FR_RECV:
      out.lane = find_lane(h, out.group, op.peer, op.kind == FR_SEND);
      out.seq = h.lanes[out.lane].enqueued.fetch_add(1, std::memory_order_relaxed) + 1;
      h.lanes[out.lane].enqueued_ticks.store(ticks, std::memory_order_relaxed);
      row.p2p_issued.fetch_add(1, std::memory_order_relaxed);
      row.p2p_ticks.store(ticks, std::memory_order_relaxed);
      break;
    case FR_LIFECYCLE:
      out.seq = row.lifecycle_issued.fetch_add(1, std::memory_order_relaxed) + 1;
      break;
    default:
      out.seq = op.seq;
  }
  const u64 before = row.issued.fetch_add(one, std::memory_order_relaxed);
  if (op.kind == FR_COLLECTIVE) {
    out.seq = (before & kSeqMask) + 1;
  }
  out.index = static_cast<u32>(before >> kIndexShift) & kIndexMask;
  if ((op.flags & FR_UNTRACKED) != 0) {
    row.untracked.fetch_add(1, std::memory_order_relaxed);
  } else if ((op.flags & FR_WAIT_ONLY) != 0) {
    row.wait_only.fetch_add(1, std::memory_order_relaxed);
  }
  return out;
}

// More words than a record holds go into the blob ring; the hash in the record tells a reader
// whether they were overwritten meanwhile.
void put_words_in_blob(Hot& h, Payload& p, const u32* words, u32 n_words) noexcept {
  const u64 position = h.header->blob_head.fetch_add(n_words, std::memory_order_relaxed);
  for (u32 i = 0; i < n_words; ++i) {
    h.blob[static_cast<u32>(position + i) & h.blob_mask].store(words[i], std::memory_order_relaxed);
  }
  p.words[0] = static_cast<u32>(position);
  p.words[1] = static_cast<u32>(position >> 32);
  for (u32 i = 2; i < kInlineWords; ++i) {
    p.words[i] = 0;
  }
  p.shape_hash = hash_words(words, n_words);
}

}  // namespace detail

void reopen(Hot& h, const fr_ticket& t) noexcept {
  GroupRow& row = h.groups[t.group];
  row.released.fetch_sub(1, std::memory_order_relaxed);
  if (t.kind == FR_COLLECTIVE) {
    row.ended.fetch_sub(1, std::memory_order_relaxed);
  } else if (t.kind == FR_SEND || t.kind == FR_RECV) {
    h.lanes[t.lane].ended.fetch_sub(1, std::memory_order_relaxed);
    row.p2p_ended.fetch_sub(1, std::memory_order_relaxed);
  }
  if (t.ticket == kNoTicket || !h.ring.reopen(t.ticket - 1)) {
    h.header->status_lost.fetch_add(1, std::memory_order_relaxed);
  }
}

std::atomic<void (*)() noexcept> g_new_thread{nullptr};

u32 learn_tid() noexcept {
  t_facts.tid = static_cast<u32>(syscall(SYS_gettid));
  if (const auto begin = g_new_thread.load(std::memory_order_acquire)) {
    begin();
  }
  return t_facts.tid;
}

Crumb* learn_crumb(Hot& h) noexcept {
  t_facts.crumb_generation = h.generation;
  t_facts.crumb = nullptr;
  const u32 tid = own_tid();
  for (int round = 0; round < 2; ++round) {
    for (u32 i = 0; i < kCrumbs; ++i) {
      Crumb& c = h.crumbs[i];
      u32 owner = c.tid.load();
      // second round: rows of threads that have ended
      if (owner != 0 && (round == 0 || syscall(SYS_tgkill, getpid(), owner, 0) == 0)) {
        continue;
      }
      if (c.tid.compare_exchange_strong(owner, tid)) {
        c.depth.store(0);
        t_facts.crumb = &c;
        return &c;
      }
    }
  }
  h.header->crumbs_lost.fetch_add(1);
  return nullptr;
}

}  // namespace fr
