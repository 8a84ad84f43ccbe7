// standin_comm.hpp - a communicator of the stand-in for NCCL, simulated between real processes over
// shared memory: a progress thread plays the kernels and the network.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "standin_profiler.hpp"

#pragma GCC visibility push(hidden)  // another copy of the library has its own

namespace standin {

constexpr int kMaxRanks = 16;
constexpr int kSplits = 64;
constexpr int kRemoteError = 6;
constexpr int kChannels = 2;

inline void nap() {
  usleep(200);
}

inline u64 now_ns() {
  timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);  // the device's clock is not the host's monotonic one
  return static_cast<u64>(ts.tv_sec) * 1'000'000'000ull + static_cast<u64>(ts.tv_nsec);
}

// A kernel's place in its stream; never freed, the stream may look at it after us.
struct Gate {
  std::atomic<int> reached{0};
  std::atomic<int> opened{0};
};

template <class F>
inline F cuda(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  return library != nullptr ? reinterpret_cast<F>(dlsym(library, name)) : nullptr;
}

inline bool is_captured(void* stream) {
  const auto state = cuda<int (*)(void*)>("standin_cuda_capture_state");
  return state != nullptr && state(stream) != 0;
}

inline Gate* enter_stream(void* stream) {
  const auto gate =
      cuda<void (*)(void*, std::atomic<int>*, std::atomic<int>*)>("standin_cuda_gate");
  if (gate == nullptr) {
    return nullptr;
  }
  static std::mutex lock;
  static auto* all = new std::deque<Gate>;
  const std::lock_guard guard(lock);
  Gate* g = &all->emplace_back();
  gate(stream, &g->reached, &g->opened);
  return g;
}

struct Shared {
  std::atomic<int> joined;
  std::atomic<u64> started[kMaxRanks];            // collectives with a running kernel
  std::atomic<u64> lost;                          // first collective the network lost
  std::atomic<u64> held;                          // collective << 16 | Hold << 8 | by which rank
  std::atomic<u64> posted[kMaxRanks][kMaxRanks];  // sends of a to b
  std::atomic<u64> wanted[kMaxRanks][kMaxRanks];  // receives of b from a
  std::atomic<int> registering;
  std::atomic<int> split_seen[kSplits], split_color[kSplits][kMaxRanks],
      split_key[kSplits][kMaxRanks];
};

enum Hold : u64 { kHoldNone, kHoldLost, kHoldCredit, kHoldKernel };

struct Fault {
  std::string kind;
  int rank = -1;
  u64 n = 0;
  int size = 0;  // of the communicator; 0: any
};

// Kernels of a stream run in their order; those of the default stream whenever they can.
class Streams {
 public:
  u64 enter(void* stream) {
    const std::lock_guard guard(lock_);
    const u64 place = ++last_;
    queues_[stream].push_back(place);
    return place;
  }
  bool is_first(void* stream, u64 place) {
    const std::lock_guard guard(lock_);
    return stream == nullptr || queues_[stream].front() == place;
  }
  void leave(void* stream, u64 place) {
    const std::lock_guard guard(lock_);
    std::erase(queues_[stream], place);
  }

 private:
  std::mutex lock_;
  std::map<void*, std::deque<u64>> queues_;
  u64 last_ = 0;
};

inline Streams& streams() {
  static Streams* s = new Streams;  // kernels may outlive everything
  return *s;
}

inline Fault read_fault() {
  Fault f;
  if (const char* text = getenv("STANDIN_NCCL_FAULT")) {
    char kind[32] = "";
    unsigned long long n = 0;
    std::sscanf(text, "%31[^:]:%d:%llu:%d", kind, &f.rank, &n, &f.size);
    f.kind = kind;
    f.n = n;
  }
  return f;
}

struct Task {
  const char* func;
  size_t count;
  const char* datatype;
  int root;  // or peer
  void* stream;
  const void* send;
  void* recv;
  void* api = nullptr;
  void* task = nullptr;
  u64 n = 0;      // collectives of the communicator, or messages of the pair
  u64 place = 0;  // in its stream
  Gate* gate = nullptr;

  bool is_send() const { return std::strcmp(func, "Send") == 0; }
  bool is_p2p() const { return is_send() || std::strcmp(func, "Recv") == 0; }
};

