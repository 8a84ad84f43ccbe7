// Checks that our plugin interface is the one that NCCL uses. A real libnccl.so.2 translates
// the events of its newest version for plugins of older ones. Its translators, which are functions
// of its own, are given a plugin of each version here and are fed events of the newest: whatever
// our structures have in another place than NCCL's arrives wrong.
//
// adapters LIBRARY NEWEST VERSION:OFFSET...    prints a line for all that differs
#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "nccl/abi.hpp"

using namespace fr;
using namespace fr::nccl;

namespace {

int g_version = 0;
int g_calls = 0;
int g_wrong = 0;
char g_buffers[2];
char g_data[8];

void expect(bool same, const char* what) {
  if (!same) {
    std::printf("version %d: %s\n", g_version, what);
    ++g_wrong;
  }
}

bool is(const char* a, const char* b) {
  return a != nullptr && std::strcmp(a, b) == 0;
}

constexpr u64 kHash = 0x1122334455667788;

// Checks an event that arrived, by the interface version of the plugin.
template <class E>
void check(const E& e) {
  constexpr bool kOne = std::is_same_v<E, Event1>;
  switch (e.type) {
    case kEvColl:
      if constexpr (kOne) {
        expect(e.coll.func == 4 && e.coll.datatype == 7, "names of a collective");
        expect(e.coll.algo == 1 && e.coll.proto == 2, "algorithm");
      } else {
        expect(is(e.coll.func, "AllReduce") && is(e.coll.datatype, "ncclFloat32"),
               "names of a collective");
        expect(is(e.coll.algo, "RING") && is(e.coll.proto, "SIMPLE"), "algorithm");
      }
      if constexpr (requires { e.coll.max_channels; }) {
        expect(e.coll.max_channels == 6, "channels of a collective");
      } else {
        expect(e.coll.n_channels == 6, "channels of a collective");
      }
      expect(e.coll.n_warps == 7, "warps");
      expect(e.coll.send == &g_buffers[0] && e.coll.recv == &g_buffers[1], "buffers");
      expect(e.coll.count == 1234567890123 && e.coll.root == 5 && e.coll.seq == 42,
             "count, root, number of a collective");
      break;
    case kEvP2p:
      if constexpr (kOne) {
        expect(e.p2p.func == 6 && e.p2p.datatype == 7, "names of a send");
      } else {
        expect(is(e.p2p.func, "Send") && is(e.p2p.datatype, "ncclFloat32"), "names of a send");
      }
      expect(e.p2p.buffer == &g_buffers[0] && e.p2p.count == 77 && e.p2p.peer == 3, "send");
      break;
    case kEvProxyOp:
      expect(e.proxy_op.pid == 4321 && e.proxy_op.channel == 9 && e.proxy_op.peer == 2, "transfer");
      expect(e.proxy_op.n_steps == 11 && e.proxy_op.chunk_bytes == 4096 && e.proxy_op.is_send == 1,
             "steps of a transfer");
      break;
    case kEvProxyStep:
      expect(e.proxy_step.step == 13, "step");
      break;
    case kEvKernelCh:
      if constexpr (requires { e.kernel_ch.channel; }) {
        expect(e.kernel_ch.channel == 14, "kernel channel");
        if constexpr (requires { e.kernel_ch.timer_ns; }) {
          expect(e.kernel_ch.timer_ns == 151617, "time of a kernel channel");
        }
      }
      break;
    case kEvNetPlugin:
      if constexpr (requires { e.net.id; }) {
        expect(e.net.id == kNetIb1 && e.net.data == g_data, "network");
      }
      break;
    default:
      break;
  }
}

template <class E>
int start(void* context, void** handle, E* e) {
  g_calls |= static_cast<int>(e->type);
  expect(context == &g_version, "context");
  check(*e);
  *handle = &g_calls;
  return 0;
}
int stop(void* handle) {
  expect(handle == &g_calls, "handle of a stop");
  return 0;
}
template <class A>
int state(void* handle, int s, A* args) {
  expect(handle == &g_calls, "handle of a state");
  if constexpr (std::is_same_v<A, Args4>) {
    expect(s != kStKernelChStop || args->timer_ns == 99, "end of a kernel channel");
    expect(s != kStStepSendWait || args->step_bytes == 512, "bytes of a step");
  }
  return 0;
}
int finalize(void*) {
  return 0;
}
int init1(void** context, int* mask) {
  *context = &g_version;
  *mask = 0xff;
  return 0;
}
int init4(void** context, int* mask, const char* name, u64 hash, int nodes, int ranks, int rank,
          Logger log) {
  expect(is(name, "tp") && hash == kHash, "name and hash");
  expect(nodes == 2 && ranks == 8 && rank == 3 && log != nullptr, "ranks");
  return init1(context, mask);
}
int init5(void** context, u64 hash, int* mask, const char* name, int nodes, int ranks, int rank,
          Logger log) {
  return init4(context, mask, name, hash, nodes, ranks, rank, log);
}

void log_nothing(int, unsigned long, const char*, int, const char*, ...) {}

// The newest version of the library, as the translator of an older plugin shows it.
template <class P, class E, class A>
void play(const P& plugin) {
  void* context = nullptr;
  int mask = 0;
  if constexpr (std::is_same_v<P, Plugin6>) {
    plugin.init(&context, kHash, &mask, "tp", 2, 8, 3, log_nothing);
  } else if constexpr (std::is_same_v<P, Plugin4>) {
    plugin.init(&context, &mask, "tp", kHash, 2, 8, 3, log_nothing);
  } else {
    plugin.init(&context, &mask);
  }
  expect((mask & 0x1f) == 0x1f, "mask");
  const auto send = [&](u32 type, auto fill) {
    E e;
    std::memset(&e, 0, sizeof e);
    e.type = static_cast<decltype(e.type)>(type);
    e.rank = 3;
    fill(e);
    void* handle = nullptr;
    plugin.start(context, &handle, &e);
    return handle;
  };
  send(kEvGroup, [](E&) {});
  void* coll = send(kEvColl, [](E& e) {
    e.coll.seq = 42;
    e.coll.func = "AllReduce";
    e.coll.send = &g_buffers[0];
    e.coll.recv = &g_buffers[1];
    e.coll.count = 1234567890123;
    e.coll.root = 5;
    e.coll.datatype = "ncclFloat32";
    if constexpr (requires { e.coll.max_channels; }) {
      e.coll.max_channels = 6;
    } else {
      e.coll.n_channels = 6;
    }
    e.coll.n_warps = 7;
    e.coll.algo = "RING";
    e.coll.proto = "SIMPLE";
  });
  send(kEvP2p, [](E& e) {
    e.p2p.func = "Send";
    e.p2p.buffer = &g_buffers[0];
    e.p2p.count = 77;
    e.p2p.datatype = "ncclFloat32";
    e.p2p.peer = 3;
  });
  void* op = send(kEvProxyOp, [](E& e) { e.proxy_op = {4321, 9, 2, 11, 4096, 1}; });
  void* step = send(kEvProxyStep, [](E& e) { e.proxy_step.step = 13; });
  A args{};
  if constexpr (std::is_same_v<A, Args4>) {
    args.step_bytes = 512;
  }
  plugin.state(step, kStStepSendWait, &args);
  plugin.stop(step);
  plugin.stop(op);
  void* kernel = send(kEvKernelCh, [](E& e) {
    e.kernel_ch.channel = 14;
    if constexpr (requires { e.kernel_ch.timer_ns; }) {
      e.kernel_ch.timer_ns = 151617;
    }
  });
  if (g_version >= 3) {
    if constexpr (std::is_same_v<A, Args4>) {
      args.timer_ns = 99;
      plugin.state(kernel, kStKernelChStop, &args);
    }
    plugin.stop(kernel);
  }
  send(kEvNetPlugin, [](E& e) { e.net = {kNetIb1, g_data}; });
  plugin.stop(coll);
  plugin.finalize(context);
  expect((g_calls & 0x1f) == 0x1f, "not all events came");
  expect(g_version < 3 || (g_calls & kEvKernelCh) != 0, "no kernel channel came");
}

}  // namespace

