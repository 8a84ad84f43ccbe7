// events.cpp - the plugin's callbacks, by type of event.
#include "nccl/tracker/state.hpp"

namespace fr::nccl {
namespace {

u32 word_id(const Tracker& s, const char* text) noexcept {
  if (text != nullptr) {
    for (const Name& word : s.words) {
      if (word.text != nullptr && is_same(word.text, text)) {
        return word.id;
      }
    }
  }
  return 0;
}

void list_in(Tracker& s, Handle group, u32 op_slot) noexcept {
  ApiGroup* g = find_group(s, group);
  if (g == nullptr) {
    return;
  }
  OpPrivate& p = s.op[op_slot];
  const u32 mine = static_cast<u32>(group);  // generation and slot
  if (p.group.exchange(mine, kRelaxed) == mine) {
    return;  // another part of it is there already
  }
  p.next.store(g->first.load(kRelaxed), kRelaxed);
  g->first.store(op_slot + 1, kRelease);
}

u32 directions_of(Func func) noexcept {
  switch (func) {
    case Func::kSend:
      return kSends;
    case Func::kRecv:
      return kReceives;
    case Func::kAllToAll:
    case Func::kGather:
    case Func::kScatter:
      return kSends | kReceives;
    default:
      return 0;
  }
}

// NCCL's kernel does a send and a receive of one group at once, and reports their end when its first
// warp is through with its one (seen with 2.28.9: a receive "ended" that its peer had not sent). So
// those of a group in which its communicator does both do not end by their kernels.
void note_directions(Tracker& s, Handle group, u32 slot, Func func) noexcept {
  const u32 own = directions_of(func);
  if (own == 0) {
    return;
  }
  const u32 comm = s.ops[slot].comm.load(kRelaxed);
  u32 all = s.op[slot].directions.fetch_or(own, kRelaxed) | own;
  bool marked = false;  // already: what else there is of the communicator is, too
  each_op(s, group, [&](u32 other) {
    const u32 of_other = s.op[other].directions.load(kRelaxed);
    if (other == slot || of_other == 0 || s.ops[other].comm.load(kRelaxed) != comm) {
      return true;
    }
    marked = (s.ops[other].flags.load(kRelaxed) & kDevNoKernels) != 0;
    all |= of_other;
    return false;  // as long as none is marked all of them do the same
  });
  if (marked) {
    s.ops[slot].flags.fetch_or(kDevNoKernels, kRelaxed);
  } else if (all == (kSends | kReceives)) {
    each_op(s, group, [&](u32 other) {
      if (s.ops[other].comm.load(kRelaxed) == comm && s.op[other].directions.load(kRelaxed) != 0) {
        s.ops[other].flags.fetch_or(kDevNoKernels, kRelaxed);
      }
      return true;
    });
  }
}

// A device takes about a thousand launches ahead. If more have passed and no kernel was ever
// reported, this library reports none: its operations are not in flight for ever.
constexpr u64 kSilent = 2048;

void give_up(Tracker& s, u32 comm) noexcept {
  s.comm[comm].events.fetch_and(~u32{kEvKernelCh}, kRelaxed);
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const u32 claim = s.ops[slot].claim.load(kAcquire);
    if ((claim & 1) != 0 && s.ops[slot].comm.load(kRelaxed) == comm &&
        s.ops[slot].launched_ticks.load(kRelaxed) != 0 &&
        (s.ops[slot].flags.load(kRelaxed) & kDevTimed) == 0) {
      finish(s, slot, claim >> 1 & kGenerationMask, State::kReleased, 0, 0);
    }
  }
}

// The oldest that is not launched; released: one that was released, the report of its launch is
// late.
DeviceOp* match_op(Tracker& s, u32 comm, const Call& call, bool released, u32& found) noexcept {
  const bool p2p = is_p2p(call);
  u64 oldest = ~0ull;
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const DeviceOp& op = s.ops[slot];
    const OpPrivate& p = s.op[slot];
    const bool in_use = (op.claim.load(kAcquire) & 1) != 0;
    if (in_use == released || op.comm.load(kRelaxed) != comm ||
        op.parts_launched.load(kRelaxed) >= op.parts.load(kRelaxed) ||
        p.func.load(kRelaxed) != static_cast<u32>(call.func) ||
        op.ticket.load(kRelaxed) >= oldest) {
      continue;
    }
    const bool adopted = (op.flags.load(kRelaxed) & kDevAdopted) != 0;
    if (!adopted &&
        (p2p ? p.peer.load(kRelaxed) != call.peer
             : p.send.load(kRelaxed) != call.send || p.recv.load(kRelaxed) != call.recv)) {
      continue;
    }
    oldest = op.ticket.load(kRelaxed);
    found = slot;
  }
  if (oldest == ~0ull) {
    return nullptr;
  }
  return released ? task_late(s, found, generation_at(s, found)) : &s.ops[found];
}

