// A plugin that the user had set before fr goes on working, behind ours.
#include <cstdlib>

#include "../unit/catch.hpp"
#include "host.hpp"

using namespace fr;
using namespace fr::test;

// In a process of its own: main.cpp starts one with FR_NCCL_CHAIN.
TEST_CASE("chain: the user's plugin gets its events, its own handles, and no stale ones",
          "[chain]") {
  if (std::getenv("FR_NCCL_CHAIN") == nullptr) {
    SUCCEED("started without a plugin to chain");
    return;
  }
  const auto view = [] { return Library::instance().view(); };
  void* theirs = dlopen(FR_CHAINED, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(theirs != nullptr);
  const auto counted = [&](const char* name) {
    return static_cast<std::atomic<int>*>(dlsym(theirs, name))->load();
  };
  {
    Comm6 comm(0xf1);
    CHECK(counted("chained_inits") == 1);
    CHECK((comm.mask & kEvProxyCtrl) != 0);  // theirs alone
    CHECK((comm.mask & kEvProxyStep) != 0);  // ours alone
    void* task = comm.enqueue(2);
    CHECK(counted("chained_starts") == 3);  // GroupApi, CollApi, Coll
    void* transfer = comm.transfer(task, true, 1);
    comm.state(comm.step(transfer, 0), kStStepSendWait);
    CHECK(counted("chained_starts") == 3);  // not asked for
    CHECK(counted("chained_states") == 1);  // GroupEndApiStart
    comm.stop(transfer);
    void* k0 = comm.kernel(task, 0);
    void* k1 = comm.kernel(task, 1);
    comm.kernel_stop(k0);
    comm.kernel_stop(k1);
    CHECK(counted("chained_starts") == 5);
    CHECK(counted("chained_stops") == 5);
    comm.kernel_stop(k1);
    comm.stop(nullptr);
    comm.stop(reinterpret_cast<void*>(0x7f0011223344));
    CHECK(counted("chained_stops") == 5);
    CHECK(records_of(view(), 0xf1)[0].state == State::kCompleted);
  }
  CHECK(counted("chained_finals") == 1);
  CHECK(counted("chained_errors") == 0);
}
