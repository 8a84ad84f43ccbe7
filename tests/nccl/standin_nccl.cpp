// A stand-in for libnccl.so.2, for tests: the same SONAME, ncclX and pncclX, loads profiler plugins
// as NCCL does, and simulates communicators between real processes over shared memory. There is no
// data and no device; a progress thread per communicator plays the kernels and the network.
//
//   STANDIN_NCCL_API=0..7       newest plugin version it knows (default 7; 0: none)
//   STANDIN_NCCL_NODES=N        nodes that it says there are (default 1)
//   STANDIN_NCCL_VERSION=23102  the version it reports (default: one with that plugin version)
//   STANDIN_NCCL_QUIET=1        reports no launch, kernel or transfer, as 2.30 does for a broadcast
//   STANDIN_NCCL_FAULT=...      the fault; with :SIZE, on communicators of so many ranks only
//     device:RANK:N             the kernel of RANK's N-th collective never starts
//     transport:RANK:N          RANK's network loses its N-th collective
//     launch:RANK:N             the call that launches RANK's N-th collective never returns
//     async:RANK:N              RANK's N-th collective never ends, ncclCommGetAsyncError says 6
//     broken:RANK:N             the same, and it says 1
//     lost:RANK:N               data that RANK sends on in its N-th collective does not arrive
//     credit:RANK:N             RANK's network thread does not begin with its N-th collective
//     kernel:RANK:N             RANK's kernel of its N-th collective runs and takes nothing
//     refuse:RANK:N             RANK's N-th call returns 1, and so does the group that it is in
//     symmetric                 collectives on symmetric memory: launched, without any report
//     window                    windows are registered once all ranks have called
//
// Where the stand-in for CUDA is loaded its kernels run on its streams, in their order.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "standin_comm.hpp"

using namespace fr;
using namespace fr::nccl;

