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

// Config: what the calls with a configuration take at the end; from 2.32.
template <CallName kCall, Func kFunc, class... Config>
int plain(const void* send, void* recv, std::size_t count, int dtype, Comm comm, Stream stream,
          Config... config) noexcept {
  const Call c = call_of(kFunc, count, dtype, stream, send, recv);
  return operation<kCall>(comm, c, send, recv, count, dtype, comm, stream, config...);
}

template <CallName kCall, Func kFunc, class... Config>
int reducing(const void* send, void* recv, std::size_t count, int dtype, int op, Comm comm,
             Stream stream, Config... config) noexcept {
  Call c = call_of(kFunc, count, dtype, stream, send, recv);
  c.reduce_op = reduce_op_of(op);
  return operation<kCall>(comm, c, send, recv, count, dtype, op, comm, stream, config...);
}

template <CallName kCall, Func kFunc, class... Config>
int rooted(const void* send, void* recv, std::size_t count, int dtype, int root, Comm comm,
           Stream stream, Config... config) noexcept {
  Call c = call_of(kFunc, count, dtype, stream, send, recv);
  c.peer = root;
  return operation<kCall>(comm, c, send, recv, count, dtype, root, comm, stream, config...);
}

template <CallName kCall, class... Config>
int reduce(const void* send, void* recv, std::size_t count, int dtype, int op, int root, Comm comm,
           Stream stream, Config... config) noexcept {
  Call c = call_of(Func::kReduce, count, dtype, stream, send, recv);
  c.reduce_op = reduce_op_of(op);
  c.peer = root;
  return operation<kCall>(comm, c, send, recv, count, dtype, op, root, comm, stream, config...);
}

// With one buffer: Buffer is void* where it is written, const void* where it is only read.
template <CallName kCall, Func kFunc, class Buffer>
int with_peer(Buffer buffer, std::size_t count, int dtype, int peer, Comm comm,
              Stream stream) noexcept {
  Call c = call_of(kFunc, count, dtype, stream, kFunc == Func::kRecv ? nullptr : buffer,
                   kFunc == Func::kSend ? nullptr : buffer);
  c.peer = peer;
  return operation<kCall>(comm, c, buffer, count, dtype, peer, comm, stream);
}

template <CallName kCall>
int put_signal(const void* buffer, std::size_t count, int dtype, int peer, void* window,
               std::size_t offset, int signal, int context, unsigned flags, Comm comm,
               Stream stream) noexcept {
  Call c = call_of(Func::kPutSignal, count, dtype, stream, buffer);
  c.peer = peer;
  return operation<kCall>(comm, c, buffer, count, dtype, peer, window, offset, signal, context,
                          flags, comm, stream);
}

template <CallName kCall>
int signal_to(int peer, int signal, int context, unsigned flags, Comm comm,
              Stream stream) noexcept {
  Call c = call_of(Func::kSignal, 0, -1, stream);
  c.peer = peer;
  return operation<kCall>(comm, c, peer, signal, context, flags, comm, stream);
}

template <CallName kCall>
int wait_signal(int n, void* signals, Comm comm, Stream stream) noexcept {
  const Call c = call_of(Func::kWaitSignal, 0, -1, stream);
  return operation<kCall>(comm, c, n, signals, comm, stream);
}

// ---------------------------------------------------------------- groups of calls

template <CallName kCall>
int group_start() noexcept {
  const int result = pass_on<kCall>();
  t_depth += result == kSuccess ? 1 : 0;
  return result;
}

