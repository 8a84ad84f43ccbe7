// attendance.cpp - what nodes ask and tell each other of an operation that stands still.
#include "watch/attendance.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "watch/groups.hpp"

namespace fr {
namespace {

constexpr u64 kMilli_ns = 1'000'000;
constexpr u64 kNextLook_ns = 1'000'000'000;
constexpr u64 kWanted_ns = 3'000'000'000;  // ranks ask again each second
constexpr u64 kMostTests = 10'000'000;     // which nodes have members: some 10 ms

u32 in_ms(u64 ns) noexcept {
  return static_cast<u32>(std::min<u64>(ns / kMilli_ns, ~0u));
}

bool is_since(u64 then_ns, u64 ns, u64 now_ns) noexcept {
  return then_ns != 0 && now_ns < then_ns + ns;
}

}  // namespace

u64 question_id(u64 key, u64 seq) noexcept {
  return mix(key, seq) | 1;
}

bool Attendance::init(const NodeRow* rows, u32 n, u32 own, i32 world) noexcept {
  const u64 bytes = kRows * (sizeof(Row) + u64{n} * sizeof(Slot));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return false;
  }
  rows_ = static_cast<Row*>(memory);
  slots_ = reinterpret_cast<Slot*>(rows_ + kRows);
  nodes_ = rows;
  n_nodes_ = n;
  own_ = own;
  world_ = world;
  set_period(~0ull);
  return true;
}

void Attendance::release() noexcept {
  munmap(static_cast<void*>(rows_), kRows * (sizeof(Row) + u64{n_nodes_} * sizeof(Slot)));
  rows_ = nullptr;
}

void Attendance::set_period(u64 ns) noexcept {
  const u64 longest = longest_period_ns(n_nodes_);
  period_ns_ = std::min(ns, longest - n_nodes_ * kMilli_ns) + n_nodes_ * kMilli_ns;
}

// ---------------------------------------------------------------- rows

Attendance::Row* Attendance::row_of(u64 key, u64 seq) const noexcept {
  Row* end = rows_ + kRows;
  Row* found = std::find_if(rows_, end, [&](const Row& r) { return r.key == key && r.seq == seq; });
  return found != end ? found : nullptr;
}

// Where all are taken, that which was not used for longest.
Attendance::Row& Attendance::make_row(u64 key, u64 seq, u64 now) noexcept {
  if (Row* row = row_of(key, seq)) {
    row->used_ns = now;
    return *row;
  }
  Row& row = *std::min_element(rows_, rows_ + kRows, [](const Row& a, const Row& b) {
    return a.used_ns < b.used_ns;  // 0: free
  });
  if (row.key != 0) {
    std::fill_n(slots_of(row), n_nodes_, Slot{});
    row = {};
  }
  row.key = key;
  row.seq = seq;
  row.used_ns = now;
  // All nodes notice it within the same moment; not all of a large job tell within one.
  row.due_ns = now + own_ * kMilli_ns;
  row.round_ns = now + period_ns_ / 4 + n_nodes_ * kMilli_ns;
  return row;
}

void Attendance::want(u64 key, u64 seq, u64 now) noexcept {
  make_row(key, seq, now).wanted_ns = now;
}

const Attendance::Answer* Attendance::answer(u64 key, u64 seq, u64 now) const noexcept {
  const Row* row = row_of(key, seq);
  const bool is_known = row != nullptr && (row->answer.others == Others::kCame ||
                                           is_since(row->answer.heard_ns, fresh_ns(n_nodes_), now));
  return is_known ? &row->answer : nullptr;
}

// ---------------------------------------------------------------- looking and telling

Post Attendance::post(u8 kind, const Row& row, u32 node, Told told, u64 now) const noexcept {
  static_assert(sizeof told <= sizeof(Post::data));
  told.seq = row.seq;
  told.sent_ms = now / kMilli_ns;
  Post p{kind, sizeof told, node, row.key, 0, {}};
  std::memcpy(p.data, &told, sizeof told);
  return p;
}

