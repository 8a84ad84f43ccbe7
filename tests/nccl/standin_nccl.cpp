// A stand-in for libnccl.so.2, for tests: the same SONAME, ncclX and pncclX, loads profiler plugins
// as NCCL does, and simulates communicators between real processes over shared memory. There is no
// data and no device; a progress thread per communicator plays the kernels and the network.
//
//   STANDIN_NCCL_API=0..6       newest plugin version it knows (default 6; 0: none)
//   STANDIN_NCCL_NODES=N        nodes that it says there are (default 1)
//   STANDIN_NCCL_VERSION=23102  what it says it is (default: one that knows that plugin version)
//   STANDIN_NCCL_FAULT=...      what goes wrong; with :SIZE, on communicators of so many ranks only
//     device:RANK:N             the kernel of RANK's N-th collective never starts
//     transport:RANK:N          RANK's network loses its N-th collective
//     launch:RANK:N             the call that launches RANK's N-th collective never returns
//     async:RANK:N              RANK's N-th collective never ends, ncclCommGetAsyncError says 6
//     broken:RANK:N             the same, and it says 1
//     lost:RANK:N               what RANK sends to the next in its N-th collective does not arrive
//     credit:RANK:N             RANK's network thread does not begin with its N-th collective
//     kernel:RANK:N             RANK's kernel of its N-th collective runs and takes nothing
//     refuse:RANK:N             RANK's N-th call returns 1, and so does the group that it is in
//     symmetric                 collectives on symmetric memory: launched, and nothing is told
//     window                    windows are registered when all ranks have come
//
// Where the stand-in for CUDA is loaded its kernels run on its streams, in their order.
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
#include <type_traits>
#include <utility>
#include <vector>

#include "nccl/abi.hpp"

using namespace fr;
using namespace fr::nccl;

namespace {

constexpr int kMaxRanks = 16;
constexpr int kSplits = 64;
constexpr int kRemoteError = 6;
constexpr int kChannels = 2;

void nap() {
  usleep(200);
}

u64 now_ns() {
  timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);  // the device's clock is not the host's monotonic one
  return static_cast<u64>(ts.tv_sec) * 1'000'000'000ull + static_cast<u64>(ts.tv_nsec);
}

// ---------------------------------------------------------------- streams

// A kernel's place in its stream; never freed, the stream may look at it after us.
struct Gate {
  std::atomic<int> reached{0};
  std::atomic<int> opened{0};
};

template <class F>
F cuda(const char* name) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
  return library != nullptr ? reinterpret_cast<F>(dlsym(library, name)) : nullptr;
}

bool is_captured(void* stream) {
  const auto state = cuda<int (*)(void*)>("standin_cuda_capture_state");
  return state != nullptr && state(stream) != 0;
}

