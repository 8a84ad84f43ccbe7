// transfers.cpp - network transfers: steps, what the oldest unfinished one waits for.
#include "nccl/tracker/state.hpp"

namespace fr::nccl {
namespace {

// The operation a transfer is of, kDeviceOps when its row is another one's by now.
u32 op_of(const Tracker& s, const Phase& f) noexcept {
  const u32 op = f.op.load(kRelaxed);
  return op != 0 && s.ops[op - 1].ticket.load(kRelaxed) == f.ticket.load(kRelaxed) ? op - 1
                                                                                   : kDeviceOps;
}

// Its kernel filled or took a buffer: it runs.
void kernel_moved(Tracker& s, const Phase& f) noexcept {
  const u32 op = op_of(s, f);
  if (op != kDeviceOps && s.ops[op].started_ticks.load(kRelaxed) == 0 &&
      !sees_kernels(s, s.ops[op])) {
    mark_started(s, op, generation_at(s, op), 0);
  }
}

void set_wait(Tracker& s, Phase& f, u32 step, Wait wait) noexcept {
  const u32 shift = 4 * (step % 8);
  const u32 before = f.waits.load(kRelaxed);
  const u32 after = (before & ~(15u << shift)) | static_cast<u32>(wait) << shift;
  if (after != before) {  // reported again at every poll while it waits
    f.waits.store(after, kRelaxed);
    f.ticks.store(ticks_now(s.hot->clock), kRelaxed);
  }
}

// Up to version 3: the kernel has filled all before step `end`, and what of them was not sent needs
// room at the peer. Version 1 counts smaller steps than slices, so several may be meant.
void filled_up_to(Tracker& s, Phase& f, u32 end) noexcept {
  const u32 next = f.next_step.load(kRelaxed);
  const u32 first = end > 8 && next < end - 8 ? end - 8 : next;
  for (u32 step = first; step < end; ++step) {
    if ((f.waits.load(kRelaxed) >> 4 * (step % 8) & 15) == static_cast<u32>(Wait::kOwnKernel)) {
      set_wait(s, f, step, Wait::kPeerCredit);
    }
  }
  kernel_moved(s, f);
}

void channel_ended(Tracker& s, u32 slot, u32 generation) noexcept {
  DeviceOp& op = s.ops[slot];
  if ((op.claim.load(kAcquire) >> 1 & kGenerationMask) != generation) {
    count(s.device->stale_handles);
    return;
  }
  s.op[slot].last_end_ticks.store(ticks_now(s.hot->clock), kRelaxed);
  op.channels_ended.fetch_add(1, kRelease);
  try_complete(s, slot, generation, false);
}

void kernel_stamp(Tracker& s, Phase& f, u64 device_ns) noexcept {
  if (device_ns == 0) {
    return;
  }
  f.second.store(device_ns, kRelaxed);
  if (const u32 slot = f.op.load(kRelaxed); slot != 0) {
    std::atomic<u64>& end = s.ops[slot - 1].device_end_ns;
    if (end.load(kRelaxed) < device_ns) {
      end.store(device_ns, kRelaxed);
    }
  }
  // The host learns of it some time after: the least lag seen is the best offset.
  const i64 offset = static_cast<i64>(monotonic_ns() - device_ns);
  const i64 best = s.device->clock_offset_ns.load(kRelaxed);
  if (best == 0 || offset < best) {
    s.device->clock_offset_ns.store(offset, kRelaxed);
  }
}

// The handle of another process's operation; 0 where it is none of fr's.
u64 named_by(Handle parent) noexcept {
  const Kind kind = kind_of(parent);
  return parent >> 48 != 0 && (kind == kApiHandle || kind == kTaskHandle) ? parent : 0;
}

// A row, kPhases when there is none. op: + 1, 0 of another process; n_steps: of a kernel's channel the
// operation's generation, see stop().
u32 begin_phase(Tracker& s, u32 op, u64 ticket, u32 what, i32 peer, u32 n_steps, u32 pid,
                u64 first) noexcept {
  const u32 slot = claim_row(s.phases, kPhases, 0, s.phase_cursor);
  if (slot == kPhases) {
    count(s.device->phases_lost);
    if (op != 0 && (what & 0xff) != kPhaseKernel) {
      s.ops[op - 1].flags.fetch_or(kDevTransfersLost, kRelaxed);
    }
    return slot;
  }
  Phase& f = s.phases[slot];
  f.op.store(op, kRelaxed);
  f.ticket.store(ticket, kRelaxed);
  f.ticks.store(ticks_now(s.hot->clock), kRelaxed);
  f.what.store(what, kRelaxed);
  f.peer.store(peer, kRelaxed);
  f.n_steps.store(n_steps, kRelaxed);
  clear(f.next_step, f.waits);
  f.pid.store(pid, kRelaxed);
  f.first.store(first, kRelaxed);
  f.second.store(0, kRelease);
  return slot;
}

// nullptr where there is nothing to note: not recording, no handle, or another process's.
Tracker* state_for(Handle handle) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr || handle == 0) {
    return nullptr;
  }
  if (!is_own(*s, handle)) {
    count(s->device->foreign_handles);
    return nullptr;
  }
  return s;
}

}  // namespace

