// attendance.hpp - members that have come to a stalled operation, over all nodes of its group.
// Pure: no socket, no clock, no process.
//
//   node 1 --- arrivals of its ranks, every 2 s while one waits ---> home: node of the first rank
//   node 2 <-- which of yours came? -------------------------------- home, to those it did not hear
//   node 2 --- arrivals of its ranks ------------------------------> home
//   node 1 <-- arrivals of all, activity of the absent ------------- home, answers each of node 1's
//
// So a group on n nodes costs 2 n messages in 2 s, and none where nothing stalls. A lost message is
// made up for by the next; nothing is known of a node that is not heard. Periods grow with the job,
// by 1 ms per node. All have come is never taken back, and ends the messages.
#pragma once

#include <span>

#include "watch/deadlines.hpp"
#include "watch/post.hpp"

namespace fr {

inline constexpr u64 kNoSeq = ~0ull;  // of a send or receive: nobody comes to it

// A node's view of its own ranks.
struct Here {
  u32 members = 0;         // of the group
  u32 came = 0;            // of them
  bool is_gone = false;    // the process of one has ended
  bool is_asleep = false;  // one has not come and sleeps, in no operation of its own
  i32 absent = -1;         // one that has not come, or has ended
  i32 busy = -1;           // a rank of the node that computes, of the group or not
  u64 came_ago_ns = 0;     // the last one
  bool is_first = false;   // of a process: the next look, a second later, knows if it computes
  // of the group, until the next look
  i32 n_ranks = 0;
  std::span<const u32> ranks;  // {first, count, stride}...
};

class Eyes {
 public:
  // False: no rank of this node knows the group.
  virtual bool look(u64 key, u64 seq, u64 now_ns, Here& to) noexcept = 0;

 protected:
  ~Eyes() = default;
};

// The same for a question of a rank and what answers it; never 0.
u64 question_id(u64 key, u64 seq) noexcept;

class Attendance {
 public:
  struct Answer {
    Others others = Others::kUnseen;
    i32 absent = -1;
    i32 busy = -1;
    u64 came_ns = 0;   // kCame: when the last came
    u64 heard_ns = 0;  // 0: never
  };

  // The list of nodes, our place in it, the ranks of the job. False: no memory.
  bool init(const NodeRow* rows, u32 n, u32 own, i32 world) noexcept;
  bool has_memory() const noexcept { return rows_ != nullptr; }
  void release() noexcept;
  // How often things are told in a small job; at most 2 s.
  void set_period(u64 ns) noexcept;

  // Ranks of this node wait in that; again each second while they do.
  void want(u64 key, u64 seq, u64 now_ns) noexcept;
  void hear(const Post& post, u64 now_ns) noexcept;
  // Every tick: looks where that is due, and sends.
  void turn(u64 now_ns, Eyes& eyes, Posts& out) noexcept;
  // nullptr: not known, or too long ago.
  const Answer* answer(u64 key, u64 seq, u64 now_ns) const noexcept;

  // How long what a node said holds, and how soon an answer that can be had is there.
  static constexpr u64 fresh_ns(u32 nodes) noexcept { return 3 * longest_period_ns(nodes); }
  static constexpr u64 longest_period_ns(u32 nodes) noexcept {
    return 2'000'000'000 + u64{nodes} * 1'000'000;
  }

 private:
  static constexpr u32 kRows = 32;
  static constexpr u32 kAskedAtOnce = 64;
  enum : u8 { kGone = 1, kAsleep = 2 };

  struct Told {  // in all three kinds of posts
    u64 seq;
    u64 sent_ms;  // of the sender's clock: an older one is a replay
    u32 came_ago_ms;
    u32 came;
    i32 absent, busy;
    u8 state;  // kPresent: of the above; kAttendance: Others
    u8 wants;  // the sender waits for an answer
    u8 reserved[6];
  };
  struct Slot {  // what a node said
    u64 heard_ns, came_ns, sent_ms;
    u32 members, came;
    i32 absent, busy;
    u8 state;
  };
  struct Row {
    u64 key, seq;        // key 0: free
    u64 used_ns;         // when anybody last had to do with it
    u64 wanted_ns;       // by ranks of this node
    u64 others_want_ns;  // of the home: by another node
    u64 due_ns;          // of the next look
    bool is_asked;       // by the home
    bool is_changed;     // slots did since the answer
    u32 home;            // node + 1; 0: not known
    i32 n_ranks;
    u64 answer_sent_ms;
    Answer answer;
    u32 cursor;              // of the home: nodes that this round is done with
    u64 round_ns;            // when the next round begins
    u64 nodes[kNodes / 64];  // with members
  };
  struct Reply {
    u64 id;
    u32 row, node;
  };

  Row* row_of(u64 key, u64 seq) const noexcept;
  Row& make_row(u64 key, u64 seq, u64 now_ns) noexcept;
  Slot* slots_of(const Row& row) const noexcept { return slots_ + (&row - rows_) * n_nodes_; }
  void look(Row& row, u64 now_ns, Eyes& eyes, Posts& out) noexcept;
  void note_nodes(Row& row, const Here& here) noexcept;
  void ask_nodes(Row& row, u64 now_ns, Posts& out) noexcept;
  void add_up(Row& row, u64 now_ns) noexcept;
  void hear_present(const Post& post, const Told& told, u64 now_ns) noexcept;
  Post post(u8 kind, const Row& row, u32 node, Told told, u64 now_ns) const noexcept;

  Row* rows_ = nullptr;
  Slot* slots_ = nullptr;  // n_nodes_ per row
  const NodeRow* nodes_ = nullptr;
  u32 n_nodes_ = 0;
  u32 own_ = 0;
  i32 world_ = 0;
  u64 period_ns_ = 0;
  u32 n_replies_ = 0;
  Reply replies_[Posts::kRoom];
};

}  // namespace fr
