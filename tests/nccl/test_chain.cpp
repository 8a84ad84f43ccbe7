// A plugin that the user had set before fr goes on working, behind ours.
#include <unistd.h>

#include <cstdlib>
#include <type_traits>

#include "../unit/catch.hpp"
#include "host.hpp"

using namespace fr;
using namespace fr::test;

namespace {

int counted(const char* name) {
  void* theirs = dlopen(std::getenv("CHAINED_PATH"), RTLD_NOW | RTLD_GLOBAL);
  REQUIRE(theirs != nullptr);
  return static_cast<std::atomic<int>*>(dlsym(theirs, name))->load();
}

// NCCL of the time: no events of calls.
template <class P, class E, class A>
void play_old(const char* symbol) {
  auto& plugin = *Library::instance().get<P*>(symbol);
  void* context = nullptr;
  int mask = 0;
  if constexpr (std::is_same_v<P, Plugin4>) {
    plugin.init(&context, &mask, "", 0xf1, 1, 2, 0, nullptr);
  } else {
    plugin.init(&context, &mask);
  }
  CHECK(counted("chained_inits") == 1);
  CHECK((mask & kEvProxyCtrl) != 0);                             // theirs alone
  CHECK((mask & kEvProxyStep) != 0);                             // ours alone
  CHECK(mask < (std::is_same_v<P, Plugin1> ? 1 << 6 : 1 << 8));  // even if theirs asked for more
  const auto start = [&](u32 type, void* parent) {
    E e;
    std::memset(&e, 0, sizeof e);
    e.type = static_cast<u8>(type);
    e.parent = parent;
    if (type == kEvColl) {
      if constexpr (std::is_same_v<E, Event1>) {
        e.coll.func = 4;
        e.coll.datatype = 7;
      } else {
        e.coll.func = "AllReduce";
        e.coll.datatype = "ncclFloat32";
        e.coll.algo = "RING";
        e.coll.proto = "SIMPLE";
      }
      if constexpr (requires { e.coll.max_channels; }) {
        e.coll.comm_hash = 0xf1;
        e.coll.name = "";
        e.coll.max_channels = 2;
      } else {
        e.coll.n_channels = 2;
      }
    } else if (type == kEvKernelCh) {
      if constexpr (requires { e.kernel_ch.timer_ns; }) {
        e.kernel_ch.timer_ns = 7;
      }
    } else if (type == kEvProxyOp) {
      e.proxy_op = {static_cast<int>(getpid()), 0, 1, 4, 4096, 1};
    }
    void* handle = nullptr;
    plugin.start(context, &handle, &e);
    CHECK(handle != nullptr);
    return handle;
  };
  void* group = start(kEvGroup, nullptr);
  void* task = start(kEvColl, group);
  plugin.stop(task);
  plugin.stop(group);
  CHECK(counted("chained_starts") == 2);
  // once each: a kernel's channel, or where there are none a transfer
  void* part = start(std::is_same_v<P, Plugin1> ? kEvProxyOp : kEvKernelCh, task);
  A args{};
  plugin.state(part, kStOpInProgress, &args);
  plugin.stop(part);
  plugin.stop(part);  // stale
  plugin.stop(nullptr);
  CHECK(counted("chained_starts") == 3);
  CHECK(counted("chained_states") == 1);
  CHECK(counted("chained_stops") == 3);
  CHECK(records_of(Library::instance().view(), 0xf1).size() == 1);
  plugin.finalize(context);
  CHECK(counted("chained_finals") == 1);
  CHECK(counted("chained_errors") == 0);
}

}  // namespace

TEST_CASE("chain: plugins of the time go with every older NCCL", "[chain_old]") {
  const char* version = std::getenv("CHAINED_API");
  switch (version != nullptr ? std::atoi(version) : 0) {
    case 1:
      play_old<Plugin1, Event1, Args1>("ncclProfiler_v1");
      break;
    case 3:
      play_old<Plugin3, Event3, Args1>("ncclProfiler_v3");
      break;
    case 4:
      play_old<Plugin4, Event4, Args4>("ncclProfiler_v4");
      break;
    default:
      SUCCEED("started without a plugin to chain");
  }
}

// In a process of its own: FR_NCCL_CHAIN or the loader's path leads to the plugin of the version
// that CHAINED_API says; 0: nowhere.
TEST_CASE("chain: the user's plugin gets its events, its own handles, and no stale ones",
          "[chain]") {
  const char* version = std::getenv("CHAINED_API");
  if (version == nullptr) {
    SUCCEED("started without a plugin to chain");
    return;
  }
  const int api = std::atoi(version);
  const auto view = [] { return Library::instance().view(); };
  counted("chained_inits");  // loaded for all to find
  const int n = api == 0 ? 0 : 1;
  {
    Comm6 comm(0xf1);
    CHECK(counted("chained_inits") == n);
    CHECK(((comm.mask & kEvProxyCtrl) != 0) == (api != 0));  // theirs alone
    CHECK((comm.mask & kEvProxyStep) != 0);                  // ours alone
    CHECK((comm.mask & ~(kEvCeBatch * 2 - 1)) == 0);
    CHECK((comm.mask & kEvCeSync) == (api == 6 ? kEvCeSync : 0u));
    void* group = comm.group_api();
    void* api_call = comm.coll_api(group);
    comm.stop(api_call);
    comm.state(group, kStGroupEndApiStart);
    comm.stop(comm.launch(group));
    void* legacy = comm.start(Comm6::event(kEvGroup));
    Event6 e = Comm6::event(kEvColl, api_call);
    e.coll.func = "AllReduce";
    e.coll.datatype = "ncclInt8";
    e.coll.n_channels = 2;
    e.coll.algo = "RING";
    e.coll.proto = "SIMPLE";
    e.coll.parent_group = legacy;
    void* task = comm.start(e);
    comm.stop(task);
    comm.stop(legacy);
    comm.stop(group);
    const int starts = api == 0 ? 0 : api == 4 ? 2 : 3;  // (GroupApi, CollApi) or Group, and Coll
    CHECK(counted("chained_starts") == starts);
    void* transfer = comm.transfer(task, true, 1);
    comm.state(comm.step(transfer, 0), kStStepSendWait);
    CHECK(counted("chained_starts") == starts);             // not asked for
    CHECK(counted("chained_states") == (api > 4 ? 1 : 0));  // GroupEndApiStart
    comm.stop(transfer);
    void* k0 = comm.kernel(task, 0, 7);
    void* k1 = comm.kernel(task, 1, 7);
    comm.kernel_stop(k0);
    comm.kernel_stop(k1);
    CHECK(counted("chained_starts") == starts + 2 * n);
    CHECK(counted("chained_stops") == starts + 2 * n);
    comm.kernel_stop(k1);
    comm.stop(nullptr);
    comm.stop(reinterpret_cast<void*>(0x7f0011223344));
    CHECK(counted("chained_stops") == starts + 2 * n);
    CHECK(records_of(view(), 0xf1)[0].state == State::kCompleted);
  }
  CHECK(counted("chained_finals") == n);
  CHECK(counted("chained_errors") == 0);
}
