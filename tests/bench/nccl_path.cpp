// nccl_path.cpp - what one event of NCCL's profiler interface costs in libfr, and what the wrappers
// add to a call. The library is the stand-in: a call of it does what NCCL does on the host's side
// of the plugin, and nothing on a device.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "../nccl/host.hpp"

struct ncclComm;
extern "C" {
int ncclGetUniqueId(fr::nccl::UniqueId*);
int ncclCommInitRank(ncclComm**, int, fr::nccl::UniqueId, int);
int ncclCommAbort(ncclComm*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclAllReduce(const void*, void*, size_t, int, int, ncclComm*, void*);
}

namespace {

using namespace fr;
using namespace fr::test;
using Clock = std::chrono::steady_clock;

double ns_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

void events() {
  Comm6 comm(0xbe);
  std::vector<double> whole;
  std::vector<double> again;
  constexpr int kEvents = 5 + 7 + 2 * 3 + 2 * (2 + 4 * 4);  // callbacks of one round below
  for (int batch = 0; batch < 200; ++batch) {
    const auto begin = Clock::now();
    for (int i = 0; i < 100; ++i) {
      void* task = comm.enqueue(2);
      void* transfers[2] = {comm.transfer(task, true, 1), comm.transfer(task, false, 1)};
      void* k0 = comm.kernel(task, 0, 10);
      void* k1 = comm.kernel(task, 1, 11);
      for (int s = 0; s < 4; ++s) {
        for (void* t : transfers) {
          void* step = comm.step(t, s);
          comm.state(step, kStStepSendGpuWait);
          comm.state(step, kStStepSendWait, 64);
          comm.stop(step);
        }
      }
      comm.kernel_stop(k0, 20);
      comm.kernel_stop(k1, 21);
      comm.stop(transfers[0]);
      comm.stop(transfers[1]);
    }
    whole.push_back(ns_since(begin) / 100);
  }
  void* step = comm.step(comm.transfer(comm.enqueue(1), true, 1), 0);
  for (int batch = 0; batch < 200; ++batch) {
    const auto begin = Clock::now();
    for (int i = 0; i < 1000; ++i) {
      comm.state(step, kStStepSendPeerWait);
    }
    again.push_back(ns_since(begin) / 1000);
  }
  std::printf("plugin, a collective of %d events     %8.0f ns, %.0f ns per event\n", kEvents,
              median(whole), median(whole) / kEvents);
  std::printf("plugin, an event told again          %8.0f ns\n", median(again));
}

// ns of one ncclAllReduce, while nothing moves on the device.
double call(bool hooked) {
  auto& fr = Library::instance();
  fr.get<u32 (*)()>(hooked ? "fr_nccl_hook" : "fr_nccl_unhook")();
  std::vector<double> samples;
  float data[2];
  for (int round = 0; round < 40; ++round) {
    UniqueId id;
    ncclComm* comms[2];
    ncclGetUniqueId(&id);
    ncclGroupStart();
    ncclCommInitRank(&comms[0], 2, id, 0);
    ncclCommInitRank(&comms[1], 2, id, 1);
    ncclGroupEnd();
    if (!hooked) {
      fr.get<u32 (*)()>("fr_nccl_unhook")();  // the plugin's init has hooked what was loaded since
    }
    for (int batch = 0; batch < 4; ++batch) {
      const auto begin = Clock::now();
      for (int i = 0; i < 100; ++i) {
        ncclAllReduce(data, data, 2, 7, 0, comms[0], nullptr);
      }
      samples.push_back(ns_since(begin) / 100);
    }
    ncclCommAbort(comms[0]);
    ncclCommAbort(comms[1]);
  }
  return median(samples);
}

}  // namespace

// Which plugin the stand-in loads is settled once per process, as in NCCL.
int main(int argc, char** argv) {
  char dir[] = "/dev/shm/fr-bench-XXXXXX";
  if (mkdtemp(dir) == nullptr) {
    return 1;
  }
  setenv("NCCL_PROFILER_PLUGIN", argc > 1 ? "none" : FR_LIBRARY, 1);
  setenv("FR_SHM_DIR", dir, 1);
  setenv("FR_LOG", "error", 1);
  setenv("FR_DUMP_ON_TIMEOUT", "0", 1);
  setenv("FR_BUFFER_SIZE", "16384", 1);
  if (argc > 1) {
    const double bare = call(false);
    const double hooked = call(true);
    std::printf("ncclAllReduce of the stand-in        %8.0f ns\n", bare);
    std::printf("  with wrappers                      %8.0f ns more\n", hooked - bare);
  } else {
    events();
    const double plugin = call(false);
    const double both = call(true);
    std::printf("ncclAllReduce with plugin            %8.0f ns\n", plugin);
    std::printf("ncclAllReduce with plugin, wrappers  %8.0f ns\n", both);
    std::fflush(stdout);
    std::filesystem::remove_all(dir);
    execl(argv[0], argv[0], "bare", nullptr);
  }
  std::filesystem::remove_all(dir);
  return 0;
}
