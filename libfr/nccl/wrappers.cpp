// wrappers.cpp - what runs instead of each hooked nccl* function.
#include "nccl/wrappers.hpp"

#include <dlfcn.h>

#include <cstring>
#include <iterator>

#include "cuda/events.hpp"
#include "interpose/got.hpp"
#include "nccl/calls.hpp"
#include "recorder/log.hpp"

namespace fr::nccl {
namespace {

// ---------------------------------------------------------------- table

enum Index : u32 {
  kIdxAllReduce,
  kIdxBroadcast,
  kIdxBcast,
  kIdxReduce,
  kIdxAllGather,
  kIdxReduceScatter,
  kIdxAllToAll,
  kIdxGather,
  kIdxScatter,
  kIdxSend,
  kIdxRecv,
  kIdxPutSignal,
  kIdxSignal,
  kIdxWaitSignal,
  kIdxAllReduceConfig,  // these take a configuration; from 2.32
  kIdxBroadcastConfig,
  kIdxReduceConfig,
  kIdxAllGatherConfig,
  kIdxReduceScatterConfig,
  kIdxAllToAllConfig,
  kIdxGatherConfig,
  kIdxScatterConfig,
  kIdxGroupStart,
  kIdxGroupEnd,
  kIdxGroupSimulateEnd,
  kIdxInitRank,
  kIdxInitRankConfig,
  kIdxInitRankScalable,
  kIdxInitAll,
  kIdxSplit,
  kIdxShrink,
  kIdxGrow,
  kIdxFinalize,
  kIdxDestroy,
  kIdxAbort,
  kIdxRevoke,
  kIdxSuspend,
  kIdxResume,
  kIdxRegister,
  kIdxDeregister,
  kIdxWindowRegister,
  kIdxWindowDeregister,
  kIdxDevCommCreate,
  kIdxDevCommDestroy,
  kIdxMemAlloc,
  kIdxMemFree,
  kIdxGetAsyncError,
  kIdxDlsym,
  kIndices
};
extern Redirect g_table[kIndices];
void* learn(Redirect& r, void* leads_to) noexcept;

template <class F>
F real(Index i) noexcept {
  return reinterpret_cast<F>(g_table[i].real.load(std::memory_order_acquire));
}

// A call that makes no work for the device but may wait: for other ranks, or for the device. In a
// group it is done at the group's end.
template <class Call_>
int setup(Index at, Comm comm, Call_ call) noexcept {
  const char* const name = g_table[at].name;
  background_over(comm, FR_OK);
  const Lifecycle record(name, comm != nullptr && hot() != nullptr ? comm_row(comm) : kNoComm);
  const int result = call();
  CallThread* t = hot() != nullptr && t_depth > 0 && comm != nullptr ? call_thread() : nullptr;
  if (t != nullptr && accepted(result)) {
    push(*t, {0, name, record.ticket, kNoComm, 0, -1, nullptr, 0});
  } else if (result != kInProgress || !goes_on(record.ticket, comm, nullptr)) {
    record.end(result, name, comm);
  }
  return result;
}

// ---------------------------------------------------------------- operations

Call call_of(Func func, std::size_t count, int dtype, Stream stream, const void* send = nullptr,
             const void* recv = nullptr) noexcept {
  Call c;
  c.func = func;
  c.count = count;
  c.dtype = dtype_of(dtype);
  c.stream = stream;
  c.send = send;
  c.recv = recv;
  return c;
}

template <Index kAt, class... Config>
int all_reduce(const void* send, void* recv, std::size_t count, int dtype, int op, Comm comm,
               Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kAllReduce, count, dtype, stream, send, recv);
  c.reduce_op = reduce_op_of(op);
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&all_reduce<kAt, Config...>)>(kAt)(send, recv, count, dtype, op, comm,
                                                            stream, config...);
  });
}

template <Index kAt, class... Config>
int broadcast(const void* send, void* recv, std::size_t count, int dtype, int root, Comm comm,
              Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kBroadcast, count, dtype, stream, send, recv);
  c.peer = root;
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&broadcast<kAt, Config...>)>(kAt)(send, recv, count, dtype, root, comm,
                                                           stream, config...);
  });
}

