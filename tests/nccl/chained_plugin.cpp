// A user's own profiler plugin of version CHAINED_API: counts what reaches it, and complains of
// handles and contexts that are not its own.
#include <atomic>
#include <cstring>

#include "foreign/nccl_abi.hpp"

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

#if CHAINED_API == 4
using Event = Event4;
using Own = Plugin4;
constexpr int kAsked = kEvGroup | kEvColl | kEvKernelCh | kEvProxyCtrl;
constexpr fr::u64 kParentOfColl = kEvGroup;
#else
using Event = Event6;
using Own = Plugin6;
constexpr int kAsked = kEvGroupApi | kEvCollApi | kEvColl | kEvKernelCh | kEvProxyCtrl;
constexpr fr::u64 kParentOfColl = kEvCollApi;
#endif

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
#if CHAINED_API == 4
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
  if (context != &g_context || (e->type & kAsked) == 0 || (has_parent && !is_mine(e->parent)) ||
      (e->type == kEvColl && (static_cast<Mine*>(e->parent)->type != kParentOfColl ||
                              std::strcmp(e->coll.func, "AllReduce") != 0 ||
                              e->coll.n_channels != 2 || std::strcmp(e->coll.algo, "RING") != 0)) ||
      (e->type == kEvKernelCh && e->kernel_ch.timer_ns != 7)) {
    chained_errors.fetch_add(1);
  }
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
static int state(void* handle, int, Args4*) {
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
