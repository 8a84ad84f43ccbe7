#include "format/codes.hpp"
#include "format/packer.hpp"
#include "record/hash.hpp"

namespace fr::packing {
namespace {

// What fr's own thread for CUDA is doing; nil: there is none.
void pack_observer(Packer& p, const View& view, const Times& times) {
  const Cuda* c = view.cuda();
  text(p, "observer");
  if (c == nullptr || c->observer_tid.load() == 0) {
    p.pack_nil();
    return;
  }
  // The id first: since is then of this call or of a later one, never of an earlier.
  const u32 call = c->call.load(std::memory_order_acquire);
  p.pack_map(6);
  key_uint(p, "tid", c->observer_tid.load());
  text(p, "call");
  text(p, view.string(call));
  text(p, "since");
  times.ticks(p, call != 0 ? get(c->call_ticks) : 0);
  text(p, "polled");
  times.ticks(p, get(c->polled_ticks));
  key_uint(p, "pairs", c->pairs.load());
  key_uint(p, "timed", get(c->timed));
}

// The first asynchronous error of CUDA; nil: none was seen.
void pack_cuda_error(Packer& p, const View& view, const Times& times) {
  const Cuda* c = view.cuda();
  text(p, "error");
  if (c == nullptr || c->error_ready.load(std::memory_order_acquire) == 0) {
    p.pack_nil();
    return;
  }
  p.pack_map(8);
  text(p, "code");
  p.pack_int32(c->error_code.load());
  text(p, "name");
  text(p, view.string(c->error_name.load()));
  text(p, "text");
  text(p, view.string(c->error_text.load()));
  text(p, "call");
  text(p, view.string(c->error_call.load()));
  text(p, "ticket");
  if (const u64 ticket = get(c->error_ticket)) {
    p.pack_uint64(ticket - 1);
  } else {
    p.pack_nil();
  }
  text(p, "time");
  times.ticks(p, get(c->error_ticks));
  key_uint(p, "tid", c->error_tid.load());
  key_uint(p, "stack", c->error_stack.load());
}

// The device's clock counts ns too; the offset to the host's monotonic clock is an upper bound, the
// best of all completions seen.
struct DeviceTimes {
  const Times& times;
  i64 offset_ns;   // host monotonic - device; 0 unknown
  i64 to_unix_ns;  // unix - host monotonic