int bcast(void* buffer, std::size_t count, int dtype, int root, Comm comm, Stream stream) noexcept {
  Call c = call_of(Func::kBroadcast, count, dtype, stream, buffer, buffer);
  c.peer = root;
  return operation("ncclBcast", comm, c, [&] {
    return real<decltype(&bcast)>(kIdxBcast)(buffer, count, dtype, root, comm, stream);
  });
}

template <Index kAt, class... Config>
int reduce(const void* send, void* recv, std::size_t count, int dtype, int op, int root, Comm comm,
           Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kReduce, count, dtype, stream, send, recv);
  c.reduce_op = reduce_op_of(op);
  c.peer = root;
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&reduce<kAt, Config...>)>(kAt)(send, recv, count, dtype, op, root, comm,
                                                        stream, config...);
  });
}

template <Index kAt, class... Config>
int all_gather(const void* send, void* recv, std::size_t count, int dtype, Comm comm, Stream stream,
               Config... config) noexcept {
  const Call c = call_of(Func::kAllGather, count, dtype, stream, send, recv);
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&all_gather<kAt, Config...>)>(kAt)(send, recv, count, dtype, comm, stream,
                                                            config...);
  });
}

template <Index kAt, class... Config>
int reduce_scatter(const void* send, void* recv, std::size_t count, int dtype, int op, Comm comm,
                   Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kReduceScatter, count, dtype, stream, send, recv);
  c.reduce_op = reduce_op_of(op);
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&reduce_scatter<kAt, Config...>)>(kAt)(send, recv, count, dtype, op, comm,
                                                                stream, config...);
  });
}

template <Index kAt, class... Config>
int all_to_all(const void* send, void* recv, std::size_t count, int dtype, Comm comm, Stream stream,
               Config... config) noexcept {
  const Call c = call_of(Func::kAllToAll, count, dtype, stream, send, recv);
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&all_to_all<kAt, Config...>)>(kAt)(send, recv, count, dtype, comm, stream,
                                                            config...);
  });
}

template <Index kAt, class... Config>
int gather(const void* send, void* recv, std::size_t count, int dtype, int root, Comm comm,
           Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kGather, count, dtype, stream, send, recv);
  c.peer = root;
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&gather<kAt, Config...>)>(kAt)(send, recv, count, dtype, root, comm,
                                                        stream, config...);
  });
}

template <Index kAt, class... Config>
int scatter(const void* send, void* recv, std::size_t count, int dtype, int root, Comm comm,
            Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kScatter, count, dtype, stream, send, recv);
  c.peer = root;
  return operation(g_table[kAt].name, comm, c, [&] {
    return real<decltype(&scatter<kAt, Config...>)>(kAt)(send, recv, count, dtype, root, comm,
                                                         stream, config...);
  });
}

int send_to(const void* buffer, std::size_t count, int dtype, int peer, Comm comm,
            Stream stream) noexcept {
  Call c = call_of(Func::kSend, count, dtype, stream, buffer);
  c.peer = peer;
  return operation("ncclSend", comm, c, [&] {
    return real<decltype(&send_to)>(kIdxSend)(buffer, count, dtype, peer, comm, stream);
  });
}

int recv_from(void* buffer, std::size_t count, int dtype, int peer, Comm comm,
              Stream stream) noexcept {
  Call c = call_of(Func::kRecv, count, dtype, stream, nullptr, buffer);
  c.peer = peer;
  return operation("ncclRecv", comm, c, [&] {
    return real<decltype(&recv_from)>(kIdxRecv)(buffer, count, dtype, peer, comm, stream);
  });
}

int put_signal(const void* buffer, std::size_t count, int dtype, int peer, void* window,
               std::size_t offset, int signal, int context, unsigned flags, Comm comm,
               Stream stream) noexcept {
  Call c = call_of(Func::kPutSignal, count, dtype, stream, buffer);
  c.peer = peer;
  return operation("ncclPutSignal", comm, c, [&] {
    return real<decltype(&put_signal)>(kIdxPutSignal)(buffer, count, dtype, peer, window, offset,
                                                      signal, context, flags, comm, stream);
  });
}

int signal_to(int peer, int signal, int context, unsigned flags, Comm comm,
              Stream stream) noexcept {
  Call c = call_of(Func::kSignal, 0, -1, stream);
  c.peer = peer;
  return operation("ncclSignal", comm, c, [&] {
    return real<decltype(&signal_to)>(kIdxSignal)(peer, signal, context, flags, comm, stream);
  });
}