namespace {

thread_local int t_depth = 0;
thread_local int t_group_error = 0;
thread_local void* t_group = nullptr;
thread_local ncclComm* t_first = nullptr;
struct Pending {
  ncclComm* comm;
  Task task;
};
thread_local std::vector<Pending> t_tasks;
thread_local std::vector<std::thread> t_inits;
thread_local char t_error[64] = "";

void launch_all() {
  if (t_first != nullptr) {
    t_first->profiler.state(t_group, kStGroupEndApiStart);
  }
  for (Pending& p : t_tasks) {
    ncclComm& c = *p.comm;
    if (c.fault.kind == "symmetric") {
      continue;
    }
    const bool quiet = getenv("STANDIN_NCCL_QUIET") != nullptr;
    Event6 l = event(kEvKernelLaunch, t_group);
    l.launch.stream = p.task.stream;
    void* launch = quiet ? nullptr : c.profiler.start(l);
    while (c.faulty("launch", p.task.n) && !p.task.is_p2p()) {
      nap();
    }
    c.profiler.stop(launch);
    if (is_captured(p.task.stream)) {
      continue;  // it runs when the graph does, which is never
    }
    void* group = quiet ? nullptr : c.profiler.start(event(kEvGroup, nullptr));
    Event6 e = event(p.task.is_p2p() ? kEvP2p : kEvColl, plugins().api >= 5 ? p.task.api : group);
    e.rank = c.rank;
    if (p.task.is_p2p()) {
      e.p2p.func = p.task.func;
      e.p2p.buffer = p.task.is_send() ? const_cast<void*>(p.task.send) : p.task.recv;
      e.p2p.datatype = p.task.datatype;
      e.p2p.count = p.task.count;
      e.p2p.peer = p.task.root;
      e.p2p.n_channels = kChannels;  // a bound
    } else {
      e.coll.func = p.task.func;
      e.coll.send = p.task.send;
      e.coll.recv = p.task.recv;
      e.coll.count = p.task.count;
      e.coll.root = p.task.root;
      e.coll.datatype = p.task.datatype;
      e.coll.n_channels = kChannels;
      e.coll.algo = "RING";
      e.coll.proto = "SIMPLE";
    }
    p.task.task = quiet ? nullptr : c.profiler.start(e);
    c.profiler.stop(p.task.task);
    c.profiler.stop(group);
    if (p.task.is_p2p()) {  // those of one group go at once
      (p.task.is_send() ? c.shared->posted[c.rank][p.task.root]
                        : c.shared->wanted[p.task.root][c.rank])
          .store(p.task.n);
    }
    p.task.gate = enter_stream(p.task.stream);
    p.task.place = streams().enter(p.task.stream);
    const std::lock_guard guard(c.lock);
    c.queue.push_back(p.task);
  }
  if (t_first != nullptr) {
    t_first->profiler.stop(t_group);
  }
  t_tasks.clear();
  t_first = nullptr;
  t_group = nullptr;
}

// Nothing of the group is launched.
void drop_all() {
  for (const Pending& p : t_tasks) {
    p.comm->collectives -= p.task.is_p2p() ? 0 : 1;
  }
  if (t_first != nullptr) {
    t_first->profiler.stop(t_group);
  }
  t_tasks.clear();
  t_first = nullptr;
  t_group = nullptr;
}

// Launches the calls so far; for non-blocking communicators on a thread of its own.
int launch() {
  bool waits = true;
  for (const Pending& p : t_tasks) {
    waits = waits && p.comm->blocking;
  }
  if (waits) {
    launch_all();
    return 0;
  }
  for (const Pending& p : t_tasks) {
    p.comm->launching.fetch_add(1);
    p.comm->async_error.store(kInProgress);
  }
  // the group's event is over before anything of it is launched
  t_first->profiler.state(t_group, kStGroupEndApiStart);
  t_first->profiler.stop(t_group);
  t_first = nullptr;
  std::vector<std::thread>& background = t_tasks.front().comm->background;
  background.emplace_back(
      [tasks = std::exchange(t_tasks, {}), group = std::exchange(t_group, nullptr)] {
        usleep(2000);
        t_tasks = tasks;
        t_group = group;
        launch_all();
        for (const Pending& p : tasks) {
          p.comm->async_error.store(0);
          p.comm->launching.fetch_sub(1);
        }
      });
  return kInProgress;
}

int enqueue(ncclComm* comm, const char* func, size_t count, int datatype, int root, void* stream,
            const void* send, void* recv) {
  if (comm == nullptr || datatype < 0 || datatype > 9) {
    std::snprintf(t_error, sizeof t_error, "%s: bad argument", func);
    return 4;
  }
  if (comm->faulty("refuse", ++comm->calls)) {
    std::snprintf(t_error, sizeof t_error, "the stand-in refuses");
    t_group_error = t_depth > 0 ? 1 : 0;
    return 1;
  }
  Task t{func, count, kTypes[datatype], root, stream, send, recv};
  if (t.is_p2p()) {
    t.n = t.is_send() ? ++comm->sent[root] : ++comm->received[root];
  } else if (!is_captured(stream)) {
    t.n = ++comm->collectives;
  }
  if (t_first == nullptr) {
    t_first = comm;
    t_group = comm->profiler.start(event(kEvGroupApi, nullptr));
  }
  Event6 e = event(t.is_p2p() ? kEvP2pApi : kEvCollApi, t_group);
  if (t.is_p2p()) {
    e.p2p_api.func = func;
    e.p2p_api.count = count;
    e.p2p_api.datatype = t.datatype;
    e.p2p_api.stream = stream;
    e.p2p_api.captured = is_captured(stream);
  } else {
    e.coll_api.func = func;
    e.coll_api.count = count;
    e.coll_api.datatype = t.datatype;
    e.coll_api.root = root;
    e.coll_api.stream = stream;
    e.coll_api.captured = is_captured(stream);
  }
  t.api = comm->profiler.start(e);
  comm->profiler.stop(t.api);
  t_tasks.push_back({comm, t});
  return t_depth == 0 ? launch() : 0;
}

int make(ncclComm** out, std::string name, u64 hash, int n_ranks, int rank, bool blocking = true) {
  auto* comm = new ncclComm;
  comm->name = std::move(name);
  comm->hash = hash;
  comm->n_ranks = n_ranks;
  comm->rank = rank;
  comm->blocking = blocking;
  if (const auto current = cuda<int (*)(int*)>("cuCtxGetDevice")) {
    current(&comm->device);
  }
  if (!blocking) {
    comm->async_error.store(kInProgress);
    *out = comm;
    comm->background.emplace_back([comm] {
      comm->join_ranks();
      if (!comm->ending.load()) {
        comm->async_error.store(0);
      }
    });
    return kInProgress;
  }
  // NCCL does this on a thread of its own
  std::thread job([comm, out] {
    comm->join_ranks();
    *out = comm;
  });
  if (t_depth == 0) {
    job.join();
  } else {
    t_inits.push_back(std::move(job));
  }
  return 0;
}

int end(ncclComm* comm) {
  while (comm->launching.load() != 0) {
    nap();
  }
  comm->ending.store(true);
  // No thread of a communicator outlives it: one that does may run when the process has exited.
  for (std::thread& thread : comm->background) {
    thread.join();
  }
  if (comm->progress.joinable()) {  // else it was never made
    comm->progress.join();
    comm->profiler.finalize();
  }
  delete comm;
  return 0;
}

}  // namespace