Handle transfer_start(Handle parent, i32 pid, u32 channel, i32 peer, u32 n_steps,
                      bool is_send) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr) {
    return other_start();
  }
  u32 op_slot = 0;
  DeviceOp* op = nullptr;
  const bool foreign = pid != 0 && pid != s->pid;
  if (foreign) {
    count(s->device->foreign_handles);
  } else {
    op = find_op(*s, parent, op_slot);
    if (op == nullptr) {
      return other_start();
    }
  }
  const u64 ticket = op != nullptr ? op->ticket.load(kRelaxed) : foreign ? named_by(parent) : 0;
  const u32 slot = begin_phase(*s, op != nullptr ? op_slot + 1 : 0, ticket,
                               (is_send ? kPhaseSend : kPhaseRecv) | channel << 8, peer, n_steps,
                               foreign ? static_cast<u32>(pid) : 0, 0);
  if (slot == kPhases) {
    return other_start();
  }
  if (op != nullptr) {
    op->transfers_started.fetch_add(1, kRelaxed);
    s->comm[op->comm.load(kRelaxed) % kComms].transfers_seen.store(1, kRelaxed);
  }
  return make(*s, kTransferHandle, slot, s->phases[slot].claim.load(kRelaxed) >> 1);
}

Handle step_start(Handle transfer, u32 step) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr || !is_own(*s, transfer) || kind_of(transfer) != kTransferHandle) {
    return other_start();
  }
  Phase* f = find_phase(*s, transfer);
  if (f == nullptr) {
    return other_start();
  }
  const u32 before = f->waits.load(kRelaxed) >> 4 * (step % 8) & 15;
  if (before == 0) {  // not when it is reported again
    set_wait(*s, *f, step,
             (f->what.load(kRelaxed) & 0xff) == kPhaseRecv ? Wait::kData : Wait::kPosted);
  }
  return make(*s, kStepHandle, slot_of(transfer), generation_of(transfer), step);
}

Handle net_start(Handle step, i64 id, const void* data) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr || data == nullptr || !is_own(*s, step) || kind_of(step) != kStepHandle) {
    return other_start();
  }
  u64 word = 0;
  if (id == kNetIb1) {
    const auto& d = *static_cast<const NetIb1*>(data);
    word = d.type == kNetQp ? net_word(Net::kIb, static_cast<u32>(d.request.device),
                                       static_cast<u32>(d.request.qp))
                            : 0;
  } else if (id == kNetSocket1) {
    const auto& d = *static_cast<const NetSocket1*>(data);
    word = d.type == kNetSocket ? net_word(Net::kSocket, 0, static_cast<u32>(d.transfer.fd)) : 0;
  }
  if (word != 0) {  // other plugins' events are their own
    if (Phase* f = find_phase(*s, step)) {
      f->second.store(word, kRelaxed);
    }
  }
  return other_start();
}

Handle kernel_start(Handle parent, u32 channel, u64 device_ns) noexcept {
  Tracker* s = tracker_in_force();
  u32 op_slot = 0;
  DeviceOp* op = s != nullptr ? find_op(*s, parent, op_slot) : nullptr;
  if (op == nullptr || !sees_kernels(*s, *op)) {
    return other_start();
  }
  const u32 generation = generation_of(parent);
  s->comm[op->comm.load(kRelaxed) % kComms].kernels_seen.store(1, kRelaxed);
  op->channels_started.fetch_add(1, kRelaxed);
  mark_started(*s, op_slot, generation, device_ns);
  const u32 slot = begin_phase(*s, op_slot + 1, op->ticket.load(kRelaxed),
                               kPhaseKernel | channel << 8, -1, generation, 0, device_ns);
  if (slot == kPhases) {
    return make(*s, kTaskHandle, op_slot, generation, 1);  // step 1: its stop ends a channel
  }
  return make(*s, kKernelHandle, slot, s->phases[slot].claim.load(kRelaxed) >> 1);
}