int wait_signal(int n, void* signals, Comm comm, Stream stream) noexcept {
  const Call c = call_of(Func::kWaitSignal, 0, -1, stream);
  return operation("ncclWaitSignal", comm, c, [&] {
    return real<decltype(&wait_signal)>(kIdxWaitSignal)(n, signals, comm, stream);
  });
}

// ---------------------------------------------------------------- groups of calls

int group_start() noexcept {
  const int result = real<decltype(&group_start)>(kIdxGroupStart)();
  t_depth += result == kSuccess ? 1 : 0;
  return result;
}

int group_end() noexcept {
  const auto original = real<decltype(&group_end)>(kIdxGroupEnd);
  t_depth -= t_depth > 0 ? 1 : 0;
  CallThread* t = hot() != nullptr && t_depth == 0 ? call_thread() : nullptr;
  if (t == nullptr) {
    return original();
  }
  int makes = 0;
  for (u32 i = 0; i < t->n_pending; ++i) {
    if (t->pending[i].op != 0) {
      launching(t->pending[i].op);
    } else if (t->pending[i].comm != kNoComm) {
      ++makes;
    }
  }
  making(makes);
  const int result = original();
  if (result == kSuccess) {
    end_group_events(*t, true);
  }
  finish_group(*t, result, "ncclGroupEnd", true);
  making(-makes);
  end_group_events(*t, false);
  return result;
}

int group_simulate_end(void* info) noexcept {
  const int result = real<decltype(&group_simulate_end)>(kIdxGroupSimulateEnd)(info);
  t_depth -= t_depth > 0 ? 1 : 0;
  CallThread* t = hot() != nullptr && t_depth == 0 ? call_thread() : nullptr;
  if (t != nullptr) {
    finish_group(*t, kSuccess, "ncclGroupSimulateEnd", false);
    end_group_events(*t, false);
  }
  return result;
}

// ---------------------------------------------------------------- their making and their end

int init_rank(Comm* out, int n_ranks, UniqueId id, int rank) noexcept {
  return make_comm("ncclCommInitRank", unique_id_hash(&id, sizeof id), n_ranks, rank, out, [&] {
    return real<decltype(&init_rank)>(kIdxInitRank)(out, n_ranks, id, rank);
  });
}

int init_rank_config(Comm* out, int n_ranks, UniqueId id, int rank, void* config) noexcept {
  return make_comm("ncclCommInitRankConfig", unique_id_hash(&id, sizeof id), n_ranks, rank, out,
                   [&] {
                     return real<decltype(&init_rank_config)>(kIdxInitRankConfig)(out, n_ranks, id,
                                                                                  rank, config);
                   });
}

int init_rank_scalable(Comm* out, int n_ranks, int rank, int n_ids, UniqueId* ids,
                       void* config) noexcept {
  const u64 hash = ids != nullptr && n_ids > 0 ? unique_id_hash(ids, sizeof *ids) : 0;
  return make_comm("ncclCommInitRankScalable", hash, n_ranks, rank, out, [&] {
    return real<decltype(&init_rank_scalable)>(kIdxInitRankScalable)(out, n_ranks, rank, n_ids, ids,
                                                                     config);
  });
}

int init_all(Comm* comms, int n, const int* devices) noexcept {
  const Making now;
  const u64 since = now_ticks();
  const bool records = ready();
  const Lifecycle record("ncclCommInitAll", kNoComm);
  const int result = real<decltype(&init_all)>(kIdxInitAll)(comms, n, devices);
  record.end(result, "ncclCommInitAll", nullptr);
  for (int i = 0; records && accepted(result) && comms != nullptr && i < n; ++i) {
    comm_made(open_comm(mix(0x616c6c, static_cast<u64>(n)), n, i, nullptr), comms[i], n, i, since,
              scope_ticket().ticket != 0);
  }
  return result;
}

int split(Comm parent, int color, int key, Comm* out, void* config) noexcept {
  return derive_comm("ncclCommSplit", parent, static_cast<u64>(color), out, [&] {
    return real<decltype(&split)>(kIdxSplit)(parent, color, key, out, config);
  });
}

