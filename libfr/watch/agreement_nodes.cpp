// agreement_nodes.cpp - the same over nodes. Each node hashes what its members of a group issue, and
// tells the node of the group's first rank, which compares with its own:
//
//   node 1 --- hashes at some seqs, every 2 s ---------------> home: another hash at one of them
//   node 1 <-- signatures of the operations up to there ------ home
//   node 1 --- the first that differs, in words -------------> home, which says it
//
// A hash covers an epoch of 256 operations up to its own: any checkpoint shows all that came before.
// A message that is lost costs one comparison.
#include <algorithm>
#include <cstring>

#include "format/hash.hpp"
#include "watch/agreement_memory.hpp"

namespace fr {
namespace {

constexpr u64 kSecond_ns = 1'000'000'000;
constexpr u64 kTalk_ns = 2 * kSecond_ns;
constexpr u64 kGather_ns = 5 * kTalk_ns / 4;  // by then other nodes have told what they have
constexpr u64 kUnanswered_ns = 10 * kSecond_ns;
constexpr u32 kEach = 16;        // operations in a while that are told one by one
constexpr u32 kFarthest = 4096;  // operations back
constexpr u32 kAsked = 4;

}  // namespace

void Agreement::set_nodes(const NodeRow* rows, u32 n, u32 own) noexcept {
  nodes_ = rows;
  n_nodes_ = n;
  own_node_ = own;
}

// The hash of an epoch up to each operation, in the order of their numbers.
void Agreement::hash_on(Group& g, u32 seq) noexcept {
  if (static_cast<i32>(seq - g.hash_next) > static_cast<i32>(kWindow / 2)) {
    g.hash_next =
        (seq + kEpoch - 2) / kEpoch * kEpoch + 1;  // some are missing: from the next epoch
  }
  for (;; ++g.hash_next) {
    Entry& e = g.window[g.hash_next % kWindow];
    if (e.count == 0 || e.seq != g.hash_next) {
      return;
    }
    g.hash = g.hash_next % kEpoch == 1 ? 1 : g.hash;
    g.hash = mix(g.hash, e.signature);
    e.hash = static_cast<u32>(g.hash >> 32) | 1;
    if (g.hash_next % kEpoch == 0) {
      g.ends[g.hash_next / kEpoch % kEnds] = {g.hash_next, e.hash};
    }
  }
}

// 0: not known.
u32 Agreement::hash_at(const Group& g, u32 seq) const noexcept {
  const Entry& e = g.window[seq % kWindow];
  if (e.count != 0 && e.seq == seq) {
    return e.hash;
  }
  const EpochEnd& end = g.ends[seq / kEpoch % kEnds];
  return end.seq == seq ? end.hash : 0;
}

// The node of the group's first rank; kNone: all members are here, or the list does not say.
u32 Agreement::home_of(Group& g) noexcept {
  if (g.home == 0) {
    const View& view = memory_->rings[g.ring].view;
    const GroupRow& row = *view.group(g.row);
    const auto ranges = view.group_ranks(row);
    g.home = kNone;
    if (!ranges.empty() && static_cast<i32>(g.members) < row.n_ranks.load()) {
      const NodeRow* node = std::find_if(nodes_, nodes_ + n_nodes_,
                                         [&](const NodeRow& x) { return is_on(x, ranges[0]); });
      g.home = node != nodes_ + n_nodes_ ? static_cast<u32>(node - nodes_) + 1 : kNone;
    }
  }
  return g.home == kNone ? kNone : g.home - 1;
}

void Agreement::talk(u64 now, Posts& out) noexcept {
  if (n_nodes_ < 2 || now < talked_ns_ + kTalk_ns) {
    return;
  }
  talked_ns_ = now;
  for (u32 i = 0; i < kGroupsHere && n_groups_ != 0; ++i) {
    Group& g = memory_->groups[i];
    if (g.key == 0 || g.hash_next <= 1 || g.counted == 0) {
      continue;
    }
    // Operations hashed a while ago: the home has them by now, too.
    const u32 until = g.ripe;
    const u32 from = until - std::min(until - g.sent, kFarthest);
    g.ripe = g.hash_next - 1;
    g.sent = until;
    const u32 home = home_of(g);
    if (home == kNone || home == own_node_ || until == from) {
      continue;
    }
    Post post{Post::kHashes, 0, home, g.key, static_cast<i32>(g.members), {}};
    const u32 last_end = until / kEpoch * kEpoch;
    for (u32 seq = from + 1; seq != until + 1; ++seq) {
      const bool chosen = until - from <= kEach || seq % kEpoch == 0 ||
                          (seq > last_end && (seq % kEach == 0 || seq == until));
      const u32 pair[2] = {seq, chosen ? hash_at(g, seq) : 0};
      if (pair[1] != 0) {
        std::memcpy(post.data + post.bytes, pair, sizeof pair);
        post.bytes = static_cast<u8>(post.bytes + sizeof pair);
      }
      if (post.bytes == sizeof post.data || (seq == until && post.bytes != 0)) {
        out.give(post);
        post.bytes = 0;
      }
    }
  }
}

Agreement::Group* Agreement::group_by(u64 key) noexcept {
  const u32 first = static_cast<u32>(key >> 32) % kGroupsHere;
  for (u32 n = 0; n < kGroupsHere; ++n) {
    Group& g = memory_->groups[(first + n) % kGroupsHere];
    if (g.key == key || g.key == 0) {
      return g.key != 0 ? &g : nullptr;
    }
  }
  return nullptr;
}

void Agreement::hear(const Post& post, u64 now, Posts& out) noexcept {
  Group* g = group_by(post.key);
  if (g == nullptr || post.node >= n_nodes_ || post.node >= kNodes ||
      post.bytes > sizeof post.data) {
    return;
  }
  switch (post.kind) {
    case Post::kHashes:
      hear_hashes(*g, post, now, out);
      break;
    case Post::kSignatures:
      hear_signatures(*g, post, out);
      break;
    case Post::kDiffers:
      hear_difference(*g, post, now);
      break;
    default:
      break;
  }
}

void Agreement::hear_hashes(Group& g, const Post& post, u64 now, Posts& out) noexcept {
  Dispute& d = memory_->dispute;
  if (d.key != 0 && now > d.begun_ns + kUnanswered_ns) {
    d = {};
  }
  for (u32 at = 0; at + 8 <= post.bytes; at += 8) {
    u32 pair[2];
    std::memcpy(pair, post.data + at, sizeof pair);
    const u32 own = hash_at(g, pair[0]);
    if (own == 0 || g.told || (d.key != 0 && d.key != g.key)) {
      continue;
    }
    const auto epoch = [](u32 seq) { return (seq - 1) / kEpoch; };
    u8& opinion = d.opinion[post.node];
    if (own != pair[1]) {
      if (d.key == 0) {
        d.key = g.key;
        d.seq = pair[0];
        d.begun_ns = now;
      }
      d.differ += opinion != kDiffer ? post.members : 0;
      d.agree -= opinion == kAgree ? post.members : 0;
      const bool ask = opinion != kDiffer && d.asked < kAsked;
      opinion = kDiffer;
      if (ask) {
        ++d.asked;
        tell_signatures(g, pair[0], post.node, out);
      }
      return;
    }
    if (d.key == g.key && opinion == 0 && epoch(pair[0]) == epoch(d.seq) && pair[0] >= d.seq) {
      opinion = kAgree;
      d.agree += post.members;
    }
  }
}

void Agreement::tell_signatures(const Group& g, u32 until, u32 node, Posts& out) noexcept {
  Post post{Post::kSignatures, 0, node, g.key, static_cast<i32>(g.members), {}};
  for (u32 seq = (until - 1) / kEpoch * kEpoch + 1; seq != until + 1; ++seq) {
    const Entry& e = g.window[seq % kWindow];
    const u32 signed_as = e.count != 0 && e.seq == seq ? e.signature : 0;
    if (post.bytes == 0) {
      std::memcpy(post.data, &seq, sizeof seq);
      post.bytes = sizeof seq;
    }
    std::memcpy(post.data + post.bytes, &signed_as, sizeof signed_as);
    post.bytes = static_cast<u8>(post.bytes + sizeof signed_as);
    if (post.bytes == sizeof post.data || seq == until) {
      out.give(post);
      post.bytes = 0;
    }
  }
}

void Agreement::hear_signatures(Group& g, const Post& post, Posts& out) noexcept {
  u32 seq = 0;
  std::memcpy(&seq, post.data, sizeof seq);
  for (u32 at = sizeof seq; at + 4 <= post.bytes; at += 4, ++seq) {
    u32 theirs = 0;
    std::memcpy(&theirs, post.data + at, sizeof theirs);
    const Entry& e = g.window[seq % kWindow];
    if (theirs != 0 && e.count != 0 && e.seq == seq && e.signature != theirs) {
      Post answer{
          Post::kDiffers, sizeof(Issued), post.node, g.key, static_cast<i32>(g.members), {}};
      Issued issued{};
      if (describe_own(g, seq, issued)) {
        static_assert(sizeof issued == sizeof answer.data);
        std::memcpy(answer.data, &issued, sizeof issued);
        out.give(answer);
      }
      return;
    }
  }
}

void Agreement::hear_difference(Group& g, const Post& post, u64 now) noexcept {
  Dispute& d = memory_->dispute;
  Issued issued;
  std::memcpy(&issued, post.data, sizeof issued);
  issued.text[sizeof issued.text - 1] = '\0';
  // The earliest that any of those asked told of.
  if (d.key == g.key && post.bytes == sizeof issued &&
      (d.due_ns == 0 || static_cast<i32>(issued.seq - d.issued.seq) < 0)) {
    d.issued = issued;
    d.node = post.node;
    d.due_ns = d.due_ns == 0 ? now + kGather_ns : d.due_ns;
  }
}

}  // namespace fr
