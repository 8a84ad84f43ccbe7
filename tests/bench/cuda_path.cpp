// cuda_path.cpp - what fr adds to a call of NCCL with CUDA events around it, and to a CUDA call
// whose result it looks at. Both libraries are stand-ins: recording an event costs a real driver
// 0.5 to 3 us, which is not in here.
#include <algorithm>
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
int cudaGetLastError();
}

namespace {

using namespace fr;
using namespace fr::test;
using Clock = std::chrono::steady_clock;

void* g_stream = nullptr;

void hook(bool on) {
  Library::instance().get<u32 (*)()>(on ? "fr_nccl_hook" : "fr_nccl_unhook")();
}

// Median ns of one call over batches of n; after() runs between them, not timed.
template <class Call, class After>
double measure(int batches, int n, Call call, After after) {
  std::vector<double> samples;
  for (int batch = 0; batch < batches; ++batch) {
    const auto begin = Clock::now();
    for (int i = 0; i < n; ++i) {
      call();
    }
    samples.push_back(std::chrono::duration<double, std::nano>(Clock::now() - begin).count() / n);
    after();
  }
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

double all_reduce(bool hooked) {
  hook(hooked);
  UniqueId id;
  ncclComm* comm = nullptr;
  ncclGetUniqueId(&id);
  ncclCommInitRank(&comm, 1, id, 0);
  float data[2];
  const double ns = measure(
      60, 50, [&] { ncclAllReduce(data, data, 2, 7, 0, comm, g_stream); },
      [&] { standin_synchronize(comm); });
  ncclCommAbort(comm);
  return ns;
}

double last_error(bool hooked) {
  hook(hooked);
  return measure(200, 1000, [] { cudaGetLastError(); }, [] {});
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
  const double bare = all_reduce(false);
  std::printf("ncclAllReduce on a stream, FR_TIMING=%-6s  %6.0f ns more\n", timing,
              all_reduce(true) - bare);
  if (std::string_view(timing) == "auto") {
    const double error = last_error(false);
    std::printf("cudaGetLastError, hooked                  %8.1f ns more\n",
                last_error(true) - error);
  } else {
    void* event = nullptr;
    cuEventCreate(&event, 0);
    std::printf("  of it two cuEventRecord of the stand-in   %6.0f ns\n",
                2 * measure(60, 50, [&] { cuEventRecord(event, g_stream); }, [] { usleep(2000); }));
  }
  std::fflush(stdout);
  std::filesystem::remove_all(dir);
  if (argc == 1) {
    execl(argv[0], argv[0], "events", nullptr);
  }
  return 0;
}