inline u64 id_hash(const void* id) {
  // the function is checked elsewhere; here both sides only need the same
  const char* at = static_cast<const char*>(id);
  u64 a = 1 ^ 128;
  u64 b = 1;
  for (int i = 0; i < 128; i += 8) {
    a += b;
    b ^= a;
    a ^= a >> 31;
    a *= 0x9de62bbc8cef3ce3ull;
    b ^= b >> 32;
    b *= 0x485cd6311b599e79ull;
    u64 word = 0;
    std::memcpy(&word, at + i, 8);
    a += word;
  }
  u64 h = a;
  h ^= h >> 31;
  h *= 0xbac3bd562846de6bull;
  h += b;
  h ^= h >> 32;
  h *= 0x995a187a14e7b445ull;
  return h;
}

}  // namespace standin

using namespace standin;

struct ncclComm {
  std::string name;
  u64 hash = 0;
  int n_ranks = 0;
  int rank = -1;
  int device = 0;
  Shared* shared = nullptr;
  Profiler profiler;
  Fault fault;
  u64 calls = 0;
  u64 collectives = 0;
  u64 sent[kMaxRanks] = {}, received[kMaxRanks] = {};
  int splits = 0;
  bool blocking = true;
  std::atomic<int> launching{0};  // in the background
  std::atomic<int> async_error{0};
  std::atomic<bool> ending{false};
  std::mutex lock;
  std::deque<Task> queue;
  std::thread progress;
  std::vector<std::thread> background;  // it is made there, and launches

  bool faulty(const char* kind, u64 n) const {
    return fault.kind == kind && fault.rank == rank && fault.n == n &&
           (fault.size == 0 || fault.size == n_ranks);
  }