extern "C" {
#define SHOWN __attribute__((visibility("default")))
SHOWN Plugin1 ncclProfiler_v1 = {"t", init1, start<Event1>, stop, state<Args1>, finalize};
SHOWN Plugin2 ncclProfiler_v2 = {"t", init1, start<Event2>, stop, state<Args1>, finalize};
SHOWN Plugin3 ncclProfiler_v3 = {"t", init1, start<Event3>, stop, state<Args1>, finalize};
SHOWN Plugin4 ncclProfiler_v4 = {"t", init4, start<Event4>, stop, state<Args4>, finalize};
SHOWN Plugin5 ncclProfiler_v5 = {"t", init5, start<Event6>, stop, state<Args4>, finalize};
SHOWN Plugin6 ncclProfiler_v6 = {"t", init5, start<Event6>, stop, state<Args4>, finalize};
}

int main(int argc, char** argv) {
  void* library = argc > 3 ? dlopen(argv[1], RTLD_NOW) : nullptr;
  link_map* map = nullptr;
  if (library == nullptr || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  const int newest = std::atoi(argv[2]);
  for (int i = 3; i < argc; ++i) {
    char* rest = nullptr;
    g_version = static_cast<int>(std::strtol(argv[i], &rest, 10));
    g_calls = 0;
    const auto translator =
        reinterpret_cast<void* (*)(void*)>(map->l_addr + std::strtoul(rest + 1, nullptr, 16));
    const void* plugin = translator(dlopen(nullptr, RTLD_NOW));
    expect(plugin != nullptr, "not taken");
    if (plugin != nullptr && newest == 3) {
      play<Plugin3, Event3, Args1>(*static_cast<const Plugin3*>(plugin));
    } else if (plugin != nullptr && newest == 4) {
      play<Plugin4, Event4, Args4>(*static_cast<const Plugin4*>(plugin));
    } else if (plugin != nullptr && newest == 7) {
      play<Plugin6, Event7, Args4>(*static_cast<const Plugin6*>(plugin));
    } else if (plugin != nullptr) {
      play<Plugin6, Event6, Args4>(*static_cast<const Plugin6*>(plugin));
    }
    std::printf("played %d\n", g_version);
  }
  return g_wrong == 0 ? 0 : 1;
}
