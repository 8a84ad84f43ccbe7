// comms.cpp - communicators: made, split, joined with the framework's groups, ended.
#include <cstdio>

#include "nccl/ras.hpp"
#include "nccl/tracker/state.hpp"
#include "watch/watchdog.hpp"

namespace fr::nccl {
namespace {

u32 new_comm(Tracker& s, u64 hash, i32 n_ranks, i32 rank, const char* name) noexcept {
  for (int round = 0; round < 2; ++round) {
    for (u32 i = 1; i < kComms; ++i) {
      CommRow& row = s.comms[i];
      // second round: rows of ended ones are used again
      if (row.in_use.load() != (round == 0 ? 0 : 3)) {
        continue;
      }
      CommPrivate& p = s.comm[i];
      p.generation.fetch_add(1);
      clear(p.nccl_comm, p.mask, p.events, p.other_events, p.children, p.linked, p.kernels_seen,
            p.transfers_seen, p.later, p.launched, p.last_completed, p.kernels_wrong);
      p.made_ticks.store(ticks_now(s.hot->clock));
      clear(row.group, row.pg_group, row.n_nodes, row.error, row.error_ticks, row.is_profiled,
            row.captured);
      row.hash.store(hash);
      row.n_ranks.store(n_ranks);
      row.rank.store(rank);
      row.name.store(name != nullptr ? fr_intern(name, std::strlen(name)) : 0);
      row.in_use.store(1, kRelease);
      use_ras();
      return i;
    }
  }
  count(s.device->comms_lost);
  return kNoComm;
}

// The oldest operation in flight; comm kNoComm: over all communicators. Sends and receives with all
// channels ended are not settled yet, so they count only if there is nothing else; so do operations
// of which nothing more is reported.
Handle oldest_of(Tracker& s, u32 comm, u64& ticket) noexcept {
  Handle oldest = 0;
  ticket = 0;
  bool oldest_ends = false;
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const DeviceOp& op = s.ops[slot];
    const u32 claim = op.claim.load(kAcquire);
    const u64 own = op.ticket.load(kRelaxed);
    if ((claim & 1) == 0 || own == 0 || (comm != kNoComm && op.comm.load(kRelaxed) != comm)) {
      continue;
    }
    const u32 started = op.channels_started.load(kRelaxed);
    const bool untold =
        (op.flags.load(kRelaxed) & (kDevNoKernels | kDevWaitTracked)) == kDevNoKernels &&
        op.transfers_started.load(kRelaxed) == op.transfers_ended.load(kRelaxed);
    const bool ends = untold || (started != 0 && op.channels_ended.load(kRelaxed) == started);
    if (ticket == 0 || (ends == oldest_ends ? own < ticket : oldest_ends)) {
      oldest = make(s, kApiHandle, slot, claim >> 1);
      ticket = own;
      oldest_ends = ends;
    }
  }
  return oldest;
}

}  // namespace

// A wrapper's row and the plugin's turn out to be one communicator: the plugin's stays.
void merge(Tracker& s, u32 wrapped, u32 profiled) noexcept {
  if (wrapped == profiled || wrapped == kNoComm || profiled == kNoComm) {
    return;
  }
  CommRow& from = s.comms[wrapped];
  CommRow& to = s.comms[profiled];
  u32 none = 0;
  to.group.compare_exchange_strong(none, from.group.load());
  if (to.pg_group.load() == 0) {
    to.pg_group.store(from.pg_group.load());
  }
  if (to.n_ranks.load() <= 0) {
    to.n_ranks.store(from.n_ranks.load());
    to.rank.store(from.rank.load());
  }
  if (to.hash.load() == 0) {  // up to version 3 the plugin learns it with the first operation
    to.hash.store(from.hash.load());
  }
  s.comm[profiled].nccl_comm.store(s.comm[wrapped].nccl_comm.exchange(nullptr));
  s.comm[profiled].linked.store(1);
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    u32 was = wrapped;
    s.ops[slot].comm.compare_exchange_strong(was, profiled, kRelaxed);
  }
  from.in_use.store(3);
}

