// protocol.hpp - one node's part in telling all others, as a state machine: no socket, no clock, no
// memory of its own. The caller gives it datagrams and the time, and sends what it says.
//
//   begin() -> round: each node is told at 0, 50, 100, 200 and 400 ms until it answers
//              settled: all have answered, or 200 ms after the last try; the rest are unanswered
//              yielded: a node before us in the list tells of the same incident: it is its round
//
// All nodes may notice a hang within the same moment. Each that is told yields to the first in the
// list that it hears of, so that few rounds go to their end.
#pragma once

#include <span>

#include "net/message.hpp"

namespace fr::net {

inline constexpr u64 kTries_ns[] = {0, 50'000'000, 100'000'000, 200'000'000, 400'000'000};
inline constexpr u64 kLastAnswer_ns = 200'000'000;

class Protocol {
 public:
  // State of a node; zero at the start.
  struct Peer {
    u64 heard = 0;  // newest incident that it told of: an older one is a replay
    u64 epoch = 0;  // of its endpoint
    u64 moves = 0;  // newest epoch that it told of
    bool is_asked = false;
    bool has_answered = false;
  };

  // peers: one per node of the job, our own included; the caller's memory.
  void init(const Token& token, i32 attempt, u32 own, std::span<Peer> peers) noexcept;
  // Where our own endpoint is. Epochs grow with each process that takes it over.
  void set_endpoint(u16 port, u64 epoch) noexcept;
  // A node without an endpoint is not told and not missed. Between rounds.
  void set_asked(u32 peer, bool is_asked) noexcept { peers_[peer].is_asked = is_asked; }

  struct Heard {
    bool is_valid = false;  // else there is nothing to do
    u32 sender = 0;
    bool has_moved = false;  // its endpoint's port is another from now on
    u16 port = 0;
    u64 epoch = 0;
    bool is_incident = false;  // newer than any that this sender told of
    bool has_reply = false;
    Message message;
  };
  Heard receive(const u8* bytes, std::size_t n) noexcept;
  // The answer to what was heard.
  Message reply_to(const Heard& heard) const noexcept;

  // A message that nobody answers; the caller fills in its data.
  Message post(Kind kind, u64 number, i32 rank, u32 to) const noexcept;

  // Tells all others. A round that goes on ends: an incident says all that kMoved does.
  void begin(Kind kind, u64 number, i32 rank, const char* reason, u64 now_ns) noexcept;
  // The next message that is due; false: none now.
  bool next(u64 now_ns, Message& to) noexcept;
  // When next() has more to do or the round settles; ~0 never.
  u64 due_ns(u64 now_ns) const noexcept;

  bool is_telling() const noexcept { return state_ == kTelling; }
  bool has_yielded() const noexcept { return state_ == kYielded; }
  Kind kind() const noexcept { return told_.kind; }
  u64 number() const noexcept { return told_.number; }
  u64 began_ns() const noexcept { return began_ns_; }
  u32 asked() const noexcept { return asked_; }
  u32 answered() const noexcept { return answered_; }
  // Calls each(peer) for those that were asked and have not answered.
  template <class Each>
  void each_unanswered(Each each) const noexcept {
    for (u32 i = 0; i < peers_.size(); ++i) {
      if (i != own_ && peers_[i].is_asked && !peers_[i].has_answered) {
        each(i);
      }
    }
  }

  std::size_t encode(const Message& m, u8* to) const noexcept { return net::encode(m, token_, to); }

 private:
  enum : u32 { kIdle, kTelling, kSettled, kYielded };

  Message from_here(Kind kind, u64 number) const noexcept;
  void note_answer(Peer& peer) noexcept;
  void hear_incident(Peer& peer, Heard& heard) noexcept;

  Token token_{};
  i32 attempt_ = 0;
  u32 own_ = 0;
  u16 port_ = 0;
  u64 epoch_ = 0;
  std::span<Peer> peers_;
  u32 state_ = kIdle;
  Message told_;
  u64 began_ns_ = 0;
  u32 asked_ = 0;
  u32 answered_ = 0;
  u32 try_ = 0;     // of kTries_ns
  u32 cursor_ = 0;  // nodes that this try is done with; we begin with the one after us
  u64 sent_ns_ = 0;
};

}  // namespace fr::net