int shrink(Comm parent, int* ranks, int n, Comm* out, void* config, int flags) noexcept {
  return derive_comm("ncclCommShrink", parent, 0x73687269, out, [&] {
    return real<decltype(&shrink)>(kIdxShrink)(parent, ranks, n, out, config, flags);
  });
}

int grow(Comm parent, int n_ranks, const UniqueId* id, int rank, Comm* out, void* config) noexcept {
  return derive_comm("ncclCommGrow", parent, 0x67726f77, out, [&] {
    return real<decltype(&grow)>(kIdxGrow)(parent, n_ranks, id, rank, out, config);
  });
}

int finalize(Comm comm) noexcept {
  return end_comm("ncclCommFinalize", comm, false, nullptr,
                  [&] { return real<decltype(&finalize)>(kIdxFinalize)(comm); });
}

int destroy(Comm comm) noexcept {
  return end_comm("ncclCommDestroy", comm, true, nullptr,
                  [&] { return real<decltype(&destroy)>(kIdxDestroy)(comm); });
}

int abort_comm(Comm comm) noexcept {
  return end_comm("ncclCommAbort", comm, true, "ended by ncclCommAbort",
                  [&] { return real<decltype(&abort_comm)>(kIdxAbort)(comm); });
}

int revoke(Comm comm, int flags) noexcept {
  return end_comm("ncclCommRevoke", comm, false, "ended by ncclCommRevoke",
                  [&] { return real<decltype(&revoke)>(kIdxRevoke)(comm, flags); });
}

int suspend(Comm comm, int flags) noexcept {
  return end_comm("ncclCommSuspend", comm, false, nullptr,
                  [&] { return real<decltype(&suspend)>(kIdxSuspend)(comm, flags); });
}

int resume(Comm comm) noexcept {
  return end_comm("ncclCommResume", comm, false, nullptr,
                  [&] { return real<decltype(&resume)>(kIdxResume)(comm); });
}

// ---------------------------------------------------------------- memory

int register_buffer(Comm comm, void* buffer, std::size_t bytes, void** handle) noexcept {
  return setup(kIdxRegister, comm, [&] {
    return real<decltype(&register_buffer)>(kIdxRegister)(comm, buffer, bytes, handle);
  });
}

int deregister_buffer(Comm comm, void* handle) noexcept {
  return setup(kIdxDeregister, comm,
               [&] { return real<decltype(&deregister_buffer)>(kIdxDeregister)(comm, handle); });
}

int register_window(Comm comm, void* buffer, std::size_t bytes, void** window, int flags) noexcept {
  return setup(kIdxWindowRegister, comm, [&] {
    return real<decltype(&register_window)>(kIdxWindowRegister)(comm, buffer, bytes, window, flags);
  });
}

int deregister_window(Comm comm, void* window) noexcept {
  return setup(kIdxWindowDeregister, comm, [&] {
    return real<decltype(&deregister_window)>(kIdxWindowDeregister)(comm, window);
  });
}

int create_device_comm(Comm comm, const void* needs, void* out) noexcept {
  return setup(kIdxDevCommCreate, comm, [&] {
    return real<decltype(&create_device_comm)>(kIdxDevCommCreate)(comm, needs, out);
  });
}

int destroy_device_comm(Comm comm, const void* device_comm) noexcept {
  return setup(kIdxDevCommDestroy, comm, [&] {
    return real<decltype(&destroy_device_comm)>(kIdxDevCommDestroy)(comm, device_comm);
  });
}

int allocate(void** out, std::size_t bytes) noexcept {
  return setup(kIdxMemAlloc, nullptr,
               [&] { return real<decltype(&allocate)>(kIdxMemAlloc)(out, bytes); });
}

int release(void* memory) noexcept {
  return setup(kIdxMemFree, nullptr, [&] { return real<decltype(&release)>(kIdxMemFree)(memory); });
}

// ---------------------------------------------------------------- errors

