// cuda_path.cpp - the cost that fr adds to an NCCL call with CUDA events around it, and to a CUDA
// call with a result that fr checks. Both libraries are stand-ins: recording an event costs a real
// driver 0.5 to 3 us, which is not measured here.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <vector>

#include "../nccl/host.hpp"

struct ncclComm;
extern "C" {
int ncclGetUniqueId(fr::nccl::UniqueId*);
int ncclCommInitRank(ncclComm**, int, fr::nccl::UniqueId, int);
int ncclCommAbort(ncclComm*);
int ncclAllReduce(const void*, void*, size_t, int, int, ncclComm*, void*);
int standin_synchronize(ncclComm*);

int cuCtxCreate_v2(void**, unsigned, int);
int cuStreamCreate(void**, unsigned);
int cuEventCreate(void**, unsigned);
int cuEventRecord(void*, void*);
int cudaEventRecord(void*, void*);
int cudaEventQuery(void*);
int cudaStreamSynchronize(void*);
int cudaGetLastError();
void standin_cuda_gate(void*, std::atomic<int>*, std::atomic<int>*);
}

namespace {

using namespace fr;
using namespace fr::test;
using Clock = std::chrono::steady_clock;

void* g_stream = nullptr;

void hook(bool on) {
  Library::instance().get<u32 (*)()>(on ? "fr_nccl_hook" : "fr_nccl_unhook")();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

template <class Call>
double ns_of(int n, Call call) {
  const auto begin = Clock::now();
  for (int i = 0; i < n; ++i) {
    call();
  }
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / n;
}

// ns that the hooks add. By turns, so that other work on the machine meets both alike.
template <class Sample>
double added(int turns, Sample sample) {
  std::vector<double> ns[2];
  for (int turn = 0; turn < turns; ++turn) {
    for (const bool hooked : {false, true}) {
      hook(hooked);
      sample(ns[hooked ? 1 : 0]);
    }
  }
  return median(ns[1]) - median(ns[0]);
}

void all_reduce(std::vector<double>& ns) {
  UniqueId id;
  ncclComm* comm = nullptr;
  ncclGetUniqueId(&id);
  ncclCommInitRank(&comm, 1, id, 0);
  float data[2];
  for (int batch = 0; batch < 10; ++batch) {
    ns.push_back(ns_of(50, [&] { ncclAllReduce(data, data, 2, 7, 0, comm, g_stream); }));
    standin_synchronize(comm);
  }
  ncclCommAbort(comm);
}

// The program's own: no operation of NCCL is open that they could tell of, or one is.
void event_calls() {
  void* event = nullptr;
  cuEventCreate(&event, 0);
  const auto report = [event](const char* when) {
    std::printf("cudaEventRecord, hooked, %-16s %7.1f ns more\n", when,
                added(60, [event](std::vector<double>& ns) {
                  ns.push_back(ns_of(1000, [event] { cudaEventRecord(event, g_stream); }));
                }));
    std::printf("cudaEventQuery, hooked, %-17s %7.1f ns more\n", when,
                added(60, [event](std::vector<double>& ns) {
                  ns.push_back(ns_of(1000, [event] { cudaEventQuery(event); }));
                }));
  };
  cudaStreamSynchronize(g_stream);
  report("nothing open");
  static std::atomic<int> reached{0};
  static std::atomic<int> opened{0};
  standin_cuda_gate(g_stream, &reached, &opened);
  hook(true);
  UniqueId id;
  ncclComm* comm = nullptr;
  ncclGetUniqueId(&id);
  ncclCommInitRank(&comm, 1, id, 0);
  float data[2];
  ncclAllReduce(data, data, 2, 7, 0, comm, g_stream);
  report("one open");
  opened = 1;
  cudaStreamSynchronize(g_stream);
  ncclCommAbort(comm);
}

}  // namespace

int main(int argc, char** argv) {
  char dir[] = "/dev/shm/fr-bench-XXXXXX";
  if (mkdtemp(dir) == nullptr) {
    return 1;
  }
  const char* timing = argc > 1 ? argv[1] : "auto";
  setenv("NCCL_PROFILER_PLUGIN", "none", 1);
  setenv("FR_TIMING", timing, 1);
  setenv("FR_SHM_DIR", dir, 1);
  setenv("FR_LOG", "error", 1);
  setenv("FR_DUMP_ON_TIMEOUT", "0", 1);
  void* context = nullptr;
  cuCtxCreate_v2(&context, 0, 0);
  cuStreamCreate(&g_stream, 1);
  std::printf("ncclAllReduce on a stream, FR_TIMING=%-6s %8.0f ns more\n", timing,
              added(20, all_reduce));
  if (std::string_view(timing) == "auto") {
    std::printf("cudaGetLastError, hooked                  %8.1f ns more\n",
                added(100, [](std::vector<double>& ns) {
                  ns.push_back(ns_of(1000, [] { cudaGetLastError(); }));
                }));
    event_calls();
  } else {
    void* event = nullptr;
    cuEventCreate(&event, 0);
    std::vector<double> ns;
    for (int batch = 0; batch < 60; ++batch) {
      ns.push_back(2 * ns_of(50, [&] { cuEventRecord(event, g_stream); }));
      usleep(2000);
    }
    std::printf("  of it two cuEventRecord of the stand-in %8.0f ns\n", median(ns));
  }
  std::fflush(stdout);
  std::filesystem::remove_all(dir);
  if (argc == 1) {
    execl(argv[0], argv[0], "events", nullptr);
  }
  return 0;
}
