// protocol.cpp - rounds and what is heard.
#include "net/protocol.hpp"

#include <cstring>
#include <iterator>

namespace fr::net {

void Protocol::init(const Token& token, i32 attempt, u32 own, std::span<Peer> peers) noexcept {
  token_ = token;
  attempt_ = attempt;
  own_ = own;
  peers_ = peers;
}

void Protocol::set_endpoint(u16 port, u64 epoch) noexcept {
  port_ = port;
  epoch_ = epoch;
}

void Protocol::note_answer(Peer& peer) noexcept {
  if (state_ == kTelling && peer.is_asked && !peer.has_answered) {
    peer.has_answered = true;
    ++answered_;
    if (answered_ == asked_) {
      state_ = kSettled;
    }
  }
}

void Protocol::hear_incident(Peer& peer, Heard& heard) noexcept {
  const u64 number = heard.message.number;
  if (number < peer.heard) {
    return;  // a replay, or overtaken by a later one
  }
  heard.has_reply = true;
  heard.is_incident = number > peer.heard;
  peer.heard = number;
  if (state_ == kTelling && told_.kind == Kind::kIncident && number >= told_.number) {
    // A node that tells of the incident knows it.
    note_answer(peer);
    if (number > told_.number || heard.sender < own_) {
      state_ = kYielded;
    }
  }
}

Protocol::Heard Protocol::receive(const u8* bytes, std::size_t n) noexcept {
  Heard heard;
  Message& m = heard.message;
  if (!decode(bytes, n, token_, m) || m.attempt != attempt_ || m.receiver != own_ ||
      m.sender >= peers_.size() || m.sender == own_) {
    return heard;
  }
  heard.is_valid = true;
  heard.sender = m.sender;
  Peer& peer = peers_[m.sender];
  if (m.epoch > peer.epoch && m.port != 0) {
    peer.epoch = m.epoch;
    heard.has_moved = true;
    heard.port = m.port;
    heard.epoch = m.epoch;
  }
  switch (m.kind) {
    case Kind::kIncident:
      hear_incident(peer, heard);
      break;
    case Kind::kMoved:
      heard.has_reply = m.number >= peer.moves;
      peer.moves = m.number > peer.moves ? m.number : peer.moves;
      break;
    case Kind::kAnswer:
      if (m.answered == told_.kind && m.number == told_.number) {
        note_answer(peer);
      }
      break;
    default:
      break;  // a post
  }
  return heard;
}

Message Protocol::from_here(Kind kind, u64 number) const noexcept {
  Message m;
  m.kind = kind;
  m.attempt = attempt_;
  m.sender = own_;
  m.port = port_;
  m.epoch = epoch_;
  m.number = number;
  return m;
}

Message Protocol::post(Kind kind, u64 number, i32 rank, u32 to) const noexcept {
  Message m = from_here(kind, number);
  m.receiver = to;
  m.rank = rank;
  return m;
}

Message Protocol::reply_to(const Heard& heard) const noexcept {
  Message m = from_here(Kind::kAnswer, heard.message.number);
  m.answered = heard.message.kind;
  m.receiver = heard.sender;
  return m;
}

void Protocol::begin(Kind kind, u64 number, i32 rank, const char* reason, u64 now_ns) noexcept {
  told_ = from_here(kind, number);
  told_.rank = rank;
  std::memcpy(told_.reason, reason, strnlen(reason, kReasonBytes));
  began_ns_ = now_ns;
  asked_ = answered_ = try_ = cursor_ = 0;
  for (u32 i = 0; i < peers_.size(); ++i) {
    peers_[i].has_answered = false;
    asked_ += i != own_ && peers_[i].is_asked ? 1 : 0;
  }
  state_ = asked_ != 0 ? kTelling : kSettled;
  // Those that told us of it themselves need not be told.
  for (Peer& peer : peers_) {
    if (kind == Kind::kIncident && peer.heard >= number) {
      note_answer(peer);
    }
  }
}

bool Protocol::next(u64 now_ns, Message& to) noexcept {
  const auto n = static_cast<u32>(peers_.size());
  while (state_ == kTelling) {
    if (cursor_ + 1 >= n) {  // all but ourselves
      if (try_ + 1 == std::size(kTries_ns)) {
        if (now_ns < sent_ns_ + kLastAnswer_ns) {
          return false;
        }
        state_ = kSettled;
        return false;
      }
      if (now_ns < began_ns_ + kTries_ns[try_ + 1]) {
        return false;
      }
      ++try_;
      cursor_ = 0;
    }
    const u32 peer = (own_ + 1 + cursor_++) % n;
    sent_ns_ = now_ns;
    if (peers_[peer].is_asked && !peers_[peer].has_answered) {
      to = told_;
      to.receiver = peer;
      return true;
    }
  }
  return false;
}

u64 Protocol::due_ns(u64 now_ns) const noexcept {
  if (state_ != kTelling) {
    return ~0ull;
  }
  if (cursor_ + 1 < peers_.size()) {
    return now_ns;
  }
  return try_ + 1 == std::size(kTries_ns) ? sent_ns_ + kLastAnswer_ns
                                          : began_ns_ + kTries_ns[try_ + 1];
}

}  // namespace fr::net
