// A library that calls NCCL, built in all the ways in which calls can be bound.
#include <cstddef>

struct ncclComm;
extern "C" {
#ifdef GOT_HAS_OWN
// Linked with NCCL statically: weak, as its functions are.
__attribute__((visibility("default"), weak, noinline)) int ncclCommSuspend(ncclComm*, int) {
  return 77;
}
#else
int ncclCommSuspend(ncclComm*, int);
#endif
__attribute__((weak)) int ncclDevCommDestroy(ncclComm*, const void*);

#define SHOWN __attribute__((visibility("default")))
SHOWN int got_call(ncclComm* comm) {
  return ncclCommSuspend(comm, 3);
}

// By a pointer that the loader fills in.
SHOWN int (*got_pointers[])(ncclComm*, int) = {ncclCommSuspend, ncclCommSuspend};
SHOWN int got_call_by_pointer(ncclComm* comm) {
  return got_pointers[1](comm, 3);
}

SHOWN int got_has_newer() {
  return ncclDevCommDestroy != nullptr ? 1 : 0;
}
}
