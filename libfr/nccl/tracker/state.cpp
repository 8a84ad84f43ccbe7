// state.cpp - the tracker's tables and their locks.
#include "nccl/tracker/state.hpp"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <iterator>
#include <new>

#include "cuda/waits.hpp"
#include "recorder/start.hpp"

namespace fr::nccl {

std::atomic<Tracker*> g_tracker{nullptr};
std::atomic<u32> g_library_version{0};
std::atomic<u32> g_hooked{0};
std::atomic<i32> g_making{0};
std::atomic<bool> g_later{false};

Thread g_threads[kThreads];
constinit thread_local OwnThread t_own __attribute__((tls_model("initial-exec"))) = {};

[[gnu::cold, gnu::noinline]] Thread* learn_thread() noexcept {
  t_own.tid = own_tid();
  for (int round = 0; round < 2; ++round) {
    for (Thread& row : g_threads) {
      u32 owner = row.tid.load();
      // second round: rows of threads that have ended
      if (owner != 0 && (round == 0 || syscall(SYS_tgkill, getpid(), owner, 0) == 0)) {
        continue;
      }
      if (row.tid.compare_exchange_strong(owner, t_own.tid)) {
        row.unlinked = nullptr;
        row.current = 0;
        row.current_parts = 0;
        row.n_scopes = 0;
        return t_own.thread = &row;
      }
    }
  }
  return t_own.thread = nullptr;
}

namespace {

// Events that the user's own plugin asked for.
u32 other_events(const Tracker& s) noexcept {
  u32 others = 0;
  for (u32 i = 1; i < kComms; ++i) {
    others |= s.comm[i].other_events.load(kRelaxed);
  }
  return others;
}

}  // namespace

u32 thread_slot() noexcept {
  Tracker* s = tracker_in_force();
  const Thread* t = s != nullptr ? own_thread(*s) : nullptr;
  return t != nullptr ? static_cast<u32>(t - g_threads) : ~0u;
}

// KernelCh makes NCCL put a host node into captured graphs: not requested while one is captured.
// One word for all communicators of one copy of the library.
void apply_mask(Tracker& s) noexcept {
  const bool hidden =
      cuda::is_capturing() || s.capture_reported.load(kRelaxed) || s.kernels_off.load(kRelaxed);
  const u32 others = other_events(s);
  for (u32 i = 1; i < kComms; ++i) {
    if (int* mask = s.comm[i].mask.load(kRelaxed)) {
      const u32 events = s.comm[i].events.load(kRelaxed);
      const u32 asked = (hidden ? events & ~u32{kEvKernelCh} : events) | others;
      __atomic_store_n(mask, static_cast<int>(asked), __ATOMIC_RELAXED);
    }
  }
}

// NCCL reports a kernel when its device's count of kernels has come to the host's count, and the
// two count operations issued without KernelCh differently (seen with 2.28.9). For all operations
// issued with it later, NCCL would report others' kernels, or none, and a communicator does not end
// before the last one is reported. So nothing asks for kernels from here on.
void issued_in_capture(Tracker& s) noexcept {
  if (s.kernels_off.load(kRelaxed) || (other_events(s) & kEvKernelCh) != 0 ||
      s.kernels_off.exchange(true)) {
    return;  // known, or the user's own plugin asks for them all along
  }
  apply_mask(s);
  s.device->events.fetch_and(~u32{kEvKernelCh}, kRelaxed);
  say_layer(s);
}

void mark_captured(Tracker& s, u32 slot) noexcept {
  DeviceOp& op = s.ops[slot];
  if ((op.flags.fetch_or(kDevCaptured | kDevUnseen, kRelaxed) & kDevCaptured) == 0) {
    s.comms[op.comm.load(kRelaxed) % kComms].captured.fetch_add(1, kRelaxed);
  }
}

// The device counts that kernel, the host does not: from here on the communicator's kernels are
// reported too early, by those before them (2.28.9).
void sent_to_itself(Tracker& s, u32 slot) noexcept {
  DeviceOp& op = s.ops[slot];
  s.op[slot].self_parts.fetch_add(1, kRelaxed);
  op.flags.fetch_or(kDevNoKernels, kRelaxed);
  s.comm[op.comm.load(kRelaxed) % kComms].kernels_wrong.store(1, kRelaxed);
}

// Shown in status and dumps.
void say_layer(const Tracker& s) noexcept {
  char text[160];
  const u32 api = s.device->plugin_api.load();
  if (api != 0) {
    std::snprintf(
        text, sizeof text, "profiler plugin, version %u of its interface%s; %u calls hooked", api,
        s.kernels_off.load() ? ", no kernels since a graph captured" : "", g_hooked.load());
  } else {
    std::snprintf(text, sizeof text, "%u calls hooked; the profiler plugin was not asked for (yet)",
                  g_hooked.load());
  }
  fr_set_layer("nccl", text);
}

namespace {

Tracker* make_tracker() noexcept {
  static std::mutex lock;
  const std::lock_guard guard(lock);
  if (Tracker* s = tracker_in_force()) {
    return s;
  }
  Recorder* r = recorder();
  auto* s = r != nullptr && r->hot.header != nullptr ? new (std::nothrow) Tracker : nullptr;
  if (s == nullptr) {
    return nullptr;
  }
  s->hot = &r->hot;
  s->device = r->region.section<Device>(kSecDevice);
  s->comms = r->region.section<CommRow>(kSecComms);
  s->ops = r->region.section<DeviceOp>(kSecDeviceOps);
  s->phases = r->region.section<Phase>(kSecPhases);
  s->pid = r->pid;
  s->generation = r->hot.generation;
  s->stamps = r->options.timing != Timing::kOff;
  s->salt = handle_salt(r->pid, r->region.header().proc_start);
  static constexpr const char* kOps[] = {
      "?",      "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all",
      "gather", "scatter",    "send",      "recv",   "put_signal", "signal",         "wait_signal"};
  static_assert(std::size(kOps) == static_cast<u32>(Func::kFuncs));
  for (u32 i = 0; i < std::size(kOps); ++i) {
    s->op_name[i] = fr_intern(kOps[i], std::strlen(kOps[i]));
  }
  for (Name& word : s->words) {
    word.id = word.text != nullptr ? fr_intern(word.text, std::strlen(word.text)) : 0;
  }
  cuda::abandon_all();  // of a recorder before this one
  s->device->library_version.store(g_library_version.load());
  s->device->hooked.store(g_hooked.load());
  g_tracker.store(s, kRelease);
  say_layer(*s);
  return s;
}

}  // namespace

// ---------------------------------------------------------------- names

Func func_of(const char* name) noexcept {
  static constexpr struct {
    const char* name;
    Func func;
  } kNames[] = {{"AllReduce", Func::kAllReduce},
                {"AllGather", Func::kAllGather},
                {"ReduceScatter", Func::kReduceScatter},
                {"Broadcast", Func::kBroadcast},
                {"Send", Func::kSend},
                {"Recv", Func::kRecv},
                {"Reduce", Func::kReduce},
                {"AlltoAll", Func::kAllToAll},
                {"AllToAll", Func::kAllToAll},
                {"Gather", Func::kGather},
                {"Scatter", Func::kScatter},
                {"PutSignal", Func::kPutSignal},
                {"Signal", Func::kSignal},
                {"WaitSignal", Func::kWaitSignal}};
  if (name != nullptr) {
    for (const auto& row : kNames) {
      if (is_same(row.name, name)) {
        return row.func;
      }
    }
  }
  return Func::kOther;
}

Func func_of_v1(u8 code) noexcept {
  static constexpr Func kFuncs[] = {Func::kBroadcast,     Func::kReduce,    Func::kAllGather,
                                    Func::kReduceScatter, Func::kAllReduce, Func::kOther,
                                    Func::kSend,          Func::kRecv};
  return code < std::size(kFuncs) ? kFuncs[code] : Func::kOther;
}

u8 dtype_of(int nccl_datatype) noexcept {
  //                            i8 u8 i32 u32 i64 u64 f16 f32 f64 bf16 e4m3 e5m2
  static constexpr u8 kCodes[] = {2, 1, 4, 29, 5, 30, 6, 7, 8, 16, 25, 24};
  return nccl_datatype >= 0 && nccl_datatype < static_cast<int>(std::size(kCodes))
             ? kCodes[nccl_datatype]
             : 0;
}

u8 dtype_of(const char* name) noexcept {
  static constexpr const char* kNames[] = {"Int8",    "Uint8",    "Int32",      "Uint32",
                                           "Int64",   "Uint64",   "Float16",    "Float32",
                                           "Float64", "Bfloat16", "Float8e4m3", "Float8e5m2"};
  if (name != nullptr && std::strncmp(name, "nccl", 4) == 0) {
    for (int i = 0; i < static_cast<int>(std::size(kNames)); ++i) {
      if (is_same(kNames[i], name + 4)) {
        return dtype_of(i);
      }
    }
  }
  return 0;
}

u8 reduce_op_of(int nccl_redop) noexcept {
  static constexpr u8 kCodes[] = {1, 3, 5, 4, 2};  // sum prod max min avg
  return nccl_redop < 0 ? 0 : nccl_redop < 5 ? kCodes[nccl_redop] : 9;
}

// ---------------------------------------------------------------- state

bool ready() noexcept {
  if (tracker_in_force() != nullptr) {
    return true;
  }
  return start_unless_child() && make_tracker() != nullptr;
}

bool is_active() noexcept {
  const Tracker* s = g_tracker.load(kAcquire);
  if (g_library_version.load(kRelaxed) == 0 &&
      (s == nullptr || s->device->plugin_api.load(kRelaxed) == 0)) {
    return false;
  }
  return ready() && stamps_wanted();
}

bool stamps_wanted() noexcept {
  const Tracker* s = tracker_in_force();
  return s != nullptr && s->stamps;
}

bool is_foreign(Handle handle) noexcept {
  const Tracker* s = tracker_in_force();
  return s != nullptr && !is_own(*s, handle);
}

u64 pair_salt() noexcept {
  const Tracker* s = tracker_in_force();
  const u64 even = s != nullptr ? s->salt & ~u64{1} : 0;  // those of handles are odd
  return even != 0 ? even : 0x8000;
}

void set_library_version(u32 version) noexcept {
  g_library_version.store(version);
  if (Tracker* s = tracker_in_force()) {
    s->device->library_version.store(version);
  }
}

u32 library_version() noexcept {
  return g_library_version.load();
}

void set_hooked(u32 n) noexcept {
  g_hooked.store(n);
  if (Tracker* s = tracker_in_force()) {
    s->device->hooked.store(n);
  }
}

Device* device() noexcept {
  Tracker* s = tracker_in_force();
  return s != nullptr ? s->device : nullptr;
}

namespace {

void capture_changed() noexcept {
  if (Tracker* s = tracker_in_force()) {
    apply_mask(*s);
  }
}

}  // namespace
}  // namespace fr::nccl

constinit const fr::cuda::Operations fr::cuda::kOperations = {
    .events_seen = nccl::events_seen,
    .wait_began = nccl::wait_began,
    .wait_ended = nccl::wait_ended,
    .reached = nccl::reached,
    .untrack = nccl::untrack,
    .is_over = nccl::is_over,
    .oldest_in_flight = nccl::oldest_in_flight,
    .fail = nccl::fail_operation,
    .capture_changed = nccl::capture_changed,
};
