#include "cold/dump.hpp"

#define ZSTD_STATIC_LINKING_ONLY
#include <sys/mman.h>
#include <zstd.h>

#include <cstring>
#include <iterator>
#include <msgpack.hpp>

#include "cold/files.hpp"
#include "cold/names.hpp"
#include "cold/threads.hpp"
#include "fr/fr.h"
#include "hot/mix.hpp"

namespace fr {
namespace {

constexpr std::size_t kChunkBytes = 128 * 1024;
constexpr int kLevel = 1;
constexpr int kWindowLog = 19;

ZSTD_parameters zstd_parameters() {
  ZSTD_parameters p = ZSTD_getParams(kLevel, 0, 0);
  p.cParams.windowLog = kWindowLog;
  p.fParams.contentSizeFlag = 0;
  p.fParams.checksumFlag = 1;
  return p;
}

// populate: touched now, so that a dump under memory pressure does not need fresh pages.
void* map(std::size_t bytes, bool populate) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | (populate ? MAP_POPULATE : MAP_NORESERVE), -1, 0);
  return p != MAP_FAILED ? p : nullptr;
}

}  // namespace

// What msgpack::packer writes into: collects a chunk, compresses it when full.
struct ZstdStream {
  DumpEncoder& e;

  void write(const char* data, std::size_t n) noexcept {
    e.raw_bytes_ += n;
    while (n > 0) {
      if (e.in_used_ == kChunkBytes) {
        flush(false);
      }
      const std::size_t part = n < kChunkBytes - e.in_used_ ? n : kChunkBytes - e.in_used_;
      std::memcpy(e.in_ + e.in_used_, data, part);
      e.in_used_ += part;
      data += part;
      n -= part;
    }
  }

  void flush(bool last) noexcept {
    ZSTD_inBuffer in{e.in_, e.in_used_, 0};
    for (;;) {
      ZSTD_outBuffer out{e.out_, e.out_size_, e.out_used_};
      const std::size_t rest = ZSTD_compressStream2(static_cast<ZSTD_CCtx*>(e.zstd_), &out, &in,
                                                    last ? ZSTD_e_end : ZSTD_e_continue);
      e.out_used_ = out.pos;
      if (ZSTD_isError(rest) ||
          (out.pos == out.size && (in.pos < in.size || (last && rest != 0)))) {
        e.overflow_ = true;
        break;
      }
      if (last ? rest == 0 : in.pos == in.size) {
        break;
      }
    }
    e.in_used_ = 0;
  }
};

namespace {

using Packer = msgpack::packer<ZstdStream>;

void text(Packer& p, std::string_view s) {
  p.pack_str(static_cast<u32>(s.size()));
  p.pack_str_body(s.data(), static_cast<u32>(s.size()));
}

std::string_view fixed(const char* s, std::size_t size) {
  return {s, strnlen(s, size)};
}

template <std::size_t N>
void key_text(Packer& p, const char* key, const char (&value)[N]) {
  text(p, key);
  text(p, fixed(value, N));
}

void key_int(Packer& p, const char* key, i64 value) {
  text(p, key);
  p.pack_int64(value);
}

void key_uint(Packer& p, const char* key, u64 value) {
  text(p, key);
  p.pack_uint64(value);
}

void fields(Packer& p, std::initializer_list<const char*> names) {
  text(p, "fields");
  p.pack_array(static_cast<u32>(names.size()));
  for (const char* name : names) {
    text(p, name);
  }
}

// Times relative to the base; nil = unknown.
struct Times {
  TickClock clock;
  u64 base;

