// A user's own profiler plugin: counts what reaches it, and complains of handles and contexts that
// are not its own.
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

}  // namespace

extern "C" {
#define SHOWN __attribute__((visibility("default")))
SHOWN std::atomic<int> chained_inits{0}, chained_starts{0}, chained_stops{0}, chained_states{0},
    chained_finals{0}, chained_errors{0};

static bool is_mine(const void* p) {
  return p >= &g_handles[0] && p < &g_handles[4096];
}
static int init(void** context, fr::u64, int* mask, const char*, int, int, int, Logger) {
  chained_inits.fetch_add(1);
  *context = &g_context;
  *mask = kEvGroupApi | kEvCollApi | kEvColl | kEvKernelCh | kEvProxyCtrl;
  return 0;
}
static int start(void* context, void** handle, Event6* e) {
  chained_starts.fetch_add(1);
  Mine& m = g_handles[g_used.fetch_add(1) % 4096];
  const bool has_parent = e->type == kEvCollApi || e->type == kEvColl || e->type == kEvKernelCh;
  if (context != &g_context || (has_parent && !is_mine(e->parent)) ||
      (e->type == kEvColl && static_cast<Mine*>(e->parent)->type != kEvCollApi)) {
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
SHOWN Plugin6 ncclProfiler_v6 = {"chained", init, start, stop, state, finalize};
}
