// absent.cpp - a look at the other ranks of this node.
#include "watch/absent.hpp"

#include <algorithm>
#include <climits>

#include "format/text.hpp"
#include "fr/fr.h"
#include "recorder/in_flight.hpp"
#include "recorder/recorder.hpp"
#include "sample/map_file.hpp"
#include "sample/proc_task.hpp"
#include "watch/control_page.hpp"

namespace fr {
namespace {

constexpr u64 kLookApart_ns = 900'000'000;
constexpr u64 kBusyShare = 10;  // computes where it used a tenth of a processor

// {first, count, stride}...; none captured: all.
bool contains(std::span<const u32> runs, i32 rank) noexcept {
  if (runs.empty()) {
    return true;
  }
  for (std::size_t w = 0; w + 2 < runs.size(); w += 3) {
    const i32 behind = rank - static_cast<i32>(runs[w]);
    const i32 stride = std::max(static_cast<i32>(runs[w + 2]), 1);
    if (behind >= 0 && behind % stride == 0 && behind / stride < static_cast<i32>(runs[w + 1])) {
      return true;
    }
  }
  return false;
}

}  // namespace

AbsentRanks::Came AbsentRanks::look_into(const PeerRow& peer, const RecordCopy& op) noexcept {
  char path[PATH_MAX];
  format(path, sizeof path, "%s/%s", recorder_.region.dir.c_str(), peer.ring);
  Mapping m = map_file(path);
  const View view = View::of(m.base, m.bytes);
  Came came{};
  if (view.ok()) {
    const GroupRow& own = *recorder_.view.group(op.payload.group);
    const std::string_view name = recorder_.view.string(own.name.load());
    came.is_waiting = count_in_flight(view) != 0;
    for (u32 i = 1; i < view.n_groups(); ++i) {
      const GroupRow& g = *view.group(i);
      const u64 issued = get(g.issued) & kSeqMask;
      if (get(g.destroyed_ticks) == 0 && g.instance == own.instance &&
          view.string(g.name.load()) == name && issued >= op.payload.seq) {
        came.has_come = op.payload.kind == FR_COLLECTIVE;
        came.unix_ns = issued == op.payload.seq
                           ? TickClock(view.header()).unix_ns(get(g.enqueued_ticks))
                           : 0;  // long ago: it went on to later ones
      }
    }
  }
  unmap_file(m);
  return came;
}

// One look says nothing of what it uses: until the second one it may compute.
bool AbsentRanks::is_busy(u32 row, i32 pid, u64 now) noexcept {
  Work& w = work_[row];
  if (w.pid == pid && now < w.looked_ns + kLookApart_ns) {
    return w.is_busy;
  }
  const ProcessWork work = process_work(pid);
  const bool is_first = w.pid != pid || now > w.looked_ns + 10 * kLookApart_ns;
  const u64 used_ns = work.cpu_ns > w.cpu_ns ? work.cpu_ns - w.cpu_ns : 0;
  w.is_busy = is_first || work.is_blocked || used_ns * kBusyShare >= now - w.looked_ns;
  w.pid = pid;
  w.cpu_ns = work.cpu_ns;
  w.looked_ns = now;
  return w.is_busy;
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
  const TickClock clock(view.header());
  seen.came_unix_ns = clock.unix_ns(op.payload.ticks);
  i32 here = 1;
  bool all_came = op.payload.kind == FR_COLLECTIVE;
  bool is_asleep = false;
  const Control& page = recorder_.control->page();
  for (u32 i = 0; i < kPeers; ++i) {
    const PeerRow& peer = page.peers[i];
    const u32 state = peer.state.load(std::memory_order_acquire);
    const i32 rank = peer.rank.load();
    if (&peer == recorder_.control->own() || state == kPeerFree || state == kPeerClaimed) {
      continue;
    }
    const bool is_member = rank >= 0 && contains(ranks, rank);
    here += is_member ? 1 : 0;
    if (state != kPeerLive || is_dead(peer)) {
      if (is_member) {
        seen.others = Others::kGone;
        seen.absent = rank;
      }
      continue;
    }
    const Came came = look_into(peer, op);
    const bool busy = !came.is_waiting && is_busy(i, peer.pid.load(), now);
    seen.busy = busy ? rank : seen.busy;
    if (!is_member) {
      continue;
    }
    if (came.has_come) {
      seen.came_unix_ns = std::max(seen.came_unix_ns, came.unix_ns);
      continue;
    }
    all_came = false;
    is_asleep = is_asleep || (!came.is_waiting && !busy);
    seen.absent = seen.absent < 0 || busy ? rank : seen.absent;
  }
  if (seen.others == Others::kGone) {
    return seen;
  }
  const i32 members = group->n_ranks.load();
  const bool is_all = members > 0 && here >= members;
  const bool is_whole_job = is_all && members == view.header().world_size.load();
  if (all_came) {
    seen.others = is_all ? Others::kCame : Others::kUnseen;
  } else if (seen.busy >= 0) {
    seen.others = Others::kBusy;
  } else if (is_asleep || is_whole_job) {
    seen.others = Others::kAsleep;
  }
  return seen;
}

}  // namespace fr
