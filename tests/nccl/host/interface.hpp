// interface.hpp - NCCL's profiler interface, versions 1 to 7, as NCCL's own headers lay it out
// (src/include/plugin/profiler/profiler_v1.h to _v7.h). Written without libfr's headers: what is
// wrong in those cannot be right here.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace host {

// src/include/plugin/nccl_profiler.h:10-28
enum Type : uint64_t {
  kGroup = 1,
  kColl = 2,
  kP2p = 4,
  kProxyOp = 8,
  kProxyStep = 16,
  kKernelCh = 64,
  kGroupApi = 256,
  kCollApi = 512,
  kP2pApi = 1024,
  kKernelLaunch = 2048
};

// src/include/plugin/nccl_profiler.h:30-78
enum State : int {
  kSendPosted = 0,
  kSendRemFifoWait = 1,
  kSendTransmitted = 2,
  kSendDone = 3,
  kRecvPosted = 4,
  kRecvReceived = 5,
  kRecvTransmitted = 6,
  kRecvDone = 7,
  kSendGpuWait = 8,
  kSendWait = 9,
  kRecvWait = 10,
  kRecvFlushWait = 11,
  kRecvGpuWait = 12,
  kInProgress = 19,
  kSendPeerWait = 20,
  kKernelChStop = 22,
  kGroupStartStop = 23,
  kGroupEndStart = 24
};

struct Proxy {
  int pid;
  uint8_t channel;
  int peer, steps, chunk_bytes, is_send;
};
struct Named {  // the communicator, which versions 1 to 3 name in each event
  const char* comm_name;
  uint64_t comm_hash;
};

struct Descr1 {
  uint8_t type;
  void* parent;
  int rank;
  union {
    struct {
      Named of;
      uint64_t seq;
      uint8_t func;
      const void* send;
      void* recv;
      size_t count;
      int root;
      uint8_t dtype;
      uint32_t op;
      size_t traffic;
      uint8_t channels, warps, algo, proto;
      int collnet, nvls;
    } coll;
    struct {
      Named of;
      uint8_t func;
      void* buffer;
      uint8_t dtype;
      size_t count;
      int peer;
    } p2p;
    Proxy proxy;
    int step;
  };
};
static_assert(sizeof(Descr1) == 120 && offsetof(Descr1, coll.dtype) == 84);
static_assert(offsetof(Descr1, coll.channels) == 104 && offsetof(Descr1, coll.nvls) == 112);
static_assert(offsetof(Descr1, p2p.buffer) == 48 && offsetof(Descr1, p2p.count) == 64);

struct P2p2 {
  Named of;
  const char* func;
  void* buffer;
  const char* dtype;
  size_t count;
  int peer;
};
struct Descr2 {
  uint8_t type;
  void* parent;
  int rank;
  union {
    struct {
      Named of;
      uint64_t seq;
      const char* func;
      const void* send;
      void* recv;
      size_t count;
      int root;
      const char* dtype;
      size_t traffic;
      uint8_t channels, warps;
      const char *algo, *proto;
    } coll;
    P2p2 p2p;
    Proxy proxy;
    int step;
  };
};
static_assert(sizeof(Descr2) == 128 && offsetof(Descr2, coll.dtype) == 88);
static_assert(offsetof(Descr2, coll.channels) == 104 && offsetof(Descr2, coll.proto) == 120);
static_assert(offsetof(Descr2, p2p.peer) == 72);

struct Descr3 {
  uint8_t type;
  void* parent;
  int rank;
  union {
    struct {
      Named of;
      uint64_t seq;
      const char* func;
      const void* send;
      void* recv;
      size_t count;
      int root;
      const char* dtype;
      uint8_t channels, warps;
      const char *algo, *proto;
    } coll;
    P2p2 p2p;
    Proxy proxy;
    int step;
    struct {
      uint8_t channel;
    } kernel;
  };
};
static_assert(sizeof(Descr3) == 120 && offsetof(Descr3, coll.channels) == 96);
static_assert(offsetof(Descr3, coll.algo) == 104 && offsetof(Descr3, p2p.count) == 64);