  void ticks(Packer& p, u64 value) const { unix_ns(p, clock.unix_ns(value)); }
  void unix_ns(Packer& p, u64 value) const {
    if (value == 0) {
      p.pack_nil();
    } else {
      p.pack_int64(static_cast<i64>(value - base));
    }
  }
};

u64 get(const std::atomic<u64>& a) {
  return a.load(std::memory_order_relaxed);
}

void pack_identity(Packer& p, const Header& h) {
  text(p, "identity");
  p.pack_map(16);
  key_text(p, "job", h.job);
  key_int(p, "attempt", h.attempt);
  key_int(p, "rank", h.rank.load());
  key_int(p, "local_rank", h.local_rank.load());
  key_int(p, "world_size", h.world_size.load());
  key_int(p, "local_world_size", h.local_world_size);
  key_text(p, "host", h.host);
  key_text(p, "boot_id", h.boot_id);
  key_int(p, "pid", h.pid);
  key_uint(p, "start_unix_ns", h.start_unix_ns);
  key_uint(p, "proc_start", h.proc_start);
  key_text(p, "command", h.command);
  key_text(p, "cwd", h.cwd);
  key_text(p, "recorder", h.recorder);
  text(p, "memory");
  text(p, h.anonymous != 0 ? "anonymous" : "shm");
  key_uint(p, "n_records", h.n_records);
}

void pack_options(Packer& p, std::string_view table) {
  u32 n = 0;
  for (const char c : table) {
    n += c == '\n' ? 1 : 0;
  }
  text(p, "options");
  p.pack_array(n);
  while (n-- > 0) {
    const std::string_view line = table.substr(0, table.find('\n'));
    table.remove_prefix(line.size() + 1);
    const std::size_t tab = line.rfind('\t');
    const std::string_view pair = line.substr(0, tab);
    const std::size_t equals = pair.find('=');
    p.pack_array(3);
    text(p, pair.substr(0, equals));
    text(p, equals < pair.size() ? pair.substr(equals + 1) : "");
    text(p, tab < line.size() ? line.substr(tab + 1) : "");
  }
}

void pack_clock(Packer& p, const Header& h, const Times& times) {
  text(p, "clock");
  p.pack_map(3);
  text(p, "kind");
  text(p, clock_name(h.clock_kind));
  key_uint(p, "base_unix_ns", times.base);
  text(p, "anchors");
  p.pack_array(2);
  for (const Anchor* a : {&h.first, &h.last}) {
    u64 ticks = 0;
    u64 unix_ns = 0;
    u64 mono = 0;
    read_anchor(*a, ticks, unix_ns, mono);
    p.pack_array(3);
    p.pack_uint64(ticks);
    p.pack_uint64(unix_ns);
    p.pack_uint64(mono);
  }
}

void pack_record(Packer& p, const View& view, const RecordCopy& r, const Times& times) {
  const Payload& d = r.payload;
  p.pack_array(22);
  p.pack_uint64(r.ticket);
  times.ticks(p, d.ticks);
  text(p, kind_name(d.kind));
  p.pack_int64(static_cast<i64>(d.seq));
  p.pack_uint32(d.group);
  p.pack_uint32(d.op);
  p.pack_uint32(d.stack);
  p.pack_uint32(d.tid);
  p.pack_int32(d.peer);
  p.pack_uint16(d.flags);
  p.pack_uint64(d.in_numel);
  p.pack_uint64(d.out_numel);
  text(p, dtype_name(d.in_dtype));
  text(p, dtype_name(d.out_dtype));
  text(p, reduce_op_name(d.reduce_op));
  p.pack_uint32(d.timeout_ms);
  if (r.shape == nullptr) {
    p.pack_nil();
  } else if (d.kind == FR_NOTE) {
    text(p, {reinterpret_cast<const char*>(r.shape), r.n_shape});
  } else {
    p.pack_array(r.n_shape);
    for (u32 i = 0; i < r.n_shape; ++i) {
      p.pack_uint32(r.shape[i]);
    }
  }
  const bool unseen = !r.has_status && (d.flags & FR_UNTRACKED) != 0;
  text(p, unseen ? "unknown" : r.has_status ? state_name(r.state) : "enqueued");
  times.ticks(p, r.started_ticks);
  times.ticks(p, r.ended_ticks);
  p.pack_uint32(r.error);
  p.pack_uint32(r.end_tid);
  (void)view;
}

void pack_lanes(Packer& p, const View& view, const Times& times) {
  text(p, "lanes");
  p.pack_map(2);
  fields(p, {"group", "peer", "direction", "enqueued", "enqueued_time", "started", "completed",
             "completed_time", "ended", "failed"});
  text(p, "rows");
  p.pack_array(view.n_lanes());
  for (u32 i = 0; i < view.n_lanes(); ++i) {
    const LaneRow* lane = view.lane(i);
    if (lane == nullptr) {
      p.pack_nil();
      continue;
    }
    const u64 key = get(lane->key);
    p.pack_array(10);
    p.pack_uint32(static_cast<u32>(key >> 33) & 0xffffff);
    p.pack_int64(static_cast<i64>(key & 0xffffffff) - 1);
    text(p, (key >> 32 & 1) != 0 ? "send" : "recv");
    p.pack_uint64(get(lane->enqueued));
    times.ticks(p, get(lane->enqueued_ticks));
    p.pack_uint64(get(lane->started_seq));
    p.pack_uint64(get(lane->completed_seq));
    times.ticks(p, get(lane->completed_ticks));
    p.pack_uint64(get(lane->ended));
    p.pack_uint64(get(lane->failed));
  }
}

void pack_notes(Packer& p, const View& view, const Times& times) {
  const Header& h = view.header();
  text(p, "notes");
  p.pack_map(3);
  const u64 step_ticks = get(h.step_ticks);
  text(p, "step");
  if (step_ticks == 0) {
    p.pack_nil();
  } else {
    p.pack_int64(h.step.load());
  }
  text(p, "step_time");
  times.ticks(p, step_ticks);
  u32 n = 0;
  for (u32 i = 0; i < view.n_crumbs(); ++i) {
    n += view.crumb(i) != nullptr ? 1 : 0;
  }
  text(p, "threads");
  p.pack_array(n);
  for (u32 i = 0; i < view.n_crumbs() && n > 0; ++i) {
    const Crumb* c = view.crumb(i);
    if (c == nullptr) {
      continue;
    }
    --n;
    // the note, torn-safe
    u32 words[kNoteBytes / 4];
    u32 bytes = 0;
    u64 note_ticks = 0;
    bool whole = false;
    for (int tries = 0; tries < 4 && !whole; ++tries) {
      const u32 seq = c->note_seq.load(std::memory_order_acquire);
      bytes = c->note_bytes.load(std::memory_order_relaxed);
      note_ticks = get(c->note_ticks);
      for (u32 w = 0; w < std::size(words); ++w) {
        words[w] = c->note[w].load(std::memory_order_relaxed);
      }
      std::atomic_thread_fence(std::memory_order_acquire);
      whole = seq != 0 && (seq & 1) == 0 && c->note_seq.load(std::memory_order_relaxed) == seq;
    }
    const u32 depth = c->depth.load(std::memory_order_acquire);
    const u32 spans = depth < kSpanDepth ? depth : kSpanDepth;
    p.pack_map(5);
    key_uint(p, "tid", c->tid.load());
    text(p, "note");
    if (whole && bytes <= kNoteBytes) {
      text(p, {reinterpret_cast<const char*>(words), bytes});
    } else {
      p.pack_nil();
    }
    text(p, "note_time");
    times.ticks(p, whole ? note_ticks : 0);
    text(p, "spans");
    p.pack_array(spans);
    for (u32 s = 0; s < spans; ++s) {
      p.pack_array(2);
      p.pack_uint32(c->span[s].load());
      times.ticks(p, get(c->span_ticks[s]));
    }
    key_uint(p, "depth", depth);
  }
  for (; n > 0; --n) {
    p.pack_map(0);  // cannot happen: rows are never given back
  }
}

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
  p.pack_map(11);
  key_uint(p, "process", handle_salt(view.header().pid, view.header().proc_start));
  key_uint(p, "library_version", device->library_version.load());
  key_uint(p, "plugin_api", device->plugin_api.load());
  key_uint(p, "events", device->events.load());
  key_uint(p, "hooked", device->hooked.load());
  text(p, "losses");
  const Cuda* cuda = view.cuda();
  p.pack_map(cuda != nullptr ? 13 : 8);
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
  }
  pack_observer(p, view, times);
  pack_cuda_error(p, view, times);

  text(p, "comms");
  p.pack_map(2);
  fields(p, {"comm", "hash", "group", "pg_group", "n_ranks", "rank", "n_nodes", "name", "ended",
             "error", "error_time", "profiled"});
  text(p, "rows");
  p.pack_array(view.n_comms());
  for (u32 i = 0; i < view.n_comms(); ++i) {
    const CommRow* row = view.comm(i);
    if (row == nullptr) {
      p.pack_nil();
      continue;
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
  }

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
  text(p, "rows");
  p.pack_array(view.n_device_ops());
  for (u32 i = 0; i < view.n_device_ops(); ++i) {
    DeviceOpCopy op;
    if (view.read_device_op(i, op)) {
      pack_device_op(p, i, op, d);
    } else {
      p.pack_nil();
    }
  }
  text(p, "phases");
  p.pack_map(2);
  fields(p, {"op",         "ticket",     "kind",       "channel",      "peer",  "waits_for",
             "step",       "n_steps",    "next_step",  "time",         "bytes", "device_start",
             "device_end", "pid",        "generation", "live",         "nic",   "qp",
             "socket",     "of_process", "of_op",      "of_generation"});
  text(p, "rows");
  p.pack_array(view.n_phases());
  for (u32 i = 0; i < view.n_phases(); ++i) {
    PhaseCopy phase;
    if (view.read_phase(i, phase)) {
      pack_phase(p, phase, d);
    } else {
      p.pack_nil();
    }
  }
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

void pack_exit(Packer& p, const Header& h, const Times& times) {
  static constexpr const char* kStates[] = {"running", "noted", "signalled", "exiting"};
  const ExitRecord& e = h.exit;
  const u32 state = e.state.load(std::memory_order_acquire);
  text(p, "exit");
  if (state == kRunning) {
    p.pack_nil();
    return;
  }
  const bool ready = e.ready.load(std::memory_order_acquire) != 0;
  p.pack_map(9);
  text(p, "state");
  text(p, kStates[state < 4 ? state : 0]);
  key_int(p, "status", e.status.load());
  key_int(p, "signal", e.signal.load());
  key_int(p, "sender_pid", e.sender_pid.load());
  text(p, "kind");
  text(p, ready ? fixed(e.kind, sizeof e.kind) : "");
  text(p, "type");
  text(p, ready ? fixed(e.type, sizeof e.type) : "");
  text(p, "message");
  text(p, ready ? fixed(e.message, sizeof e.message) : "");
  key_uint(p, "stack", e.stack.load());
  text(p, "time");
  times.unix_ns(p, get(e.time_unix_ns));
}

void pack_peers(Packer& p, const Control* control, const Times& times) {
  text(p, "peers");
  u32 n = 0;
  bool shown[kPeers] = {};
  if (control != nullptr) {
    for (u32 i = 0; i < kPeers; ++i) {
      shown[i] = control->peers[i].state.load(std::memory_order_acquire) >= kPeerLive;
      n += shown[i] ? 1 : 0;
    }
  }
  p.pack_array(n);
  for (u32 i = 0; i < kPeers && n > 0; ++i) {
    if (!shown[i]) {
      continue;
    }
    const PeerRow& row = control->peers[i];
    const u32 state = row.state.load(std::memory_order_acquire);
    const char* word = state == kPeerExitedClean                       ? "exited_clean"
                       : state == kPeerExited                          ? "exited"
                       : is_alive(row.pid.load(), get(row.proc_start)) ? "live"
                                                                       : "gone";
    p.pack_map(10);
    key_int(p, "rank", row.rank.load());
    key_int(p, "local_rank", row.local_rank.load());
    key_int(p, "pid", row.pid.load());
    text(p, "state");
    text(p, word);
    key_int(p, "status", row.exit_status.load());
    key_int(p, "signal", row.exit_signal.load());
    text(p, "exit_time");
    times.unix_ns(p, get(row.exit_unix_ns));
    key_uint(p, "dumped", get(row.dumped));
    // written before that state is stored, so not to be read in any other
    static constexpr char kNone[1] = {};
    text(p, "last_op");
    text(p, state == kPeerExitedClean ? fixed(row.last_op, sizeof row.last_op) : kNone);
    text(p, "last_site");
    text(p, state == kPeerExitedClean ? fixed(row.last_site, sizeof row.last_site) : kNone);
  }
}

constexpr const char* kGilWords[] = {"", "holds", "waits"};

void pack_thread(Packer& p, const ThreadReport& all, const ThreadRow& row) {
  const Task& t = row.task;
  p.pack_map(21);
  key_int(p, "tid", t.tid);
  key_text(p, "name", t.name);
  text(p, "state");
  text(p, std::string_view(&t.state, 1));
  text(p, "activity");
  text(p, row.interrupted ? "interrupted" : activity(t));
  key_text(p, "wchan", t.wchan);
  text(p, "syscall");
  text(p, syscall_name(t.syscall));
  key_int(p, "syscall_number", t.syscall);
  text(p, "syscall_args");
  p.pack_array(t.syscall >= 0 ? 6 : 0);
  for (u32 i = 0; t.syscall >= 0 && i < 6; ++i) {
    p.pack_uint64(t.args[i]);
  }
  key_text(p, "syscall_on", t.target);
  key_uint(p, "looked_ns", t.looked_ns);
  key_uint(p, "cpu_ns", t.cpu_ns);
  key_uint(p, "runqueue_ns", t.runqueue_ns);
  key_uint(p, "voluntary_switches", t.voluntary_switches);
  key_uint(p, "involuntary_switches", t.involuntary_switches);
  text(p, "gil");
  text(p, kGilWords[static_cast<u32>(row.gil)]);
  text(p, "answer");
  text(p, answer_name(row.answer));
  key_uint(p, "answer_us", row.answer_us);
  text(p, "whole");
  row.whole ? p.pack_true() : p.pack_false();
  text(p, "stack");
  p.pack_array(row.n_frames);
  for (u32 i = 0; i < row.n_frames; ++i) {
    p.pack_uint32(all.stack[row.first_frame + i]);
  }
  text(p, "cut");
  if (row.python_cut == 0) {
    p.pack_nil();
  } else {
    p.pack_array(2);
    p.pack_uint32(row.cut_after);
    p.pack_uint32(row.python_cut);
  }
  // rows of this thread lie together, those of one frame too
  const auto index = static_cast<u32>(&row - all.threads);
  u32 first = 0;
  while (first < all.n_variables && all.variables[first].thread != index) {
    ++first;
  }
  u32 last = first;
  u32 n_frames = 0;
  while (last < all.n_variables && all.variables[last].thread == index) {
    n_frames += last == first || all.variables[last].frame != all.variables[last - 1].frame ? 1 : 0;
    ++last;
  }
  text(p, "variables");
  p.pack_array(n_frames);
  while (first < last) {
    u32 end = first;
    while (end < last && all.variables[end].frame == all.variables[first].frame) {
      ++end;
    }
    p.pack_array(2);
    p.pack_uint32(all.variables[first].frame);
    p.pack_array(end - first);
    for (; first < end; ++first) {
      p.pack_array(2);
      text(p, all.text + all.variables[first].name);
      text(p, all.text + all.variables[first].value);
    }
  }
}

void pack_threads(Packer& p, const ThreadReport* all) {
  text(p, "threads");
  p.pack_array(all != nullptr ? all->n_threads : 0);
  for (u32 i = 0; all != nullptr && i < all->n_threads; ++i) {
    pack_thread(p, *all, all->threads[i]);
  }
  text(p, "thread_facts");
  if (all == nullptr) {
    p.pack_nil();
    return;
  }
  p.pack_map(11);
  key_int(p, "signal", all->signal);
  text(p, "not_asked");
  text(p, all->why);
  key_uint(p, "took_ns", all->took_ns);
  key_uint(p, "asking_ns", all->asking_ns);
  key_uint(p, "threads_lost", all->threads_lost);
  key_uint(p, "frames_lost", all->frames_lost);
  key_uint(p, "modules_lost", all->modules_lost);
  text(p, "frames");
  p.pack_array(all->n_frames);
  for (u32 i = 0; i < all->n_frames; ++i) {
    const NamedFrame& f = all->frames[i];
    p.pack_array(5);
    text(p, f.python ? "python" : "native");
    text(p, all->text + f.function);
    text(p, all->text + f.file);
    p.pack_uint32(f.line);
    p.pack_uint64(f.offset);
  }
  key_uint(p, "children_lost", all->children_lost);
  text(p, "children");
  p.pack_array(all->n_children);
  for (u32 i = 0; i < all->n_children; ++i) {
    const ChildRow& c = all->children[i];
    p.pack_map(8);
    key_int(p, "pid", c.task.tid);
    key_text(p, "name", c.task.name);
    text(p, "state");
    text(p, std::string_view(&c.task.state, 1));
    text(p, "activity");
    text(p, activity(c.task));
    key_text(p, "wchan", c.task.wchan);
    text(p, "syscall");
    text(p, syscall_name(c.task.syscall));
    key_text(p, "syscall_on", c.task.target);
    key_int(p, "wait_status", c.wait_status);
  }
  text(p, "modules");
  p.pack_array(all->n_modules);
  for (u32 i = 0; i < all->n_modules; ++i) {
    const ModuleRow& m = all->modules[i];
    char hex[2 * sizeof m.build_id + 1] = "";
    for (u32 k = 0; k < m.build_id_bytes; ++k) {
      hex[2 * k] = "0123456789abcdef"[m.build_id[k] >> 4];
      hex[2 * k + 1] = "0123456789abcdef"[m.build_id[k] & 15];
      hex[2 * k + 2] = '\0';
    }
    p.pack_array(2);
    text(p, all->text + m.file);
    text(p, hex);
  }
}

}  // namespace