// The function by which NCCL makes a communicator's hash from its unique id: two accumulators that
// take the bytes eight at a time.
u64 unique_id_hash(const void* id, std::size_t bytes) noexcept {
  const char* at = static_cast<const char*>(id);
  u64 a = 1 ^ bytes;
  u64 b = 1;
  for (std::size_t left = bytes; left > 0;) {
    a += b;
    b ^= a;
    a = (a ^ a >> 31) * 0x9de62bbc8cef3ce3ull;
    b = (b ^ b >> 32) * 0x485cd6311b599e79ull;
    u64 word = 0;
    const std::size_t n = left < 8 ? left : 8;
    std::memcpy(&word, at, n);
    a += word;
    at += n;
    left -= n;
  }
  u64 h = (a ^ a >> 31) * 0xbac3bd562846de6bull + b;
  return (h ^ h >> 32) * 0x995a187a14e7b445ull;
}

u32 open_comm(u64 hash, i32 n_ranks, i32 rank, const char* name) noexcept {
  Tracker* s = ready() ? tracker_in_force() : nullptr;
  if (s == nullptr) {
    return kNoComm;
  }
  const std::lock_guard lock(s->comms_lock);
  return new_comm(*s, hash, n_ranks, rank, name);
}

u32 bind_comm(u32 comm, const void* nccl_comm, i32 n_ranks, i32 rank, u64 since_ticks) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr || comm == kNoComm) {
    return comm;
  }
  const std::lock_guard lock(s->comms_lock);
  CommRow& row = s->comms[comm];
  // Pointers are used again: the communicator that had this one is gone.
  for (u32 i = 1; i < kComms; ++i) {
    if (i != comm && s->comm[i].nccl_comm.load() == nccl_comm) {
      s->comm[i].nccl_comm.store(nullptr);
    }
  }
  row.n_ranks.store(n_ranks > 0 ? n_ranks : row.n_ranks.load());
  row.rank.store(rank >= 0 ? rank : row.rank.load());
  s->comm[comm].nccl_comm.store(nccl_comm);
  row.in_use.store(2, kRelease);
  if (row.is_profiled.load() != 0) {
    return comm;  // found by its hash
  }
  // The plugin reported one like it during the call, under a hash that was not known here (`since`
  // ~0: made before the hooks were in place). If several fit, operations decide later.
  u32 found = kNoComm;
  for (u32 i = 1; i < kComms; ++i) {
    const CommRow& other = s->comms[i];
    if (i != comm && other.in_use.load() != 3 && other.is_profiled.load() != 0 &&
        s->comm[i].linked.load() == 0 && s->comm[i].made_ticks.load() >= since_ticks &&
        (other.n_ranks.load() <= 0 ||
         (other.n_ranks.load() == row.n_ranks.load() && other.rank.load() == row.rank.load()))) {
      if (found != kNoComm) {
        return comm;
      }
      found = i;
    }
  }
  if (found == kNoComm) {
    return comm;
  }
  merge(*s, comm, found);
  s->comms[found].in_use.store(2);
  return found;
}

u64 child_hash(u32 parent, u64 salt) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr || parent == kNoComm) {
    return mix(0, salt);
  }
  // Children are made in the same order on all members.
  return mix(mix(s->comms[parent].hash.load(), s->comm[parent].children.fetch_add(1) + 1), salt);
}

u32 find_comm(const void* nccl_comm) noexcept {
  const Tracker* s = tracker_in_force();
  if (s == nullptr || nccl_comm == nullptr) {
    return kNoComm;
  }
  for (u32 i = 1; i < kComms; ++i) {
    if (s->comm[i].nccl_comm.load(kRelaxed) == nccl_comm) {
      return i;
    }
    if (s->comms[i].in_use.load(kRelaxed) == 0) {
      break;  // rows are used in order
    }
  }
  return kNoComm;
}

void close_comm(u32 comm, const char* why) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr || comm == kNoComm) {
    return;
  }
  if (why != nullptr) {
    fail_operations(comm, why);
  }
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const u32 claim = s->ops[slot].claim.load(kAcquire);
    if ((claim & 1) != 0 && s->ops[slot].comm.load(kRelaxed) == comm) {
      finish(*s, slot, claim >> 1 & kGenerationMask, State::kReleased, 0, 0);
    }
  }
  // The end of what it was doing will not be reported.
  for (u32 slot = 0; slot < kPhases; ++slot) {
    Phase& f = s->phases[slot];
    const u32 claim = f.claim.load(kAcquire);
    const u32 op = f.op.load(kRelaxed);
    if ((claim & 1) != 0 && op != 0 && s->ops[op - 1].comm.load(kRelaxed) == comm &&
        s->ops[op - 1].ticket.load(kRelaxed) == f.ticket.load(kRelaxed)) {
      release_row(f, claim >> 1 & kGenerationMask);
    }
  }
  const std::lock_guard lock(s->comms_lock);
  s->comm[comm].nccl_comm.store(nullptr);
  s->comms[comm].in_use.store(3);
  if (const u32 group = s->comms[comm].group.load()) {
    fr_group_destroyed(group);
  }
}

