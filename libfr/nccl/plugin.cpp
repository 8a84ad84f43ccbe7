// plugin.cpp - libfr.so as NCCL's profiler plugin, versions 1 to 7 side by side. Each is a
// thin shim onto tracker.hpp. A plugin that the user named before us is called through.
//
// Every callback returns success, whatever happens: NCCL disables profilers that do not.
#include <dlfcn.h>
#include <link.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <mutex>

#include "nccl/abi.hpp"
#include "nccl/announce.hpp"
#include "nccl/tracker/tracker.hpp"
#include "nccl/wrappers.hpp"
#include "recorder/log.hpp"

namespace fr::nccl {

namespace {

constexpr u32 kAsk1 = kEvGroup | kEvColl | kEvP2p | kEvProxyOp | kEvProxyStep;
constexpr u32 kAsk3 = kAsk1 | kEvNetPlugin;
constexpr u32 kAsk5 = kAsk3 | kEvGroupApi | kEvCollApi | kEvP2pApi | kEvKernelLaunch;
constexpr u32 kAsk6 = kAsk5 | kEvCeColl;

// Events that a plugin of each version may ask for.
constexpr int kKnownTo[] = {0, 0x3f, 0x3f, 0xff, 0xff, 0xfff, 0x7fff, 0xffff};

void* pointer(Handle h) noexcept {
  return reinterpret_cast<void*>(h);
}
Handle number(void* p) noexcept {
  return reinterpret_cast<Handle>(p);
}

// ---------------------------------------------------------------- which events

u32 ask_library_version() noexcept {
  if (const u32 known = library_version()) {
    return known;
  }
  int version = 0;
  if (void* nccl = dlopen("libnccl.so.2", RTLD_NOLOAD | RTLD_LAZY)) {
    if (const auto get = reinterpret_cast<int (*)(int*)>(dlsym(nccl, "ncclGetVersion"))) {
      get(&version);
    }
    dlclose(nccl);
  }
  set_library_version(static_cast<u32>(version > 0 ? version : 0));
  return library_version();
}

// Kernel channels tell starts and ends, in version 3 without the device's time; in NCCL 2.31 they
// cost up to 13 % of small operations.
u32 events_for(u32 api) noexcept {
  u32 events = api >= 6 ? kAsk6 : api == 5 ? kAsk5 : api >= 3 ? kAsk3 : kAsk1;
  const u32 version = ask_library_version();
  const bool expensive = version >= 23100 && version < 23200;
  if (api >= 3 && !expensive && stamps_wanted()) {
    events |= kEvKernelCh;
  }
  return events;
}

// ---------------------------------------------------------------- the user's own plugin

// One event as both plugins know it. NCCL gets its position and generation in this table.
struct Pair {
  std::atomic<u32> generation;
  std::atomic<u32> in_use;
  std::atomic<Handle> ours;
  std::atomic<void*> theirs;
};
constexpr u32 kPairs = 1u << 15;
constexpr u32 kContexts = 256;

struct Chain {
  const void* plugin = nullptr;  // PluginN of its version
  u32 api = 0;                   // its version
  u32 asked = 0;                 // ours, that NCCL has taken
  int events = 0;                // what it asked for
  Pair* pairs = nullptr;
  u64 tag = 0;  // << 48 in handles of pairs: no pointer has it, nor another process's pairs
  std::atomic<u32> cursor{0};
  std::atomic<u64> lost{0};
};
Chain g_chain;
std::once_flag g_chain_looked;

// Opens what NCCL would have opened, had it not been told to take us. `given`: the user's word.
void* open_theirs(const char* given) noexcept {
  const auto open = [](const char* name) { return dlopen(name, RTLD_NOW | RTLD_LOCAL); };
  if (given == nullptr || given[0] == '\0') {
    return open("libnccl-profiler.so");
  }
  static constexpr char kStatic[] = "STATIC_PLUGIN";  // any beginning of it will do
  if (strncasecmp(given, kStatic, std::strlen(given)) == 0) {
    return open(nullptr);
  }
  void* library = open(given);
  if (library == nullptr && std::strchr(given, '/') == nullptr) {
    char file[300];
    std::snprintf(file, sizeof file, "libnccl-profiler-%s.so", given);
    library = open(file);
  }
  return library;
}

// Named as theirs we would call ourselves. Our symbols may be another object's, were they asked.
bool is_ours(const void* plugin) noexcept {
  Dl_info own{};
  Dl_info other{};
  return dladdr(reinterpret_cast<const void*>(&open_theirs), &own) != 0 &&
         dladdr(plugin, &other) != 0 && own.dli_fbase == other.dli_fbase;
}

void open_chain(u32 api) noexcept {
  const char* given = chained_plugin();
  if (given != nullptr && std::strcmp(given, "none") == 0) {
    return;
  }
  void* library = open_theirs(given);
  if (library == nullptr) {
    if (given != nullptr && given[0] != '\0') {
      log_line(kLogWarn, "NCCL_PROFILER_PLUGIN=%s, set before fr, cannot be loaded: %s", given,
               dlerror());
    }
    return;
  }
  // Where NCCL asks for a newer version than it has, the nearest that we can speak.
  const void* found = nullptr;
  u32 version = api;
  for (; version >= (api > 4 ? 4 : api) && found == nullptr; --version) {
    char symbol[32];
    std::snprintf(symbol, sizeof symbol, "ncclProfiler_v%u", version);
    found = dlsym(library, symbol);
  }
  ++version;
  if (found == nullptr || is_ours(found)) {
    if (found == nullptr) {
      log_line(kLogWarn,
               "the profiler plugin %s has no ncclProfiler_v%u, which this NCCL requests"
               ": not called",
               given != nullptr ? given : "libnccl-profiler.so", api);
    }
    return;
  }
  g_chain.pairs = new (std::nothrow) Pair[kPairs]();
  g_chain.tag = pair_salt();
  g_chain.api = version;
  g_chain.asked = api;
  g_chain.plugin = g_chain.pairs != nullptr ? found : nullptr;
}

bool chained(u32 api) noexcept {
  return g_chain.plugin != nullptr && g_chain.asked == api;
}

void* pair_up(Handle ours, void* theirs) noexcept {
  for (int tries = 0; tries < 64; ++tries) {
    const u32 at = g_chain.cursor.fetch_add(1, std::memory_order_relaxed) % kPairs;
    Pair& p = g_chain.pairs[at];
    u32 free = 0;
    if (p.in_use.compare_exchange_strong(free, 1, std::memory_order_acquire)) {
      const u32 generation = (p.generation.load(std::memory_order_relaxed) + 1) & 0xffff;
      p.generation.store(generation, std::memory_order_relaxed);
      p.ours.store(ours, std::memory_order_relaxed);
      p.theirs.store(theirs, std::memory_order_release);
      return pointer(g_chain.tag << 48 | static_cast<u64>(generation) << 16 | at);
    }
  }
  g_chain.lost.fetch_add(1, std::memory_order_relaxed);
  return pointer(ours);  // theirs goes without its end
}

Pair* pair_of(void* handle) noexcept {
  const Handle h = number(handle);
  if (g_chain.pairs == nullptr || h >> 48 != g_chain.tag) {
    return nullptr;
  }
  Pair& p = g_chain.pairs[h & (kPairs - 1)];
  return p.generation.load(std::memory_order_acquire) == (h >> 16 & 0xffff) ? &p : nullptr;
}

Handle ours_of(void* handle) noexcept {
  if (g_chain.pairs == nullptr || number(handle) >> 48 != g_chain.tag) {
    return number(handle);
  }
  const Pair* p = pair_of(handle);
  return p != nullptr ? p->ours.load(std::memory_order_relaxed) : 0;
}
void* theirs_of(void* handle) noexcept {
  const Pair* p = pair_of(handle);
  return p != nullptr ? p->theirs.load(std::memory_order_relaxed) : nullptr;
}

// ---------------------------------------------------------------- version by version

// Fields that the descriptors of calls have in all versions; version 1 has numbers for names.
template <class T>
Call call_of(const T& x) noexcept {
  Call c;
  if constexpr (std::is_same_v<decltype(x.func), u8>) {
    c.func = func_of_v1(x.func);
    c.dtype = dtype_of(static_cast<int>(x.datatype));
  } else {
    c.func = func_of(x.func);
    c.dtype = dtype_of(x.datatype);
  }
  c.count = x.count;
  return c;
}

template <class E>
Call coll_call(const E& e) noexcept {
  Call c = call_of(e.coll);
  if constexpr (std::is_same_v<E, Event1>) {
    c.reduce_op = reduce_op_of(static_cast<int>(e.coll.op));
  }
  c.peer = e.coll.root;
  c.send = e.coll.send;
  c.recv = e.coll.recv;
  return c;
}

template <class E>
Call p2p_call(const E& e) noexcept {
  Call c = call_of(e.p2p);
  c.peer = e.p2p.peer;
  (c.func == Func::kSend ? c.send : c.recv) = e.p2p.buffer;
  return c;
}

// Roots mean nothing but to operations that have one.
void drop_root(Call& c) noexcept {
  if (c.func != Func::kBroadcast && c.func != Func::kReduce && c.func != Func::kGather &&
      c.func != Func::kScatter && c.func != Func::kSend && c.func != Func::kRecv) {
    c.peer = -1;
  }
}

const char* algorithm_of_v1(u8 code) noexcept {
  static constexpr const char* kNames[] = {
      "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
  return code < std::size(kNames) ? kNames[code] : nullptr;
}

template <u32 kApi, class E>
Handle begin_event(Handle context, const E& e, Handle parent) noexcept {
  Call c;
  const auto type = static_cast<u32>(e.type);
  switch (type) {
    case kEvColl: {
      c = coll_call(e);
      drop_root(c);
      u32 channels = 0;
      const char* algo = nullptr;
      const char* proto = nullptr;
      if constexpr (kApi >= 4) {
        channels = e.coll.n_channels;
      } else {
        channels = e.coll.max_channels;
        plugin_learn(context, e.coll.comm_hash, e.rank, e.coll.name);
      }
      if constexpr (kApi >= 2) {
        algo = e.coll.algo;
        proto = e.coll.proto;
      } else {
        algo = algorithm_of_v1(e.coll.algo);
      }
      return task_start(context, parent, c, channels, algo, proto);
    }
    case kEvP2p:
      c = p2p_call(e);
      if constexpr (kApi >= 4) {
        return task_start(context, parent, c, e.p2p.n_channels, nullptr, nullptr);
      } else {
        plugin_learn(context, e.p2p.comm_hash, e.rank, e.p2p.name);
        return task_start(context, parent, c, 0, nullptr, nullptr);
      }
    case kEvProxyOp:
      return transfer_start(parent, e.proxy_op.pid, e.proxy_op.channel, e.proxy_op.peer,
                            static_cast<u32>(e.proxy_op.n_steps), e.proxy_op.is_send != 0);
    case kEvProxyStep:
      return step_start(parent, static_cast<u32>(e.proxy_step.step));
    case kEvGroup:
    case kEvProxyCtrl:
      return other_start();
    default:
      break;
  }
  if constexpr (kApi >= 3) {
    if (type == kEvNetPlugin) {
      return net_start(parent, e.net.id, e.net.data);
    }
    if (type == kEvKernelCh) {
      if constexpr (kApi >= 4) {
        return kernel_start(parent, e.kernel_ch.channel, e.kernel_ch.timer_ns);
      } else {
        return kernel_start(parent, e.kernel_ch.channel, 0);
      }
    }
  }
  if constexpr (kApi >= 5) {
    switch (type) {
      case kEvGroupApi:
        return group_api_start(context, e.group_api.captured);
      case kEvCollApi:
        c = call_of(e.coll_api);
        c.peer = e.coll_api.root;
        c.stream = e.coll_api.stream;
        c.captured = e.coll_api.captured;
        drop_root(c);
        return api_start(context, parent, c);
      case kEvP2pApi:
        c = call_of(e.p2p_api);
        c.stream = e.p2p_api.stream;
        c.captured = e.p2p_api.captured;
        return api_start(context, parent, c);
      case kEvKernelLaunch:
        return launch_start(context, parent);
      case kEvCeColl:
        c = call_of(e.ce_coll);
        c.peer = e.ce_coll.root;
        c.stream = e.ce_coll.stream;
        c.send = e.ce_coll.send;
        c.recv = e.ce_coll.recv;
        drop_root(c);
        return ce_start(context, parent, c);
      case kEvCeSync:
      case kEvCeBatch:
        return other_start();
      default:
        break;
    }
  }
  if (Device* d = device()) {
    d->unknown_events.fetch_add(1, std::memory_order_relaxed);
  }
  return other_start();
}

// Facts that NCCL gives about a communicator; none up to version 3.
struct CommFacts {
  const char* name = nullptr;
  u64 hash = 0;
  int n_nodes = 0, n_ranks = 0, rank = -1;
  Logger log = nullptr;
};

template <class P>
int init_theirs(const P& plugin, void** context, int* events, const CommFacts&) noexcept {
  return plugin.init(context, events);
}
int init_theirs(const Plugin4& plugin, void** context, int* events, const CommFacts& f) noexcept {
  return plugin.init(context, events, f.name, f.hash, f.n_nodes, f.n_ranks, f.rank, f.log);
}
template <class P>
  requires(std::is_same_v<P, Plugin6> || std::is_same_v<P, Plugin7>)
int init_theirs(const P& plugin, void** context, int* events, const CommFacts& f) noexcept {
  return plugin.init(context, f.hash, events, f.name, f.n_nodes, f.n_ranks, f.rank, f.log);
}

// The same event for a plugin of version 4, which has no events of calls and launches.
Event4 as_version4(const Event6& e) noexcept {
  Event4 old;
  std::memset(&old, 0, sizeof old);
  old.type = static_cast<u8>(e.type);
  old.rank = e.rank;
  old.parent = e.type == kEvColl    ? e.coll.parent_group
               : e.type == kEvP2p   ? e.p2p.parent_group
               : e.type == kEvGroup ? nullptr
                                    : e.parent;
  switch (e.type) {
    case kEvColl:
      old.coll = {e.coll.seq,     e.coll.func, e.coll.send,     e.coll.recv,
                  e.coll.count,   e.coll.root, e.coll.datatype, e.coll.n_channels,
                  e.coll.n_warps, e.coll.algo, e.coll.proto};
      break;
    case kEvP2p:
      old.p2p = {e.p2p.func,  e.p2p.buffer, e.p2p.datatype,
                 e.p2p.count, e.p2p.peer,   e.p2p.n_channels};
      break;
    case kEvProxyOp:
      old.proxy_op = e.proxy_op;
      break;
    case kEvProxyStep:
      old.proxy_step = e.proxy_step;
      break;
    case kEvKernelCh:
      old.kernel_ch = e.kernel_ch;
      break;
    case kEvNetPlugin:
      old.net = e.net;
      break;
    default:
      break;
  }
  return old;
}

template <u32 kApi, class E, class A, class P>
struct Shim {
  // Contexts of the other plugin, by our communicator's slot.
  static inline std::atomic<void*> theirs[kContexts];

  // The other plugin's context. The context of another process's communicator, for which this
  // process carries a transfer, is theirs already.
  static void* theirs_for(void* context) noexcept {
    return is_foreign(number(context)) ? context : theirs[slot(context)].load();
  }
  static u32 slot(void* context) noexcept { return number(context) & (kContexts - 1); }

  // Older than what NCCL has taken of us. Version 5 differs from 6 in what it asks for alone.
  static bool is_version4() noexcept { return kApi > 4 && g_chain.api == 4; }
  static const P& their_plugin() noexcept { return *static_cast<const P*>(g_chain.plugin); }
  static const Plugin4& their_plugin4() noexcept {
    return *static_cast<const Plugin4*>(g_chain.plugin);
  }

  // Calls the user's init with a mask of its own.
  static void finish_init(void** context, int* mask, const CommFacts& facts) noexcept {
    std::call_once(g_chain_looked, [] { open_chain(kApi); });
    if (!chained(kApi) || mask == nullptr) {
      return;
    }
    const int ours = __atomic_load_n(mask, __ATOMIC_RELAXED);
    void* their_context = nullptr;
    int their_events = 0;
    const int result = is_version4()
                           ? init_theirs(their_plugin4(), &their_context, &their_events, facts)
                           : init_theirs(their_plugin(), &their_context, &their_events, facts);
    if (result == kSuccess) {
      theirs[slot(*context)].store(their_context);
      their_events &= kKnownTo[g_chain.api];
      g_chain.events = their_events;
      __atomic_store_n(mask, ours | their_events, __ATOMIC_RELAXED);
      plugin_more_events(number(*context), static_cast<u32>(their_events));
    }
  }

  static int start(void* context, void** handle, E* event) noexcept {
    if (handle == nullptr || event == nullptr) {
      return kSuccess;
    }
    if (!chained(kApi)) [[likely]] {
      *handle = pointer(begin_event<kApi>(number(context), *event, number(event->parent)));
      return kSuccess;
    }
    void* const parent = event->parent;
    const Handle ours = begin_event<kApi>(number(context), *event, ours_of(parent));
    void* other = nullptr;
    if ((static_cast<u32>(g_chain.events) & static_cast<u32>(event->type)) != 0) {
      E copy = *event;
      copy.parent = theirs_of(parent);
      if constexpr (kApi >= 5) {
        if (copy.type == kEvColl) {
          copy.coll.parent_group = theirs_of(copy.coll.parent_group);
        } else if (copy.type == kEvP2p) {
          copy.p2p.parent_group = theirs_of(copy.p2p.parent_group);
        }
      }
      void* const their_context = theirs_for(context);
      if constexpr (kApi > 4) {
        if (is_version4()) {
          Event4 old = as_version4(copy);
          their_plugin4().start(their_context, &other, &old);
          *handle = pair_up(ours, other);
          return kSuccess;
        }
      }
      their_plugin().start(their_context, &other, &copy);
    }
    *handle = pair_up(ours, other);
    return kSuccess;
  }

  static int stop(void* handle) noexcept {
    if (!chained(kApi)) [[likely]] {
      nccl::stop(number(handle));
      return kSuccess;
    }
    Pair* pair = pair_of(handle);
    if (pair == nullptr || pair->in_use.exchange(0) == 0) {
      return kSuccess;  // stale: theirs would have to guess, too
    }
    nccl::stop(pair->ours.load());
    if (void* other = pair->theirs.load()) {
      // its place and type are the same in all versions
      their_plugin().stop(other);
    }
    return kSuccess;
  }

  static int state(void* handle, int event_state, A* args) noexcept {
    u64 value = 0;
    u32 step = 0;
    if (args != nullptr) {
      if constexpr (kApi >= 4) {
        value = args->timer_ns;
      } else if (event_state <= kStRecvDone) {
        step = static_cast<u32>(args->proxy_op.steps);
      }
    }
    nccl::state(ours_of(handle), event_state, value, step);
    if (chained(kApi)) [[unlikely]] {
      const Pair* pair = pair_of(handle);
      void* other = pair != nullptr && pair->in_use.load() != 0 ? pair->theirs.load() : nullptr;
      if (other != nullptr) {
        their_plugin().state(other, event_state, args);
      }
    }
    return kSuccess;
  }

  static int finalize(void* context) noexcept {
    if (chained(kApi)) {
      if (void* other = theirs[slot(context)].exchange(nullptr)) {
        their_plugin().finalize(other);
      }
    }
    plugin_finalize(number(context));
    return kSuccess;
  }
};

using Shim1 = Shim<1, Event1, Args1, Plugin1>;
using Shim2 = Shim<2, Event2, Args1, Plugin2>;
using Shim3 = Shim<3, Event3, Args1, Plugin3>;
using Shim4 = Shim<4, Event4, Args4, Plugin4>;
using Shim5 = Shim<5, Event6, Args4, Plugin5>;
using Shim6 = Shim<6, Event6, Args4, Plugin6>;
using Shim7 = Shim<7, Event7, Args4, Plugin7>;

// NCCL keeps calling with whatever is put here: never NULL.
void give(void** context, Handle h) noexcept {
  if (context != nullptr) {
    *context = pointer(h != 0 ? h : other_start());
  }
}

template <class S>
int init(u32 api, void** context, int* mask, const CommFacts& f) noexcept {
  const bool records = ready();
  if (records) {
    hook_calls();  // whatever was loaded since: this communicator's callers
  }
  // plugin_init() writes the mask: it is one for all communicators, others may be in use.
  if (mask != nullptr && !records) {
    __atomic_store_n(mask, 0, __ATOMIC_RELAXED);
  }
  give(context, records ? plugin_init(api, f.hash, f.name, f.n_nodes, f.n_ranks, f.rank, mask,
                                      events_for(api))
                        : 0);
  S::finish_init(context, mask, f);
  return kSuccess;
}

template <class S, u32 kApi>
int init_old(void** context, int* mask) noexcept {
  return init<S>(kApi, context, mask, {});
}

int init4(void** context, int* mask, const char* name, u64 hash, int n_nodes, int n_ranks, int rank,
          Logger log) noexcept {
  return init<Shim4>(4, context, mask, {name, hash, n_nodes, n_ranks, rank, log});
}

template <class S, u32 kApi>
int init_new(void** context, u64 hash, int* mask, const char* name, int n_nodes, int n_ranks,
             int rank, Logger log) noexcept {
  return init<S>(kApi, context, mask, {name, hash, n_nodes, n_ranks, rank, log});
}

}  // namespace
}  // namespace fr::nccl

#define FR_EXPORT __attribute__((visibility("default"), used))

extern "C" {
using namespace fr::nccl;
FR_EXPORT Plugin1 ncclProfiler_v1 = {"fr",        init_old<Shim1, 1>, Shim1::start,
                                     Shim1::stop, Shim1::state,       Shim1::finalize};
FR_EXPORT Plugin2 ncclProfiler_v2 = {"fr",        init_old<Shim2, 2>, Shim2::start,
                                     Shim2::stop, Shim2::state,       Shim2::finalize};
FR_EXPORT Plugin3 ncclProfiler_v3 = {"fr",        init_old<Shim3, 3>, Shim3::start,
                                     Shim3::stop, Shim3::state,       Shim3::finalize};
FR_EXPORT Plugin4 ncclProfiler_v4 = {"fr",        init4,        Shim4::start,
                                     Shim4::stop, Shim4::state, Shim4::finalize};
FR_EXPORT Plugin5 ncclProfiler_v5 = {"fr",        init_new<Shim5, 5>, Shim5::start,
                                     Shim5::stop, Shim5::state,       Shim5::finalize};
FR_EXPORT Plugin6 ncclProfiler_v6 = {"fr",        init_new<Shim6, 6>, Shim6::start,
                                     Shim6::stop, Shim6::state,       Shim6::finalize};
FR_EXPORT Plugin7 ncclProfiler_v7 = {"fr",        init_new<Shim7, 7>, Shim7::start,
                                     Shim7::stop, Shim7::state,       Shim7::finalize};
}