bool DumpEncoder::init(u32 n_records) noexcept {
  const ZSTD_parameters parameters = zstd_parameters();
  workspace_bytes_ = ZSTD_estimateCStreamSize_usingCParams(parameters.cParams);
  workspace_ = map(workspace_bytes_, true);
  in_ = static_cast<char*>(map(kChunkBytes, true));
  // never reached: 256 B per record and the tables, uncompressed
  out_size_ = std::size_t{n_records} * 256 + (6u << 20);
  out_ = static_cast<char*>(map(out_size_, false));
  per_group_ = static_cast<PerGroup*>(map(sizeof(PerGroup) * kGroups, true));
  if (workspace_ == nullptr || in_ == nullptr || out_ == nullptr || per_group_ == nullptr) {
    return false;
  }
  zstd_ = ZSTD_initStaticCStream(workspace_, workspace_bytes_);
  return zstd_ != nullptr;
}

DumpEncoder::Bytes DumpEncoder::encode(const View& view, const DumpFacts& facts) noexcept {
  if (zstd_ == nullptr || !view.ok()) {
    return {nullptr, 0};
  }
  auto* stream = static_cast<ZSTD_CCtx*>(zstd_);
  ZSTD_CCtx_reset(stream, ZSTD_reset_session_and_parameters);
  const ZSTD_parameters parameters = zstd_parameters();
  ZSTD_CCtx_setParameter(stream, ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setParameter(stream, ZSTD_c_windowLog, static_cast<int>(parameters.cParams.windowLog));
  ZSTD_CCtx_setParameter(stream, ZSTD_c_checksumFlag, 1);
  in_used_ = out_used_ = raw_bytes_ = 0;
  overflow_ = false;

  const Header& h = view.header();
  const Times times{TickClock(h), h.start_unix_ns};
  ZstdStream sink{*this};
  Packer p(sink);
  p.pack_map(25);
  text(p, "format");
  text(p, "fr.dump");
  key_int(p, "version", 1);
  pack_identity(p, h);
  text(p, "reason");
  text(p, facts.reason);
  key_uint(p, "incident", facts.incident);
  text(p, "trigger");
  text(p, facts.trigger);
  key_uint(p, "written_unix_ns", unix_now_ns());
  text(p, "salvage");
  if (facts.salvaged_by < 0 && facts.salvage_why[0] == '\0') {
    p.pack_nil();
  } else {
    p.pack_map(3);
    key_int(p, "oom_kills", facts.oom_kills);
    key_int(p, "by_rank", facts.salvaged_by);
    text(p, "why");
    text(p, facts.salvage_why);
  }
  pack_options(p, view.options());
  text(p, "layers");
  const u32 n_layers = h.n_layers.load() < std::size(h.layers)
                           ? h.n_layers.load()
                           : static_cast<u32>(std::size(h.layers));
  p.pack_map(n_layers);
  for (u32 i = 0; i < n_layers; ++i) {
    text(p, fixed(h.layers[i].name, sizeof h.layers[i].name));
    text(p, fixed(h.layers[i].text, sizeof h.layers[i].text));
  }
  pack_clock(p, h, times);

  // Records before the tables they point into: whatever they name is then published.
  std::memset(static_cast<void*>(per_group_), 0, sizeof(PerGroup) * kGroups);
  u64 torn = 0;
  u64 shapes_lost = 0;
  u64 kept = 0;
  text(p, "records");
  p.pack_map(2);
  fields(p, {"ticket",   "time",      "kind",      "seq",        "group",    "op",
             "stack",    "tid",       "peer",      "flags",      "in_numel", "out_numel",
             "in_dtype", "out_dtype", "reduce_op", "timeout_ms", "shape",    "state",
             "started",  "ended",     "error",     "end_tid"});
  text(p, "rows");
  p.pack_array(view.n_slots());
  RecordCopy r;
  for (u32 slot = 0; slot < view.n_slots(); ++slot) {
    const Slot found = view.read(slot, r);
    if (found != Slot::kWhole) {
      torn += found == Slot::kTorn ? 1 : 0;
      p.pack_nil();
      continue;
    }
    ++kept;
    shapes_lost += r.shape_lost ? 1 : 0;
    if (r.payload.group < kGroups) {
      PerGroup& g = per_group_[r.payload.group];
      ++g.records;
      if (r.payload.kind == FR_COLLECTIVE) {
        g.first = g.kept == 0 || r.payload.seq < g.first ? r.payload.seq : g.first;
        g.last = r.payload.seq > g.last ? r.payload.seq : g.last;
        ++g.kept;
      }
    }
    pack_record(p, view, r, times);
  }

  u64 overwritten_all = 0;
  text(p, "groups");
  p.pack_map(2);
  fields(p, {"group",
             "name",
             "desc",
             "backend",
             "instance",
             "n_ranks",
             "own_rank",
             "ranks",
             "created",
             "destroyed",
             "enqueued",
             "enqueued_time",
             "started",
             "started_time",
             "completed",
             "completed_time",
             "ended",
             "failed",
             "p2p_enqueued",
             "p2p_time",
             "p2p_ended",
             "lifecycle",
             "lifecycle_ended",
             "untracked",
             "wait_only",
             "wait_only_ended",
             "released",
             "kept",
             "first_kept",
             "last_kept",
             "overwritten",
             "dropped"});
  text(p, "rows");
  // a later version's table may be longer than what is counted here
  const u32 n_groups = view.n_groups() < kGroups ? view.n_groups() : kGroups;
  p.pack_array(n_groups);
  for (u32 i = 0; i < n_groups; ++i) {
    const GroupRow& g = *view.group(i);
    const PerGroup& seen = per_group_[i];
    const u64 enqueued = get(g.issued) & kSeqMask;
    const u64 dropped = get(g.dropped);
    p.pack_array(32);
    p.pack_uint32(i);
    p.pack_uint32(g.name);
    p.pack_uint32(g.desc);
    p.pack_uint32(g.backend);
    p.pack_uint32(g.instance);
    p.pack_int32(g.n_ranks);
    p.pack_int32(g.own_rank);
    const auto ranks = view.group_ranks(g);
    if (ranks.empty()) {
      p.pack_nil();
    } else {
      p.pack_array(static_cast<u32>(ranks.size() / 3));
      for (std::size_t w = 0; w + 2 < ranks.size(); w += 3) {
        p.pack_array(3);
        p.pack_uint32(ranks[w]);
        p.pack_uint32(ranks[w + 1]);
        p.pack_int32(static_cast<i32>(ranks[w + 2]));
      }
    }
    times.ticks(p, get(g.created_ticks));
    times.ticks(p, get(g.destroyed_ticks));
    p.pack_uint64(enqueued);
    times.ticks(p, get(g.enqueued_ticks));
    p.pack_uint64(get(g.started_seq));
    times.ticks(p, get(g.started_ticks));
    p.pack_uint64(get(g.completed_seq));
    times.ticks(p, get(g.completed_ticks));
    p.pack_uint64(get(g.ended));
    p.pack_uint64(get(g.failed));
    p.pack_uint64(get(g.p2p_issued));
    times.ticks(p, get(g.p2p_ticks));
    p.pack_uint64(get(g.p2p_ended));
    p.pack_uint64(get(g.lifecycle_issued));
    p.pack_uint64(get(g.lifecycle_ended));
    p.pack_uint64(get(g.untracked));
    p.pack_uint64(get(g.wait_only));
    p.pack_uint64(get(g.wait_only_ended));
    p.pack_uint64(get(g.released));
    p.pack_uint64(seen.kept);
    if (seen.kept == 0) {
      p.pack_nil();
      p.pack_nil();
    } else {
      p.pack_uint64(seen.first);
      p.pack_uint64(seen.last);
    }
    const u64 recorded = enqueued + get(g.p2p_issued) + get(g.lifecycle_issued);
    const u64 overwritten =
        i != 0 && recorded > seen.records + dropped ? recorded - seen.records - dropped : 0;
    overwritten_all += overwritten;
    p.pack_uint64(overwritten);
    p.pack_uint64(dropped);
  }
  pack_lanes(p, view, times);
  pack_device(p, view, times);
  pack_ras(p, facts.ras);
  pack_notes(p, view, times);
  pack_exit(p, h, times);
  pack_peers(p, facts.control, times);

  text(p, "losses");
  p.pack_map(13);
  key_uint(p, "dropped", get(h.dropped));
  key_uint(p, "skipped", get(h.skipped));
  key_uint(p, "overwritten", overwritten_all);
  key_uint(p, "torn", torn);
  key_uint(p, "shapes_overwritten", shapes_lost);
  key_uint(p, "status_lost", get(h.status_lost));
  key_uint(p, "strings_lost", get(h.strings_lost));
  key_uint(p, "stacks_lost", get(h.stacks_lost));
  key_uint(p, "groups_lost", get(h.groups_lost));
  key_uint(p, "lanes_lost", get(h.lanes_lost));
  key_uint(p, "crumbs_lost", get(h.crumbs_lost));
  key_uint(p, "no_group", get(h.no_group));
  key_uint(p, "kept", kept);

  const u32 n_stacks = view.n_stacks();
  text(p, "stacks");
  p.pack_array(n_stacks);
  for (u32 i = 0; i < n_stacks; ++i) {
    const auto frames = view.stack(i);
    p.pack_array(static_cast<u32>(frames.size()));
    for (const u32 f : frames) {
      p.pack_uint32(f);
    }
  }
  const u32 n_frames = view.n_frames();
  text(p, "frames");
  p.pack_array(n_frames);
  for (u32 i = 0; i < n_frames; ++i) {
    const FrameRow f = view.frame(i);
    p.pack_array(3);
    p.pack_uint32(f.file);
    p.pack_uint32(f.func);
    p.pack_uint32(f.line);
  }
  const u32 n_strings = view.n_strings();
  text(p, "strings");
  p.pack_array(n_strings);
  for (u32 i = 0; i < n_strings; ++i) {
    text(p, view.string(i));
  }
  pack_threads(p, facts.threads);
  sink.flush(true);
  if (overflow_) {
    return {nullptr, 0};
  }
  return {out_, out_used_};
}

}  // namespace fr
