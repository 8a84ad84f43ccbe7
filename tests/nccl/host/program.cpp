// program.cpp - one rank of a job that hangs: nccl_host CASE. tests/e2e/test_nccl_host.py has the
// table of cases and what is to be said of each.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "library.hpp"

// Calls that no table of this program leads to: only the plugin sees what they do.
#ifdef HOST_LOOKED_UP
#include <dlfcn.h>

template <class F>
F look_up(const char* name) {
  static void* library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  return reinterpret_cast<F>(dlsym(library, name));
}
#define LOOK_UP(f) (*look_up<decltype(&f)>(#f))
#define ncclCommInitRank LOOK_UP(ncclCommInitRank)
#define ncclGroupStart LOOK_UP(ncclGroupStart)
#define ncclGroupEnd LOOK_UP(ncclGroupEnd)
#define ncclAllReduce LOOK_UP(ncclAllReduce)
#define ncclBroadcast LOOK_UP(ncclBroadcast)
#define ncclSend LOOK_UP(ncclSend)
#define ncclRecv LOOK_UP(ncclRecv)
#define host_next LOOK_UP(host_next)
#define host_synchronize LOOK_UP(host_synchronize)
#define host_stale LOOK_UP(host_stale)
#define host_meet LOOK_UP(host_meet)
#endif

#ifdef HOST_CUDA
extern "C" {
int cuCtxCreate_v2(void**, unsigned, int);
int cuStreamCreate(void**, unsigned);
int cudaStreamSynchronize(void*);
}
#endif