  void pack(Packer& p, u64 device_ns) const {
    times.unix_ns(p, device_ns == 0 || offset_ns == 0
                         ? 0
                         : device_ns + static_cast<u64>(offset_ns + to_unix_ns));
  }
  // CUDA events' times are the host's monotonic clock already.
  void pack_host(Packer& p, u64 host_ns) const {
    times.unix_ns(p, host_ns == 0 ? 0 : host_ns + static_cast<u64>(to_unix_ns));
  }
};

void pack_device_op(Packer& p, u32 id, const DeviceOpCopy& o, const DeviceTimes& d) {
  p.pack_array(22);
  p.pack_uint32(id);
  if (o.ticket == 0) {
    p.pack_nil();
  } else {
    p.pack_uint64(o.ticket - 1);
  }
  p.pack_uint32(o.comm);
  text(p, o.ended_ticks != 0       ? (o.flags & kDevFailed) != 0 ? "failed" : "completed"
          : o.started_ticks != 0   ? "started"
          : o.launched_ticks != 0  ? "launched"
          : o.launching_ticks != 0 ? "launching"
                                   : "scheduled");
  p.pack_uint32(o.flags);
  p.pack_uint64(o.stream);
  d.times.ticks(p, o.launching_ticks);
  d.times.ticks(p, o.launched_ticks);
  d.times.ticks(p, o.started_ticks);
  d.times.ticks(p, o.ended_ticks);
  if ((o.flags & kDevHostTimes) != 0) {
    d.pack_host(p, o.device_start_ns);
    d.pack_host(p, o.device_end_ns);
  } else {
    d.pack(p, o.device_start_ns);
    d.pack(p, o.device_end_ns);
  }
  p.pack_uint32(o.channels);
  p.pack_uint32(o.channels_started);
  p.pack_uint32(o.channels_ended);
  p.pack_uint32(o.transfers_started);
  p.pack_uint32(o.transfers_ended);
  p.pack_uint32(o.algorithm);
  p.pack_uint32(o.protocol);
  p.pack_uint32(o.parts);
  p.pack_uint32(o.parts_launched);
  p.pack_uint32(o.claim >> 1 & 0xfffff);  // as much of it as handles hold
}

void pack_phase(Packer& p, const PhaseCopy& f, const DeviceTimes& d) {
  const bool kernel = f.kind == kPhaseKernel;
  p.pack_array(22);
  p.pack_int64(static_cast<i64>(f.op) - 1);
  if (f.op == 0 || f.ticket == 0) {
    p.pack_nil();
  } else {
    p.pack_uint64(f.ticket - 1);
  }
  text(p, phase_kind_name(f.kind));
  p.pack_uint32(f.channel);
  p.pack_int32(f.peer);
  // What a transfer was waiting for stays readable when its communicator was ended under it.
  const Wait wait = f.wait();
  text(p, kernel                ? f.is_live() ? "running" : "ended"
          : wait != Wait::kNone ? wait_name(wait)
          : f.is_live()         ? "idle"
                                : "ended");
  p.pack_uint32(f.oldest_step());
  p.pack_uint32(f.n_steps);
  p.pack_uint32(f.next_step);
  d.times.ticks(p, f.ticks);
  p.pack_uint64(kernel ? 0 : f.first);
  d.pack(p, kernel ? f.first : 0);
  d.pack(p, kernel ? f.second : 0);
  p.pack_uint32(f.pid);
  p.pack_uint32(f.claim >> 1);
  p.pack_uint32(f.claim & 1);
  const auto known = [&p](bool told, u32 value) {
    if (told) {
      p.pack_uint32(value);
    } else {
      p.pack_nil();
    }
  };
  known(f.net() == Net::kIb, f.net_device());
  known(f.net() == Net::kIb, f.net_number());
  known(f.net() == Net::kSocket, f.net_number());
  const bool named = f.op == 0 && f.ticket != 0;
  const HandleParts other = handle_parts(f.ticket);
  known(named, other.process);
  known(named, other.op);
  known(named, other.generation);
}

}  // namespace

// What the device library reports. nil where none was asked.
void pack_device(Packer& p, const View& view, const Times& times) {
  text(p, "device");
  const Device* device = view.device();
  if (!view.has_device()) {
    p.pack_nil();
    return;
  }
  u64 ticks = 0;
  u64 unix_ns = 0;
  u64 mono = 0;
  read_anchor(view.header().last, ticks, unix_ns, mono);
  const DeviceTimes d{times, device->clock_offset_ns.load(), static_cast<i64>(unix_ns - mono)};
  p.pack_map(12);
  key_uint(p, "process", handle_salt(view.header().pid, view.header().proc_start));
  key_uint(p, "library_version", device->library_version.load());
  key_uint(p, "plugin_api", device->plugin_api.load());
  key_uint(p, "events", device->events.load());
  key_uint(p, "hooked", device->hooked.load());
  key_uint(p, "followed", view.cuda() != nullptr ? get(view.cuda()->followed) : 0);
  text(p, "losses");
  const Cuda* cuda = view.cuda();
  p.pack_map(cuda != nullptr ? 16 : 8);
  key_uint(p, "comms_lost", get(device->comms_lost));
  key_uint(p, "ops_lost", get(device->ops_lost));
  key_uint(p, "phases_lost", get(device->phases_lost));
  key_uint(p, "stale_handles", get(device->stale_handles));
  key_uint(p, "foreign_handles", get(device->foreign_handles));
  key_uint(p, "unknown_events", get(device->unknown_events));
  key_uint(p, "unmatched", get(device->unmatched));
  key_uint(p, "threads_lost", get(device->threads_lost));
  if (cuda != nullptr) {
    key_uint(p, "events_exhausted", get(cuda->exhausted));
    key_uint(p, "events_captured", get(cuda->captured));
    key_uint(p, "events_no_context", get(cuda->no_context));
    key_uint(p, "events_refused", get(cuda->refused));
    key_uint(p, "events_unread", get(cuda->unread));
    key_uint(p, "ends_unfollowed", get(cuda->unfollowed));
    key_uint(p, "ends_unasked", get(cuda->unasked));
    key_uint(p, "events_untied", get(cuda->untied));
  }
  pack_observer(p, view, times);
  pack_cuda_error(p, view, times);

  text(p, "comms");
  p.pack_map(2);
  fields(p, {"comm", "hash", "group", "pg_group", "n_ranks", "rank", "n_nodes", "name", "ended",
             "error", "error_time", "profiled"});
  pack_rows(p, view.n_comms(), [&](u32 i) {
    const CommRow* row = view.comm(i);
    if (row == nullptr) {
      return false;
    }
    p.pack_array(12);
    p.pack_uint32(i);
    p.pack_uint64(get(row->hash));
    p.pack_uint32(row->group.load());
    p.pack_uint32(row->pg_group.load());
    p.pack_int32(row->n_ranks.load());
    p.pack_int32(row->rank.load());
    p.pack_uint32(row->n_nodes.load());
    p.pack_uint32(row->name.load());
    p.pack_uint32(row->in_use.load() == 3 ? 1 : 0);
    p.pack_uint32(row->error.load());
    times.ticks(p, get(row->error_ticks));
    p.pack_uint32(row->is_profiled.load());
    return true;
  });

  text(p, "operations");
  p.pack_map(2);
  fields(p, {"op",
             "ticket",
             "comm",
             "state",
             "flags",
             "stream",
             "launching",
             "launched",
             "started",
             "ended",
             "device_start",
             "device_end",
             "channels",
             "channels_started",
             "channels_ended",
             "transfers_started",
             "transfers_ended",
             "algorithm",
             "protocol",
             "parts",
             "parts_launched",
             "generation"});
  pack_rows(p, view.n_device_ops(), [&](u32 i) {
    DeviceOpCopy op;
    if (!view.read_device_op(i, op)) {
      return false;
    }
    pack_device_op(p, i, op, d);
    return true;
  });
  text(p, "phases");
  p.pack_map(2);
  fields(p, {"op",         "ticket",     "kind",       "channel",      "peer",  "waits_for",
             "step",       "n_steps",    "next_step",  "time",         "bytes", "device_start",
             "device_end", "pid",        "generation", "live",         "nic",   "qp",
             "socket",     "of_process", "of_op",      "of_generation"});
  pack_rows(p, view.n_phases(), [&](u32 i) {
    PhaseCopy phase;
    if (!view.read_phase(i, phase)) {
      return false;
    }
    pack_phase(p, phase, d);
    return true;
  });
}

void pack_ras(Packer& p, const RasAnswer* ras) {
  text(p, "ras");
  if (ras == nullptr) {
    p.pack_nil();
    return;
  }
  p.pack_map(7);
  text(p, "address");
  text(p, ras->address);
  key_uint(p, "asked_unix_ns", ras->asked_unix_ns);
  key_uint(p, "took_ns", ras->took_ns);
  text(p, "format");
  text(p, ras->json ? "json" : "text");
  text(p, "answer");
  text(p, {ras->text, ras->bytes});
  key_uint(p, "cut", ras->cut ? 1 : 0);
  text(p, "error");
  text(p, ras->error);
}

}  // namespace fr::packing