  void join_ranks() {
    const std::string path = "/dev/shm/" + name;
    const int fd = open(path.c_str(), O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) {
      abort();
    }
    shared = static_cast<Shared*>(
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    if (plugins().api < 4) {
      profiler.init(hash, "", n_ranks, rank);  // before the ranks meet
    }
    shared->joined.fetch_add(1);
    while (shared->joined.load() < n_ranks && !ending.load()) {
      nap();  // a rank that never joins stays here
    }
    unlink(path.c_str());
    if (ending.load()) {
      return;
    }
    if (plugins().api >= 4) {
      profiler.init(hash, "", n_ranks, rank);
    }
    fault = read_fault();
    progress = std::thread([this] { run(); });
  }

  // true when all ranks' kernels of it run
  bool all_started(u64 n) const {
    for (int r = 0; r < n_ranks; ++r) {
      if (shared->started[r].load() < n) {
        return false;
      }
    }
    return true;
  }

  void run() {
    pthread_setname_np(pthread_self(), "NCCL Progress");
    while (!ending.load()) {
      Task t;
      {
        const std::lock_guard guard(lock);
        if (queue.empty()) {
          t.func = nullptr;
        } else {
          t = queue.front();
        }
      }
      if (t.func == nullptr) {
        nap();
        continue;
      }
      while (t.gate != nullptr && t.gate->reached.load() == 0 && !ending.load()) {
        nap();  // behind something else on its stream
      }
      const bool played = t.is_p2p() ? play_p2p(t) : play(t);
      if (t.gate != nullptr) {
        t.gate->opened.store(1);
      }
      if (played) {
        const std::lock_guard guard(lock);
        queue.pop_front();
      }
    }
  }

  void* kernel(const Task& t, int channel) const {
    if (t.task == nullptr) {
      return nullptr;  // its launch was not told either
    }
    Event6 e = event(kEvKernelCh, t.task);
    e.kernel_ch.channel = static_cast<u8>(channel);
    e.kernel_ch.timer_ns = now_ns();
    return profiler.start(e);
  }
  void kernel_end(void* handle) const {
    profiler.state(handle, kStKernelChStop, now_ns());
    profiler.stop(handle);
  }
  void* transfer(const Task& t, bool send, int peer) const {
    if (t.task == nullptr) {
      return nullptr;
    }
    Event6 e = event(kEvProxyOp, t.task);
    e.proxy_op.pid = getpid();
    e.proxy_op.peer = peer;
    e.proxy_op.n_steps = 4;
    e.proxy_op.is_send = send ? 1 : 0;
    return profiler.start(e);
  }
  void* step(void* parent, int n) const {
    if (parent == nullptr) {
      return nullptr;
    }
    Event6 e = event(kEvProxyStep, parent);
    e.proxy_step.step = n;
    return profiler.start(e);
  }

  // The time in which a kernel is the first of its stream.
  struct Turn {
    const Task& task;
    Turn(const Task& t, const std::atomic<bool>& ending) : task(t) {
      while (!streams().is_first(t.stream, t.place) && !ending.load()) {
        nap();
      }
    }
    ~Turn() { streams().leave(task.stream, task.place); }
  };

  // One collective, as a ring: to the next rank, from the one before. False: the communicator ends.
  bool play(const Task& t) {
    const int next = (rank + 1) % n_ranks;
    const int before = (rank + n_ranks - 1) % n_ranks;
    void* send = transfer(t, true, next);
    void* recv = transfer(t, false, before);
    const bool idle = faulty("credit", t.n);
    void* s0 = idle ? nullptr : step(send, 0);
    void* r0 = idle ? nullptr : step(recv, 0);
    profiler.state(s0, kStStepSendGpuWait);
    profiler.state(r0, kStStepRecvWait);
    if (faulty("async", t.n) || faulty("broken", t.n)) {
      async_error.store(faulty("async", t.n) ? kRemoteError : 1);
    }
    const Turn turn(t, ending);
    while (faulty("device", t.n) && !ending.load()) {
      nap();  // behind something else on its stream
    }
    void* channels[kChannels];
    for (int c = 0; c < kChannels; ++c) {
      channels[c] = kernel(t, c);
    }
    if (faulty("transport", t.n)) {
      shared->lost.store(t.n);
    }
    const Hold hold = faulty("lost", t.n)     ? kHoldLost
                      : faulty("credit", t.n) ? kHoldCredit
                      : faulty("kernel", t.n) ? kHoldKernel
                                              : kHoldNone;
    if (hold != kHoldNone) {
      shared->held.store(t.n << 16 | u64{hold} << 8 | static_cast<u64>(rank));
    }
    shared->started[rank].store(t.n);
    for (int polls = 0; !ending.load(); ++polls) {
      const bool data_lost =
          shared->lost.load() == t.n || faulty("async", t.n) || faulty("broken", t.n);
      const u64 held = shared->held.load();
      if (shared->started[next].load() < t.n) {
        profiler.state(s0, kStStepSendPeerWait);  // told at every poll
      } else if (data_lost) {
        profiler.state(s0, kStStepSendWait, polls == 0 ? 4096 : 0);
      } else if (held >> 16 == t.n) {
        // The one that holds it, the one before that, the others.
        const int by = static_cast<int>(held & 0xff);
        const u64 kind = held >> 8 & 0xff;
        profiler.state(s0, by == rank && kind == kHoldLost   ? kStStepSendWait
                           : by == next && kind != kHoldLost ? kStStepSendPeerWait
                                                             : kStStepSendGpuWait);
        profiler.state(r0,
                       by == rank && kind == kHoldKernel ? kStStepRecvGpuWait : kStStepRecvWait);
      } else if (all_started(t.n)) {
        break;
      } else {
        profiler.state(s0, kStStepSendGpuWait);
      }
      nap();
    }
    if (ending.load()) {
      return false;
    }
    for (int n = 0; n < 4; ++n) {
      void* s = n == 0 ? s0 : step(send, n);
      void* r = n == 0 ? r0 : step(recv, n);
      profiler.state(s, kStStepSendWait, 1024);
      profiler.state(r, kStStepRecvFlushWait, 1024);
      profiler.stop(s);
      profiler.stop(r);
    }
    for (void* c : channels) {
      kernel_end(c);
    }
    profiler.stop(send);
    profiler.stop(recv);
    return true;
  }

  bool play_p2p(const Task& t) {
    const Turn turn(t, ending);
    void* channel = kernel(t, 0);
    void* x = transfer(t, t.is_send(), t.root);
    void* s0 = step(x, 0);
    auto& other = t.is_send() ? shared->wanted[rank][t.root] : shared->posted[t.root][rank];
    while (other.load() < t.n && !ending.load()) {
      profiler.state(s0, t.is_send() ? kStStepSendPeerWait : kStStepRecvWait);
      nap();
    }
    if (ending.load()) {
      return false;
    }
    profiler.stop(s0);
    profiler.stop(x);
    kernel_end(channel);
    return true;
  }
};

#pragma GCC visibility pop
