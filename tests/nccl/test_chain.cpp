// A plugin that the user had set before fr goes on working, behind ours.
#include <cstdlib>

#include "../unit/catch.hpp"
#include "host.hpp"

using namespace fr;
using namespace fr::test;

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
  void* theirs = dlopen(std::getenv("CHAINED_PATH"), RTLD_NOW | RTLD_GLOBAL);
  REQUIRE(theirs != nullptr);
  const auto counted = [&](const char* name) {
    return static_cast<std::atomic<int>*>(dlsym(theirs, name))->load();
  };
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