Gate* enter_stream(void* stream) {
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

// ---------------------------------------------------------------- the plugin

struct Plugins {
  int api = 0;
  void* newest = nullptr;
};

Plugins& plugins() {
  static Plugins p = [] {
    Plugins found;
    const char* name = getenv("NCCL_PROFILER_PLUGIN");
    void* library = name != nullptr ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : nullptr;
    const char* newest = getenv("STANDIN_NCCL_API");
    for (int v = newest != nullptr ? atoi(newest) : 6; library != nullptr && v > 0; --v) {
      found.newest = dlsym(library, ("ncclProfiler_v" + std::to_string(v)).c_str());
      if (found.newest != nullptr) {
        found.api = v;
        break;
      }
    }
    return found;
  }();
  return p;
}

const char* const kTypes[] = {"ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",
                              "ncclInt64",   "ncclUint64",  "ncclFloat16", "ncclFloat32",
                              "ncclFloat64", "ncclBfloat16"};
const char* const kFuncs1[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter",
                               "AllReduce", "?",      "Send",      "Recv"};

template <std::size_t kN>
u8 place_in(const char* const (&names)[kN], const char* name) {
  for (u8 i = 0; i < kN; ++i) {
    if (std::strcmp(names[i], name) == 0) {
      return i;
    }
  }
  return 0xff;
}

// Events of version 6; for older ones those that they have, translated.
struct Profiler {
  void* context = nullptr;
  u64 hash = 0;
  const char* name = "";
  int rank = -1;
  static inline int mask = 0;  // one for the process

  // visit(plugin, event of its version, state arguments of its version)
  template <class Visit>
  static void with_plugin(Visit visit) {
    void* p = plugins().newest;
    switch (plugins().api) {
      case 6:
      case 5:
        visit(*static_cast<Plugin6*>(p), Event6{}, Args4{});
        break;
      case 4:
        visit(*static_cast<Plugin4*>(p), Event4{}, Args4{});
        break;
      case 3:
        visit(*static_cast<Plugin3*>(p), Event3{}, Args1{});
        break;
      case 2:
        visit(*static_cast<Plugin2*>(p), Event2{}, Args1{});
        break;
      case 1:
        visit(*static_cast<Plugin1*>(p), Event1{}, Args1{});
        break;
      default:
        break;
    }
  }

  void init(u64 comm_hash, const char* comm_name, int n_ranks, int own_rank) {
    hash = comm_hash;
    name = comm_name;
    rank = own_rank;
    const char* nodes = getenv("STANDIN_NCCL_NODES");
    const int n_nodes = nodes != nullptr ? atoi(nodes) : 1;
    with_plugin([&](auto& plugin, auto, auto) {
      using P = std::remove_reference_t<decltype(plugin)>;
      if constexpr (std::is_same_v<P, Plugin6>) {
        plugin.init(&context, hash, &mask, name, n_nodes, n_ranks, rank, nullptr);
      } else if constexpr (std::is_same_v<P, Plugin4>) {
        plugin.init(&context, &mask, name, hash, n_nodes, n_ranks, rank, nullptr);
      } else {
        plugin.init(&context, &mask);
      }
    });
  }
  void finalize() const {
    with_plugin([&](auto& plugin, auto, auto) { plugin.finalize(context); });
  }

  template <class E>
  bool translate(const Event6& e, E& old) const {
    std::memset(&old, 0, sizeof old);
    old.type = static_cast<u8>(e.type);
    old.parent = e.parent;
    old.rank = e.rank;
    constexpr bool kNamed = !std::is_same_v<E, Event4>;  // says whose it is
    constexpr bool kWords = !std::is_same_v<E, Event1>;  // not numbers
    if (e.type == kEvColl) {
      if constexpr (kNamed) {
        old.coll.name = name;
        old.coll.comm_hash = hash;
        old.rank = rank;
        old.coll.max_channels = e.coll.n_channels;
      } else {
        old.coll.n_channels = e.coll.n_channels;
      }
      if constexpr (kWords) {
        old.coll.func = e.coll.func;
        old.coll.datatype = e.coll.datatype;
        old.coll.algo = e.coll.algo;
        old.coll.proto = e.coll.proto;
      } else {
        old.coll.func = place_in(kFuncs1, e.coll.func);
        old.coll.datatype = place_in(kTypes, e.coll.datatype);
      }
      old.coll.seq = e.coll.seq;
      old.coll.send = e.coll.send;
      old.coll.recv = e.coll.recv;
      old.coll.count = e.coll.count;
      old.coll.root = e.coll.root;
    } else if (e.type == kEvP2p) {
      if constexpr (kNamed) {
        old.p2p.name = name;
        old.p2p.comm_hash = hash;
        old.rank = rank;
      } else {
        old.p2p.n_channels = e.p2p.n_channels;
      }
      if constexpr (kWords) {
        old.p2p.func = e.p2p.func;
        old.p2p.datatype = e.p2p.datatype;
      } else {
        old.p2p.func = place_in(kFuncs1, e.p2p.func);
        old.p2p.datatype = place_in(kTypes, e.p2p.datatype);
      }
      old.p2p.buffer = e.p2p.buffer;
      old.p2p.count = e.p2p.count;
      old.p2p.peer = e.p2p.peer;
    } else if (e.type == kEvProxyOp) {
      old.proxy_op = {e.proxy_op.pid,     e.proxy_op.channel,     e.proxy_op.peer,
                      e.proxy_op.n_steps, e.proxy_op.chunk_bytes, e.proxy_op.is_send};
    } else if (e.type == kEvProxyStep) {
      old.proxy_step = {e.proxy_step.step};
    } else if (e.type == kEvKernelCh) {
      if constexpr (std::is_same_v<E, Event4>) {
        old.kernel_ch = {e.kernel_ch.channel, e.kernel_ch.timer_ns};
      } else if constexpr (std::is_same_v<E, Event3>) {
        old.kernel_ch = {e.kernel_ch.channel};
      } else {
        return false;
      }
    }
    return e.type < kEvGroupApi;
  }

  void* start(const Event6& e) const {
    void* handle = nullptr;
    if ((static_cast<u64>(__atomic_load_n(&mask, __ATOMIC_RELAXED)) & e.type) == 0) {
      return nullptr;
    }
    with_plugin([&](auto& plugin, auto own, auto) {
      if constexpr (std::is_same_v<decltype(own), Event6>) {
        plugin.start(context, &handle, const_cast<Event6*>(&e));
      } else if (translate(e, own)) {
        plugin.start(context, &handle, &own);
      }
    });
    return handle;
  }
  void stop(void* handle) const {
    if (handle != nullptr) {
      with_plugin([&](auto& plugin, auto, auto) { plugin.stop(handle); });
    }
  }
  void state(void* handle, int s, u64 value = 0) const {
    if (handle == nullptr) {
      return;
    }
    with_plugin([&](auto& plugin, auto, auto args) {
      if constexpr (std::is_same_v<decltype(args), Args4>) {
        args.timer_ns = value;
      } else if (s == kStStepSendPeerWait || s >= kStKernelChStop) {
        return;  // not known yet
      }
      plugin.state(handle, s, &args);
    });
  }
};

Event6 event(u64 type, void* parent) {
  Event6 e;
  std::memset(&e, 0, sizeof e);
  e.type = type;
  e.parent = parent;
  return e;
}

// ---------------------------------------------------------------- communicators

struct Shared {
  std::atomic<int> joined;
  std::atomic<u64> started[kMaxRanks];            // collectives whose kernel runs
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

Streams& streams() {
  static Streams* s = new Streams;  // kernels may outlive everything
  return *s;
}

Fault read_fault() {
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

u64 id_hash(const void* id) {
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

}  // namespace

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
      nap();  // a rank that does not come: for ever
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
    Event6 e = event(kEvProxyOp, t.task);
    e.proxy_op.pid = getpid();
    e.proxy_op.peer = peer;
    e.proxy_op.n_steps = 4;
    e.proxy_op.is_send = send ? 1 : 0;
    return profiler.start(e);
  }
  void* step(void* parent, int n) const {
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

namespace {

thread_local int t_depth = 0;
thread_local int t_group_error = 0;
thread_local void* t_group = nullptr;
thread_local ncclComm* t_first = nullptr;
struct Pending {
  ncclComm* comm;
  Task task;
};
thread_local std::vector<Pending> t_tasks;
thread_local std::vector<std::thread> t_inits;
thread_local char t_error[64] = "";

void launch_all() {
  if (t_first != nullptr) {
    t_first->profiler.state(t_group, kStGroupEndApiStart);
  }
  for (Pending& p : t_tasks) {
    ncclComm& c = *p.comm;
    if (c.fault.kind == "symmetric") {
      continue;
    }
    Event6 l = event(kEvKernelLaunch, t_group);
    l.launch.stream = p.task.stream;
    void* launch = c.profiler.start(l);
    while (c.faulty("launch", p.task.n) && !p.task.is_p2p()) {
      nap();
    }
    c.profiler.stop(launch);
    if (is_captured(p.task.stream)) {
      continue;  // it runs when the graph does, which is never
    }
    void* group = c.profiler.start(event(kEvGroup, nullptr));
    Event6 e = event(p.task.is_p2p() ? kEvP2p : kEvColl, plugins().api >= 5 ? p.task.api : group);
    e.rank = c.rank;
    if (p.task.is_p2p()) {
      e.p2p.func = p.task.func;
      e.p2p.buffer = p.task.is_send() ? const_cast<void*>(p.task.send) : p.task.recv;
      e.p2p.datatype = p.task.datatype;
      e.p2p.count = p.task.count;
      e.p2p.peer = p.task.root;
      e.p2p.n_channels = kChannels;  // a bound
    } else {
      e.coll.func = p.task.func;
      e.coll.send = p.task.send;
      e.coll.recv = p.task.recv;
      e.coll.count = p.task.count;
      e.coll.root = p.task.root;
      e.coll.datatype = p.task.datatype;
      e.coll.n_channels = kChannels;
      e.coll.algo = "RING";
      e.coll.proto = "SIMPLE";
    }
    p.task.task = c.profiler.start(e);
    c.profiler.stop(p.task.task);
    c.profiler.stop(group);
    if (p.task.is_p2p()) {  // those of one group go at once
      (p.task.is_send() ? c.shared->posted[c.rank][p.task.root]
                        : c.shared->wanted[p.task.root][c.rank])
          .store(p.task.n);
    }
    p.task.gate = enter_stream(p.task.stream);
    p.task.place = streams().enter(p.task.stream);
    const std::lock_guard guard(c.lock);
    c.queue.push_back(p.task);
  }
  if (t_first != nullptr) {
    t_first->profiler.stop(t_group);
  }
  t_tasks.clear();
  t_first = nullptr;
  t_group = nullptr;
}

// Nothing of the group is launched.
void drop_all() {
  for (const Pending& p : t_tasks) {
    p.comm->collectives -= p.task.is_p2p() ? 0 : 1;
  }
  if (t_first != nullptr) {
    t_first->profiler.stop(t_group);
  }
  t_tasks.clear();
  t_first = nullptr;
  t_group = nullptr;
}

// Launches what was called; for non-blocking communicators on a thread of its own.
int launch() {
  bool waits = true;
  for (const Pending& p : t_tasks) {
    waits = waits && p.comm->blocking;
  }
  if (waits) {
    launch_all();
    return 0;
  }
  for (const Pending& p : t_tasks) {
    p.comm->launching.fetch_add(1);
    p.comm->async_error.store(kInProgress);
  }
  // the group's event is over before anything of it is launched
  t_first->profiler.state(t_group, kStGroupEndApiStart);
  t_first->profiler.stop(t_group);
  t_first = nullptr;
  std::thread([tasks = std::exchange(t_tasks, {}), group = std::exchange(t_group, nullptr)] {
    usleep(2000);
    t_tasks = tasks;
    t_group = group;
    launch_all();
    for (const Pending& p : tasks) {
      p.comm->async_error.store(0);
      p.comm->launching.fetch_sub(1);
    }
  }).detach();
  return kInProgress;
}

int enqueue(ncclComm* comm, const char* func, size_t count, int datatype, int root, void* stream,
            const void* send, void* recv) {
  if (comm == nullptr || datatype < 0 || datatype > 9) {
    std::snprintf(t_error, sizeof t_error, "%s: bad argument", func);
    return 4;
  }
  if (comm->faulty("refuse", ++comm->calls)) {
    std::snprintf(t_error, sizeof t_error, "the stand-in refuses");
    t_group_error = t_depth > 0 ? 1 : 0;
    return 1;
  }
  Task t{func, count, kTypes[datatype], root, stream, send, recv};
  if (t.is_p2p()) {
    t.n = t.is_send() ? ++comm->sent[root] : ++comm->received[root];
  } else if (!is_captured(stream)) {
    t.n = ++comm->collectives;
  }
  if (t_first == nullptr) {
    t_first = comm;
    t_group = comm->profiler.start(event(kEvGroupApi, nullptr));
  }
  Event6 e = event(t.is_p2p() ? kEvP2pApi : kEvCollApi, t_group);
  if (t.is_p2p()) {
    e.p2p_api.func = func;
    e.p2p_api.count = count;
    e.p2p_api.datatype = t.datatype;
    e.p2p_api.stream = stream;
    e.p2p_api.captured = is_captured(stream);
  } else {
    e.coll_api.func = func;
    e.coll_api.count = count;
    e.coll_api.datatype = t.datatype;
    e.coll_api.root = root;
    e.coll_api.stream = stream;
    e.coll_api.captured = is_captured(stream);
  }
  t.api = comm->profiler.start(e);
  comm->profiler.stop(t.api);
  t_tasks.push_back({comm, t});
  return t_depth == 0 ? launch() : 0;
}

int make(ncclComm** out, std::string name, u64 hash, int n_ranks, int rank, bool blocking = true) {
  auto* comm = new ncclComm;
  comm->name = std::move(name);
  comm->hash = hash;
  comm->n_ranks = n_ranks;
  comm->rank = rank;
  comm->blocking = blocking;
  if (const auto current = cuda<int (*)(int*)>("cuCtxGetDevice")) {
    current(&comm->device);
  }
  if (!blocking) {
    comm->async_error.store(kInProgress);
    *out = comm;
    std::thread([comm] {
      comm->join_ranks();
      if (comm->ending.load()) {
        delete comm;  // given up; see end()
        return;
      }
      comm->async_error.store(0);
    }).detach();
    return kInProgress;
  }
  // NCCL does this on a thread of its own
  std::thread job([comm, out] {
    comm->join_ranks();
    *out = comm;
  });
  if (t_depth == 0) {
    job.join();
  } else {
    t_inits.push_back(std::move(job));
  }
  return 0;
}

int end(ncclComm* comm) {
  while (comm->launching.load() != 0) {
    nap();
  }
  const bool in_making = comm->async_error.load() == kInProgress;
  comm->ending.store(true);
  if (in_making) {
    return 0;  // the thread that makes it deletes it
  }
  comm->progress.join();
  comm->profiler.finalize();
  delete comm;
  return 0;
}

}  // namespace

// ---------------------------------------------------------------- what it exports

#define API(name, parameters, arguments)                                                         \
  extern "C" __attribute__((visibility("default"))) int p##name parameters;                      \
  extern "C" __attribute__((visibility("default"), weak, alias("p" #name))) int name parameters; \
  extern "C" __attribute__((visibility("default"))) int p##name parameters

API(ncclGetVersion, (int* version), ()) {
  if (const char* version_text = getenv("STANDIN_NCCL_VERSION")) {
    *version = atoi(version_text);
    return 0;
  }
  const char* newest = getenv("STANDIN_NCCL_API");
  const int api = newest != nullptr ? atoi(newest) : 6;
  static constexpr int kVersions[] = {21805, 22304, 22501, 22602, 22703, 22809, 23007};
  *version = kVersions[api];
  return 0;
}
API(ncclGetUniqueId, (UniqueId * id), ()) {
  std::memset(id, 0, sizeof *id);
  static std::atomic<int> n{0};
  std::snprintf(id->bytes, sizeof id->bytes, "standin-nccl-%d-%d-%llx", getpid(), n.fetch_add(1),
                static_cast<unsigned long long>(now_ns()));
  return 0;
}
API(ncclCommInitRank, (ncclComm * *out, int n_ranks, UniqueId id, int rank), ()) {
  return make(out, id.bytes, id_hash(&id), n_ranks, rank);
}
API(ncclCommInitRankConfig, (ncclComm * *out, int n_ranks, UniqueId id, int rank, void* config),
    ()) {
  const auto* head = static_cast<const ConfigHead*>(config);
  return make(out, id.bytes, id_hash(&id), n_ranks, rank, head == nullptr || head->blocking != 0);
}
API(ncclCommSplit, (ncclComm * comm, int color, int key, ncclComm** out, void*), ()) {
  const int s = comm->splits++;
  comm->shared->split_color[s][comm->rank].store(color);
  comm->shared->split_key[s][comm->rank].store(key);
  comm->shared->split_seen[s].fetch_add(1);
  while (comm->shared->split_seen[s].load() < comm->n_ranks) {
    nap();
  }
  int n_ranks = 0;
  int rank = 0;
  for (int r = 0; r < comm->n_ranks; ++r) {
    if (comm->shared->split_color[s][r].load() == color) {
      ++n_ranks;
      const int other = comm->shared->split_key[s][r].load();
      rank += other < key || (other == key && r < comm->rank) ? 1 : 0;
    }
  }
  *out = nullptr;
  if (color < 0) {
    return 0;
  }
  return make(out, comm->name + "-" + std::to_string(s) + "-" + std::to_string(color),
              comm->hash * 31 + static_cast<u64>(s) * 7 + static_cast<u64>(color) + 1, n_ranks,
              rank);
}
API(ncclCommCount, (const ncclComm* comm, int* n), ()) {
  *n = comm->n_ranks;
  return 0;
}
API(ncclCommUserRank, (const ncclComm* comm, int* rank), ()) {
  *rank = comm->rank;
  return 0;
}
API(ncclCommCuDevice, (const ncclComm* comm, int* device), ()) {
  *device = comm->device;
  return 0;
}
API(ncclCommGetAsyncError, (ncclComm * comm, int* error), ()) {
  *error = comm->async_error.load();
  return 0;
}
API(ncclCommFinalize, (ncclComm*), ()) {
  return 0;
}
API(ncclCommDestroy, (ncclComm * comm), ()) {
  for (bool empty = false; !empty;) {
    nap();
    const std::lock_guard guard(comm->lock);
    empty = comm->queue.empty();
  }
  return end(comm);
}
API(ncclCommAbort, (ncclComm * comm), ()) {
  return end(comm);
}
API(ncclGroupStart, (), ()) {
  ++t_depth;
  return 0;
}
API(ncclGroupEnd, (), ()) {
  if (t_depth == 0) {
    return 5;
  }
  if (--t_depth == 0) {
    for (std::thread& job : t_inits) {
      job.join();
    }
    t_inits.clear();
    if (const int error = std::exchange(t_group_error, 0)) {
      drop_all();
      return error;
    }
    return launch();
  }
  return 0;
}
API(ncclGroupSimulateEnd, (void*), ()) {
  if (t_depth == 0) {
    return 5;
  }
  if (--t_depth == 0) {
    drop_all();
  }
  return 0;
}
API(ncclAllReduce, (const void* s, void* r, size_t n, int type, int, ncclComm* c, void* stream),
    ()) {
  return enqueue(c, "AllReduce", n, type, 0, stream, s, r);
}
API(ncclBroadcast,
    (const void* s, void* r, size_t n, int type, int root, ncclComm* c, void* stream), ()) {
  return enqueue(c, "Broadcast", n, type, root, stream, s, r);
}
API(ncclBcast, (void* b, size_t n, int type, int root, ncclComm* c, void* stream), ()) {
  return ncclBroadcast(b, b, n, type, root, c, stream);
}
API(ncclReduce,
    (const void* s, void* r, size_t n, int type, int, int root, ncclComm* c, void* stream), ()) {
  return enqueue(c, "Reduce", n, type, root, stream, s, r);
}
API(ncclAllGather, (const void* s, void* r, size_t n, int type, ncclComm* c, void* stream), ()) {
  return enqueue(c, "AllGather", n, type, 0, stream, s, r);
}
API(ncclReduceScatter, (const void* s, void* r, size_t n, int type, int, ncclComm* c, void* stream),
    ()) {
  return enqueue(c, "ReduceScatter", n, type, 0, stream, s, r);
}
API(ncclSend, (const void* s, size_t n, int type, int peer, ncclComm* c, void* stream), ()) {
  return enqueue(c, "Send", n, type, peer, stream, s, nullptr);
}
API(ncclRecv, (void* r, size_t n, int type, int peer, ncclComm* c, void* stream), ()) {
  return enqueue(c, "Recv", n, type, peer, stream, nullptr, r);
}
// Told to plugins as sends and receives, like NCCL's own.
API(ncclAlltoAll, (const void* s, void* r, size_t n, int type, ncclComm* c, void* stream), ()) {
  ++t_depth;
  for (int peer = 0; c != nullptr && peer < c->n_ranks; ++peer) {
    if (peer != c->rank) {
      enqueue(c, "Send", n, type, peer, stream, s, nullptr);
      enqueue(c, "Recv", n, type, peer, stream, nullptr, r);
    }
  }
  if (c == nullptr) {
    --t_depth;
    return 4;
  }
  return --t_depth == 0 ? launch() : 0;
}

// These do nothing but say what they were called with.
namespace {
char g_said[256];
template <class... Args>
int echo(const char* format, Args... args) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
  std::snprintf(g_said, sizeof g_said, format, args...);
#pragma GCC diagnostic pop
  return 0;
}
}  // namespace

API(ncclGather, (const void* s, void* r, size_t n, int type, int root, ncclComm* c, void* stream),
    ()) {
  return echo("%p %p %zu %d %d %p %p", s, r, n, type, root, static_cast<void*>(c), stream);
}
API(ncclScatter, (const void* s, void* r, size_t n, int type, int root, ncclComm* c, void* stream),
    ()) {
  return echo("%p %p %zu %d %d %p %p", s, r, n, type, root, static_cast<void*>(c), stream);
}
API(ncclPutSignal,
    (const void* b, size_t n, int type, int peer, void* window, size_t offset, int signal,
     int context, unsigned flags, ncclComm* c, void* stream),
    ()) {
  return echo("%p %zu %d %d %p %zu %d %d %u %p %p", b, n, type, peer, window, offset, signal,
              context, flags, static_cast<void*>(c), stream);
}
API(ncclSignal, (int peer, int signal, int context, unsigned flags, ncclComm* c, void* stream),
    ()) {
  return echo("%d %d %d %u %p %p", peer, signal, context, flags, static_cast<void*>(c), stream);
}
API(ncclWaitSignal, (int n, void* signals, ncclComm* c, void* stream), ()) {
  return echo("%d %p %p %p", n, signals, static_cast<void*>(c), stream);
}
API(ncclCommShrink, (ncclComm * c, int* ranks, int n, ncclComm** out, void* config, int flags),
    ()) {
  return echo("%p %p %d %p %p %d", static_cast<void*>(c), static_cast<void*>(ranks), n,
              static_cast<void*>(out), config, flags);
}
API(ncclCommGrow, (ncclComm * c, int n, const UniqueId* id, int rank, ncclComm** out, void* config),
    ()) {
  return echo("%p %d %p %d %p %p", static_cast<void*>(c), n, static_cast<const void*>(id), rank,
              static_cast<void*>(out), config);
}
API(ncclCommInitRankScalable,
    (ncclComm * *out, int n, int rank, int n_ids, UniqueId* ids, void* config), ()) {
  return echo("%p %d %d %d %p %p", static_cast<void*>(out), n, rank, n_ids, static_cast<void*>(ids),
              config);
}
API(ncclCommInitAll, (ncclComm * *comms, int n, const int* devices), ()) {
  UniqueId id;
  ncclGetUniqueId(&id);
  ncclGroupStart();
  for (int rank = 0; rank < n; ++rank) {
    make(&comms[rank], id.bytes, id_hash(&id), n, rank);
  }
  ncclGroupEnd();
  return echo("%p %d %p", static_cast<void*>(comms), n, static_cast<const void*>(devices));
}
API(ncclCommRevoke, (ncclComm * c, int flags), ()) {
  return echo("%p %d", static_cast<void*>(c), flags);
}
API(ncclCommSuspend, (ncclComm * c, int flags), ()) {
  return echo("%p %d", static_cast<void*>(c), flags);
}
API(ncclCommResume, (ncclComm * c), ()) {
  return echo("%p", static_cast<void*>(c));
}
API(ncclCommRegister, (ncclComm * c, void* b, size_t n, void** handle), ()) {
  return echo("%p %p %zu %p", static_cast<void*>(c), b, n, static_cast<void*>(handle));
}
API(ncclCommDeregister, (ncclComm * c, void* handle), ()) {
  return echo("%p %p", static_cast<void*>(c), handle);
}
API(ncclCommWindowRegister, (ncclComm * c, void* b, size_t n, void** window, int flags), ()) {
  if (read_fault().kind == "window") {
    const int place = c->shared->registering.fetch_add(1);
    while (c->shared->registering.load() < (place / c->n_ranks + 1) * c->n_ranks) {
      nap();
    }
  }
  return echo("%p %p %zu %p %d", static_cast<void*>(c), b, n, static_cast<void*>(window), flags);
}
API(ncclCommWindowDeregister, (ncclComm * c, void* window), ()) {
  return echo("%p %p", static_cast<void*>(c), window);
}
API(ncclDevCommCreate, (ncclComm * c, const void* needs, void* out), ()) {
  return echo("%p %p %p", static_cast<void*>(c), needs, out);
}
API(ncclMemAlloc, (void** out, size_t n), ()) {
  return echo("%p %zu", static_cast<void*>(out), n);
}
API(ncclMemFree, (void* memory), ()) {
  return echo("%p", memory);
}
#ifdef STANDIN_NEWER  // not all versions have all functions
API(ncclDevCommDestroy, (ncclComm * c, const void* device_comm), ()) {
  return echo("%p %p", static_cast<void*>(c), device_comm);
}
#endif
API(ncclAllReduceConfig,
    (const void* s, void* r, size_t n, int type, int op, ncclComm* c, void* stream, const void* x),
    ()) {
  echo("%d %p", op, x);
  return ncclAllReduce(s, r, n, type, op, c, stream);
}
API(ncclBroadcastConfig,
    (const void* s, void* r, size_t n, int type, int root, ncclComm* c, void* stream,
     const void* x),
    ()) {
  echo("%d %p", root, x);
  return ncclBroadcast(s, r, n, type, root, c, stream);
}
API(ncclReduceConfig,
    (const void* s, void* r, size_t n, int type, int op, int root, ncclComm* c, void* stream,
     const void* x),
    ()) {
  echo("%d %d %p", op, root, x);
  return ncclReduce(s, r, n, type, op, root, c, stream);
}
API(ncclAllGatherConfig,
    (const void* s, void* r, size_t n, int type, ncclComm* c, void* stream, const void* x), ()) {
  echo("%p", x);
  return ncclAllGather(s, r, n, type, c, stream);
}
API(ncclReduceScatterConfig,
    (const void* s, void* r, size_t n, int type, int op, ncclComm* c, void* stream, const void* x),
    ()) {
  echo("%d %p", op, x);
  return ncclReduceScatter(s, r, n, type, op, c, stream);
}
API(ncclAlltoAllConfig,
    (const void* s, void* r, size_t n, int type, ncclComm* c, void* stream, const void* x), ()) {
  echo("%p", x);
  return ncclAlltoAll(s, r, n, type, c, stream);
}
API(ncclGatherConfig,
    (const void* s, void* r, size_t n, int type, int root, ncclComm* c, void* stream,
     const void* x),
    ()) {
  return echo("%p %p %zu %d %d %p %p %p", s, r, n, type, root, static_cast<void*>(c), stream, x);
}
API(ncclScatterConfig,
    (const void* s, void* r, size_t n, int type, int root, ncclComm* c, void* stream,
     const void* x),
    ()) {
  return echo("%p %p %zu %d %d %p %p %p", s, r, n, type, root, static_cast<void*>(c), stream, x);
}
extern "C" __attribute__((visibility("default"))) const char* standin_said() {
  return g_said;
}

// Not NCCL's: stands for synchronizing the stream.
API(standin_synchronize, (ncclComm * comm), ()) {
  for (;;) {
    {
      const std::lock_guard guard(comm->lock);
      if (comm->queue.empty()) {
        return 0;
      }
    }
    nap();
  }
}

extern "C" __attribute__((visibility("default"))) const char* ncclGetErrorString(int code) {
  return code == 0   ? "no error"
         : code == 4 ? "invalid argument"
         : code == 6 ? "remote process exited or there was a network error"
                     : "unhandled error";
}
extern "C" __attribute__((visibility("default"))) const char* ncclGetLastError(ncclComm*) {
  return t_error;
}