template <CallName kCall>
int group_end() noexcept {
  t_depth -= t_depth > 0 ? 1 : 0;
  CallThread* t = hot() != nullptr && t_depth == 0 ? call_thread() : nullptr;
  if (t == nullptr) {
    return pass_on<kCall>();
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
  const int result = pass_on<kCall>();
  if (result == kSuccess) {
    end_group_events(*t, true);
  }
  finish_group(*t, result, kCall.text, true);
  making(-makes);
  end_group_events(*t, false);
  return result;
}

template <CallName kCall>
int group_simulate_end(void* info) noexcept {
  const int result = pass_on<kCall>(info);
  t_depth -= t_depth > 0 ? 1 : 0;
  CallThread* t = hot() != nullptr && t_depth == 0 ? call_thread() : nullptr;
  if (t != nullptr) {
    finish_group(*t, kSuccess, kCall.text, false);
    end_group_events(*t, false);
  }
  return result;
}

// ---------------------------------------------------------------- their making and their end

template <CallName kCall, class... Config>
int init_rank(Comm* out, int n_ranks, UniqueId id, int rank, Config... config) noexcept {
  return make_comm<kCall>(unique_id_hash(&id, sizeof id), n_ranks, rank, out, out, n_ranks, id,
                          rank, config...);
}

template <CallName kCall>
int init_rank_scalable(Comm* out, int n_ranks, int rank, int n_ids, UniqueId* ids,
                       void* config) noexcept {
  const u64 hash = ids != nullptr && n_ids > 0 ? unique_id_hash(ids, sizeof *ids) : 0;
  return make_comm<kCall>(hash, n_ranks, rank, out, out, n_ranks, rank, n_ids, ids, config);
}

template <CallName kCall>
int init_all(Comm* comms, int n, const int* devices) noexcept {
  const Making now;
  const u64 since = now_ticks();
  const bool records = ready();
  const Lifecycle record(kCall.text, kNoComm);
  const int result = pass_on<kCall>(comms, n, devices);
  record.end(result, kCall.text, nullptr);
  for (int i = 0; records && accepted(result) && comms != nullptr && i < n; ++i) {
    comm_made(open_comm(mix(0x616c6c, static_cast<u64>(n)), n, i, nullptr), comms[i], n, i, since,
              scope_ticket().ticket != 0);
  }
  return result;
}

template <CallName kCall>
int split(Comm parent, int color, int key, Comm* out, void* config) noexcept {
  return derive_comm<kCall>(parent, static_cast<u64>(color), out, parent, color, key, out, config);
}

template <CallName kCall>
int shrink(Comm parent, int* ranks, int n, Comm* out, void* config, int flags) noexcept {
  return derive_comm<kCall>(parent, 0x73687269, out, parent, ranks, n, out, config, flags);
}

template <CallName kCall>
int grow(Comm parent, int n_ranks, const UniqueId* id, int rank, Comm* out, void* config) noexcept {
  return derive_comm<kCall>(parent, 0x67726f77, out, parent, n_ranks, id, rank, out, config);
}

// ---------------------------------------------------------------- memory

// Memory and the like: a call that makes no work for the device but may wait, for other ranks or for
// the device. In a group it is done at the group's end.
template <CallName kCall, class... A>
int setup(Comm comm, A... arguments) noexcept {
  background_over(comm, FR_OK);
  const Lifecycle record(kCall.text,
                         comm != nullptr && hot() != nullptr ? comm_row(comm) : kNoComm);
  const int result = pass_on<kCall>(arguments...);
  CallThread* t = hot() != nullptr && t_depth > 0 && comm != nullptr ? call_thread() : nullptr;
  if (t != nullptr && accepted(result)) {
    push(*t, {0, kCall.text, record.ticket, kNoComm, 0, -1, nullptr, 0});
  } else if (result != kInProgress || !goes_on(record.ticket, comm, nullptr)) {
    record.end(result, kCall.text, comm);
  }
  return result;
}

template <CallName kCall, class... A>
int setup_of_comm(Comm comm, A... more) noexcept {
  return setup<kCall>(comm, comm, more...);
}
template <CallName kCall, class... A>
int setup_of_process(A... arguments) noexcept {
  return setup<kCall>(nullptr, arguments...);
}

// ---------------------------------------------------------------- errors

template <CallName kCall>
int get_async_error(Comm comm, int* error) noexcept {
  const int result = pass_on<kCall>(comm, error);
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

// The function to run instead of `found`; `found` itself where other calls lead elsewhere.
void* ours_of(const char* name, void* found) noexcept;

// ctypes and the like ask with a handle, so the caller does not matter. They get our function.
template <CallName kCall>
void* look_up(void* handle, const char* name) noexcept {
  const auto original = real<kCall, void*(void*, const char*)>();
  if (handle == RTLD_DEFAULT || handle == RTLD_NEXT || name == nullptr ||
      std::strncmp(name, "nccl", 4) != 0) {
    return original(handle, name);  // a jump: the caller matters here, and is still the same
  }
  void* const found = original(handle, name);
  if (found == nullptr) {
    return found;
  }
  return ours_of(name, found);
}

Redirect g_rows[] = {
    FR_HOOK("ncclAllReduce", reducing, Func::kAllReduce),
    FR_HOOK("ncclBroadcast", rooted, Func::kBroadcast),
    FR_HOOK("ncclBcast", with_peer, Func::kBroadcast, void*),
    FR_HOOK("ncclReduce", reduce),
    FR_HOOK("ncclAllGather", plain, Func::kAllGather),
    FR_HOOK("ncclReduceScatter", reducing, Func::kReduceScatter),
    FR_HOOK("ncclAlltoAll", plain, Func::kAllToAll),
    FR_HOOK("ncclGather", rooted, Func::kGather),
    FR_HOOK("ncclScatter", rooted, Func::kScatter),
    FR_HOOK("ncclSend", with_peer, Func::kSend, const void*),
    FR_HOOK("ncclRecv", with_peer, Func::kRecv, void*),
    FR_HOOK("ncclPutSignal", put_signal),
    FR_HOOK("ncclSignal", signal_to),
    FR_HOOK("ncclWaitSignal", wait_signal),
    FR_HOOK("ncclAllReduceConfig", reducing, Func::kAllReduce, const void*),
    FR_HOOK("ncclBroadcastConfig", rooted, Func::kBroadcast, const void*),
    FR_HOOK("ncclReduceConfig", reduce, const void*),
    FR_HOOK("ncclAllGatherConfig", plain, Func::kAllGather, const void*),
    FR_HOOK("ncclReduceScatterConfig", reducing, Func::kReduceScatter, const void*),
    FR_HOOK("ncclAlltoAllConfig", plain, Func::kAllToAll, const void*),
    FR_HOOK("ncclGatherConfig", rooted, Func::kGather, const void*),
    FR_HOOK("ncclScatterConfig", rooted, Func::kScatter, const void*),
    FR_HOOK("ncclGroupStart", group_start),
    FR_HOOK("ncclGroupEnd", group_end),
    FR_HOOK("ncclGroupSimulateEnd", group_simulate_end),
    FR_HOOK("ncclCommInitRank", init_rank),
    FR_HOOK("ncclCommInitRankConfig", init_rank, void*),
    FR_HOOK("ncclCommInitRankScalable", init_rank_scalable),
    FR_HOOK("ncclCommInitAll", init_all),
    FR_HOOK("ncclCommSplit", split),
    FR_HOOK("ncclCommShrink", shrink),
    FR_HOOK("ncclCommGrow", grow),
    FR_HOOK("ncclCommFinalize", end_comm, false, false),
    FR_HOOK("ncclCommDestroy", end_comm, true, false),
    FR_HOOK("ncclCommAbort", end_comm, true, true),
    FR_HOOK("ncclCommRevoke", end_comm, false, true, int),
    FR_HOOK("ncclCommSuspend", end_comm, false, false, int),
    FR_HOOK("ncclCommResume", end_comm, false, false),
    FR_HOOK("ncclCommRegister", setup_of_comm, void*, std::size_t, void**),
    FR_HOOK("ncclCommDeregister", setup_of_comm, void*),
    FR_HOOK("ncclCommWindowRegister", setup_of_comm, void*, std::size_t, void**, int),
    FR_HOOK("ncclCommWindowDeregister", setup_of_comm, void*),
    FR_HOOK("ncclDevCommCreate", setup_of_comm, const void*, void*),
    FR_HOOK("ncclDevCommDestroy", setup_of_comm, const void*),
    FR_HOOK("ncclMemAlloc", setup_of_process, void**, std::size_t),
    FR_HOOK("ncclMemFree", setup_of_process, void*),
    FR_HOOK("ncclCommGetAsyncError", get_async_error),
    {"dlsym", reinterpret_cast<void*>(&look_up<"dlsym">), g_real<"dlsym">, true},
};

RedirectTable g_nccl = {g_rows, std::size(g_rows), {"libnccl.so", nullptr}, {0}, {0}};

void* ours_of(const char* name, void* found) noexcept {
  for (Redirect& r : g_rows) {
    if (std::strcmp(r.name, name) == 0) {
      return g_nccl.learn(r, found) == found ? r.ours : found;
    }
  }
  return found;
}

// Finds the originals of places that were never called through.
void find_originals() noexcept {
  g_real<"dlsym">.store(reinterpret_cast<void*>(&dlsym));
  if (void* nccl = dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_LAZY)) {
    g_nccl.learn_all(nccl);
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

int grouped() noexcept {
  return g_nccl.in_force.load(std::memory_order_relaxed) == 0 ? -1 : t_depth > 0 ? 1 : 0;
}

}  // namespace fr::nccl