void state(Handle handle, int event_state, u64 bytes_or_ns, u32 step) noexcept {
  Tracker* s = state_for(handle);
  if (s == nullptr) {
    return;
  }
  const Kind kind = kind_of(handle);
  if (kind == kGroupHandle) {
    if (event_state == kStGroupEndApiStart) {
      each_op(*s, handle, [&](u32 slot) {
        mark_launching(*s, slot);
        return true;
      });
    }
    return;
  }
  if (kind != kStepHandle && kind != kTransferHandle && kind != kKernelHandle) {
    return;
  }
  Phase* f = find_phase(*s, handle);
  if (f == nullptr) {
    return;
  }
  if (kind == kKernelHandle) {
    if (event_state == kStKernelChStop) {
      kernel_stamp(*s, *f, bytes_or_ns);
    }
    return;
  }
  if (kind == kTransferHandle) {
    if (event_state == kStSendRemFifoWait) {
      filled_up_to(*s, *f, step);
    }
    return;
  }
  step = step_of(handle);
  switch (event_state) {
    case kStStepSendGpuWait:
      set_wait(*s, *f, step, Wait::kOwnKernel);
      break;
    case kStStepSendPeerWait:  // filled by the kernel
      set_wait(*s, *f, step, Wait::kPeerCredit);
      kernel_moved(*s, *f);
      break;
    case kStStepSendWait:
      f->first.fetch_add(bytes_or_ns, kRelaxed);
      set_wait(*s, *f, step, Wait::kInFlight);
      kernel_moved(*s, *f);
      break;
    case kStStepRecvWait:
      set_wait(*s, *f, step, Wait::kData);
      break;
    case kStStepRecvFlushWait:
      f->first.fetch_add(bytes_or_ns, kRelaxed);
      set_wait(*s, *f, step, Wait::kFlush);
      break;
    case kStStepRecvGpuWait:
      set_wait(*s, *f, step, Wait::kOwnKernelTakes);
      break;
    default:
      break;
  }
}

void stop(Handle handle) noexcept {
  Tracker* s = state_for(handle);
  if (s == nullptr) {
    return;
  }
  switch (kind_of(handle)) {
    case kGroupHandle:
      group_api_stop(handle);
      return;
    case kStepHandle:
      if (Phase* f = find_phase(*s, handle)) {
        set_wait(*s, *f, step_of(handle), Wait::kNone);
        kernel_moved(*s, *f);  // it filled or took what this step moved
        // the handle has the step's low bits only
        const u32 next = f->next_step.load(kRelaxed);
        const u32 ahead = (step_of(handle) + 1 - next) & kStepMask;
        if (ahead < kStepMask / 2) {
          f->next_step.store(next + ahead, kRelaxed);
        }
      }
      return;
    case kTransferHandle:
      if (Phase* f = find_phase(*s, handle)) {
        const u32 op = op_of(*s, *f);
        const u64 now = ticks_now(s->hot->clock);
        f->ticks.store(now, kRelaxed);
        if (release_row(*f, generation_of(handle)) && op != kDeviceOps) {
          s->op[op].last_transfer_ticks.store(now, kRelaxed);
          s->ops[op].transfers_ended.fetch_add(1, kRelease);
          if (s->ops[op].channels_ended.load(kRelaxed) != 0) {
            try_complete(*s, op, generation_at(*s, op), false);  // which has waited for it
          }
        }
      }
      return;
    case kKernelHandle:
      if (Phase* f = find_phase(*s, handle)) {
        const u32 op = f->op.load(kRelaxed);
        const u32 generation = f->n_steps.load(kRelaxed);
        f->ticks.store(ticks_now(s->hot->clock), kRelaxed);
        if (release_row(*f, generation_of(handle)) && op != 0) {
          channel_ended(*s, op - 1, generation);
        }
      }
      return;
    case kTaskHandle:
      if (step_of(handle) != 0 && slot_of(handle) < kDeviceOps) {
        channel_ended(*s, slot_of(handle), generation_of(handle));
      }
      return;
    default:
      return;  // nothing ends with it
  }
}

}  // namespace fr::nccl
