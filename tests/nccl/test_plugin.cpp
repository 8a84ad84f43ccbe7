// libfr.so as NCCL's profiler plugin: scripted event sequences of every version, on several
// threads, with everything that NCCL is known to do to plugins.
#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "format/call_site.hpp"
#include "only.hpp"

using namespace fr;
using namespace fr::test;

namespace {

const Device& device() {
  return *view().device();
}

}  // namespace

TEST_CASE("nccl: all versions are exported, and NCCL takes the newest that it knows") {
  void* library = Library::instance().handle;
  for (int known = 1; known <= 7; ++known) {
    CHECK(newest_version(library, known) == known);
  }
  // the path of a library that is loaded already is the same library
  void* again = dlopen(FR_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  CHECK(dlsym(again, "ncclProfiler_v6") == dlsym(library, "ncclProfiler_v6"));
  CHECK(dlsym(again, "ncclProfiler_v8") == nullptr);
}

TEST_CASE("nccl: a collective goes through its states") {
  const u64 hash = 0xa1;
  Comm6 comm(hash, 2, 1, 6, "tp");
  CHECK((comm.mask & kEvKernelCh) != 0);
  CHECK((comm.mask & (kEvCollApi | kEvProxyStep | kEvCeColl)) ==
        (kEvCollApi | kEvProxyStep | kEvCeColl));

  void* group = comm.group_api();
  void* api = comm.coll_api(group, "AllReduce", 4096);
  comm.stop(api);
  RecordCopy r = only_record(hash);
  CHECK(view().string(r.payload.op) == "all_reduce");
  CHECK(r.payload.in_numel == 4096);
  CHECK(r.payload.in_dtype == 7);
  CHECK(r.payload.peer == -1);
  CHECK(r.payload.flags == FR_ASYNC);
  CHECK(!r.has_status);
  CHECK(only_op(hash).launching_ticks == 0);
  CHECK(only_op(hash).stream == 0x5000);
  CHECK(in_flight(view(), hash) == 1);

  void* launch = comm.launch(group);
  CHECK(only_op(hash).launching_ticks != 0);
  CHECK(only_op(hash).launched_ticks == 0);
  comm.stop(launch);
  void* task = comm.coll(api, 2);
  comm.stop(task);
  comm.stop(group);
  CHECK(only_op(hash).launched_ticks != 0);
  CHECK(view().string(only_op(hash).algorithm) == "RING");
  CHECK(!only_record(hash).has_status);

  void* k0 = comm.kernel(task, 0, 1'000'000);
  r = only_record(hash);
  REQUIRE(r.has_status);
  CHECK(r.state == State::kStarted);
  void* k1 = comm.kernel(task, 1, 1'000'100);
  comm.kernel_stop(k0, 2'000'000);
  CHECK(only_record(hash).state == State::kStarted);  // one channel still spins
  REQUIRE(live_phases(view()).size() == 1);
  CHECK(live_phases(view())[0].channel == 1);
  comm.kernel_stop(k1, 2'000'500);
  CHECK(only_record(hash).state == State::kCompleted);
  const DeviceOpCopy op = only_op(hash);
  CHECK(op.device_start_ns == 1'000'000);
  CHECK(op.device_end_ns == 2'000'500);
  CHECK((op.claim & 1) == 0);
  CHECK(in_flight(view(), hash) == 0);
  CHECK(device().clock_offset_ns.load() != 0);

  const u32 id = group_named(view(), comm_name(hash));
  CHECK(view().group(id)->n_ranks == 2);
  CHECK(view().group(id)->own_rank == 1);
  CHECK(view().string(view().group(id)->backend) == "nccl");
  CHECK(view().string(view().group(id)->desc) == "tp");
  CHECK(view().group(id)->completed_seq.load() == 1);
}

TEST_CASE("nccl: one channel that ends before another has started does not end the operation") {
  const u64 hash = 0xa2;
  Comm6 comm(hash);
  void* task = comm.enqueue(2);
  comm.kernel_stop(comm.kernel(task, 0), 5);
  CHECK(only_record(hash).state == State::kStarted);
  comm.kernel_stop(comm.kernel(task, 1), 6);
  CHECK(only_record(hash).state == State::kCompleted);
}

TEST_CASE("nccl: sends and receives are recorded with their peers, and end on fewer channels") {
  const u64 hash = 0xa3;
  Comm6 comm(hash, 4, 2);
  void* group = comm.group_api();
  void* send_api = comm.p2p_api(group, "Send");
  CHECK(records_of(view(), hash).empty());  // the peer is not known yet
  CHECK(device_ops(view(), hash).size() == 1);
  comm.stop(comm.launch(group));
  void* send = comm.p2p(send_api, "Send", 3, 4);
  comm.stop(group);
  group = comm.group_api();
  void* recv_api = comm.p2p_api(group, "Recv");
  comm.stop(comm.launch(group));
  void* recv = comm.p2p(recv_api, "Recv", 1, 4);
  comm.stop(group);
  const auto records = records_of(view(), hash);
  REQUIRE(records.size() == 2);
  CHECK(records[0].payload.kind == FR_SEND);
  CHECK(records[0].payload.peer == 3);
  CHECK(records[1].payload.kind == FR_RECV);
  CHECK(records[1].payload.peer == 1);
  CHECK(in_flight(view(), hash) == 2);
  // 4 announced, 2 come
  for (void* task : {send, recv}) {
    void* k0 = comm.kernel(task, 0);
    void* k1 = comm.kernel(task, 1);
    comm.kernel_stop(k0);
    comm.kernel_stop(k1);
  }
  CHECK(in_flight(view(), hash) == 2);
  for (int i = 0; i < 400 && in_flight(view(), hash) != 0; ++i) {
    usleep(10'000);  // the watchdog looks ten times a second
  }
  CHECK(in_flight(view(), hash) == 0);
  for (const auto& r : records_of(view(), hash)) {
    CHECK(r.state == State::kCompleted);
  }
}

TEST_CASE("nccl: of a send and a receive in one group kernels do not tell the end") {
  const u64 hash = 0xda;
  Comm6 comm(hash, 4, 2);
  void* group = comm.group_api();
  void* send_api = comm.p2p_api(group, "Send");
  void* recv_api = comm.p2p_api(group, "Recv");
  comm.stop(comm.launch(group));
  void* send = comm.p2p(send_api, "Send", 3, 1);
  void* recv = comm.p2p(recv_api, "Recv", 1, 1);
  comm.stop(group);
  void* of_send = comm.kernel(send, 0);
  void* of_recv = comm.kernel(recv, 0);
  comm.kernel_stop(of_send);
  comm.kernel_stop(of_recv);
  for (const auto& r : records_of(view(), hash)) {
    CHECK(r.state != State::kCompleted);
  }
}

TEST_CASE(
    "nccl: of a tree kernels tell that it was summed up, its transfers that the result came") {
  const u64 hash = 0xdb;
  Comm6 comm(hash, 3, 1);
  void* task = comm.enqueue(1);
  void* up = comm.transfer(task, true, 2);
  void* down = comm.transfer(task, false, 2);
  comm.kernel_stop(comm.kernel(task, 0), 5);
  comm.stop(up);
  CHECK(only_record(hash).state == State::kStarted);
  CHECK(in_flight(view(), hash) == 1);
  comm.stop(down);
  CHECK(only_record(hash).state == State::kCompleted);
}

TEST_CASE("nccl: the oldest unfinished step tells what a transfer waits for") {
  const u64 hash = 0xa4;
  Comm6 comm(hash);
  void* task = comm.enqueue(1);
  void* send = comm.transfer(task, true, 1, 3, 16);
  void* recv = comm.transfer(task, false, 1, 3, 16);
  void* s0 = comm.step(send, 0);
  comm.state(s0, kStStepSendGpuWait);
  comm.state(s0, kStStepSendWait, 4096);
  comm.stop(s0);
  void* s1 = comm.step(send, 1);
  comm.state(s1, kStStepSendGpuWait);
  comm.state(s1, kStStepSendPeerWait);
  void* s2 = comm.step(send, 2);
  comm.state(s2, kStStepSendGpuWait);  // a later step, reported later: not the stuck one
  void* r0 = comm.step(recv, 0);
  comm.state(r0, kStStepRecvWait);
  auto phases = live_phases(view());
  REQUIRE(phases.size() == 2);
  const bool first_is_send = phases[0].kind == kPhaseSend;
  const PhaseCopy& s = phases[first_is_send ? 0 : 1];
  const PhaseCopy& r = phases[first_is_send ? 1 : 0];
  CHECK(s.kind == kPhaseSend);
  CHECK(s.peer == 1);
  CHECK(s.channel == 3);
  CHECK(s.n_steps == 16);
  CHECK(s.oldest_step() == 1);
  CHECK(s.wait() == Wait::kPeerCredit);
  CHECK(s.first == 4096);
  CHECK(r.kind == kPhaseRecv);
  CHECK(r.oldest_step() == 0);
  CHECK(r.wait() == Wait::kData);
  CHECK(only_op(hash).transfers_started == 2);
  comm.stop(s1);
  comm.stop(s2);
  comm.stop(send);
  comm.stop(r0);
  comm.stop(recv);
  CHECK(live_phases(view()).empty());
  CHECK(only_op(hash).transfers_ended == 2);
}

TEST_CASE("nccl: what NCCL's network plugins tell of NIC, queue pair and socket is kept") {
  const u64 hash = 0xaf;
  Comm6 comm(hash);
  CHECK((comm.mask & kEvNetPlugin) != 0);
  void* task = comm.enqueue(1);
  void* send = comm.transfer(task, true, 1, 3, 16);
  void* s0 = comm.step(send, 0);
  CHECK(live_phases(view())[0].net() == Net::kNone);
  NetIb1 ib{kNetQp, {2, 77, 1, 4711, 4096}};
  comm.stop(comm.net(s0, kNetIb1, &ib));
  ib.request.qp = 4712;  // the last one counts
  comm.net(s0, kNetIb1, &ib);
  const auto same = [&] {
    const PhaseCopy p = live_phases(view())[0];
    return p.net() == Net::kIb && p.net_device() == 2 && p.net_number() == 4712;
  };
  CHECK(same());
  // other plugins', other versions', other events, no data, no step
  ib.request.qp = 9;
  for (i64 id : {i64{0}, kNetIb1 + 1, i64{3} << 16 | 1, i64{-1}}) {
    CHECK(comm.net(s0, id, &ib) != nullptr);
  }
  ib.type = 2;
  comm.net(s0, kNetIb1, &ib);
  comm.net(s0, kNetIb1, nullptr);
  comm.net(nullptr, kNetIb1, &ib);
  comm.net(task, kNetIb1, &ib);
  CHECK(same());
  NetSocket1 socket{kNetSocket, {17, 0, 4096}};
  comm.net(s0, kNetSocket1, &socket);
  CHECK(live_phases(view())[0].net() == Net::kSocket);
  CHECK(live_phases(view())[0].net_number() == 17);
  comm.state(s0, kStStepSendWait, 4096);
  CHECK(live_phases(view())[0].first == 4096);  // nothing else moved
  char text[200];
  describe_device(view(), only_op(hash).ticket - 1, text, sizeof text);
  CHECK(std::string(text).find(" (socket 17)") != std::string::npos);
  comm.stop(s0);
  comm.net(s0, kNetIb1, &ib);
  comm.stop(send);
}

TEST_CASE("nccl: steps of large operations run past the handle's bits") {
  const u64 hash = 0xa5;
  Comm6 comm(hash);
  void* send = comm.transfer(comm.enqueue(1), true, 1, 0, 20000);
  void* last = nullptr;
  for (int i = 0; i < 10000; i += 2) {  // slices of two steps
    if (last != nullptr) {
      comm.stop(last);
    }
    last = comm.step(send, i);
    comm.state(last, kStStepSendWait, 1);
  }
  const auto phases = live_phases(view());
  REQUIRE(phases.size() == 1);
  CHECK(phases[0].oldest_step() == 9998);
  CHECK(phases[0].first == 5000);
}

TEST_CASE("nccl: callbacks repeated while stuck are no records and move no time") {
  const u64 hash = 0xa6;
  Comm6 comm(hash);
  void* send = comm.transfer(comm.enqueue(1), true, 1);
  void* s0 = comm.step(send, 0);
  comm.state(s0, kStStepSendPeerWait);
  const u64 head = view().header().head.load();
  const auto before = live_phases(view());
  REQUIRE(before.size() == 1);
  for (int i = 0; i < 100'000; ++i) {
    comm.state(s0, kStStepSendPeerWait);
  }
  void* again = comm.step(send, 0);  // started again at each retry
  CHECK(again == s0);
  const auto after = live_phases(view());
  REQUIRE(after.size() == 1);
  CHECK(after[0].ticks == before[0].ticks);
  CHECK(after[0].wait() == Wait::kPeerCredit);
  CHECK(view().header().head.load() == head);
}

TEST_CASE("nccl: NULL, stale, duplicate and foreign handles do nothing but count") {
  const u64 hash = 0xa7;
  Comm6 comm(hash);
  comm.stop(nullptr);
  comm.state(nullptr, kStStepSendWait);
  CHECK(comm.plugin.start(comm.context, nullptr, nullptr) == 0);
  CHECK(comm.plugin.state(nullptr, 9, nullptr) == 0);
  CHECK(comm.kernel(nullptr, 0) != nullptr);
  CHECK(comm.transfer(nullptr, true, 0) != nullptr);
  CHECK(comm.step(nullptr, 0) != nullptr);

  void* task = comm.enqueue(1);
  void* kernel = comm.kernel(task, 0);
  comm.kernel_stop(kernel, 7);
  REQUIRE(only_record(hash).state == State::kCompleted);
  u64 stale = device().stale_handles.load();
  comm.kernel_stop(kernel, 8);  // NCCL keeps the handle after its stop
  CHECK(device().stale_handles.load() > stale);
  CHECK(only_op(hash).channels_ended == 1);

  // its row goes to others meanwhile
  for (u32 i = 0; i < 2 * kDeviceOps; ++i) {
    void* t = comm.enqueue(1);
    comm.kernel_stop(comm.kernel(t, 0));
  }
  stale = device().stale_handles.load();
  CHECK(comm.kernel(task, 0) != nullptr);
  comm.kernel_stop(kernel);
  CHECK(device().stale_handles.load() > stale);
  CHECK(in_flight(view(), hash) == 0);

  // a pointer of another process (PXN), garbage
  const u64 foreign = device().foreign_handles.load();
  for (u64 h : {0x7f1234567890ull, ~0ull, 1ull << 63}) {
    comm.stop(reinterpret_cast<void*>(h));
    comm.state(reinterpret_cast<void*>(h), 9);
    comm.kernel(reinterpret_cast<void*>(h), 0);
  }
  CHECK(device().foreign_handles.load() >= foreign + 9);
  // an operation of another process: told, tied to nothing
  void* pxn = comm.transfer(reinterpret_cast<void*>(0x7f1234567890), true, 1, 0, 4, 1);
  comm.state(comm.step(pxn, 0), kStStepSendWait);
  const auto phases = live_phases(view());
  REQUIRE(phases.size() == 1);
  CHECK(phases[0].op == 0);
  CHECK(phases[0].pid == 1);
  CHECK(phases[0].wait() == Wait::kInFlight);
  CHECK(phases[0].ticket == 0);
  comm.stop(pxn);
  // one that fr there gave NCCL a handle of: which one
  const u64 theirs = reinterpret_cast<u64>(task) ^ 1ull << 63;
  void* named = comm.transfer(reinterpret_cast<void*>(theirs), true, 1, 0, 4, 1);
  const auto told = live_phases(view());
  REQUIRE(told.size() == 1);
  CHECK(told[0].op == 0);
  CHECK(told[0].ticket == theirs);
  CHECK(handle_parts(theirs).process == theirs >> 48);
  comm.stop(named);
}

TEST_CASE("nccl: without a context nothing is recorded, and every handle is non-NULL") {
  Comm6 comm(0xa8);
  void* context = std::exchange(comm.context, nullptr);
  const u64 head = view().header().head.load();
  for (void* c : {static_cast<void*>(nullptr), reinterpret_cast<void*>(0x7fabcdef0000)}) {
    comm.context = c;
    CHECK(comm.group_api() != nullptr);
    CHECK(comm.coll_api(nullptr) != nullptr);
    CHECK(comm.coll(nullptr, 1) != nullptr);
    CHECK(comm.launch(nullptr) != nullptr);
    comm.plugin.finalize(c);
  }
  CHECK(view().header().head.load() == head);
  comm.context = context;
}

// A process of its own, as all that captures: kernels are asked for no more.
TEST_CASE("nccl: a captured operation is recorded once, never in flight, replays are counted",
          "[.replays]") {
  const u64 hash = 0xa9;
  Comm6 comm(hash);
  void* group = comm.group_api(true);
  void* api = comm.coll_api(group, "AllGather", 8, true);
  comm.stop(api);
  comm.stop(comm.launch(group));
  comm.stop(group);
  CHECK((only_record(hash).payload.flags & (FR_CAPTURED | FR_UNTRACKED)) ==
        (FR_CAPTURED | FR_UNTRACKED));
  CHECK(only_record(hash).payload.out_numel == 16);
  CHECK(in_flight(view(), hash) == 0);
  for (int i = 0; i < 3; ++i) {
    void* task = comm.coll(api, 2, "AllGather");
    comm.kernel_stop(comm.kernel(task, 0));
    comm.stop(task);
  }
  CHECK(records_of(view(), hash).size() == 1);
  CHECK((only_op(hash).flags & kDevCaptured) != 0);
  CHECK(only_op(hash).parts_launched == 3);
  // the row is another operation's by now, the graph is replayed all the same
  for (u32 i = 0; i < 2 * kDeviceOps; ++i) {
    comm.kernel_stop(comm.kernel(comm.enqueue(1), 0));
  }
  const u64 head = view().header().head.load();
  void* task = comm.coll(api, 2, "AllGather");
  comm.kernel_stop(comm.kernel(task, 0));
  CHECK(view().header().head.load() == head);
  CHECK(in_flight(view(), hash) == 0);
}

TEST_CASE("nccl: what has no kernel of its own is not in flight for ever") {
  const u64 hash = 0xaa;
  Comm6 comm(hash);
  void* group = comm.group_api();  // symmetric memory: only the call is reported
  comm.stop(comm.coll_api(group));
  CHECK(in_flight(view(), hash) == 1);
  comm.stop(group);
  CHECK(in_flight(view(), hash) == 0);
  CHECK(only_record(hash).state == State::kReleased);

  Event6 e = Comm6::event(kEvCeColl);  // copy engines
  e.ce_coll.func = "AllGather";
  e.ce_coll.count = 4;
  e.ce_coll.datatype = "ncclInt8";
  comm.stop(comm.start(e));
  CHECK(records_of(view(), hash).size() == 2);
  CHECK(in_flight(view(), hash) == 0);

  Comm6 alone(0xab, 1);
  alone.stop(alone.coll_api(alone.group_api()));
  CHECK(in_flight(view(), 0xab) == 0);
}

TEST_CASE("nccl: more operations in flight than rows: counted, and none is taken for stuck") {
  const u64 hash = 0xac;
  Comm6 comm(hash);
  std::vector<void*> tasks;
  for (u32 i = 0; i < kDeviceOps + 100; ++i) {
    tasks.push_back(comm.enqueue(1));
  }
  CHECK(device().ops_lost.load() >= 100);
  CHECK(in_flight(view(), hash) == static_cast<i64>(kDeviceOps));
  const u32 id = group_named(view(), comm_name(hash));
  CHECK((view().group(id)->issued.load() & kSeqMask) == kDeviceOps + 100);  // one record each
  for (void* t : tasks) {
    comm.kernel_stop(comm.kernel(t, 0));
  }
  CHECK(in_flight(view(), hash) == 0);
}

TEST_CASE("nccl: more channels than rows still end their operation") {
  const u64 hash = 0xad;
  Comm6 comm(hash);
  void* filler = comm.enqueue(1);
  std::vector<void*> transfers;
  for (u32 i = 0; i < kPhases; ++i) {
    transfers.push_back(comm.transfer(filler, true, 1));
  }
  void* task = comm.enqueue(2);
  void* a = comm.kernel(task, 0);
  void* b = comm.kernel(task, 1);
  comm.kernel_stop(a);
  comm.kernel_stop(b);
  CHECK(device().phases_lost.load() >= 2);
  CHECK(records_of(view(), hash)[1].state == State::kCompleted);
  for (void* t : transfers) {
    comm.stop(t);
  }
}

TEST_CASE("nccl: an end that was not told does not keep an operation in flight") {
  const u64 hash = 0xa0;
  Comm6 comm(hash);
  void* lost = comm.enqueue(1);
  comm.kernel(lost, 0);
  void* later = comm.enqueue(1);
  CHECK(in_flight(view(), hash) == 2);
  comm.kernel_stop(comm.kernel(later, 0));
  for (int i = 0; i < 400 && in_flight(view(), hash) != 0; ++i) {
    usleep(10'000);
  }
  CHECK(in_flight(view(), hash) == 0);
  const auto records = records_of(view(), hash);
  CHECK(records[0].state == State::kReleased);
  CHECK(records[1].state == State::kCompleted);
}

TEST_CASE("nccl: a library that tells of no kernels does not look stuck") {
  const u64 hash = 0x90;
  Comm6 comm(hash);
  for (int i = 0; i < 2048; ++i) {
    comm.enqueue(1);
  }
  CHECK(in_flight(view(), hash) == static_cast<i64>(kDeviceOps));
  comm.enqueue(1);
  comm.enqueue(1);
  CHECK(in_flight(view(), hash) <= 1);
}

TEST_CASE("nccl: finalize leaves nothing in flight") {
  const u64 hash = 0xae;
  Comm6 comm(hash);
  void* task = comm.enqueue(1);
  comm.kernel(task, 0);
  CHECK(in_flight(view(), hash) == 1);
  comm.finalize();
  CHECK(in_flight(view(), hash) == 0);
  CHECK(only_record(hash).state == State::kReleased);
  const u64 head = view().header().head.load();
  CHECK(comm.group_api() != nullptr);  // a late call with the old context
  comm.finalize();                     // and once more
  CHECK(view().header().head.load() == head);
  // the same communicator's hash again: another one
  Comm6 next(hash);
  next.kernel_stop(next.kernel(next.enqueue(1), 0));
  CHECK(view().header().head.load() > head);
  CHECK(device_ops(view(), hash).back().ended_ticks != 0);
}

// In a process of its own: FR_ENABLE=0, but the plugin was inherited from one that records.
TEST_CASE("nccl: switched off it asks for nothing and gives handles all the same", "[off]") {
  const char* enable = std::getenv("FR_ENABLE");
  if (enable == nullptr || std::string(enable) != "0") {
    SUCCEED("started with the recorder on");
    return;
  }
  Comm6 comm(0xa8);
  CHECK(comm.context != nullptr);
  CHECK(comm.mask == 0);
  void* task = comm.enqueue(1);
  CHECK(task != nullptr);
  comm.kernel_stop(comm.kernel(task, 0));
  size_t bytes = 0;
  CHECK(Library::instance().get<const void* (*)(size_t*)>("fr_region")(&bytes) == nullptr);
}

// ---------------------------------------------------------------- threads

TEST_CASE("nccl: api threads and progress threads at once") {
  const Comm6 first(0xcf);  // starts the recorder: the reader below needs a region
  constexpr int kComms_ = 3;
  constexpr int kOps = 3000;
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int c = 0; c < kComms_; ++c) {
    threads.emplace_back([c, &failures] {
      Comm6 comm(0xc0 + static_cast<u64>(c), 2, 0, 5 + c);
      std::vector<std::atomic<void*>> tasks(kOps);
      std::atomic<int> ended{0};
      std::thread progress([&] {
        for (auto& cell : tasks) {
          void* task = nullptr;
          while ((task = cell.load(std::memory_order_acquire)) == nullptr) {
            std::this_thread::yield();
          }
          void* transfer = comm.transfer(task, true, 1, 0, 4);
          for (int s = 0; s < 4; ++s) {
            void* step = comm.step(transfer, s);
            comm.state(step, kStStepSendGpuWait);
            comm.state(step, kStStepSendPeerWait);
            comm.state(step, kStStepSendWait, 64);
            comm.stop(step);
          }
          void* k0 = comm.kernel(task, 0, 10);
          void* k1 = comm.kernel(task, 1, 11);
          comm.kernel_stop(k0, 20);
          comm.kernel_stop(k1, 21);
          comm.stop(transfer);
          comm.kernel_stop(k1, 22);  // once more
          ended.fetch_add(1);
        }
      });
      for (int i = 0; i < kOps; ++i) {
        tasks[static_cast<size_t>(i)].store(comm.enqueue(2), std::memory_order_release);
        while (i - ended.load() > 30) {  // no more in flight than there are rows
          std::this_thread::yield();
        }
      }
      progress.join();
      const u32 id = group_named(view(), comm_name(0xc0 + static_cast<u64>(c)));
      if (view().group(id)->completed_seq.load() != kOps ||
          in_flight(view(), 0xc0 + static_cast<u64>(c)) != 0) {
        failures.fetch_add(1);
      }
    });
  }
  std::atomic<bool> over{false};
  std::thread reader([&] {
    while (!over.load()) {
      live_phases(view());
      for (int c = 0; c < kComms_; ++c) {
        device_ops(view(), 0xc0 + static_cast<u64>(c));
      }
      std::this_thread::yield();
    }
  });
  for (auto& t : threads) {
    t.join();
  }
  over.store(true);
  reader.join();
  CHECK(failures.load() == 0);
  CHECK(live_phases(view()).empty());
}