// ---------------------------------------------------------------- what it exports

#define API(name, parameters, arguments)                                                         \
  extern "C" __attribute__((visibility("default"))) int p##name parameters;                      \
  extern "C" __attribute__((visibility("default"), weak, alias("p" #name))) int name parameters; \
  extern "C" __attribute__((visibility("default"))) int p##name parameters

API(ncclGetVersion, (int* version), ()) {
  if (const char* version_text = getenv("STANDIN_NCCL_VERSION")) {
    *version = atoi(version_text);
    return 0;
  }
  const char* newest = getenv("STANDIN_NCCL_API");
  const int api = newest != nullptr ? atoi(newest) : 7;
  static constexpr int kVersions[] = {21805, 22304, 22501, 22602, 22703, 22809, 23007, 23203};
  *version = kVersions[api];
  return 0;
}
API(ncclGetUniqueId, (UniqueId * id), ()) {
  std::memset(id, 0, sizeof *id);
  static std::atomic<int> n{0};
  std::snprintf(id->bytes, sizeof id->bytes, "standin-nccl-%d-%d-%llx", getpid(), n.fetch_add(1),
                static_cast<unsigned long long>(now_ns()));
  return 0;
}
API(ncclCommInitRank, (ncclComm * *out, int n_ranks, UniqueId id, int rank), ()) {
  return make(out, id.bytes, id_hash(&id), n_ranks, rank);
}
API(ncclCommInitRankConfig, (ncclComm * *out, int n_ranks, UniqueId id, int rank, void* config),
    ()) {
  const auto* head = static_cast<const ConfigHead*>(config);
  return make(out, id.bytes, id_hash(&id), n_ranks, rank, head == nullptr || head->blocking != 0);
}
API(ncclCommSplit, (ncclComm * comm, int color, int key, ncclComm** out, void*), ()) {
  const int s = comm->splits++;
  comm->shared->split_color[s][comm->rank].store(color);
  comm->shared->split_key[s][comm->rank].store(key);
  comm->shared->split_seen[s].fetch_add(1);
  while (comm->shared->split_seen[s].load() < comm->n_ranks) {
    nap();
  }
  int n_ranks = 0;
  int rank = 0;
  for (int r = 0; r < comm->n_ranks; ++r) {
    if (comm->shared->split_color[s][r].load() == color) {
      ++n_ranks;
      const int other = comm->shared->split_key[s][r].load();
      rank += other < key || (other == key && r < comm->rank) ? 1 : 0;
    }
  }
  *out = nullptr;
  if (color < 0) {
    return 0;
  }
  return make(out, comm->name + "-" + std::to_string(s) + "-" + std::to_string(color),
              comm->hash * 31 + static_cast<u64>(s) * 7 + static_cast<u64>(color) + 1, n_ranks,
              rank);
}
API(ncclCommCount, (const ncclComm* comm, int* n), ()) {
  *n = comm->n_ranks;
  return 0;
}
API(ncclCommUserRank, (const ncclComm* comm, int* rank), ()) {
  *rank = comm->rank;
  return 0;
}
API(ncclCommCuDevice, (const ncclComm* comm, int* device), ()) {
  *device = comm->device;
  return 0;
}
API(ncclCommGetAsyncError, (ncclComm * comm, int* error), ()) {
  *error = comm->async_error.load();
  return 0;
}
API(ncclCommFinalize, (ncclComm*), ()) {
  return 0;
}
API(ncclCommDestroy, (ncclComm * comm), ()) {
  for (bool empty = false; !empty;) {
    nap();
    const std::lock_guard guard(comm->lock);
    empty = comm->queue.empty();
  }
  return end(comm);
}
API(ncclCommAbort, (ncclComm * comm), ()) {
  return end(comm);
}
API(ncclGroupStart, (), ()) {
  ++t_depth;
  return 0;
}
API(ncclGroupEnd, (), ()) {
  if (t_depth == 0) {
    return 5;
  }
  if (--t_depth == 0) {
    for (std::thread& job : t_inits) {
      job.join();
    }
    t_inits.clear();
    if (const int error = std::exchange(t_group_error, 0)) {
      drop_all();
      return error;
    }
    return launch();
  }
  return 0;
}
API(ncclGroupSimulateEnd, (void*), ()) {
  if (t_depth == 0) {
    return 5;
  }
  if (--t_depth == 0) {
    drop_all();
  }
  return 0;
}
API(ncclAllReduce, (const void* s, void* r, size_t n, int type, int, ncclComm* c, void* stream),
    ()) {
  return enqueue(c, "AllReduce", n, type, 0, stream, s, r);
}
API(ncclBroadcast,
    (const void* s, void* r, size_t n, int type, int root, ncclComm* c, void* stream), ()) {
  return enqueue(c, "Broadcast", n, type, root, stream, s, r);
}
API(ncclBcast, (void* b, size_t n, int type, int root, ncclComm* c, void* stream), ()) {
  return ncclBroadcast(b, b, n, type, root, c, stream);
}
API(ncclReduce,
    (const void* s, void* r, size_t n, int type, int, int root, ncclComm* c, void* stream), ()) {
  return enqueue(c, "Reduce", n, type, root, stream, s, r);
}
API(ncclAllGather, (const void* s, void* r, size_t n, int type, ncclComm* c, void* stream), ()) {
  return enqueue(c, "AllGather", n, type, 0, stream, s, r);
}
API(ncclReduceScatter, (const void* s, void* r, size_t n, int type, int, ncclComm* c, void* stream),
    ()) {
  return enqueue(c, "ReduceScatter", n, type, 0, stream, s, r);
}
API(ncclSend, (const void* s, size_t n, int type, int peer, ncclComm* c, void* stream), ()) {
  return enqueue(c, "Send", n, type, peer, stream, s, nullptr);
}
API(ncclRecv, (void* r, size_t n, int type, int peer, ncclComm* c, void* stream), ()) {
  return enqueue(c, "Recv", n, type, peer, stream, nullptr, r);
}
// Told to plugins as sends and receives, like NCCL's own.
API(ncclAlltoAll, (const void* s, void* r, size_t n, int type, ncclComm* c, void* stream), ()) {
  ++t_depth;
  for (int peer = 0; c != nullptr && peer < c->n_ranks; ++peer) {
    if (peer != c->rank) {
      enqueue(c, "Send", n, type, peer, stream, s, nullptr);
      enqueue(c, "Recv", n, type, peer, stream, nullptr, r);
    }
  }
  if (c == nullptr) {
    --t_depth;
    return 4;
  }
  return --t_depth == 0 ? launch() : 0;
}

// These only write their arguments to g_said.
namespace {
char g_said[256];
template <class... Args>
int echo(const char* format, Args... args) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
  std::snprintf(g_said, sizeof g_said, format, args...);
#pragma GCC diagnostic pop
  return 0;
}
}  // namespace

API(ncclGather, (const void* s, void* r, size_t n, int type, int root, ncclComm* c, void* stream),
    ()) {
  return echo("%p %p %zu %d %d %p %p", s, r, n, type, root, static_cast<void*>(c), stream);
}
API(ncclScatter, (const void* s, void* r, size_t n, int type, int root, ncclComm* c, void* stream),
    ()) {
  return echo("%p %p %zu %d %d %p %p", s, r, n, type, root, static_cast<void*>(c), stream);
}
API(ncclPutSignal,
    (const void* b, size_t n, int type, int peer, void* window, size_t offset, int signal,
     int context, unsigned flags, ncclComm* c, void* stream),
    ()) {
  return echo("%p %zu %d %d %p %zu %d %d %u %p %p", b, n, type, peer, window, offset, signal,
              context, flags, static_cast<void*>(c), stream);
}
API(ncclSignal, (int peer, int signal, int context, unsigned flags, ncclComm* c, void* stream),
    ()) {
  return echo("%d %d %d %u %p %p", peer, signal, context, flags, static_cast<void*>(c), stream);
}
API(ncclWaitSignal, (int n, void* signals, ncclComm* c, void* stream), ()) {
  return echo("%d %p %p %p", n, signals, static_cast<void*>(c), stream);
}
API(ncclCommShrink, (ncclComm * c, int* ranks, int n, ncclComm** out, void* config, int flags),
    ()) {
  return echo("%p %p %d %p %p %d", static_cast<void*>(c), static_cast<void*>(ranks), n,
              static_cast<void*>(out), config, flags);
}
API(ncclCommGrow, (ncclComm * c, int n, const UniqueId* id, int rank, ncclComm** out, void* config),
    ()) {
  return echo("%p %d %p %d %p %p", static_cast<void*>(c), n, static_cast<const void*>(id), rank,
              static_cast<void*>(out), config);
}
API(ncclCommInitRankScalable,
    (ncclComm * *out, int n, int rank, int n_ids, UniqueId* ids, void* config), ()) {
  return echo("%p %d %d %d %p %p", static_cast<void*>(out), n, rank, n_ids, static_cast<void*>(ids),
              config);
}
API(ncclCommInitAll, (ncclComm * *comms, int n, const int* devices), ()) {
  UniqueId id;
  ncclGetUniqueId(&id);
  ncclGroupStart();
  for (int rank = 0; rank < n; ++rank) {
    make(&comms[rank], id.bytes, id_hash(&id), n, rank);
  }
  ncclGroupEnd();
  return echo("%p %d %p", static_cast<void*>(comms), n, static_cast<const void*>(devices));
}
API(ncclCommRevoke, (ncclComm * c, int flags), ()) {
  return echo("%p %d", static_cast<void*>(c), flags);
}
API(ncclCommSuspend, (ncclComm * c, int flags), ()) {
  return echo("%p %d", static_cast<void*>(c), flags);
}
API(ncclCommResume, (ncclComm * c), ()) {
  return echo("%p", static_cast<void*>(c));
}
API(ncclCommRegister, (ncclComm * c, void* b, size_t n, void** handle), ()) {
  return echo("%p %p %zu %p", static_cast<void*>(c), b, n, static_cast<void*>(handle));
}
API(ncclCommDeregister, (ncclComm * c, void* handle), ()) {
  return echo("%p %p", static_cast<void*>(c), handle);
}
API(ncclCommWindowRegister, (ncclComm * c, void* b, size_t n, void** window, int flags), ()) {
  if (read_fault().kind == "window") {
    const int place = c->shared->registering.fetch_add(1);
    while (c->shared->registering.load() < (place / c->n_ranks + 1) * c->n_ranks) {
      nap();
    }
  }
  return echo("%p %p %zu %p %d", static_cast<void*>(c), b, n, static_cast<void*>(window), flags);
}
API(ncclCommWindowDeregister, (ncclComm * c, void* window), ()) {
  return echo("%p %p", static_cast<void*>(c), window);
}
API(ncclDevCommCreate, (ncclComm * c, const void* needs, void* out), ()) {
  return echo("%p %p %p", static_cast<void*>(c), needs, out);
}
API(ncclMemAlloc, (void** out, size_t n), ()) {
  return echo("%p %zu", static_cast<void*>(out), n);
}
API(ncclMemFree, (void* memory), ()) {
  return echo("%p", memory);
}
#ifdef STANDIN_NEWER  // not all versions have all functions
API(ncclDevCommDestroy, (ncclComm * c, const void* device_comm), ()) {
  return echo("%p %p", static_cast<void*>(c), device_comm);
}
#endif
API(ncclAllReduceConfig,
    (const void* s, void* r, size_t n, int type, int op, ncclComm* c, void* stream, const void* x),
    ()) {
  echo("%d %p", op, x);
  return ncclAllReduce(s, r, n, type, op, c, stream);
}
API(ncclBroadcastConfig,
    (const void* s, void* r, size_t n, int type, int root, ncclComm* c, void* stream,
     const void* x),
    ()) {
  echo("%d %p", root, x);
  return ncclBroadcast(s, r, n, type, root, c, stream);
}
API(ncclReduceConfig,
    (const void* s, void* r, size_t n, int type, int op, int root, ncclComm* c, void* stream,
     const void* x),
    ()) {
  echo("%d %d %p", op, root, x);
  return ncclReduce(s, r, n, type, op, root, c, stream);
}
API(ncclAllGatherConfig,
    (const void* s, void* r, size_t n, int type, ncclComm* c, void* stream, const void* x), ()) {
  echo("%p", x);
  return ncclAllGather(s, r, n, type, c, stream);
}
API(ncclReduceScatterConfig,
    (const void* s, void* r, size_t n, int type, int op, ncclComm* c, void* stream, const void* x),
    ()) {
  echo("%d %p", op, x);
  return ncclReduceScatter(s, r, n, type, op, c, stream);
}
API(ncclAlltoAllConfig,
    (const void* s, void* r, size_t n, int type, ncclComm* c, void* stream, const void* x), ()) {
  echo("%p", x);
  return ncclAlltoAll(s, r, n, type, c, stream);
}
API(ncclGatherConfig,
    (const void* s, void* r, size_t n, int type, int root, ncclComm* c, void* stream,
     const void* x),
    ()) {
  return echo("%p %p %zu %d %d %p %p %p", s, r, n, type, root, static_cast<void*>(c), stream, x);
}
API(ncclScatterConfig,
    (const void* s, void* r, size_t n, int type, int root, ncclComm* c, void* stream,
     const void* x),
    ()) {
  return echo("%p %p %zu %d %d %p %p %p", s, r, n, type, root, static_cast<void*>(c), stream, x);
}
extern "C" __attribute__((visibility("default"))) const char* standin_said() {
  return g_said;
}

// Not a function of NCCL: synchronizes the stream.
API(standin_synchronize, (ncclComm * comm), ()) {
  for (;;) {
    {
      const std::lock_guard guard(comm->lock);
      if (comm->queue.empty()) {
        return 0;
      }
    }
    nap();
  }
}

extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(int code) {
  return code == 0   ? "no error"
         : code == 4 ? "invalid argument"
         : code == 6 ? "remote process exited or there was a network error"
                     : "unhandled error";
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(ncclComm*) {
  return t_error;
}