struct Kernel {
  uint8_t channel;
  uint64_t timer;
};
struct Descr4 {
  uint8_t type;
  void* parent;
  int rank;
  union {
    struct {
      uint64_t seq;
      const char* func;
      const void* send;
      void* recv;
      size_t count;
      int root;
      const char* dtype;
      uint8_t channels, warps;
      const char *algo, *proto;
    } coll;
    struct {
      const char* func;
      void* buffer;
      const char* dtype;
      size_t count;
      int peer;
      uint8_t channels;
    } p2p;
    Proxy proxy;
    int step;
    Kernel kernel;
  };
};
static_assert(sizeof(Descr4) == 104 && offsetof(Descr4, coll.count) == 56);
static_assert(offsetof(Descr4, coll.channels) == 80 && offsetof(Descr4, p2p.channels) == 60);

struct Descr5 {  // and 6, where only events of copy engines are new
  uint64_t type;
  void* parent;
  int rank;
  union {
    struct {
      bool captured;
      int depth;
    } group_api;
    struct {
      const char* func;
      size_t count;
      const char* dtype;
      int root;
      void* stream;
      bool captured;
    } coll_api;
    struct {
      const char* func;
      size_t count;
      const char* dtype;
      void* stream;
      bool captured;
    } p2p_api;
    void* stream;
    struct {
      uint64_t seq;
      const char* func;
      const void* send;
      void* recv;
      size_t count;
      int root;
      const char* dtype;
      uint8_t channels, warps;
      const char *algo, *proto;
      void* group;
    } coll;
    struct {
      const char* func;
      void* buffer;
      const char* dtype;
      size_t count;
      int peer;
      uint8_t channels;
      void* group;
    } p2p;
    Proxy proxy;
    int step;
    Kernel kernel;
  };
};
static_assert(sizeof(Descr5) == 112 && offsetof(Descr5, coll_api.stream) == 56);
static_assert(offsetof(Descr5, p2p_api.stream) == 48 && offsetof(Descr5, coll.group) == 104);
static_assert(offsetof(Descr5, p2p.peer) == 56 && offsetof(Descr5, p2p.group) == 64);

struct Descr7 {
  uint64_t type;
  void* parent;
  int rank;
  union {
    struct {
      bool captured;
      int depth;
    } group_api;
    struct {
      const char* func;
      size_t count;
      const char* dtype;
      int root;
      void* stream;
      bool captured;
      uint64_t tag;
    } coll_api;
    struct {
      const char* func;
      size_t count;
      const char* dtype;
      void* stream;
      bool captured;
      uint64_t tag;
    } p2p_api;
    void* stream;
    struct {
      uint64_t seq;
      const char* func;
      const void* send;
      void* recv;
      size_t count;
      int root;
      const char* dtype;
      uint8_t channels, warps;
      const char *algo, *proto;
      void* group;
      const char* variant;
      bool symmetric;
      uint64_t tag;
    } coll;
    struct {
      const char* func;
      void* buffer;
      const char* dtype;
      size_t count;
      int peer;
      uint8_t channels;
      void* group;
      uint64_t tag;
    } p2p;
    Proxy proxy;
    int step;
    Kernel kernel;
  };
};
static_assert(sizeof(Descr7) == 136 && offsetof(Descr7, coll.tag) == 128);
static_assert(offsetof(Descr7, coll_api.tag) == 72 && offsetof(Descr7, p2p.tag) == 72);
static_assert(offsetof(Descr7, proxy.channel) == 28 && offsetof(Descr7, kernel.timer) == 32);

struct Args1 {  // versions 1 to 3
  size_t bytes;
  int steps;
};
union Args4 {
  size_t bytes;
  uint64_t timer;
};
static_assert(sizeof(Args1) == 16 && sizeof(Args4) == 8);

using Logger = void (*)(int, unsigned long, const char*, int, const char*, ...);

template <class Descr, class Args, class... Facts>
struct Table {
  const char* name;
  int (*init)(void** context, Facts...);
  int (*start)(void* context, void** handle, Descr* event);
  int (*stop)(void* handle);
  int (*state)(void* handle, int state, Args* args);
  int (*finalize)(void* context);
};
using Table1 = Table<Descr1, Args1, int*>;
using Table2 = Table<Descr2, Args1, int*>;
using Table3 = Table<Descr3, Args1, int*>;
using Table4 = Table<Descr4, Args4, int*, const char*, uint64_t, int, int, int, Logger>;
using Table5 = Table<Descr5, Args4, uint64_t, int*, const char*, int, int, int, Logger>;
using Table7 = Table<Descr7, Args4, uint64_t, int*, const char*, int, int, int, Logger>;

