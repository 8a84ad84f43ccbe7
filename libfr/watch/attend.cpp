// attend.cpp - questions of the node's ranks in the control page, and their answers.
#include "watch/attend.hpp"

#include <algorithm>
#include <optional>

#include "recorder/recorder.hpp"
#include "watch/control_page.hpp"

namespace fr {
namespace {

constexpr u64 kAsked_ns = 3'000'000'000;

// State of the rank that has the endpoint, used on its watchdog's thread.
struct State {
  explicit State(Recorder& r) noexcept : eyes(r) {}
  AbsentRanks eyes;
  Attendance attendance;
  bool has_none = false;  // no memory
};
std::optional<State> g_state;

bool has_endpoint(const Recorder& r) noexcept {
  const Nodes& nodes = r.control->page().nodes;
  const u32 owner = nodes.owner.load();
  return r.control->is_shared() && nodes.n.load(std::memory_order_acquire) > 1 && owner != 0 &&
         owner <= kPeers && r.control->own() == &r.control->page().peers[owner - 1];
}

template <class Each>
void each_question(const Recorder& r, u64 now, Each each) noexcept {
  for (PeerRow& peer : r.control->page().peers) {
    if (peer.state.load(std::memory_order_acquire) != kPeerLive) {
      continue;
    }
    for (Question& q : peer.questions) {
      const u64 asked = q.asked_ns.load(std::memory_order_acquire);
      if (asked != 0 && now < asked + kAsked_ns) {
        each(q, q.key.load(), q.seq.load());
      }
    }
  }
}

}  // namespace

void forget_attendance(Recorder& r) {
  g_state.emplace(r);  // a forked child: what was mapped stays, which is little
}

void attend() noexcept {
  Recorder* r = recorder();
  if (r == nullptr || !has_endpoint(*r) || !r->options.adapt || g_state->has_none) {
    return;
  }
  Attendance& a = g_state->attendance;
  if (!a.has_memory()) {
    const Nodes& nodes = r->control->page().nodes;
    g_state->has_none =
        !a.init(nodes.rows, nodes.n.load(), nodes.own, r->region.header().world_size.load());
    if (g_state->has_none) {
      return;
    }
    a.set_period(std::min(r->options.warn_ns, r->options.timeout_ns) / 2);
  }
  const u64 now = monotonic_ns();
  Post post;
  while (attendance_from_nodes.take(post)) {
    a.hear(post, now);
  }
  each_question(*r, now, [&](Question&, u64 key, u64 seq) { a.want(key, seq, now); });
  a.turn(now, g_state->eyes, posts_to_nodes);
  each_question(*r, now, [&](Question& q, u64 key, u64 seq) {
    const Attendance::Answer* known = a.answer(key, seq, now);
    if (known == nullptr ||
        (q.answers.load() == question_id(key, seq) && q.heard_ns.load() == known->heard_ns)) {
      return;
    }
    q.answers.store(0);
    q.heard_ns.store(known->heard_ns);
    q.came_ns.store(known->came_ns);
    q.others.store(static_cast<u32>(known->others));
    q.absent.store(known->absent);
    q.busy.store(known->busy);
    q.answers.store(question_id(key, seq));
  });
}

u64 asked_from(const Floors& floors) noexcept {
  return std::min(floors.warn_ns, floors.dump_ns) / 2;
}

u64 told_within(const Recorder& r) noexcept {
  return 2 * Attendance::longest_period_ns(r.control->page().nodes.n.load());
}

void ask_attendance(Recorder& r, AbsentRanks::Seen& seen, u64 now) noexcept {
  const u32 nodes = r.control->page().nodes.n.load(std::memory_order_acquire);
  PeerRow* own = r.control->own();
  if (seen.key == 0 || nodes < 2 || own == nullptr || !r.control->is_shared()) {
    return;
  }
  // The same as before, or one that nobody asks any more.
  Question* q = nullptr;
  for (Question& x : own->questions) {
    const u64 asked = x.asked_ns.load();
    const bool is_asked = asked != 0 && now < asked + kAsked_ns;
    if (is_asked && x.key.load() == seen.key && x.seq.load() == seen.seq) {
      q = &x;
      break;
    }
    q = q == nullptr && !is_asked ? &x : q;
  }
  if (q == nullptr) {
    return;  // it waits in more groups than that
  }
  if (q->key.load() != seen.key || q->seq.load() != seen.seq) {
    q->asked_ns.store(0);
    q->key.store(seen.key);
    q->seq.store(seen.seq);
  }
  q->asked_ns.store(now, std::memory_order_release);

  const u64 id = question_id(seen.key, seen.seq);
  if (q->answers.load() != id) {
    return;
  }
  const auto others = static_cast<Others>(q->others.load());
  const u64 heard = q->heard_ns.load();
  const u64 came = q->came_ns.load();
  const i32 absent = q->absent.load();
  const i32 busy = q->busy.load();
  const bool is_fresh = others == Others::kCame || now < heard + Attendance::fresh_ns(nodes);
  // This node's own view is newer: a rank of this node that computes or is gone stands.
  const bool stands =
      seen.others == Others::kGone || (seen.others == Others::kBusy && others == Others::kAsleep);
  if (q->answers.load() != id || !is_fresh || others == Others::kUnseen || stands) {
    return;
  }
  seen.others = others;
  seen.absent = absent;
  seen.busy = busy;
  if (others == Others::kCame) {
    seen.came_ago_ns = std::min(seen.came_ago_ns, now > came ? now - came : 0);
  }
}

}  // namespace fr
