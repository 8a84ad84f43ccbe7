// simulation.hpp - shared by the threads of the simulated NCCL: connections, operations, kernels.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "interface.hpp"
#include "library.hpp"

namespace host {

constexpr int kMaxRanks = 4, kComms = 4, kMaxChannels = 64;
constexpr uint64_t kDepth = 8;  // NCCL_STEPS
constexpr int kSlices = 2;      // of a step; version 1 reports each

// One direction of a connection, in steps since the communicator was made.
struct Wire {
  std::atomic<uint64_t> filled, posted, arrived, acknowledged, taken;
};
struct Shared {
  std::atomic<int> met, joined[kComms];
  Wire wires[kComms][2][kMaxRanks][kMaxRanks][kMaxChannels];  // by collectives, by messages
};

inline int number(const char* name, int otherwise) {
  const char* text = getenv(name);
  return text != nullptr ? atoi(text) : otherwise;
}

inline Shared& shared() {
  static Shared* s = [] {
    const int fd = open(getenv("HOST_SHARED"), O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) {
      abort();
    }
    return static_cast<Shared*>(
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  }();
  return *s;
}

inline uint64_t device_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

// Sleeps between polls without progress, longer each time, because there are many processes.
class Nap {
 public:
  void operator()(bool moved) {
    us_ = moved ? 20 : us_ < 10'000 ? us_ * 2 : us_;
    usleep(us_);
  }

 private:
  unsigned us_ = 20;
};

template <class Until>
void await(Until until) {
  for (Nap nap; !until();) {
    nap(false);
  }
}

[[noreturn]] inline void hang() {
  for (;;) {
    pause();
  }
}

struct Comm;

// One direction of one channel of an operation.
struct Lane {
  int peer = -1, channel = 0;
  bool send = false, networked = false, begun = false, over = false;
  uint64_t steps = 0, base = 0;
  Wire* wire = nullptr;
  // sends: posted to the kernel, given to the network, done. receives: posted to the network,
  // received, flushed, taken.
  std::atomic<uint64_t> posted{0}, flushed{0};
  uint64_t moved = 0, done = 0;
  void* op = nullptr;
  void* handle[kDepth][kSlices] = {};
};

// The part of an operation that one block of the kernel does.
struct Block {
  int channel = 0;
  Lane *send = nullptr, *recv = nullptr;
  uint64_t sends = 0, recvs = 0;
  std::atomic<bool> started{false}, ended{false};
  std::atomic<uint64_t> start_ns{0}, end_ns{0};
  bool start_told = false, end_told = false;
  void* handle = nullptr;
};

struct Work {
  Comm* comm = nullptr;
  const char* func = "";
  const void* sends = nullptr;
  void* receives = nullptr;
  size_t count = 0;
  int root = 0;  // or peer
  void* stream = nullptr;
  uint64_t seq = 0;
  int fault = kHostNone;
  uint64_t number = 0;  // of its kernel, by the host; the key by which its events are looked up
  bool is_p2p = false, is_send = false, is_silent = false;
  void *api = nullptr, *task = nullptr;
  std::deque<Lane> lanes;
  std::deque<Block> blocks;

  bool is_self() const;
  bool is_captured() const { return fault == kHostCaptured; }
  bool told() const { return task != nullptr; }
};

// The work of one kernel. CUDA's stand-in opens the gates, where it is loaded.
struct Plan {
  Comm* comm = nullptr;
  std::vector<std::unique_ptr<Work>> works;
  void* group = nullptr;
  void* stream = nullptr;
  std::atomic<int> reached{1}, opened{0};
  std::atomic<bool> is_uploaded{false}, kernel_over{false};
};

struct Comm {
  int index = 0, n_ranks = 0, rank = 0, ranks_per_node = 1;
  Profiler profiler;
  uint64_t coll_seq = 0;
  std::map<std::pair<const void*, int>, uint64_t> used;  // steps of a wire by earlier operations
  std::mutex lock;
  // uploaded: of the progress thread; kernels: of the thread that reports kernels.
  std::deque<Plan*> uploaded, kernels;
  uint64_t issued = 0, run = 0;        // kernels that have been numbered by host and device
  std::map<uint64_t, Work*> numbered;  // by the device

  int node(int r) const { return r / ranks_per_node; }
  int channels() const { return number("HOST_CHANNELS", 2); }
};

inline bool Work::is_self() const {
  return is_p2p && root == comm->rank;
}

// The threads of a communicator; network.cpp.
void run_progress(Comm* c);
void run_kernel_reports(Comm* c);  // with version 7

}  // namespace host