// Up to version 4 nothing ties a launch to its call but what it is about.
DeviceOp* match_op(Tracker& s, u32 comm, const Call& call, u32& found) noexcept {
  DeviceOp* op = match_op(s, comm, call, false, found);
  return op != nullptr ? op : match_op(s, comm, call, true, found);
}

}  // namespace

Handle other_start() noexcept {
  const Tracker* s = tracker_in_force();
  return s != nullptr ? make(*s, kOtherHandle, 0, 0) : u64{1} << 48 | u64{kOtherHandle} << 44;
}

Handle group_api_start(Handle context, bool captured) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr || comm_of(*s, context) == kNoComm) {
    return other_start();
  }
  // One operation late; for captures that are not begun through a call that is hooked.
  if (s->capture_reported.load(kRelaxed) != captured) [[unlikely]] {
    s->capture_reported.store(captured, kRelaxed);
    apply_mask(*s);
  }
  const u32 slot = claim_row(s->groups, kApiGroups, 0, s->group_cursor);
  if (slot == kApiGroups) {
    count(s->device->ops_lost);
    return other_start();
  }
  s->groups[slot].first.store(0, kRelaxed);
  return make(*s, kGroupHandle, slot, s->groups[slot].claim.load(kRelaxed) >> 1);
}

void group_api_stop(Handle group) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr) {
    return;
  }
  each_op(*s, group, [&](u32 slot) {
    // A non-blocking communicator launches afterwards, a group that failed never: wrappers know.
    if (!has(s->op[slot], kWrapped)) {
      mark_launched(*s, slot);
      settle_slot(*s, slot, generation_at(*s, slot));
    }
    return true;
  });
  if (!release_row(s->groups[slot_of(group) % kApiGroups], generation_of(group))) {
    count(s->device->stale_handles);
  }
}

Handle api_start(Handle context, Handle group, const Call& call) noexcept {
  Tracker* s = tracker_in_force();
  const u32 comm = s != nullptr ? comm_of(*s, context) : kNoComm;
  if (comm == kNoComm) {
    return other_start();
  }
  Thread* t = own_thread(*s);
  if (t != nullptr && t->unlinked != nullptr && s->comm[comm].linked.load(kRelaxed) == 0) {
    s->comm[comm].nccl_comm.store(t->unlinked);
    s->comm[comm].linked.store(1);
    t->unlinked = nullptr;
  }
  if (call.captured) {
    issued_in_capture(*s);
  }
  u32 slot = 0;
  DeviceOp* op = current_op(*s, t, comm, call, slot);
  Handle handle = 0;
  if (op != nullptr) {
    // The wrapper counted one part for its call; what a call is split into is counted here.
    if (t->current_parts++ > 0) {
      op->parts.fetch_add(1, kRelaxed);
    }
    if (call.captured) {
      mark_captured(*s, slot);
    }
    if (call.stream != nullptr) {
      op->stream.store(reinterpret_cast<u64>(call.stream), kRelaxed);
    }
    handle = make(*s, kApiHandle, slot, generation_at(*s, slot));
  } else if (t != nullptr && t->n_scopes > 0 && t->n_scopes <= kScopes) {
    // A framework's call reached the library past our wrappers.
    auto& scope = t->scope[t->n_scopes - 1];
    if (find_op(*s, scope.op, slot) != nullptr) {
      s->ops[slot].parts.fetch_add(1, kRelaxed);
    } else {
      scope.op = begin_op(*s, comm, call, scope.ticket, 0);
      slot = slot_of(scope.op);
    }
    handle = scope.op;
  } else if (is_p2p(call)) {
    // The peer is reported with its launch: the record is made then, the row says it was issued.
    slot = claim_op(*s, comm, call, kDevP2p);
    if (slot == kDeviceOps) {
      return make(*s, kApiHandle, kNoSlot, 0);
    }
    if (call.captured) {
      mark_captured(*s, slot);
    }
    keep_ticket(s->op[slot], fr_ticket{});
    publish_op(*s, slot, kClosed);
    handle = make(*s, kApiHandle, slot, generation_at(*s, slot));
  } else {
    handle = begin_op(*s, comm, call, fr_ticket{}, kClosed);
    slot = slot_of(handle);
  }
  if (handle == 0) {
    return make(*s, kApiHandle, kNoSlot, 0);
  }
  list_in(*s, group, slot);
  note_directions(*s, group, slot, call.func);
  return handle;
}