// Notes the nodes that the home asks: those with members. None, if the group has too many ranges.
void Attendance::note_nodes(Row& row, const Here& here) noexcept {
  const u64 runs = here.ranks.size() / 3;
  if (runs * static_cast<u64>(world_ > 0 ? world_ : 1) > kMostTests) {
    return;
  }
  for (u32 i = 0; i < n_nodes_; ++i) {
    const NodeRow& node = nodes_[i];
    bool has = false;
    for (u32 k = 0; k < node.n_ranks && !has; ++k) {
      has =
          is_in(here.ranks, node.first_rank + static_cast<i32>(k * std::max<u32>(node.stride, 1)));
    }
    row.nodes[i / 64] |= u64{has} << (i % 64);
  }
}

void Attendance::look(Row& row, u64 now, Eyes& eyes, Posts& out) noexcept {
  row.due_ns = now + period_ns_;
  row.is_asked = false;
  Here here;
  if (!eyes.look(row.key, row.seq, now, here) || here.ranks.empty()) {
    return;
  }
  if (row.home == 0) {
    const NodeRow* node = std::find_if(nodes_, nodes_ + n_nodes_,
                                       [&](const NodeRow& x) { return is_on(x, here.ranks[0]); });
    if (node == nodes_ + n_nodes_) {
      return;
    }
    row.home = static_cast<u32>(node - nodes_) + 1;
    row.n_ranks = here.n_ranks;
    if (row.home == own_ + 1) {
      note_nodes(row, here);
    }
  }
  if (here.is_first && here.came < here.members && !here.is_gone) {
    row.due_ns = now + kNextLook_ns;
    return;
  }
  const u8 state =
      static_cast<u8>((here.is_gone ? u8{kGone} : 0) | (here.is_asleep ? u8{kAsleep} : 0));
  if (row.home == own_ + 1) {
    slots_of(row)[own_] = {now,       now > here.came_ago_ns ? now - here.came_ago_ns : 0,
                           0,         here.members,
                           here.came, here.absent,
                           here.busy, state};
    row.is_changed = true;
    return;
  }
  Told told{};
  told.came_ago_ms = in_ms(here.came_ago_ns);
  told.came = here.came;
  told.absent = here.absent;
  told.busy = here.busy;
  told.state = state;
  told.wants = is_since(row.wanted_ns, kWanted_ns, now) ? 1 : 0;
  Post p = post(Post::kPresent, row, row.home - 1, told, now);
  p.members = static_cast<i32>(here.members);
  out.give(p);
}

// Asks each node that was not heard for longer than one and a half of its periods.
void Attendance::ask_nodes(Row& row, u64 now, Posts& out) noexcept {
  if (now < row.round_ns) {
    return;
  }
  u32 asked = 0;
  for (; row.cursor < n_nodes_ && asked < kAskedAtOnce; ++row.cursor) {
    const u32 i = row.cursor;
    const Slot& slot = slots_of(row)[i];
    if (i != own_ && (row.nodes[i / 64] >> (i % 64) & 1) != 0 &&
        !is_since(slot.heard_ns, period_ns_ * 3 / 2, now)) {
      out.give(post(Post::kWhoCame, row, i, {}, now));
      ++asked;
    }
  }
  if (row.cursor == n_nodes_) {
    row.cursor = 0;
    row.round_ns = now + period_ns_ / 4;
  }
}

void Attendance::turn(u64 now, Eyes& eyes, Posts& out) noexcept {
  for (u32 i = 0; i < kRows; ++i) {
    Row& row = rows_[i];
    const bool is_wanted = is_since(row.wanted_ns, kWanted_ns, now) ||
                           is_since(row.others_want_ns, fresh_ns(n_nodes_), now);
    if (row.key == 0 || (!row.is_asked && (!is_wanted || row.answer.others == Others::kCame))) {
      continue;
    }
    if (row.is_asked || now >= row.due_ns) {
      look(row, now, eyes, out);
    }
    if (row.home == own_ + 1) {
      add_up(row, now);
      if (row.answer.others != Others::kCame) {
        ask_nodes(row, now, out);
      }
    }
  }
  for (u32 i = 0; i < n_replies_; ++i) {
    const Row& row = rows_[replies_[i].row];
    if (question_id(row.key, row.seq) != replies_[i].id || row.home != own_ + 1) {
      continue;
    }
    Told told{};
    const Answer& a = row.answer;
    told.came_ago_ms = in_ms(now > a.came_ns ? now - a.came_ns : 0);
    told.absent = a.absent;
    told.busy = a.busy;
    told.state = static_cast<u8>(a.others);
    out.give(post(Post::kAttendance, row, replies_[i].node, told, now));
  }
  n_replies_ = 0;
}

