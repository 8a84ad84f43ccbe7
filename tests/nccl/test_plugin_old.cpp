// libfr.so as NCCL's profiler plugin: the versions before 5, which say less.
#include <unistd.h>

#include <cstring>
#include <type_traits>

#include "only.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("nccl: version 4 has no api events: launches are the first that is seen") {
  const u64 hash = 0xb4;
  auto& plugin = *Library::instance().get<Plugin4*>("ncclProfiler_v4");
  void* context = nullptr;
  int mask = 0;
  plugin.init(&context, &mask, "dp", hash, 2, 8, 3, nullptr);
  CHECK((mask & kEvKernelCh) != 0);
  CHECK(mask < 256);
  Event4 e;
  std::memset(&e, 0, sizeof e);
  e.type = kEvGroup;
  void* group = nullptr;
  plugin.start(context, &group, &e);
  REQUIRE(group != nullptr);
  std::memset(&e, 0, sizeof e);
  e.type = kEvColl;
  e.parent = group;
  e.rank = 3;
  e.coll.func = "ReduceScatter";
  e.coll.count = 100;
  e.coll.datatype = "ncclBfloat16";
  e.coll.n_channels = 1;
  e.coll.algo = "NVLS";
  e.coll.proto = "SIMPLE";
  void* task = nullptr;
  plugin.start(context, &task, &e);
  plugin.stop(task);
  plugin.stop(group);
  CHECK(view().string(only_record(hash).payload.op) == "reduce_scatter");
  CHECK(only_record(hash).payload.in_numel == 800);
  CHECK(only_op(hash).launched_ticks != 0);
  std::memset(&e, 0, sizeof e);
  e.type = kEvKernelCh;
  e.parent = task;
  e.kernel_ch.timer_ns = 77;
  void* kernel = nullptr;
  plugin.start(context, &kernel, &e);
  CHECK(only_record(hash).state == State::kStarted);
  Args4 args;
  args.timer_ns = 99;
  plugin.state(kernel, kStKernelChStop, &args);
  plugin.stop(kernel);
  CHECK(only_record(hash).state == State::kCompleted);
  CHECK(only_op(hash).device_start_ns == 77);
  CHECK(only_op(hash).device_end_ns == 99);
  plugin.finalize(context);
}