void fail_operations(u32 comm, const char* why) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr || comm == kNoComm) {
    return;
  }
  const u32 error = fr_intern(why, std::strlen(why));
  for (u32 slot = 0; slot < kDeviceOps; ++slot) {
    const u32 claim = s->ops[slot].claim.load(kAcquire);
    if ((claim & 1) != 0 && s->ops[slot].comm.load(kRelaxed) == comm) {
      finish(*s, slot, claim >> 1 & kGenerationMask, State::kFailed, error, 0);
    }
  }
}

bool expect_link(const void* nccl_comm) noexcept {
  Tracker* s = tracker_in_force();
  Thread* t = s != nullptr ? own_thread(*s) : nullptr;
  if (t == nullptr) {
    return false;
  }
  for (u32 i = 1; i < kComms; ++i) {
    if (s->comms[i].in_use.load(kRelaxed) != 3 && s->comms[i].is_profiled.load(kRelaxed) != 0 &&
        s->comm[i].linked.load(kRelaxed) == 0) {
      t->unlinked = nccl_comm;
      return true;
    }
  }
  return false;
}

void forget_link() noexcept {
  if (t_own.thread != nullptr && t_own.tid == own_tid()) {
    t_own.thread->unlinked = nullptr;
  }
}

void comm_failed(u32 comm, const char* text) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr || comm == kNoComm || s->comms[comm].error.load() != 0) {
    return;
  }
  const u32 error = fr_intern(text, std::strlen(text));
  u32 none = 0;
  if (!s->comms[comm].error.compare_exchange_strong(none, error)) {
    return;  // the first one counts
  }
  s->comms[comm].error_ticks.store(ticks_now(s->hot->clock));
  u64 ticket = 0;
  fail_operation(oldest_of(*s, comm, ticket), text);
}

Handle oldest_in_flight(u64& ticket) noexcept {
  Tracker* s = tracker_in_force();
  return s != nullptr ? oldest_of(*s, kNoComm, ticket) : 0;
}

void fail_operation(Handle handle, const char* why) noexcept {
  Tracker* s = tracker_in_force();
  u32 slot = 0;
  if (s == nullptr || handle == 0 || find_op(*s, handle, slot) == nullptr) {
    return;
  }
  finish(*s, slot, generation_of(handle), State::kFailed, fr_intern(why, std::strlen(why)), 0);
  if (Recorder* r = recorder()) {
    r->watchdog->wake();
  }
}

fr_group_t group_of(u32 comm) noexcept {
  Tracker* s = tracker_in_force();
  if (s == nullptr || comm == kNoComm) {
    return 0;
  }
  CommRow& row = s->comms[comm];
  if (const u32 group = row.group.load(kAcquire)) {
    return group;
  }
  const std::lock_guard lock(s->comms_lock);
  if (row.group.load() == 0) {
    char name[32];
    std::snprintf(name, sizeof name, "nccl:%016llx",
                  static_cast<unsigned long long>(row.hash.load()));
    char desc[128] = "";
    if (const u32 id = row.name.load()) {
      const auto text = recorder()->view.string(id);
      std::snprintf(desc, sizeof desc, "%.*s", static_cast<int>(text.size()), text.data());
    }
    fr_group_info info{};
    info.struct_bytes = sizeof info;
    info.n_ranks = row.n_ranks.load();
    info.own_rank = row.rank.load();
    info.name = name;
    info.desc = desc;
    info.backend = "nccl";
    row.group.store(fr_group(&info), kRelease);
  }
  return row.group.load();
}

fr_group_t framework_group_of(u32 comm) noexcept {
  const Tracker* s = tracker_in_force();
  return s != nullptr && comm != kNoComm ? s->comms[comm].pg_group.load(kRelaxed) : 0;
}

