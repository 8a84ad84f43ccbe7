// library.hpp - functions of the host beside NCCL's own: they set the fault of the next operation.
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

// The fault of the next call of this process.
enum HostFault {
  kHostNone,
  kHostInLaunch,     // its launch does not return
  kHostNoKernel,     // its kernel never starts
  kHostOneChannel,   // one channel's block of it never starts
  kHostSpins,        // all its work is done, and one channel does not end
  kHostStands,       // its kernel runs and moves nothing
  kHostLost,         // data that this rank sends is not acknowledged and does not arrive
  kHostForgotten,    // it is acknowledged and does not arrive
  kHostNoCredit,     // the sender does not learn of the room that the receiver makes
  kHostNoThread,     // this rank's network thread does not begin with it
  kHostBehindGraph,  // its events come from a callback, long after the call returned
  kHostCaptured      // it is captured, and the graph runs at once; nothing waits for its kernel
};
void host_next(int fault);
void host_synchronize(void* stream);  // all that was launched on it has ended
void host_stale(void* comm);          // reports events of finished operations again
void host_meet();                     // of all ranks
}
