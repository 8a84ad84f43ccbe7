// A user's own profiler plugin of version CHAINED_API: counts what reaches it, and complains of
// handles and contexts that are not its own.
#include <atomic>
#include <cstring>
#include <type_traits>

#include "nccl/abi.hpp"

using namespace fr::nccl;

namespace {

struct Mine {
  Mine* parent;
  fr::u64 type;
  std::atomic<bool> ended;
};
Mine g_handles[4096];
std::atomic<int> g_used{0};
int g_context = 0;

#if CHAINED_API == 1
using Event = Event1;
using Args = Args1;
using Own = Plugin1;
#elif CHAINED_API == 3
using Event = Event3;
using Args = Args1;
using Own = Plugin3;
#elif CHAINED_API == 4
using Event = Event4;
using Args = Args4;
using Own = Plugin4;
#else
using Event = Event6;
using Args = Args4;
using Own = Plugin6;
#endif
constexpr int kAsked = (CHAINED_API > 4 ? kEvGroupApi | kEvCollApi : kEvGroup) | kEvColl |
                       (CHAINED_API > 1 ? kEvKernelCh : kEvProxyOp) | kEvProxyCtrl;
constexpr fr::u64 kParentOfColl = CHAINED_API > 4 ? kEvCollApi : kEvGroup;

// The event describes an AllReduce on two channels, as the plugin must see it.
template <class E>
bool is_told(const E& e) {
  if (e.type == kEvKernelCh) {
    if constexpr (requires { e.kernel_ch.timer_ns; }) {
      return e.kernel_ch.timer_ns == 7;
    }
  }
  if (e.type != kEvColl) {
    return true;
  }
  if constexpr (std::is_same_v<E, Event1>) {
    return e.coll.func == 4 && e.coll.max_channels == 2;
  } else if constexpr (requires { e.coll.max_channels; }) {
    return std::strcmp(e.coll.func, "AllReduce") == 0 && e.coll.max_channels == 2 &&
           std::strcmp(e.coll.algo, "RING") == 0;
  } else {
    return std::strcmp(e.coll.func, "AllReduce") == 0 && e.coll.n_channels == 2 &&
           std::strcmp(e.coll.algo, "RING") == 0;
  }
}

}  // namespace

extern "C" {
#define SHOWN __attribute__((visibility("default")))
SHOWN std::atomic<int> chained_inits{0}, chained_starts{0}, chained_stops{0}, chained_states{0},
    chained_finals{0}, chained_errors{0};

static bool is_mine(const void* p) {
  return p >= &g_handles[0] && p < &g_handles[4096];
}
static int begin(void** context, int* mask, const char* name, fr::u64 hash, int n_nodes,
                 int n_ranks, int rank) {
  chained_inits.fetch_add(1);
  if (hash != 0xf1 || name == nullptr || n_nodes != 1 || n_ranks != 2 || rank != 0) {
    chained_errors.fetch_add(1);
  }
  *context = &g_context;
  *mask = kAsked | kEvCeColl << 1 | 1 << 20;  // more than it can know
  return 0;
}
#if CHAINED_API < 4
static int init(void** context, int* mask) {
  return begin(context, mask, "", 0xf1, 1, 2, 0);
}
#elif CHAINED_API == 4
static int init(void** context, int* mask, const char* name, fr::u64 hash, int n_nodes, int n_ranks,
                int rank, Logger) {
  return begin(context, mask, name, hash, n_nodes, n_ranks, rank);
}
#else
static int init(void** context, fr::u64 hash, int* mask, const char* name, int n_nodes, int n_ranks,
                int rank, Logger) {
  return begin(context, mask, name, hash, n_nodes, n_ranks, rank);
}
#endif
static int start(void* context, void** handle, Event* e) {
  chained_starts.fetch_add(1);
  Mine& m = g_handles[g_used.fetch_add(1) % 4096];
  const bool has_parent = e->type == kEvCollApi || e->type == kEvColl || e->type == kEvKernelCh;
  bool ok = context == &g_context && (e->type & kAsked) != 0 && (!has_parent || is_mine(e->parent));
  ok = ok && is_told(*e) &&
       (e->type != kEvColl || static_cast<Mine*>(e->parent)->type == kParentOfColl);
  chained_errors.fetch_add(ok ? 0 : 1);
  m.type = e->type;
  m.ended = false;
  *handle = &m;
  return 0;
}
static int stop(void* handle) {
  chained_stops.fetch_add(1);
  if (!is_mine(handle) || static_cast<Mine*>(handle)->ended.exchange(true)) {
    chained_errors.fetch_add(1);  // the crash of plugins that take stale handles for pointers
  }
  return 0;
}
static int state(void* handle, int, Args*) {
  chained_states.fetch_add(1);
  if (!is_mine(handle)) {
    chained_errors.fetch_add(1);
  }
  return 0;
}
static int finalize(void* context) {
  chained_finals.fetch_add(1);
  if (context != &g_context) {
    chained_errors.fetch_add(1);
  }
  return 0;
}
#define NAME_(version) ncclProfiler_v##version
#define NAME(version) NAME_(version)
SHOWN Own NAME(CHAINED_API) = {"chained", init, start, stop, state, finalize};
}