int get_async_error(Comm comm, int* error) noexcept {
  const int result = real<decltype(&get_async_error)>(kIdxGetAsyncError)(comm, error);
  if (result == kSuccess && error != nullptr && !accepted(*error) && hot() != nullptr)
      [[unlikely]] {
    comm_failed(find_comm(comm), ErrorText("asynchronous error", *error, comm).text);
  }
  if (result == kSuccess && error != nullptr && *error != kInProgress) {
    const bool ok = *error == kSuccess;
    background_over(comm, ok ? FR_OK : FR_FAILED,
                    ok ? nullptr : ErrorText("asynchronous error", *error, comm).text);
  }
  return result;
}

// ---------------------------------------------------------------- dlsym

// ctypes and its like ask with a handle: then it does not matter who asks. What they get is ours.
void* look_up(void* handle, const char* name) noexcept {
  const auto original = real<decltype(&look_up)>(kIdxDlsym);
  if (handle == RTLD_DEFAULT || handle == RTLD_NEXT || name == nullptr ||
      std::strncmp(name, "nccl", 4) != 0) {
    return original(handle, name);  // a jump: who asks matters here, and is still the caller
  }
  void* const found = original(handle, name);
  if (found == nullptr) {
    return found;
  }
  for (u32 i = 0; i < kIdxDlsym; ++i) {
    Redirect& r = g_table[i];
    if (std::strcmp(r.name, name) == 0) {
      return learn(r, found) == found ? r.ours : found;
    }
  }
  return found;
}

#define FR_ROW(index, name, function) {name, reinterpret_cast<void*>(function), {nullptr}, false}
Redirect g_table[kIndices] = {
    FR_ROW(kIdxAllReduce, "ncclAllReduce", all_reduce<kIdxAllReduce>),
    FR_ROW(kIdxBroadcast, "ncclBroadcast", broadcast<kIdxBroadcast>),
    FR_ROW(kIdxBcast, "ncclBcast", bcast),
    FR_ROW(kIdxReduce, "ncclReduce", reduce<kIdxReduce>),
    FR_ROW(kIdxAllGather, "ncclAllGather", all_gather<kIdxAllGather>),
    FR_ROW(kIdxReduceScatter, "ncclReduceScatter", reduce_scatter<kIdxReduceScatter>),
    FR_ROW(kIdxAllToAll, "ncclAlltoAll", all_to_all<kIdxAllToAll>),
    FR_ROW(kIdxGather, "ncclGather", gather<kIdxGather>),
    FR_ROW(kIdxScatter, "ncclScatter", scatter<kIdxScatter>),
    FR_ROW(kIdxSend, "ncclSend", send_to),
    FR_ROW(kIdxRecv, "ncclRecv", recv_from),
    FR_ROW(kIdxPutSignal, "ncclPutSignal", put_signal),
    FR_ROW(kIdxSignal, "ncclSignal", signal_to),
    FR_ROW(kIdxWaitSignal, "ncclWaitSignal", wait_signal),
    FR_ROW(kIdxAllReduceConfig, "ncclAllReduceConfig",
           (all_reduce<kIdxAllReduceConfig, const void*>)),
    FR_ROW(kIdxBroadcastConfig, "ncclBroadcastConfig",
           (broadcast<kIdxBroadcastConfig, const void*>)),
    FR_ROW(kIdxReduceConfig, "ncclReduceConfig", (reduce<kIdxReduceConfig, const void*>)),
    FR_ROW(kIdxAllGatherConfig, "ncclAllGatherConfig",
           (all_gather<kIdxAllGatherConfig, const void*>)),
    FR_ROW(kIdxReduceScatterConfig, "ncclReduceScatterConfig",
           (reduce_scatter<kIdxReduceScatterConfig, const void*>)),
    FR_ROW(kIdxAllToAllConfig, "ncclAlltoAllConfig", (all_to_all<kIdxAllToAllConfig, const void*>)),
    FR_ROW(kIdxGatherConfig, "ncclGatherConfig", (gather<kIdxGatherConfig, const void*>)),
    FR_ROW(kIdxScatterConfig, "ncclScatterConfig", (scatter<kIdxScatterConfig, const void*>)),
    FR_ROW(kIdxGroupStart, "ncclGroupStart", group_start),
    FR_ROW(kIdxGroupEnd, "ncclGroupEnd", group_end),
    FR_ROW(kIdxGroupSimulateEnd, "ncclGroupSimulateEnd", group_simulate_end),
    FR_ROW(kIdxInitRank, "ncclCommInitRank", init_rank),
    FR_ROW(kIdxInitRankConfig, "ncclCommInitRankConfig", init_rank_config),
    FR_ROW(kIdxInitRankScalable, "ncclCommInitRankScalable", init_rank_scalable),
    FR_ROW(kIdxInitAll, "ncclCommInitAll", init_all),
    FR_ROW(kIdxSplit, "ncclCommSplit", split),
    FR_ROW(kIdxShrink, "ncclCommShrink", shrink),
    FR_ROW(kIdxGrow, "ncclCommGrow", grow),
    FR_ROW(kIdxFinalize, "ncclCommFinalize", finalize),
    FR_ROW(kIdxDestroy, "ncclCommDestroy", destroy),
    FR_ROW(kIdxAbort, "ncclCommAbort", abort_comm),
    FR_ROW(kIdxRevoke, "ncclCommRevoke", revoke),
    FR_ROW(kIdxSuspend, "ncclCommSuspend", suspend),
    FR_ROW(kIdxResume, "ncclCommResume", resume),
    FR_ROW(kIdxRegister, "ncclCommRegister", register_buffer),
    FR_ROW(kIdxDeregister, "ncclCommDeregister", deregister_buffer),
    FR_ROW(kIdxWindowRegister, "ncclCommWindowRegister", register_window),
    FR_ROW(kIdxWindowDeregister, "ncclCommWindowDeregister", deregister_window),
    FR_ROW(kIdxDevCommCreate, "ncclDevCommCreate", create_device_comm),
    FR_ROW(kIdxDevCommDestroy, "ncclDevCommDestroy", destroy_device_comm),
    FR_ROW(kIdxMemAlloc, "ncclMemAlloc", allocate),
    FR_ROW(kIdxMemFree, "ncclMemFree", release),
    FR_ROW(kIdxGetAsyncError, "ncclCommGetAsyncError", get_async_error),
    {"dlsym", reinterpret_cast<void*>(&look_up), {nullptr}, true},
};
#undef FR_ROW