// All that an event of any version says.
struct Event {
  uint64_t type;
  void* parent = nullptr;
  void* group = nullptr;
  const char* func = "";
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  int root = 0;  // or peer
  void* stream = nullptr;
  uint64_t seq = 0;
  int channels = 0, channel = 0;
  int steps = 0;  // of a transfer; or the number of one
  bool is_send = false;
  bool captured = false;
  uint64_t timer = 0;
};

// The reports of one communicator to the plugin, in the interface version of this NCCL.
class Profiler {
 public:
  // The library's version, 22304 for 2.23.4, and the newest interface that it knows.
  static int library() { return atoi(getenv("HOST_NCCL")); }
  static int knows(int v) {
    return v >= 23100   ? 7
           : v >= 22902 ? 6
           : v >= 22803 ? 5
           : v >= 22703 ? 4
           : v >= 22602 ? 3
           : v >= 22403 ? 2
                        : 1;
  }
  // Looked up from the newest to the oldest, by the name in NCCL_PROFILER_PLUGIN (profiler.cc:107).
  static int api() {
    static const int version = [] {
      const char* name = getenv("NCCL_PROFILER_PLUGIN");
      void* library_handle = name != nullptr ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : nullptr;
      int v = library_handle != nullptr ? knows(library()) : 0;
      for (; v > 0; --v) {
        table_ = dlsym(library_handle, ("ncclProfiler_v" + std::to_string(v)).c_str());
        if (table_ != nullptr) {
          break;
        }
      }
      return v;
    }();
    return version;
  }

  void init(uint64_t comm_hash, int n_nodes, int n_ranks, int own_rank) {
    hash_ = comm_hash;
    rank_ = own_rank;
    with([&](auto& table, auto, auto) {
      using T = std::remove_reference_t<decltype(table)>;
      if constexpr (std::is_same_v<T, Table5> || std::is_same_v<T, Table7>) {
        table.init(&context_, hash_, &mask_, "", n_nodes, n_ranks, own_rank, nullptr);
      } else if constexpr (std::is_same_v<T, Table4>) {
        table.init(&context_, &mask_, "", hash_, n_nodes, n_ranks, own_rank, nullptr);
      } else {
        table.init(&context_, &mask_);
      }
    });
  }
  void finalize() const {
    with([&](auto& table, auto, auto) { table.finalize(context_); });
  }

  bool wants(uint64_t type) const {
    return api() != 0 && (static_cast<uint64_t>(__atomic_load_n(&mask_, __ATOMIC_RELAXED)) & type);
  }
  void* start(const Event& e) const {
    void* handle = nullptr;
    if (wants(e.type)) {
      with([&](auto& table, auto descr, auto) {
        std::memset(&descr, 0, sizeof descr);
        if (fill(descr, e)) {
          table.start(context_, &handle, &descr);
        }
      });
    }
    return handle;
  }
  void stop(void* handle) const {
    if (handle != nullptr) {
      with([&](auto& table, auto, auto) { table.stop(handle); });
    }
  }
  // Version 1 to 3 give step states no arguments (profiler.cc, RecordProxyStepEventState).
  void state(void* handle, int s, size_t value = 0, int steps = 0) const {
    if (handle == nullptr) {
      return;
    }
    with([&](auto& table, auto, auto args) {
      if constexpr (std::is_same_v<decltype(args), Args4>) {
        args.bytes = value;
        table.state(handle, s, s == kGroupStartStop || s == kGroupEndStart ? nullptr : &args);
      } else {
        args.bytes = value;
        args.steps = steps;
        table.state(handle, s, s <= kRecvDone ? &args : nullptr);
      }
    });
  }

 private:
  template <class Visit>
  static void with(Visit visit) {
    switch (api()) {
      case 7:
        return visit(*static_cast<Table7*>(table_), Descr7{}, Args4{});
      case 6:
      case 5:
        return visit(*static_cast<Table5*>(table_), Descr5{}, Args4{});
      case 4:
        return visit(*static_cast<Table4*>(table_), Descr4{}, Args4{});
      case 3:
        return visit(*static_cast<Table3*>(table_), Descr3{}, Args1{});
      case 2:
        return visit(*static_cast<Table2*>(table_), Descr2{}, Args1{});
      case 1:
        return visit(*static_cast<Table1*>(table_), Descr1{}, Args1{});
      default:
        return;
    }
  }

