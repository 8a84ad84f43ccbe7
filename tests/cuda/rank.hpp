// rank.hpp - shared parts of the CUDA tests: the stand-ins' functions, one rank, and its evidence.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <vector>

#include "../nccl/host.hpp"
#include "../unit/catch.hpp"

struct ncclComm;
extern "C" {
int ncclGetUniqueId(fr::nccl::UniqueId*);
int ncclCommInitRank(ncclComm**, int, fr::nccl::UniqueId, int);
int ncclCommDestroy(ncclComm*);
int ncclCommAbort(ncclComm*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclSend(const void*, size_t, int, int, ncclComm*, void*);
int ncclRecv(void*, size_t, int, int, ncclComm*, void*);
int ncclAllReduce(const void*, void*, size_t, int, int, ncclComm*, void*);
int standin_synchronize(ncclComm*);

int cuCtxCreate_v2(void**, unsigned, int);
int cuCtxSetCurrent(void*);
int cuStreamCreate(void**, unsigned);
int cuEventCreate(void**, unsigned);
int cuEventRecord(void*, void*);
int cuEventRecordWithFlags(void*, void*, unsigned);
int cuEventQuery(void*);
int cuEventSynchronize(void*);
int cuStreamQuery(void*);
int cuStreamSynchronize(void*);
int cuCtxSynchronize();
int cudaEventRecord(void*, void*);
int cudaEventRecordWithFlags(void*, void*, unsigned);
int cudaEventQuery(void*);
int cudaEventSynchronize(void*);
int cudaEventDestroy(void*);
int cudaStreamDestroy(void*);
int cudaStreamQuery(void*);
int cudaDeviceSynchronize();
int cudaStreamBeginCapture(void*, int);
int cudaStreamEndCapture(void*, void**);
int cudaStreamSynchronize(void*);
int cudaGetLastError();
int cudaMalloc(void**, size_t);
void standin_cuda_gate(void*, std::atomic<int>*, std::atomic<int>*);
void standin_cuda_break(int);
void standin_cuda_block(const char*);
}

namespace fr::test {

inline const Cuda& cuda() {
  return *view().cuda();
}

template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 4000 && !condition(); ++i) {
    usleep(5000);
  }
  return condition();
}

inline void hook() {
  Library::instance().get<u32 (*)()>("fr_nccl_hook")();
}

// One rank of its own, on a device of its own, with a stream.
struct Rank {
  explicit Rank(int n_ranks = 1, const fr::nccl::UniqueId* id = nullptr, int rank = 0,
                int device = 0) {
    setenv("FR_TIMING", "events", 0);
    setenv("NCCL_PROFILER_PLUGIN", "none", 0);
    hook();
    REQUIRE(cuCtxCreate_v2(&context, 0, device) == 0);
    REQUIRE(cuStreamCreate(&stream, 1) == 0);
    fr::nccl::UniqueId own;
    ncclGetUniqueId(&own);
    REQUIRE(ncclCommInitRank(&comm, n_ranks, id != nullptr ? *id : own, rank) == 0);
  }
  int all_reduce() const { return ncclAllReduce(data, data, 4, 7, 0, comm, stream); }
  int all_reduce(void* on) const { return ncclAllReduce(data, data, 4, 7, 0, comm, on); }

  static inline float data[4];
  void* context = nullptr;
  void* stream = nullptr;
  ncclComm* comm = nullptr;
};

// A foreign kernel that runs until the test ends it.
struct Gate {
  explicit Gate(void* stream) { standin_cuda_gate(stream, &reached, &opened); }
  // The device's thread may still look here after the case is over.
  struct Words {
    std::atomic<int> reached{0};
    std::atomic<int> opened{0};
  };
  static Words& make() {
    static auto* all = new std::deque<Words>;
    return all->emplace_back();
  }
  Words& words = make();
  std::atomic<int>& reached = words.reached;
  std::atomic<int>& opened = words.opened;
};

inline std::vector<RecordCopy> collectives() {
  std::vector<RecordCopy> out;
  static RecordCopy copy;
  for (u32 slot = 0; slot < view().n_slots(); ++slot) {
    if (view().read(slot, copy) == Slot::kWhole && copy.payload.kind == FR_COLLECTIVE) {
      out.push_back(copy);
    }
  }
  return out;
}

inline std::size_t in_state(State state) {
  std::size_t n = 0;
  for (const auto& r : collectives()) {
    n += r.has_status && r.state == state ? 1 : 0;
  }
  return n;
}

inline std::vector<DeviceOpCopy> operations() {
  std::vector<DeviceOpCopy> out;
  DeviceOpCopy op;
  for (u32 i = 0; i < view().n_device_ops(); ++i) {
    if (view().read_device_op(i, op)) {
      out.push_back(op);
    }
  }
  return out;
}

}  // namespace fr::test