RedirectTable g_nccl = {g_table, kIndices, {"libnccl.so", nullptr}, {0}, {0}};

void* learn(Redirect& r, void* leads_to) noexcept {
  return g_nccl.learn(r, leads_to);
}

void* loaded(const char* name) noexcept {
  return dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
}

// What places lead to that were never called through yet.
void find_originals() noexcept {
  g_table[kIdxDlsym].real.store(reinterpret_cast<void*>(&dlsym));
  if (void* nccl = loaded("libnccl.so.2")) {
    for (u32 i = 0; i < kIdxDlsym; ++i) {
      learn(g_table[i], dlsym(nccl, g_table[i].name));
    }
    g_nccl.is_bound.store(true);
    const auto find = [nccl](auto& function, const char* name) {
      using F = decltype(function.load());
      function.store(reinterpret_cast<F>(dlsym(nccl, name)));
    };
    find(g_library.count, "ncclCommCount");
    find(g_library.user_rank, "ncclCommUserRank");
    find(g_library.device, "ncclCommCuDevice");
    find(g_library.error_text, "ncclGetErrorString");
    find(g_library.last_error, "ncclGetLastError");
    int version = 0;
    const auto ask = reinterpret_cast<int (*)(int*)>(dlsym(nccl, "ncclGetVersion"));
    if (ask != nullptr && ask(&version) == kSuccess) {
      set_library_version(static_cast<u32>(version));
    }
    dlclose(nccl);
  }
  cuda::find_originals();
}

}  // namespace

u32 hook_calls() noexcept {
  find_originals();
  RedirectTable* const tables[] = {&g_nccl, &cuda::calls()};
  const u32 refused = g_nccl.refused.load();
  redirect_calls(tables, std::size(tables));
  set_hooked(g_nccl.in_force.load());
  if (g_nccl.refused.load() != refused) {
    log_line(kLogInfo, "%u calls of NCCL lead to another copy of it and are not recorded",
             g_nccl.refused.load());
  }
  return g_nccl.in_force.load() + cuda::calls().in_force.load();
}

u32 unhook_calls() noexcept {
  RedirectTable* const tables[] = {&g_nccl, &cuda::calls()};
  const u32 n = restore_calls(tables, std::size(tables));
  set_hooked(0);
  return n;
}

}  // namespace fr::nccl
