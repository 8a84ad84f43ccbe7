// record.hpp - the record path: what fr_begin, fr_started, fr_end and the breadcrumbs do.
//
// Nothing in here allocates, locks, makes a system call, calls a device or takes the GIL, and
// nothing throws. Rare work, and work done once per thread, is in named functions of slow.cpp.
#pragma once

#include <climits>

#include "format/hash.hpp"
#include "format/layout.hpp"
#include "fr/fr.h"
#include "record/clock.hpp"
#include "record/ring.hpp"

namespace fr {

// Per-thread facts. initial-exec: one load, no call into the loader.
struct ThreadFacts {
  u32 tid;
  u32 crumb_generation;
  Crumb* crumb;
};
extern thread_local ThreadFacts t_facts __attribute__((tls_model("initial-exec")));

// Called once on each thread that records, where it is not null.
extern std::atomic<void (*)() noexcept> g_new_thread;

u32 learn_tid() noexcept;  // slow.cpp
inline u32 own_tid() noexcept {
  const u32 tid = t_facts.tid;
  return tid != 0 ? tid : learn_tid();
}

// Pointers into the own region. One per started recorder, never freed: a thread may be in here
// while the recorder is shut down.
struct Hot {
  Header* header = nullptr;
  GroupRow* groups = nullptr;
  LaneRow* lanes = nullptr;
  std::atomic<u32>* blob = nullptr;
  Crumb* crumbs = nullptr;
  u32 blob_mask = 0;
  u32 generation = 0;
  ClockKind clock = ClockKind::kMonotonic;
  bool stacks = true;          // false: FR_STACKS=off
  bool native_stacks = false;  // FR_STACKS=native: C++ frames too, at some microseconds each
  Ring ring;
};

// The recorder in force; nullptr = not recording (off, not started, forked child, shut down).
extern std::atomic<Hot*> g_hot;
extern std::atomic<fr_stack_provider> g_stack_provider;

inline Hot* hot() noexcept {
  return g_hot.load(std::memory_order_acquire);
}

// ---------------------------------------------------------------- fr_begin

// The place among the operations of its group that an operation got when it was issued.
struct Issued {
  u64 seq;    // sequence number, of the group or of the lane
  u32 group;  // row; 0 where the group has none
  u32 index;  // of the record among its group's, see kIndexMask
  u32 lane;
};

namespace detail {

inline constexpr u64 kOneRecord = 1ull << kIndexShift;

// slow.cpp
Issued issue_other(Hot& h, const fr_op& op, u64 ticks) noexcept;
void put_words_in_blob(Hot& h, Payload& p, const u32* words, u32 n_words) noexcept;

// Shape words into the payload, where the record's own sequence word guards them.
inline void put_words(Hot& h, Payload& p, const u32* words, u32 n_words) noexcept {
  if (n_words > kInlineWords) [[unlikely]] {
    put_words_in_blob(h, p, words, n_words);
    return;
  }
  for (u32 i = 0; i < kInlineWords; ++i) {
    p.words[i] = i < n_words ? words[i] : 0;
  }
  p.shape_hash = 0;
}

// One locked addition gives a collective its sequence number, raises the group's frontier and gives
// the index that protects the record. Everything else is issue_other's.
inline Issued issue(Hot& h, const fr_op& op, u64 ticks) noexcept {
  const bool plain = op.kind == FR_COLLECTIVE && op.group != 0 && op.group < kGroups &&
                     (op.flags & (FR_UNTRACKED | FR_WAIT_ONLY)) == 0;
  if (!plain) [[unlikely]] {
    return issue_other(h, op, ticks);
  }
  GroupRow& row = h.groups[op.group];
  // relaxed: the counters are read one by one; nothing else is published through them
  const u64 before = row.issued.fetch_add(kOneRecord | 1, std::memory_order_relaxed);
  row.enqueued_ticks.store(ticks, std::memory_order_relaxed);
  return {(before & kSeqMask) + 1, op.group, static_cast<u32>(before >> kIndexShift) & kIndexMask,
          0};
}

inline void fill(Hot& h, const fr_op& op, const Issued& issued, u64 ticks, Payload& p) noexcept {
  p.ticks = ticks;
  p.seq = issued.seq;
  p.group = issued.group;
  p.group_index = issued.index;
  p.lane = issued.lane;
  p.op = op.op;
  p.stack = op.stack;
  if (op.stack == FR_STACK_CAPTURE) {
    const auto provider = g_stack_provider.load(std::memory_order_acquire);
    p.stack = h.stacks && provider != nullptr ? provider() : 0;
  }
  p.tid = own_tid();
  p.peer = op.peer;
  p.kind = op.kind;
  p.flags = op.flags;
  p.in_numel = op.in_numel;
  p.out_numel = op.out_numel;
  p.in_dtype = op.in_dtype;
  p.out_dtype = op.out_dtype;
  p.reduce_op = op.reduce_op;
  p.reserved = 0;
  p.timeout_ms = op.timeout_ms;
  p.n_shape = op.shape != nullptr && op.n_shape <= FR_MAX_SHAPE_WORDS ? op.n_shape : 0;
  put_words(h, p, op.shape, p.n_shape);
}

// The ticket, kNoTicket where a whole lap of the ring had no room: the frontier counts it all the
// same.
inline u64 commit(Hot& h, const Payload& p) noexcept {
  const u64 ticket = h.ring.claim();
  if (ticket == kNoTicket) [[unlikely]] {
    h.groups[p.group].dropped.fetch_add(1, std::memory_order_relaxed);
    h.header->dropped.fetch_add(1, std::memory_order_relaxed);
    return kNoTicket;
  }
  h.ring.publish(ticket, p);
  return ticket;
}

}  // namespace detail

// The clock is read first: behind a locked instruction it would wait for the store buffer.
inline void begin(Hot& h, const fr_op& op, fr_ticket& out) noexcept {
  const u64 ticks = ticks_now(h.clock);
  const Issued issued = detail::issue(h, op, ticks);
  Payload p;
  detail::fill(h, op, issued, ticks, p);
  const u64 ticket = detail::commit(h, p);
  out.ticket = ticket == kNoTicket ? kNoTicket : ticket + 1;
  out.seq = issued.seq;
  out.group = issued.group;
  out.lane = static_cast<u16>(issued.lane);
  out.kind = static_cast<u8>(op.kind);
  out.flags = static_cast<u8>(op.flags | FR_COUNTED);
}

// ---------------------------------------------------------------- fr_started, fr_end, waits

namespace detail {

inline void raise_to(std::atomic<u64>& frontier, u64 value) noexcept {
  u64 seen = frontier.load(std::memory_order_relaxed);
  while (seen < value && !frontier.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

}  // namespace detail

inline bool is_counted(const fr_ticket& t) noexcept {
  return (t.flags & FR_COUNTED) != 0 && t.ticket != 0 && t.group < kGroups && t.lane < kLanes;
}

inline void set_state(Hot& h, const fr_ticket& t, State state, u64 ticks, u32 error) noexcept {
  if (t.ticket == kNoTicket || !h.ring.observe(t.ticket - 1, state, ticks, error, own_tid())) {
    h.header->status_lost.fetch_add(1, std::memory_order_relaxed);
  }
}

// at_ticks: when it was, 0 = now.
inline void started(Hot& h, const fr_ticket& t, u64 at_ticks = 0) noexcept {
  const u64 ticks = at_ticks != 0 ? at_ticks : ticks_now(h.clock);
  GroupRow& row = h.groups[t.group];
  if (t.kind == FR_COLLECTIVE) {
    detail::raise_to(row.started_seq, t.seq);
    row.started_ticks.store(ticks, std::memory_order_relaxed);
  } else if (t.kind == FR_SEND || t.kind == FR_RECV) {
    detail::raise_to(h.lanes[t.lane].started_seq, t.seq);
  }
  set_state(h, t, State::kStarted, ticks, 0);
}

// fr_end; error is a string id for kFailed. at_ticks: when it was, 0 = now. refused: kFailed over an
// argument, which is no reason to dump.
inline void end(Hot& h, const fr_ticket& t, State state, u32 error, u64 at_ticks = 0,
                bool refused = false) noexcept {
  const u64 ticks = at_ticks != 0 ? at_ticks : ticks_now(h.clock);
  GroupRow& row = h.groups[t.group];
  const bool ok = state == State::kCompleted;
  if (state == State::kFailed) [[unlikely]] {
    row.failed.fetch_add(1, std::memory_order_relaxed);
    h.header->failed.fetch_add(refused ? 0 : 1, std::memory_order_relaxed);
  } else if (state == State::kReleased) {
    row.released.fetch_add(1, std::memory_order_relaxed);
  }
  if ((t.flags & FR_WAIT_ONLY) != 0) {
    row.wait_only_ended.fetch_add(1, std::memory_order_relaxed);
  }
  if (t.kind == FR_COLLECTIVE) {
    if (ok) {
      detail::raise_to(row.completed_seq, t.seq);
      row.completed_ticks.store(ticks, std::memory_order_relaxed);
    }
    if ((t.flags & FR_UNTRACKED) == 0) {
      row.ended.fetch_add(1, std::memory_order_relaxed);
    }
  } else if (t.kind == FR_SEND || t.kind == FR_RECV) {
    LaneRow& lane = h.lanes[t.lane];
    if (ok) {
      detail::raise_to(lane.completed_seq, t.seq);
      lane.completed_ticks.store(ticks, std::memory_order_relaxed);
    } else if (state == State::kFailed) {
      lane.failed.fetch_add(1, std::memory_order_relaxed);
    }
    lane.ended.fetch_add(1, std::memory_order_relaxed);
    if ((t.flags & FR_UNTRACKED) == 0) {
      row.p2p_ended.fetch_add(1, std::memory_order_relaxed);
    }
  } else if (t.kind == FR_LIFECYCLE) {
    row.lifecycle_ended.fetch_add(1, std::memory_order_relaxed);
  }
  set_state(h, t, state, ticks, error);
}

// Puts a released operation back in flight, when its report comes late after all.
void reopen(Hot& h, const fr_ticket& t) noexcept;  // slow.cpp

inline void wait_begin(Hot& h, const fr_ticket& t) noexcept {
  h.groups[t.group].waited.fetch_add(1, std::memory_order_relaxed);
  set_state(h, t, State::kWaiting, ticks_now(h.clock), 0);
}

inline void wait_end(Hot& h, const fr_ticket& t) noexcept {
  h.groups[t.group].wait_ended.fetch_add(1, std::memory_order_relaxed);
  set_state(h, t, State::kIdle, ticks_now(h.clock), 0);  // a final state stays
}

// ---------------------------------------------------------------- breadcrumbs

Crumb* learn_crumb(Hot& hot) noexcept;  // slow.cpp
inline Crumb* own_crumb(Hot& h) noexcept {
  return t_facts.crumb_generation == h.generation ? t_facts.crumb : learn_crumb(h);
}

// A record of the process itself (group 0) with `n_bytes` of text as its words.
inline void breadcrumb(Hot& h, u16 kind, u32 op, u64 seq, u64 ticks, const u32* words,
                       u32 n_bytes) noexcept {
  const u64 before = h.groups[0].issued.fetch_add(detail::kOneRecord, std::memory_order_relaxed);
  Payload p{};
  p.ticks = ticks;
  p.seq = seq;
  p.op = op;
  p.tid = own_tid();
  p.peer = -1;
  p.kind = kind;
  p.group_index = static_cast<u32>(before >> kIndexShift) & kIndexMask;
  p.n_shape = n_bytes;
  detail::put_words(h, p, words, (n_bytes + 3) / 4);
  detail::commit(h, p);
}

inline void note(Hot& h, const char* text, std::size_t bytes) noexcept {
  const u64 ticks = ticks_now(h.clock);
  const u32 n = static_cast<u32>(bytes < kNoteBytes ? bytes : kNoteBytes);
  u32 words[kNoteBytes / 4] = {};
  std::memcpy(words, text, n);
  if (Crumb* c = own_crumb(h)) {
    const u32 seq = c->note_seq.load(std::memory_order_relaxed);
    c->note_seq.store(seq + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (u32 i = 0; i < (n + 3) / 4; ++i) {
      c->note[i].store(words[i], std::memory_order_relaxed);
    }
    c->note_bytes.store(n, std::memory_order_relaxed);
    c->note_ticks.store(ticks, std::memory_order_relaxed);
    c->note_seq.store(seq + 2, std::memory_order_release);
  }
  breadcrumb(h, FR_NOTE, 0, 0, ticks, words, n);
}

inline void step(Hot& h, i64 number) noexcept {
  const u64 ticks = ticks_now(h.clock);
  h.header->step.store(number, std::memory_order_relaxed);
  h.header->step_ticks.store(ticks, std::memory_order_relaxed);
  breadcrumb(h, FR_STEP, 0, static_cast<u64>(number), ticks, nullptr, 0);
}

// seq of a span record: 1 = opened, 0 = closed
inline void span_begin(Hot& h, u32 name) noexcept {
  const u64 ticks = ticks_now(h.clock);
  if (Crumb* c = own_crumb(h)) {
    const u32 depth = c->depth.load(std::memory_order_relaxed);
    if (depth < kSpanDepth) {
      c->span[depth].store(name, std::memory_order_relaxed);
      c->span_ticks[depth].store(ticks, std::memory_order_relaxed);
    }
    c->depth.store(depth + 1, std::memory_order_release);
  }
  breadcrumb(h, FR_SPAN, name, 1, ticks, nullptr, 0);
}

inline void span_end(Hot& h) noexcept {
  const u64 ticks = ticks_now(h.clock);
  u32 name = 0;
  if (Crumb* c = own_crumb(h)) {
    const u32 depth = c->depth.load(std::memory_order_relaxed);
    if (depth == 0) {
      return;
    }
    name = depth <= kSpanDepth ? c->span[depth - 1].load(std::memory_order_relaxed) : 0;
    c->depth.store(depth - 1, std::memory_order_release);
  }
  breadcrumb(h, FR_SPAN, name, 0, ticks, nullptr, 0);
}

}  // namespace fr