Handle launch_start(Handle context, Handle group) noexcept {
  Tracker* s = tracker_in_force();
  const u32 comm = s != nullptr ? comm_of(*s, context) : kNoComm;
  if (comm != kNoComm) {
    each_op(*s, group, [&](u32 slot) {
      if (s->ops[slot].comm.load(kRelaxed) == comm) {
        mark_launching(*s, slot);
      }
      return true;
    });
  }
  return other_start();
}

Handle task_start(Handle context, Handle parent, const Call& call, u32 channels, const char* algo,
                  const char* proto) noexcept {
  Tracker* s = tracker_in_force();
  const u32 comm = s != nullptr ? comm_of(*s, context) : kNoComm;
  if (comm == kNoComm) {
    return other_start();
  }
  if (s->comm[comm].launched.fetch_add(1, kRelaxed) >= kSilent && sees_kernels(*s, comm) &&
      s->comm[comm].kernels_seen.load(kRelaxed) == 0) [[unlikely]] {
    give_up(*s, comm);
  }
  u32 slot = 0;
  DeviceOp* op = nullptr;
  bool first_seen = false;
  if (parent != 0 && is_own(*s, parent) && kind_of(parent) == kApiHandle) {
    op = find_op(*s, parent, slot);
    if (op == nullptr) {
      return other_start();  // a replay of a capture long forgotten; counted as stale
    }
    if ((op->flags.load(kRelaxed) & kDevCaptured) != 0) {
      op->parts_launched.fetch_add(1, kRelaxed);  // counts the replays
      return make(*s, kTaskHandle, slot, generation_of(parent));
    }
    const bool over = (op->claim.load(kAcquire) & 1) == 0;
    if ((over || (op->flags.load(kRelaxed) & kDevUnseen) != 0) && sees_end(*s, comm) &&
        !is_alone(*s, comm) && task_late(*s, slot, generation_of(parent)) == nullptr) {
      return other_start();
    }
    if (s->op[slot].ticket.load(kRelaxed) == 0) {
      const bool unseen = !sees_end(*s, comm) || is_alone(*s, comm);
      const fr_ticket t = begin_record(*s, comm, call, unseen);
      keep_ticket(s->op[slot], t);
      s->op[slot].peer.store(call.peer, kRelaxed);
      op->ticket.store(t.ticket != kNoTicket ? t.ticket : 0, kRelaxed);
      if (unseen) {
        op->flags.fetch_or(kDevUnseen, kRelaxed);
      }
    }
  } else {
    op = current_op(*s, own_thread(*s), comm, call, slot);
    if (op == nullptr || op->parts_launched.load(kRelaxed) >= op->parts.load(kRelaxed)) {
      op = match_op(*s, comm, call, slot);
    }
    if (op == nullptr) {
      // Its caller is not wrapped: the launch is the first that is seen of it.
      const Handle handle = begin_op(*s, comm, call, fr_ticket{}, kClosed);
      if (handle == 0) {
        return other_start();
      }
      slot = slot_of(handle);
      op = &s->ops[slot];
      first_seen = true;
      count(s->device->unmatched);
    }
  }
  // The rank copies what it sends itself without kernel channels and without the network, whatever
  // is announced.
  const bool to_itself =
      is_p2p(call) && call.peer >= 0 && call.peer == s->comms[comm].rank.load(kRelaxed);
  if (to_itself) {
    sent_to_itself(*s, slot);
  } else {
    op->channels.fetch_add(channels, kRelaxed);
  }
  op->algorithm.store(word_id(*s, algo), kRelaxed);
  op->protocol.store(word_id(*s, proto), kRelaxed);
  mark_launched(*s, slot);
  op->parts_launched.fetch_add(1, kRelease);
  if (to_itself && first_seen) {
    settle_slot(*s, slot, generation_at(*s, slot));  // nothing else does
  }
  return make(*s, kTaskHandle, slot, generation_at(*s, slot));
}

Handle ce_start(Handle context, Handle parent, const Call& call) noexcept {
  const Handle handle = task_start(context, parent, call, 0, "CE", nullptr);
  Tracker* s = tracker_in_force();
  u32 slot = 0;
  // Copy engines run no kernel with an end to report: the operation is settled when its call ends.
  if (s != nullptr && kind_of(handle) == kTaskHandle && find_op(*s, handle, slot) != nullptr) {
    s->ops[slot].flags.fetch_or(kDevUnseen, kRelaxed);
    if (parent == 0 || kind_of(parent) != kApiHandle) {
      settle_slot(*s, slot, generation_of(handle));
    }
  }
  return handle;
}

}  // namespace fr::nccl