namespace {

// The watchdog looks ten times a second.
bool comes_to_rest(u64 hash) {
  for (int i = 0; i < 400 && in_flight(view(), hash) != 0; ++i) {
    usleep(10'000);
  }
  return in_flight(view(), hash) == 0;
}

template <class P, class E>
void* begin_old(P& plugin, void* context, const E& like, void* parent, u32 type) {
  E e = like;
  if (type != kEvColl) {
    std::memset(&e, 0, sizeof e);
  }
  e.type = static_cast<u8>(type);
  e.parent = parent;
  if (type == kEvProxyOp) {
    e.proxy_op = {static_cast<int>(getpid()), 1, 2, 4, 4096, 1};
  }
  void* handle = nullptr;
  plugin.start(context, &handle, &e);
  return handle;
}

// Transfers were seen, so the next operation is followed by its own.
template <class P, class E>
void follow_transfers(P& plugin, void* context, u64 hash, const E& coll) {
  CHECK(in_flight(view(), hash) == 0);  // the first one is not
  void* task = begin_old(plugin, context, coll, nullptr, kEvColl);
  void* transfer = begin_old(plugin, context, coll, task, kEvProxyOp);
  CHECK(in_flight(view(), hash) == 1);
  void* step = begin_old(plugin, context, coll, transfer, kEvProxyStep);
  Args1 args{};
  plugin.state(step, kStStepSendGpuWait, &args);
  CHECK(!records_of(view(), hash)[1].has_status);
  plugin.state(step, kStStepSendWait, &args);  // the kernel has filled it: it runs
  CHECK(records_of(view(), hash)[1].state == State::kStarted);
  usleep(300'000);  // longer than the watchdog takes to settle finished operations
  CHECK(in_flight(view(), hash) == 1);
  CHECK(live_phases(view())[0].wait() == Wait::kInFlight);
  plugin.stop(step);
  plugin.stop(transfer);
  CHECK(comes_to_rest(hash));
  // its kernel may run on: how it ended was not seen
  CHECK(records_of(view(), hash)[1].state == State::kReleased);
  // and one that has no transfers is not taken for stuck
  begin_old(plugin, context, coll, nullptr, kEvColl);
  CHECK(comes_to_rest(hash));
  CHECK(records_of(view(), hash)[2].state == State::kReleased);
}

template <class P>
void follow_kernels(P& plugin, void* context, u64 hash, void* task) {
  void* kernel[2] = {};
  for (u8 channel = 0; channel < 2; ++channel) {
    Event3 e;
    std::memset(&e, 0, sizeof e);
    e.type = kEvKernelCh;
    e.parent = task;
    e.kernel_ch.channel = channel;
    plugin.start(context, &kernel[channel], &e);
  }
  CHECK(only_record(hash).state == State::kStarted);
  plugin.stop(kernel[0]);
  CHECK(in_flight(view(), hash) == 1);
  plugin.stop(kernel[1]);
  CHECK(comes_to_rest(hash));  // how many channels there are is not told: after a while
  CHECK(only_record(hash).state == State::kCompleted);
  CHECK(only_op(hash).device_end_ns == 0);
}

template <class P, class E>
void play_old(const char* symbol, u64 hash, E make) {
  auto& plugin = *Library::instance().get<P*>(symbol);
  void* context = nullptr;
  int mask = 0;
  plugin.init(&context, &mask);
  REQUIRE(context != nullptr);
  CHECK((mask & kEvProxyStep) != 0);
  constexpr bool kKernels = std::is_same_v<P, Plugin3>;
  CHECK(((mask & kEvKernelCh) != 0) == kKernels);
  auto e = make();
  void* task = nullptr;
  plugin.start(context, &task, &e);
  REQUIRE(task != nullptr);
  const RecordCopy r = only_record(hash);
  CHECK(view().string(r.payload.op) == "broadcast");
  CHECK(r.payload.in_numel == 12);
  CHECK(r.payload.in_dtype == 7);
  CHECK(r.payload.peer == 2);
  CHECK(((r.payload.flags & FR_UNTRACKED) == 0) == kKernels);
  // the host's own steps, with the states that only these versions send
  std::memset(&e, 0, sizeof e);
  e.type = kEvProxyOp;
  e.parent = task;
  e.proxy_op = {static_cast<int>(getpid()), 1, 2, 4, 4096, 1};
  void* transfer = nullptr;
  plugin.start(context, &transfer, &e);
  // two steps are filled, and the peer has no room for the second: NCCL counts, it gives no index
  void* steps[2] = {};
  for (int step = 0; step < 2; ++step) {
    std::memset(&e, 0, sizeof e);
    e.type = kEvProxyStep;
    e.parent = transfer;
    e.proxy_step.step = step;
    plugin.start(context, &steps[step], &e);
    plugin.state(steps[step], kStStepSendGpuWait, nullptr);
  }
  REQUIRE(live_phases(view()).size() == 1);
  CHECK(live_phases(view())[0].wait() == Wait::kOwnKernel);
  Args1 args;
  args.proxy_op = {0, 1};
  plugin.state(transfer, kStSendRemFifoWait, &args);
  CHECK(live_phases(view())[0].wait() == Wait::kPeerCredit);
  plugin.state(steps[0], kStStepSendWait, nullptr);
  plugin.stop(steps[0]);
  CHECK(live_phases(view())[0].wait() == Wait::kOwnKernel);  // of the second
  args.proxy_op = {0, 2};
  plugin.state(transfer, kStSendRemFifoWait, &args);
  CHECK(live_phases(view())[0].wait() == Wait::kPeerCredit);
  plugin.stop(steps[1]);
  plugin.stop(transfer);
  plugin.stop(task);
  if constexpr (!kKernels) {
    follow_transfers<P>(plugin, context, hash, make());
  } else {
    follow_kernels<P>(plugin, context, hash, task);
  }
  plugin.finalize(context);
}

template <class E>
E old_coll(u64 hash) {
  E e;
  std::memset(&e, 0, sizeof e);
  e.type = kEvColl;
  e.rank = 1;
  e.coll.name = "pp";
  e.coll.comm_hash = hash;
  e.coll.count = 12;
  e.coll.root = 2;
  if constexpr (std::is_same_v<E, Event1>) {
    e.coll.func = 0;
    e.coll.datatype = 7;
  } else {
    e.coll.func = "Broadcast";
    e.coll.datatype = "ncclFloat32";
  }
  return e;
}

}  // namespace

TEST_CASE("nccl: versions 1 to 3 say whose they are with each operation") {
  play_old<Plugin1>("ncclProfiler_v1", 0xb1, [] { return old_coll<Event1>(0xb1); });
  play_old<Plugin2>("ncclProfiler_v2", 0xb2, [] { return old_coll<Event2>(0xb2); });
  play_old<Plugin3>("ncclProfiler_v3", 0xb3, [] { return old_coll<Event3>(0xb3); });
}

TEST_CASE("nccl: without kernels the last transfer of a send or receive is its end") {
  const u64 hash = 0xb8;
  auto& plugin = *Library::instance().get<Plugin2*>("ncclProfiler_v2");
  void* context = nullptr;
  int mask = 0;
  plugin.init(&context, &mask);
  Event2 p2p;
  std::memset(&p2p, 0, sizeof p2p);
  p2p.rank = 1;
  p2p.p2p.comm_hash = hash;
  p2p.p2p.func = "Recv";
  p2p.p2p.count = 4;
  p2p.p2p.datatype = "ncclInt8";
  p2p.p2p.peer = 2;
  p2p.type = kEvP2p;
  for (int i = 0; i < 2; ++i) {
    void* task = nullptr;
    plugin.start(context, &task, &p2p);
    void* transfer = begin_old(plugin, context, p2p, task, kEvProxyOp);
    CHECK(in_flight(view(), hash) == i);  // transfers are expected from the second one on
    plugin.stop(transfer);
  }
  CHECK(comes_to_rest(hash));
  CHECK(records_of(view(), hash)[1].state == State::kCompleted);
  plugin.finalize(context);
}
