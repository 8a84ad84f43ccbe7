// absent.cpp - a look at the ranks of this node.
#include "watch/absent.hpp"

#include <unistd.h>

#include <algorithm>
#include <climits>

#include "format/text.hpp"
#include "format/ticks.hpp"
#include "fr/fr.h"
#include "recorder/in_flight.hpp"
#include "recorder/recorder.hpp"
#include "sample/proc_task.hpp"
#include "watch/control_page.hpp"
#include "watch/groups.hpp"

namespace fr {
namespace {

constexpr u64 kLookApart_ns = 900'000'000;
constexpr u64 kBusyShare = 10;  // computes where it used a tenth of a processor

const GroupRow* find_group(const View& view, u64 key) noexcept {
  for (u32 i = 1; view.ok() && i < view.n_groups(); ++i) {
    const GroupRow& g = *view.group(i);
    if (get(g.destroyed_ticks) == 0 && group_key(view, g) == key) {
      return &g;
    }
  }
  return nullptr;
}

bool has_row(const PeerRow& peer) noexcept {
  const u32 state = peer.state.load(std::memory_order_acquire);
  return state != kPeerFree && state != kPeerClaimed;
}

}  // namespace

View AbsentRanks::view_of(const PeerRow& peer, Mapping& mapping) const noexcept {
  if (&peer == recorder_.control->own()) {
    return recorder_.view;
  }
  char path[PATH_MAX];
  format(path, sizeof path, "%s/%s", recorder_.region.dir.c_str(), peer.ring);
  mapping = map_file(path);
  return View::of(mapping.base, mapping.bytes);
}

AbsentRanks::Came AbsentRanks::look_into(const PeerRow& peer, u64 key, u64 seq) const noexcept {
  Mapping m;
  const View view = view_of(peer, m);
  Came came{};
  if (view.ok()) {
    came.is_waiting = count_in_flight(view) != 0;
    const GroupRow* g = find_group(view, key);
    const u64 issued = g != nullptr ? get(g->issued) & kSeqMask : 0;
    if (g != nullptr && issued >= seq) {
      came.has_come = true;
      came.unix_ns = issued == seq ? TickClock(view.header()).unix_ns(get(g->enqueued_ticks)) : 0;
    }
  }
  unmap_file(m);
  return came;
}

// One look says nothing of what it uses: until the second one it may compute.
bool AbsentRanks::is_busy(u32 row, i32 pid, u64 now, bool& is_first) noexcept {
  Work& w = work_[row];
  if (w.pid == pid && now < w.looked_ns + kLookApart_ns) {
    is_first = is_first || w.is_first;
    return w.is_busy;
  }
  const ProcessWork work = process_work(pid);
  w.is_first = w.pid != pid || now > w.looked_ns + 10 * kLookApart_ns;
  const u64 used_ns = work.cpu_ns > w.cpu_ns ? work.cpu_ns - w.cpu_ns : 0;
  is_first = is_first || w.is_first;
  // On a machine with too much to do, one that computes has less than its share.
  const bool starves = w.is_runnable && work.is_runnable && used_ns != 0;
  w.is_busy = w.is_first || work.is_blocked || starves || used_ns * kBusyShare >= now - w.looked_ns;
  w.is_runnable = work.is_runnable;
  w.pid = pid;
  w.cpu_ns = work.cpu_ns;
  w.looked_ns = now;
  return w.is_busy;
}

// Where the group's ranks are not known, all of the node count as members.
Here AbsentRanks::look_here(std::span<const u32> ranks, u64 key, u64 seq, u64 now,
                            const PeerRow* asker) noexcept {
  Here here;
  bool is_absent_idle = false;
  u64 came_unix_ns = 0;
  const Control& page = recorder_.control->page();
  for (u32 i = 0; i < kPeers; ++i) {
    const PeerRow& peer = page.peers[i];
    if (!has_row(peer)) {
      continue;
    }
    const i32 rank = peer.rank.load();
    const bool is_member = rank >= 0 && (ranks.empty() || is_in(ranks, rank));
    here.members += is_member ? 1 : 0;
    if (peer.state.load() != kPeerLive || is_dead(peer)) {
      if (is_member) {
        here.is_gone = true;
        here.absent = rank;
      }
      continue;
    }
    const Came came = look_into(peer, key, seq);
    const bool busy = !came.is_waiting && is_busy(i, peer.pid.load(), now, here.is_first);
    here.busy = busy ? rank : here.busy;
    if (!is_member) {
      continue;
    }
    if (came.has_come) {
      ++here.came;
      came_unix_ns = std::max(came_unix_ns, came.unix_ns);
      continue;
    }
    const bool is_asleep = !came.is_waiting && !busy;
    here.is_asleep = here.is_asleep || is_asleep;
    // Named is one that computes, or one that sleeps, before one that waits itself.
    if (!here.is_gone && &peer != asker &&
        (here.absent < 0 || busy || (is_asleep && !is_absent_idle))) {
      here.absent = rank;
      is_absent_idle = is_asleep;
    }
  }
  const u64 unix_now = unix_now_ns();
  here.came_ago_ns = unix_now > came_unix_ns ? unix_now - came_unix_ns : 0;
  return here;
}

AbsentRanks::Node AbsentRanks::look_at_node(u64 now) noexcept {
  Node node;
  for (u32 i = 0; i < kPeers; ++i) {
    const PeerRow& peer = recorder_.control->page().peers[i];
    if (!has_row(peer) || peer.state.load() != kPeerLive || is_dead(peer)) {
      continue;
    }
    Mapping m;
    const View view = view_of(peer, m);
    if (view.ok()) {
      node.progress += get(view.header().head);
      node.is_in_flight = node.is_in_flight || count_in_flight(view) != 0;
    }
    unmap_file(m);
    if (is_busy(i, peer.pid.load(), now, node.is_first)) {
      node.busy = peer.rank.load();
    }
  }
  return node;
}

bool AbsentRanks::look(u64 key, u64 seq, u64 now, Here& to) noexcept {
  unmap_file(kept_);
  kept_ = {};
  for (const PeerRow& peer : recorder_.control->page().peers) {
    if (!has_row(peer)) {
      continue;
    }
    Mapping m;
    const View view = view_of(peer, m);
    const GroupRow* g = find_group(view, key);
    if (g != nullptr && !view.group_ranks(*g).empty()) {
      if (m.fd >= 0) {
        close(m.fd);  // the program may need all that it may have
        m.fd = -1;
      }
      kept_ = m;
      const auto ranks = view.group_ranks(*g);
      to = look_here(ranks, key, seq, now, nullptr);
      to.ranks = ranks;
      to.n_ranks = g->n_ranks.load();
      return true;
    }
    unmap_file(m);
  }
  return false;
}

AbsentRanks::Seen AbsentRanks::look(const RecordCopy& op, u64 now) noexcept {
  const View& view = recorder_.view;
  const GroupRow* group = view.group(op.payload.group);
  Seen seen;
  if (op.payload.kind == FR_LIFECYCLE) {
    seen.others = Others::kAsleep;  // makes or ends a group: nothing is compiled for it
    return seen;
  }
  if (group == nullptr || op.payload.group == 0 || !recorder_.control->is_shared()) {
    return seen;
  }
  const auto ranks = view.group_ranks(*group);
  const u64 key = group_key(view, *group);
  seen.seq = op.payload.kind == FR_COLLECTIVE ? op.payload.seq : kNoSeq;
  const Here here = look_here(ranks, key, seen.seq, now, recorder_.control->own());
  const u64 own_unix_ns = TickClock(view.header()).unix_ns(op.payload.ticks);
  const u64 unix_now = unix_now_ns();
  seen.came_ago_ns =
      std::min(here.came_ago_ns, unix_now > own_unix_ns ? unix_now - own_unix_ns : 0);
  seen.absent = here.absent;
  seen.busy = here.busy;
  const i32 members = group->n_ranks.load();
  const bool is_all = members > 0 && static_cast<i32>(here.members) >= members;
  seen.key = !is_all && !ranks.empty() ? key : 0;
  const bool is_count = is_all && op.payload.kind == FR_COLLECTIVE && here.members > here.came;
  seen.more_absent = is_count ? here.members - here.came - 1 : 0;
  if (here.is_gone) {
    seen.others = Others::kGone;
  } else if (here.came == here.members) {
    seen.others = is_all ? Others::kCame : Others::kUnseen;
  } else if (here.busy >= 0) {
    seen.others = Others::kBusy;
  } else if (here.is_asleep || (is_all && members == view.header().world_size.load())) {
    seen.others = Others::kAsleep;
  }
  return seen;
}

}  // namespace fr
