// standin_profiler.hpp - loads a profiler plugin as NCCL does, and tells it of events in the words of
// its version.
#pragma once

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>

#include "nccl/abi.hpp"

#pragma GCC visibility push(hidden)  // another copy of the library has its own

namespace standin {

using namespace fr;
using namespace fr::nccl;

struct Plugins {
  int api = 0;
  void* newest = nullptr;
};

inline Plugins& plugins() {
  static Plugins p = [] {
    Plugins found;
    const char* name = getenv("NCCL_PROFILER_PLUGIN");
    void* library = name != nullptr ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : nullptr;
    const char* newest = getenv("STANDIN_NCCL_API");
    for (int v = newest != nullptr ? atoi(newest) : 7; library != nullptr && v > 0; --v) {
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

inline const char* const kTypes[] = {"ncclInt8",    "ncclUint8",   "ncclInt32",   "ncclUint32",
                                     "ncclInt64",   "ncclUint64",  "ncclFloat16", "ncclFloat32",
                                     "ncclFloat64", "ncclBfloat16"};
inline const char* const kFuncs1[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter",
                                      "AllReduce", "?",      "Send",      "Recv"};

template <std::size_t kN>
inline u8 place_in(const char* const (&names)[kN], const char* name) {
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
      case 7:
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
    constexpr bool kNamed = !std::is_same_v<E, Event4>;  // has name and communicator
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
        Event7 newest{};  // the others are its beginning
        static_cast<Event6&>(newest) = e;
        plugin.start(context, &handle, &newest);
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

inline Event6 event(u64 type, void* parent) {
  Event6 e;
  std::memset(&e, 0, sizeof e);
  e.type = type;
  e.parent = parent;
  return e;
}

}  // namespace standin

#pragma GCC visibility pop