// ---------------------------------------------------------------- the home

void Attendance::add_up(Row& row, u64 now) noexcept {
  if (!row.is_changed) {
    return;
  }
  row.is_changed = false;
  Answer a;
  u32 members = 0;
  u32 came = 0;
  bool is_gone = false;
  bool is_asleep = false;
  bool is_named_idle = false;
  for (u32 i = 0; i < n_nodes_; ++i) {
    const Slot& s = slots_of(row)[i];
    const bool is_whole = s.came == s.members && s.members != 0;  // and stays so
    if (s.heard_ns == 0 || (!is_whole && !is_since(s.heard_ns, fresh_ns(n_nodes_), now))) {
      continue;
    }
    members += s.members;
    came += s.came;
    a.came_ns = s.came != 0 ? std::max(a.came_ns, s.came_ns) : a.came_ns;
    a.busy = s.busy >= 0 ? s.busy : a.busy;
    const bool here_gone = (s.state & kGone) != 0;
    const bool here_asleep = (s.state & kAsleep) != 0;
    const bool here_idle = here_gone || here_asleep || (s.busy >= 0 && s.busy == s.absent);
    if (s.absent >= 0 && !is_gone && (a.absent < 0 || here_gone || (here_idle && !is_named_idle))) {
      a.absent = s.absent;
      is_named_idle = here_idle;
    }
    is_gone = is_gone || here_gone;
    is_asleep = is_asleep || here_asleep;
  }
  const bool is_all = row.n_ranks > 0 && static_cast<i32>(members) >= row.n_ranks;
  if (is_gone) {
    a.others = Others::kGone;
  } else if (is_all && static_cast<i32>(came) >= row.n_ranks) {
    a.others = Others::kCame;
  } else if (a.busy >= 0) {
    a.others = Others::kBusy;
  } else if (is_all && (is_asleep || row.n_ranks == world_)) {
    a.others = Others::kAsleep;
  }
  a.heard_ns = now;
  row.answer = a;
}

void Attendance::hear_present(const Post& p, const Told& told, u64 now) noexcept {
  Row& row = make_row(p.key, told.seq, now);
  if (row.home == 0) {
    row.due_ns = now;
  }
  Slot& slot = slots_of(row)[p.node];
  if (told.sent_ms < slot.sent_ms || p.members < 0) {
    return;
  }
  const u64 ago_ns = u64{told.came_ago_ms} * kMilli_ns;
  slot = {now,          now > ago_ns ? now - ago_ns : 0,
          told.sent_ms, static_cast<u32>(p.members),
          told.came,    told.absent,
          told.busy,    told.state};
  row.is_changed = true;
  if (told.wants != 0) {
    row.others_want_ns = now;
    if (n_replies_ < std::size(replies_)) {
      replies_[n_replies_++] = {question_id(p.key, told.seq), static_cast<u32>(&row - rows_),
                                p.node};
    }
  }
}

void Attendance::hear(const Post& p, u64 now) noexcept {
  Told told;
  if (p.bytes != sizeof told || p.node >= n_nodes_ || p.node == own_ || p.key == 0) {
    return;
  }
  std::memcpy(&told, p.data, sizeof told);
  if (p.kind == Post::kPresent) {
    hear_present(p, told, now);
  } else if (p.kind == Post::kWhoCame) {
    make_row(p.key, told.seq, now).is_asked = true;
  } else if (Row* row = row_of(p.key, told.seq);
             row != nullptr && p.kind == Post::kAttendance && row->home == p.node + 1 &&
             told.sent_ms >= row->answer_sent_ms && told.state <= static_cast<u8>(Others::kGone)) {
    const u64 ago_ns = u64{told.came_ago_ms} * kMilli_ns;
    row->answer_sent_ms = told.sent_ms;
    row->answer = {static_cast<Others>(told.state), told.absent, told.busy,
                   now > ago_ns ? now - ago_ns : 0, now};
  }
}

}  // namespace fr