void making(int more) noexcept {
  g_making.fetch_add(more);
}

bool is_profiled(u32 comm) noexcept {
  const Tracker* s = tracker_in_force();
  return s != nullptr && comm != kNoComm && s->comms[comm].is_profiled.load(kRelaxed) != 0;
}

Handle plugin_init(u32 api, u64 hash, const char* name, i32 n_nodes, i32 n_ranks, i32 rank,
                   int* mask, u32 events) noexcept {
  Tracker* s = ready() ? tracker_in_force() : nullptr;
  if (s == nullptr) {
    return 0;
  }
  std::unique_lock lock(s->comms_lock);
  u32 comm = kNoComm;
  for (u32 i = 1; i < kComms && hash != 0 && comm == kNoComm; ++i) {
    const CommRow& row = s->comms[i];
    const u32 use = row.in_use.load();
    if ((use == 1 || use == 2) && row.hash.load() == hash && row.is_profiled.load() == 0 &&
        (row.rank.load() == rank || row.rank.load() < 0)) {
      comm = i;  // a wrapper is in the call that makes it
    }
  }
  const bool wrapped = comm != kNoComm;
  if (!wrapped) {
    comm = new_comm(*s, hash, n_ranks, rank, name);
  }
  if (comm == kNoComm) {
    return 0;
  }
  CommRow& row = s->comms[comm];
  if (n_ranks > 0) {
    row.n_ranks.store(n_ranks);
    row.rank.store(rank);
  }
  row.n_nodes.store(static_cast<u32>(n_nodes > 0 ? n_nodes : 0));
  if (name != nullptr && name[0] != '\0') {
    row.name.store(fr_intern(name, std::strlen(name)));
  }
  s->comm[comm].events.store(events);
  s->comm[comm].mask.store(mask);
  s->comm[comm].linked.store(wrapped ? 1 : 0);
  row.is_profiled.store(1, kRelease);
  s->device->plugin_api.store(api);
  s->device->events.store(s->kernels_off.load() ? events & ~u32{kEvKernelCh} : events);
  say_layer(*s);
  apply_mask(*s);
  lock.unlock();
  if (!wrapped && hash != 0 && g_making.load() == 0 && scope_ticket().ticket == 0) {
    // The caller is not hooked (the library is linked statically, or a second copy of it): a rank
    // that then does nothing with the communicator must show that it has it.
    group_of(comm);
  }
  return make(*s, kCommHandle, comm, s->comm[comm].generation.load());
}

void plugin_more_events(Handle context, u32 events) noexcept {
  Tracker* s = tracker_in_force();
  const u32 comm = s != nullptr ? comm_of(*s, context) : kNoComm;
  if (comm != kNoComm) {
    s->comm[comm].other_events.store(events);
    apply_mask(*s);
  }
}

void plugin_learn(Handle context, u64 hash, i32 rank, const char* name) noexcept {
  Tracker* s = tracker_in_force();
  const u32 comm = s != nullptr ? comm_of(*s, context) : kNoComm;
  if (comm == kNoComm || hash == 0 || s->comms[comm].hash.load(kRelaxed) != 0) {
    return;
  }
  const std::lock_guard lock(s->comms_lock);
  s->comms[comm].hash.store(hash);
  s->comms[comm].rank.store(rank);
  if (name != nullptr && name[0] != '\0') {
    s->comms[comm].name.store(fr_intern(name, std::strlen(name)));
  }
  for (u32 i = 1; i < kComms; ++i) {
    const CommRow& row = s->comms[i];
    if (i != comm && row.in_use.load() == 2 && row.hash.load() == hash &&
        row.is_profiled.load() == 0 && row.rank.load() == rank) {
      s->comms[comm].n_ranks.store(0);
      merge(*s, i, comm);
      s->comms[comm].in_use.store(2);
      return;
    }
  }
}

void plugin_finalize(Handle context) noexcept {
  Tracker* s = tracker_in_force();
  const u32 comm = s != nullptr ? comm_of(*s, context) : kNoComm;
  if (comm != kNoComm) {
    close_comm(comm, nullptr);
    s->comm[comm].mask.store(nullptr);
  }
}

}  // namespace fr::nccl