namespace {

int g_rank = 0, g_world = 0;
void* g_stream = nullptr;
char g_buffer[4096];

void synchronize() {
#ifdef HOST_CUDA
  cudaStreamSynchronize(g_stream);
#else
  host_synchronize(g_stream);
#endif
}

void* join() {
  static int made = 0;
  HostId id{};
  std::snprintf(id.bytes, sizeof id.bytes, "%s-%d", getenv("HOST_SHARED"), made++);
  void* comm = nullptr;
  ncclCommInitRank(&comm, g_world, id, g_rank);
  return comm;
}

void all_reduce(void* comm, int fault = kHostNone) {
  host_next(fault);
  ncclAllReduce(g_buffer, g_buffer, 1024, 7, 0, comm, g_stream);
}
void broadcast(void* comm, int fault = kHostNone) {
  host_next(fault);
  ncclBroadcast(g_buffer, g_buffer, 1024, 7, 0, comm, g_stream);
}
void send(void* comm, int peer, int fault = kHostNone) {
  host_next(fault);
  ncclSend(g_buffer, 16, 7, peer, comm, g_stream);
}
void receive(void* comm, int peer) {
  ncclRecv(g_buffer + 2048, 16, 7, peer, comm, g_stream);
}

void exchange_with_all(void* comm) {
  ncclGroupStart();
  for (int peer = 0; peer < g_world; ++peer) {
    send(comm, peer);
    receive(comm, peer);
  }
  ncclGroupEnd();
}

[[noreturn]] void stay() {
  for (;;) {
    pause();
  }
}

// Ranks 0, 1, 3 call it, rank 2 is elsewhere.
void all_but_one(void* comm, int fault = kHostNone) {
  if (g_rank == 2) {
    stay();
  }
  all_reduce(comm, fault);
}

// The rank's fault in the operation that all ranks call.
template <class Call>
void with_fault(int rank, int fault, Call call) {
  call(g_rank == rank ? fault : kHostNone);
}

void run(const std::string& what, void* comm) {
  const auto reduce = [&](int fault) { all_reduce(comm, fault); };
  const auto cast = [&](int fault) { broadcast(comm, fault); };
  if (what == "never_came") {
    all_but_one(comm);
  } else if (what == "never_launched") {
    with_fault(2, kHostInLaunch, reduce);
  } else if (what == "kernel_never_starts") {
    with_fault(1, kHostNoKernel, reduce);
  } else if (what == "one_channel") {
    with_fault(1, kHostOneChannel, reduce);
  } else if (what == "never_ends") {
    with_fault(1, kHostSpins, reduce);
  } else if (what == "takes_nothing") {
    with_fault(2, kHostStands, reduce);
  } else if (what == "network_thread") {
    with_fault(1, kHostNoThread, reduce);
  } else if (what == "network") {
    with_fault(1, kHostLost, reduce);
  } else if (what == "network_forgets") {
    with_fault(1, kHostForgotten, reduce);
  } else if (what == "no_credit") {
    with_fault(1, kHostNoCredit, reduce);
  } else if (what == "broadcast_network") {
    with_fault(1, kHostLost, cast);
  } else if (what == "silent_broadcast") {
    if (g_rank == 2) {
      stay();
    }
    broadcast(comm);
  } else if (what == "p2p") {
    if (g_rank == 0) {
      receive(comm, 3);
    }
  } else if (what == "p2p_network" || what == "p2p_lost") {
    if (g_rank == 1) {
      send(comm, 2, what == "p2p_lost" ? kHostForgotten : kHostLost);
    } else if (g_rank == 2) {
      receive(comm, 1);
    }
  } else if (what == "behind_graph") {
    all_but_one(comm, kHostBehindGraph);
  } else if (what == "exchange") {
    if (g_rank == 2) {
      stay();
    }
    ncclGroupStart();
    send(comm, (g_rank + 1) % g_world);
    receive(comm, (g_rank + g_world - 1) % g_world);
    ncclGroupEnd();
  } else if (what == "after_graph") {
    all_reduce(comm, kHostCaptured);
    all_reduce(comm);
    synchronize();
    host_meet();
    all_but_one(comm);
  } else if (what == "self_sends") {
    ncclGroupStart();
    send(comm, g_rank);
    receive(comm, g_rank);
    ncclGroupEnd();
    exchange_with_all(comm);
    synchronize();
    host_meet();
    all_but_one(comm);
  } else if (what == "stale_events") {
    host_stale(comm);
    all_but_one(comm);
    host_stale(comm);
  } else if (what == "opposite_orders") {
    void* other = join();
    all_reduce(other);
    synchronize();
    host_meet();
    all_reduce(g_rank % 2 == 0 ? comm : other);
    all_reduce(g_rank % 2 == 0 ? other : comm);
  } else if (what.rfind("many_peers", 0) == 0) {
    // On 48 channels and four communicators, behind what does not end: more transfers than fr's
    // tables have rows, as of several all to all on 4 channels among 64 ranks.
    void* all[] = {comm, join(), join(), join()};
    if (what == "many_peers") {
      all_but_one(comm);
    } else {
      with_fault(1, what == "many_peers_network" ? kHostLost : kHostSpins, reduce);
    }
    for (int i = 0; i < 2; ++i) {
      for (void* each : all) {
        exchange_with_all(each);
      }
    }
  } else {
    std::fprintf(stderr, "no such case: %s\n", what.c_str());
    _exit(2);
  }
}

}  // namespace

int main(int, char** argv) {
  g_rank = atoi(getenv("RANK"));
  g_world = atoi(getenv("WORLD_SIZE"));
#ifdef HOST_CUDA
  void* context = nullptr;
  cuCtxCreate_v2(&context, 0, 0);
  cuStreamCreate(&g_stream, 0);
#else
  g_stream = g_buffer;
#endif
  void* comm = join();
  for (int i = 0; i < 2; ++i) {
    all_reduce(comm);
    ncclGroupStart();
    send(comm, (g_rank + 1) % g_world);
    receive(comm, (g_rank + g_world - 1) % g_world);
    ncclGroupEnd();
    broadcast(comm);
  }
  synchronize();
  host_meet();
  run(argv[1], comm);
  synchronize();
  stay();
}
