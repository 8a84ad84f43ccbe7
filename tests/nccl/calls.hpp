// calls.hpp - NCCL's functions, for programs that are linked against the stand-in as libtorch_cuda
// is against the real one; and what the hooks recorded of them.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "../unit/catch.hpp"
#include "host.hpp"

struct ncclComm;
extern "C" {
int ncclGetUniqueId(fr::nccl::UniqueId*);
int ncclCommInitRank(ncclComm**, int, fr::nccl::UniqueId, int);
int ncclCommInitRankConfig(ncclComm**, int, fr::nccl::UniqueId, int, void*);
int ncclCommGetAsyncError(ncclComm*, int*);
int ncclCommDestroy(ncclComm*);
int ncclCommAbort(ncclComm*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclAllReduce(const void*, void*, size_t, int, int, ncclComm*, void*);
int ncclAlltoAll(const void*, void*, size_t, int, ncclComm*, void*);
int ncclBroadcast(const void*, void*, size_t, int, int, ncclComm*, void*);
int ncclBcast(void*, size_t, int, int, ncclComm*, void*);
int ncclReduce(const void*, void*, size_t, int, int, int, ncclComm*, void*);
int ncclAllGather(const void*, void*, size_t, int, ncclComm*, void*);
int ncclReduceScatter(const void*, void*, size_t, int, int, ncclComm*, void*);
int ncclSend(const void*, size_t, int, int, ncclComm*, void*);
int ncclRecv(void*, size_t, int, int, ncclComm*, void*);
int ncclGather(const void*, void*, size_t, int, int, ncclComm*, void*);
int ncclScatter(const void*, void*, size_t, int, int, ncclComm*, void*);
int ncclPutSignal(const void*, size_t, int, int, void*, size_t, int, int, unsigned, ncclComm*,
                  void*);
int ncclSignal(int, int, int, unsigned, ncclComm*, void*);
int ncclWaitSignal(int, void*, ncclComm*, void*);
int ncclCommShrink(ncclComm*, int*, int, ncclComm**, void*, int);
int ncclCommGrow(ncclComm*, int, const fr::nccl::UniqueId*, int, ncclComm**, void*);
int ncclCommInitRankScalable(ncclComm**, int, int, int, fr::nccl::UniqueId*, void*);
int ncclCommInitAll(ncclComm**, int, const int*);
int ncclCommFinalize(ncclComm*);
int ncclCommRevoke(ncclComm*, int);
int ncclCommSuspend(ncclComm*, int);
int ncclCommResume(ncclComm*);
int ncclCommRegister(ncclComm*, void*, size_t, void**);
int ncclCommDeregister(ncclComm*, void*);
int ncclCommWindowRegister(ncclComm*, void*, size_t, void**, int);
int ncclCommWindowDeregister(ncclComm*, void*);
int ncclDevCommCreate(ncclComm*, const void*, void*);
int ncclMemAlloc(void**, size_t);
int ncclMemFree(void*);
int ncclAllReduceConfig(const void*, void*, size_t, int, int, ncclComm*, void*, const void*);
int ncclBroadcastConfig(const void*, void*, size_t, int, int, ncclComm*, void*, const void*);
int ncclReduceConfig(const void*, void*, size_t, int, int, int, ncclComm*, void*, const void*);
int ncclAllGatherConfig(const void*, void*, size_t, int, ncclComm*, void*, const void*);
int ncclReduceScatterConfig(const void*, void*, size_t, int, int, ncclComm*, void*, const void*);
int ncclAlltoAllConfig(const void*, void*, size_t, int, ncclComm*, void*, const void*);
int ncclGatherConfig(const void*, void*, size_t, int, int, ncclComm*, void*, const void*);
int ncclScatterConfig(const void*, void*, size_t, int, int, ncclComm*, void*, const void*);
int ncclGroupSimulateEnd(void*);
int ncclCommSplit(ncclComm*, int, int, ncclComm**, void*);
const char* standin_said();
int standin_synchronize(ncclComm*);
}

namespace fr::test {

inline u32 hook() {
  return Library::instance().get<u32 (*)()>("fr_nccl_hook")();
}

// Two ranks in this process, made in one group of calls.
struct Pair {
  Pair() {
    setenv("NCCL_PROFILER_PLUGIN", FR_LIBRARY, 1);
    hook();
    UniqueId id;
    ncclGetUniqueId(&id);
    REQUIRE(ncclGroupStart() == 0);
    REQUIRE(ncclCommInitRank(&rank[0], 2, id, 0) == 0);
    REQUIRE(ncclCommInitRank(&rank[1], 2, id, 1) == 0);
    REQUIRE(ncclGroupEnd() == 0);
  }
  void synchronize() const {
    standin_synchronize(rank[0]);
    standin_synchronize(rank[1]);
  }
  ncclComm* rank[2] = {};
};

inline std::vector<RecordCopy> all_records(u16 kind) {
  std::vector<RecordCopy> out;
  static RecordCopy copy;
  for (u32 slot = 0; slot < view().n_slots(); ++slot) {
    if (view().read(slot, copy) == Slot::kWhole && copy.payload.kind == kind) {
      out.push_back(copy);
    }
  }
  return out;
}

inline std::string op(const RecordCopy& r) {
  return std::string(view().string(r.payload.op));
}

// Waits until `n` records of that kind are in `state`: records of the device are written a little
// after the stream is empty.
inline bool all_in(State state, u16 kind, std::size_t n) {
  for (int i = 0; i < 2000; ++i) {
    std::size_t found = 0;
    for (const auto& r : all_records(kind)) {
      found += r.has_status && r.state == state ? 1 : 0;
    }
    if (found == n) {
      return true;
    }
    usleep(5000);
  }
  return false;
}

}  // namespace fr::test