  // Numbers of version 1: ncclFunc_t (src/include/nccl_common.h:58), ncclFloat32.
  static uint8_t number(const char* func) {
    static const char* const names[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                        "AllReduce", "SendRecv", "Send",      "Recv"};
    uint8_t i = 0;
    while (i < 8 && std::strcmp(names[i], func) != 0) {
      ++i;
    }
    return i;
  }

  template <class D>
  bool fill(D& d, const Event& e) const {
    constexpr bool kSaysWhose = requires { d.coll.of; };
    constexpr bool kHasCalls = requires { d.coll_api; };
    constexpr bool kNumbers = std::is_same_v<D, Descr1>;
    d.type = static_cast<decltype(d.type)>(e.type);
    d.parent = e.parent;
    const auto words = [&](auto& x) {
      if constexpr (kSaysWhose) {
        x.of = {"", hash_};
      } else {
        x.channels = static_cast<uint8_t>(e.channels);
      }
      if constexpr (kNumbers) {
        x.func = number(e.func);
        x.dtype = 7;
      } else {
        x.func = e.func;
        x.dtype = "ncclFloat32";
      }
      x.count = e.count;
      d.rank = rank_;
    };
    switch (e.type) {
      case kGroup:
        return true;
      case kColl:
        words(d.coll);
        d.coll.seq = e.seq;
        d.coll.send = e.send;
        d.coll.recv = e.recv;
        d.coll.root = e.root;
        d.coll.channels = static_cast<uint8_t>(e.channels);
        d.coll.warps = 16;
        if constexpr (kNumbers) {
          d.coll.algo = 1;   // ring
          d.coll.proto = 2;  // simple
        } else {
          d.coll.algo = "RING";
          d.coll.proto = "SIMPLE";
        }
        if constexpr (kHasCalls) {
          d.coll.group = e.group;
        }
        return true;
      case kP2p:
        words(d.p2p);
        d.p2p.buffer = e.is_send ? const_cast<void*>(e.send) : e.recv;
        d.p2p.peer = e.root;
        if constexpr (kHasCalls) {
          d.p2p.group = e.group;
        }
        return true;
      case kProxyOp:
        d.rank = rank_;
        d.proxy = {getpid(),         static_cast<uint8_t>(e.channel), e.root, e.steps, 1 << 19,
                   e.is_send ? 1 : 0};
        return true;
      case kProxyStep:
        d.rank = rank_;
        d.step = e.steps;
        return true;
      default:
        break;
    }
    if constexpr (requires { d.kernel; }) {
      if (e.type == kKernelCh) {
        d.kernel.channel = static_cast<uint8_t>(e.channel);
        if constexpr (requires { d.kernel.timer; }) {
          d.kernel.timer = e.timer;
        }
        return true;
      }
    }
    if constexpr (kHasCalls) {
      d.rank = rank_;
      return fill_call(d, e);
    }
    return false;
  }

  // Events from version 5 on.
  template <class D>
  static bool fill_call(D& d, const Event& e) {
    switch (e.type) {
      case kGroupApi:
        d.group_api.depth = 1;
        d.group_api.captured = e.captured;
        return true;
      case kCollApi:
        d.coll_api.func = e.func;
        d.coll_api.count = e.count;
        d.coll_api.dtype = "ncclFloat32";
        d.coll_api.root = e.root;
        d.coll_api.stream = e.stream;
        d.coll_api.captured = e.captured;
        return true;
      case kP2pApi:
        d.p2p_api.func = e.func;
        d.p2p_api.count = e.count;
        d.p2p_api.dtype = "ncclFloat32";
        d.p2p_api.stream = e.stream;
        d.p2p_api.captured = e.captured;
        return true;
      case kKernelLaunch:
        d.stream = e.stream;
        return true;
      default:
        return false;
    }
  }

  static inline void* table_ = nullptr;
  static inline int mask_ = 0;  // one for the process
  void* context_ = nullptr;
  uint64_t hash_ = 0;
  int rank_ = -1;
};

}  // namespace host
