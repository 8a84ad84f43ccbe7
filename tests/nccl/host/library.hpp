// library.hpp - what the host has beside NCCL's own functions: how the next operation goes wrong.
#pragma once

#include <cstddef>

extern "C" {
struct HostId {
  char bytes[128];
};
int ncclCommInitRank(void** comm, int n_ranks, HostId id, int rank);
int ncclGroupStart();
int ncclGroupEnd();
int ncclAllReduce(const void* s, void* r, size_t n, int type, int op, void* comm, void* stream);
int ncclBroadcast(const void* s, void* r, size_t n, int type, int root, void* comm, void* stream);
int ncclSend(const void* s, size_t n, int type, int peer, void* comm, void* stream);
int ncclRecv(void* r, size_t n, int type, int peer, void* comm, void* stream);

// Of the next call of this process.
enum HostFault {
  kHostNone,
  kHostInLaunch,     // its launch does not return
  kHostNoKernel,     // its kernel never starts
  kHostOneChannel,   // one channel's block of it never starts
  kHostSpins,        // all its work is done, and one channel does not end
  kHostStands,       // its kernel runs and moves nothing
  kHostLost,         // what this rank sends is not acknowledged and does not come
  kHostForgotten,    // it is acknowledged and does not come
  kHostNoCredit,     // the room that the receiver makes is not learnt of
  kHostNoThread,     // this rank's network thread does not begin with it
  kHostBehindGraph,  // its events come from a callback, when the call is long back
  kHostCaptured      // it is captured, and the graph runs at once; of its kernel nothing waits
};
void host_next(int fault);
void host_synchronize(void* stream);  // all that was launched on it has ended
void host_stale(void* comm);          // events of what is over, told again
void host_meet();                     // of all ranks
}
