// The hooks on NCCL's functions: this program is linked against the stand-in, like libtorch_cuda
// against the real one.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "../unit/catch.hpp"
#include "host.hpp"

struct ncclComm;
extern "C" {
int ncclGetUniqueId(fr::nccl::UniqueId*);
int ncclCommInitRank(ncclComm**, int, fr::nccl::UniqueId, int);
int ncclCommInitRankConfig(ncclComm**, int, fr::nccl::UniqueId, int, void*);
int ncclCommGetAsyncError(ncclComm*, int*);
int ncclCommDestroy(ncclComm*);
int ncclCommAbort(ncclComm*);
int ncclGroupStart();
int ncclGroupEnd();
int ncclAllReduce(const void*, void*, size_t, int, int, ncclComm*, void*);
int ncclAlltoAll(const void*, void*, size_t, int, ncclComm*, void*);
int ncclBroadcast(const void*, void*, size_t, int, int, ncclComm*, void*);
int ncclBcast(void*, size_t, int, int, ncclComm*, void*);
int ncclReduce(const void*, void*, size_t, int, int, int, ncclComm*, void*);
int ncclAllGather(const void*, void*, size_t, int, ncclComm*, void*);
int ncclReduceScatter(const void*, void*, size_t, int, int, ncclComm*, void*);
int ncclSend(const void*, size_t, int, int, ncclComm*, void*);
int ncclRecv(void*, size_t, int, int, ncclComm*, void*);
int ncclGather(const void*, void*, size_t, int, int, ncclComm*, void*);
int ncclScatter(const void*, void*, size_t, int, int, ncclComm*, void*);
int ncclPutSignal(const void*, size_t, int, int, void*, size_t, int, int, unsigned, ncclComm*,
                  void*);
int ncclSignal(int, int, int, unsigned, ncclComm*, void*);
int ncclWaitSignal(int, void*, ncclComm*, void*);
int ncclCommShrink(ncclComm*, int*, int, ncclComm**, void*, int);
int ncclCommGrow(ncclComm*, int, const fr::nccl::UniqueId*, int, ncclComm**, void*);
int ncclCommInitRankScalable(ncclComm**, int, int, int, fr::nccl::UniqueId*, void*);
int ncclCommInitAll(ncclComm**, int, const int*);
int ncclCommFinalize(ncclComm*);
int ncclCommRevoke(ncclComm*, int);
int ncclCommSuspend(ncclComm*, int);
int ncclCommResume(ncclComm*);
int ncclCommRegister(ncclComm*, void*, size_t, void**);
int ncclCommDeregister(ncclComm*, void*);
int ncclCommWindowRegister(ncclComm*, void*, size_t, void**, int);
int ncclCommWindowDeregister(ncclComm*, void*);
int ncclDevCommCreate(ncclComm*, const void*, void*);
int ncclMemAlloc(void**, size_t);
int ncclMemFree(void*);
int ncclAllReduceConfig(const void*, void*, size_t, int, int, ncclComm*, void*, const void*);
int ncclBroadcastConfig(const void*, void*, size_t, int, int, ncclComm*, void*, const void*);
int ncclReduceConfig(const void*, void*, size_t, int, int, int, ncclComm*, void*, const void*);
int ncclAllGatherConfig(const void*, void*, size_t, int, ncclComm*, void*, const void*);
int ncclReduceScatterConfig(const void*, void*, size_t, int, int, ncclComm*, void*, const void*);
int ncclAlltoAllConfig(const void*, void*, size_t, int, ncclComm*, void*, const void*);
int ncclGatherConfig(const void*, void*, size_t, int, int, ncclComm*, void*, const void*);
int ncclScatterConfig(const void*, void*, size_t, int, int, ncclComm*, void*, const void*);
int ncclGroupSimulateEnd(void*);
int ncclCommSplit(ncclComm*, int, int, ncclComm**, void*);
const char* standin_said();
int standin_synchronize(ncclComm*);
}

using namespace fr;
using namespace fr::test;

namespace {

View view() {
  return Library::instance().view();
}

u32 hook() {
  return Library::instance().get<u32 (*)()>("fr_nccl_hook")();
}

// Two ranks in this process, made in one group of calls.
struct Pair {
  Pair() {
    setenv("NCCL_PROFILER_PLUGIN", FR_LIBRARY, 1);
    hook();
    UniqueId id;
    ncclGetUniqueId(&id);
    REQUIRE(ncclGroupStart() == 0);
    REQUIRE(ncclCommInitRank(&rank[0], 2, id, 0) == 0);
    REQUIRE(ncclCommInitRank(&rank[1], 2, id, 1) == 0);
    REQUIRE(ncclGroupEnd() == 0);
  }
  void synchronize() const {
    standin_synchronize(rank[0]);
    standin_synchronize(rank[1]);
  }
  ncclComm* rank[2] = {};
};

std::vector<RecordCopy> all_records(u16 kind) {
  std::vector<RecordCopy> out;
  static RecordCopy copy;
  for (u32 slot = 0; slot < view().n_slots(); ++slot) {
    if (view().read(slot, copy) == Slot::kWhole && copy.payload.kind == kind) {
      out.push_back(copy);
    }
  }
  return out;
}

std::string op(const RecordCopy& r) {
  return std::string(view().string(r.payload.op));
}

// What the device saw ends a little after the stream is empty.
bool all_in(State state, u16 kind, std::size_t n) {
  for (int i = 0; i < 2000; ++i) {
    std::size_t found = 0;
    for (const auto& r : all_records(kind)) {
      found += r.has_status && r.state == state ? 1 : 0;
    }
    if (found == n) {
      return true;
    }
    usleep(5000);
  }
  return false;
}

}  // namespace

TEST_CASE("calls: a call that wrapper and plugin both see is one record") {
  Pair pair;
  float data[8];
  for (ncclComm* comm : pair.rank) {
    REQUIRE(ncclAllReduce(data, data, 8, 7, 2, comm, nullptr) == 0);
  }
  pair.synchronize();
  CHECK(all_in(State::kCompleted, FR_COLLECTIVE, 2));
  const auto records = all_records(FR_COLLECTIVE);
  REQUIRE(records.size() == 2);
  CHECK(op(records[0]) == "all_reduce");
  CHECK(records[0].payload.reduce_op == 5);  // what no plugin is told
  CHECK(records[0].payload.in_numel == 8);
  CHECK(records[0].payload.flags == FR_ASYNC);
  CHECK(records[0].payload.seq == 1);
  const Device& device = *view().device();
  CHECK(device.unmatched.load() == 0);
  CHECK(device.ops_lost.load() == 0);
  std::size_t made = 0;
  for (const auto& r : all_records(FR_LIFECYCLE)) {
    made += op(r) == "ncclCommInitRank" ? 1 : 0;
  }
  CHECK(made == 2);
  // made in a group: the calls had not ended before it did, and no communicator has two rows
  std::size_t rows = 0;
  for (u32 i = 1; i < view().n_comms(); ++i) {
    const CommRow* row = view().comm(i);
    rows += row != nullptr && row->in_use.load() == 2 ? 1 : 0;
  }
  CHECK(rows == 2);
  ncclCommDestroy(pair.rank[0]);
  ncclCommDestroy(pair.rank[1]);
}

TEST_CASE("calls: in a group nothing is launched before its end") {
  Pair pair;
  float data[8];
  ncclGroupStart();
  ncclAllReduce(data, data, 8, 7, 0, pair.rank[0], nullptr);
  ncclGroupStart();
  ncclAllReduce(data, data, 8, 7, 0, pair.rank[1], nullptr);
  ncclGroupEnd();
  for (u32 i = 0; i < view().n_device_ops(); ++i) {
    DeviceOpCopy o;
    if (view().read_device_op(i, o)) {
      CHECK(o.launching_ticks == 0);
    }
  }
  ncclGroupEnd();
  pair.synchronize();
  CHECK(all_in(State::kCompleted, FR_COLLECTIVE, 2));
  ncclCommDestroy(pair.rank[0]);
  ncclCommDestroy(pair.rank[1]);
}

TEST_CASE("calls: what NCCL splits into sends and receives stays one record") {
  Pair pair;
  char data[64];
  ncclAlltoAll(data, data, 4, 0, pair.rank[0], nullptr);
  ncclAlltoAll(data, data, 4, 0, pair.rank[1], nullptr);
  pair.synchronize();
  CHECK(all_in(State::kCompleted, FR_COLLECTIVE, 2));
  CHECK(op(all_records(FR_COLLECTIVE)[0]) == "all_to_all");
  CHECK(all_records(FR_SEND).empty());
  CHECK(all_records(FR_RECV).empty());
  ncclCommDestroy(pair.rank[0]);
  ncclCommDestroy(pair.rank[1]);
}

TEST_CASE("calls: a framework's record is taken over, however many calls it makes") {
  auto& fr = Library::instance();
  Pair pair;
  fr_group_info info{};
  info.struct_bytes = sizeof info;
  info.name = "pg";
  info.n_ranks = 2;
  const fr_group_t pg = fr.get<fr_group_t (*)(const fr_group_info*)>("fr_group")(&info);
  const auto enter = fr.get<void (*)(const fr_ticket*)>("fr_enter");
  const auto leave = fr.get<int (*)()>("fr_leave");
  char data[64];
  for (ncclComm* comm : pair.rank) {
    fr_op o{};
    o.struct_bytes = sizeof o;
    o.group = pg;
    o.kind = FR_COLLECTIVE;
    o.peer = -1;
    fr_ticket t;
    fr.get<void (*)(const fr_op*, fr_ticket*)>("fr_begin")(&o, &t);
    enter(&t);
    ncclGroupStart();
    for (int i = 0; i < 3; ++i) {
      ncclBroadcast(data, data, 4, 0, 0, comm, nullptr);
    }
    ncclGroupEnd();
    CHECK(leave() == 1);
  }
  pair.synchronize();
  CHECK(all_in(State::kCompleted, FR_COLLECTIVE, 2));
  CHECK(all_records(FR_COLLECTIVE).size() == 2);
  CHECK(view().group(pg)->completed_seq.load() == 2);
  CHECK(view().group(pg)->ended.load() == 2);
  bool tied = false;
  for (u32 i = 1; i < view().n_comms(); ++i) {
    tied = tied || (view().comm(i) != nullptr && view().comm(i)->pg_group.load() == pg);
  }
  CHECK(tied);
  // a scope in which nothing is asked of NCCL
  fr_ticket none{};
  enter(&none);
  CHECK(leave() == 0);
  CHECK(leave() == 0);
  ncclCommDestroy(pair.rank[0]);
  ncclCommDestroy(pair.rank[1]);
}

TEST_CASE("calls: what is refused has failed, with the library's words") {
  setenv("STANDIN_NCCL_FAULT", "refuse:0:1", 1);
  Pair pair;
  float data[8];
  CHECK(ncclAllReduce(data, data, 8, 7, 0, pair.rank[0], nullptr) == 1);
  const auto records = all_records(FR_COLLECTIVE);
  REQUIRE(records.size() == 1);
  CHECK(records[0].state == State::kFailed);
  CHECK(view().string(records[0].error) ==
        "ncclAllReduce: unhandled error (1): the stand-in refuses");
  unsetenv("STANDIN_NCCL_FAULT");
  ncclCommAbort(pair.rank[0]);
  ncclCommAbort(pair.rank[1]);
}

TEST_CASE("calls: one call that is refused fails its group, and that group alone") {
  setenv("STANDIN_NCCL_FAULT", "refuse:0:2", 1);
  Pair pair;
  unsetenv("STANDIN_NCCL_FAULT");
  float data[8];
  ncclGroupStart();
  CHECK(ncclAllReduce(data, data, 8, 7, 0, pair.rank[0], nullptr) == 0);
  CHECK(ncclAllReduce(data, data, 8, 7, 0, pair.rank[0], nullptr) == 1);
  CHECK(ncclAllReduce(data, data, 8, 7, 0, pair.rank[1], nullptr) == 0);
  CHECK(ncclGroupEnd() == 1);
  const auto records = all_records(FR_COLLECTIVE);
  REQUIRE(records.size() == 3);
  std::map<std::string, int> errors;
  for (const auto& r : records) {
    CHECK(r.state == State::kFailed);
    errors[std::string(view().string(r.error))] += 1;
  }
  CHECK(errors ==
        std::map<std::string, int>{{"ncclAllReduce: unhandled error (1): the stand-in refuses", 1},
                                   {"ncclGroupEnd: unhandled error (1): the stand-in refuses", 2}});
  for (ncclComm* comm : pair.rank) {
    CHECK(ncclAllReduce(data, data, 8, 7, 0, comm, nullptr) == 0);
  }
  CHECK(all_in(State::kCompleted, FR_COLLECTIVE, 2));
  ncclCommAbort(pair.rank[0]);
  ncclCommAbort(pair.rank[1]);
}

TEST_CASE("calls: one thread drives several devices in one group") {
  setenv("NCCL_PROFILER_PLUGIN", FR_LIBRARY, 1);
  hook();
  constexpr int kDevices = 4;
  ncclComm* comms[kDevices] = {};
  REQUIRE(ncclCommInitAll(comms, kDevices, nullptr) == 0);
  float data[8];
  for (int i = 0; i < 3; ++i) {
    ncclGroupStart();
    for (int d = 0; d < kDevices; ++d) {
      ncclAllReduce(data, data, 8, 7, 0, comms[d], reinterpret_cast<void*>(0x100 * (d + 1)));
    }
    ncclGroupEnd();
  }
  for (ncclComm* comm : comms) {
    standin_synchronize(comm);
  }
  CHECK(all_in(State::kCompleted, FR_COLLECTIVE, 3 * kDevices));
  CHECK(all_records(FR_COLLECTIVE).size() == 3 * kDevices);
  CHECK(view().device()->unmatched.load() == 0);
  std::map<i32, int> own_ranks;
  for (u32 i = 1; i < view().n_groups(); ++i) {
    if (view().string(view().group(i)->name).starts_with("nccl:")) {
      own_ranks[view().group(i)->own_rank] += 1;
      CHECK(view().group(i)->completed_seq.load() == 3);
    }
  }
  CHECK(own_ranks == std::map<i32, int>{{0, 1}, {1, 1}, {2, 1}, {3, 1}});
  for (ncclComm* comm : comms) {
    ncclCommDestroy(comm);
  }
}

TEST_CASE("calls: a forked child's calls go through and leave nothing") {
  Pair pair;
  const u64 head = view().header().head.load();
  const pid_t child = fork();
  if (child == 0) {
    ncclGroupStart();
    const bool ok = ncclCommSuspend(pair.rank[0], 1) == 0 && ncclMemFree(nullptr) == 0;
    _exit(ok ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(view().header().head.load() == head);
  ncclCommAbort(pair.rank[0]);
  ncclCommAbort(pair.rank[1]);
}

TEST_CASE("calls: an abort fails what is in flight") {
  Pair pair;
  float data[8];
  ncclAllReduce(data, data, 8, 7, 0, pair.rank[0], nullptr);
  ncclCommAbort(pair.rank[0]);
  const auto records = all_records(FR_COLLECTIVE);
  REQUIRE(records.size() == 1);
  CHECK(records[0].state == State::kFailed);
  CHECK(view().string(records[0].error) == "ended by ncclCommAbort");
  CHECK(live_phases(view()).empty());
  ncclCommAbort(pair.rank[1]);
}

TEST_CASE("calls: a non-blocking communicator is in the making until NCCL says that it is made") {
  setenv("NCCL_PROFILER_PLUGIN", FR_LIBRARY, 1);
  hook();
  UniqueId id;
  ncclGetUniqueId(&id);
  ConfigHead config{sizeof(ConfigHead), 0, 0, 0};
  ncclComm* comms[2];
  REQUIRE(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config) == kInProgress);
  const auto making = [](State state) {
    std::size_t n = 0;
    for (const auto& r : all_records(FR_LIFECYCLE)) {
      n += op(r) == "ncclCommInitRankConfig" &&
                   (state == State::kLocked ? !r.has_status : r.has_status && r.state == state)
               ? 1
               : 0;
    }
    return n;
  };
  int error = 0;
  REQUIRE(ncclCommGetAsyncError(comms[0], &error) == 0);
  CHECK(error == kInProgress);
  CHECK(making(State::kLocked) == 1);  // still in flight
  REQUIRE(ncclCommInitRankConfig(&comms[1], 2, id, 1, &config) == kInProgress);
  for (ncclComm* comm : comms) {
    do {
      usleep(1000);
      ncclCommGetAsyncError(comm, &error);
    } while (error == kInProgress);
  }
  CHECK(making(State::kLocked) == 0);
  CHECK(making(State::kCompleted) == 2);
  float data[8];
  for (ncclComm* comm : comms) {
    ncclAllReduce(data, data, 8, 7, 0, comm, nullptr);
  }
  CHECK(all_in(State::kCompleted, FR_COLLECTIVE, 2));
  CHECK(view().device()->unmatched.load() == 0);

  // one that nobody else joins, given up
  ncclGetUniqueId(&id);
  ncclComm* alone = nullptr;
  REQUIRE(ncclCommInitRankConfig(&alone, 2, id, 0, &config) == kInProgress);
  ncclCommGetAsyncError(alone, &error);
  CHECK(making(State::kLocked) == 1);
  ncclCommAbort(alone);
  CHECK(making(State::kLocked) == 0);
  CHECK(making(State::kFailed) == 1);
  for (ncclComm* comm : comms) {
    ncclCommAbort(comm);
  }
}

TEST_CASE("calls: without the plugin they are records that never count as in flight") {
  setenv("NCCL_PROFILER_PLUGIN", "none", 1);
  hook();
  UniqueId id;
  ncclGetUniqueId(&id);
  ncclComm* comms[2];
  ncclGroupStart();
  ncclCommInitRank(&comms[0], 2, id, 0);
  ncclCommInitRank(&comms[1], 2, id, 1);
  ncclGroupEnd();
  float data[8];
  ncclAllReduce(data, data, 8, 7, 0, comms[0], nullptr);
  const auto records = all_records(FR_COLLECTIVE);
  REQUIRE(records.size() == 1);
  CHECK((records[0].payload.flags & FR_UNTRACKED) != 0);
  ncclCommAbort(comms[0]);
  ncclCommAbort(comms[1]);
}

TEST_CASE("calls: every collective is recorded as what it is") {
  Pair pair;
  char data[64];
  for (ncclComm* c : pair.rank) {
    ncclBcast(data, 4, 0, 1, c, nullptr);
    ncclReduce(data, data, 4, 0, 3, 1, c, nullptr);
    ncclAllGather(data, data, 4, 0, c, nullptr);
    ncclReduceScatter(data, data, 4, 0, 4, c, nullptr);
  }
  ncclGroupStart();
  ncclSend(data, 4, 0, 1, pair.rank[0], nullptr);
  ncclRecv(data, 4, 0, 0, pair.rank[1], nullptr);
  ncclGroupEnd();
  pair.synchronize();
  CHECK(all_in(State::kCompleted, FR_COLLECTIVE, 8));
  std::map<std::string, const RecordCopy*> by_name;
  const auto records = all_records(FR_COLLECTIVE);
  for (const auto& r : records) {
    by_name[op(r)] = &r;
  }
  REQUIRE(by_name.size() == 4);
  CHECK(by_name["broadcast"]->payload.peer == 1);
  CHECK(by_name["reduce"]->payload.peer == 1);
  CHECK(by_name["reduce"]->payload.reduce_op == 4);          // min
  CHECK(by_name["reduce_scatter"]->payload.reduce_op == 2);  // avg
  CHECK(by_name["reduce_scatter"]->payload.in_numel == 8);
  CHECK(by_name["all_gather"]->payload.out_numel == 8);
  REQUIRE(all_records(FR_SEND).size() == 1);
  CHECK(all_records(FR_SEND)[0].payload.peer == 1);
  REQUIRE(all_records(FR_RECV).size() == 1);
  CHECK(all_records(FR_RECV)[0].payload.peer == 0);
  ncclCommDestroy(pair.rank[0]);
  ncclCommDestroy(pair.rank[1]);
}

TEST_CASE("calls: arguments arrive as they were given, and each call leaves its record") {
  Pair pair;
  ncclComm* c = pair.rank[0];
  const auto p = [](std::uintptr_t n) { return reinterpret_cast<void*>(n); };
  const auto said = [](const char* format, auto... args) {
    char text[256];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
    std::snprintf(text, sizeof text, format, args...);
#pragma GCC diagnostic pop
    return std::string(text) == standin_said();
  };
  const auto newest = [](u16 kind) {
    const auto all = all_records(kind);
    u64 at = 0;
    for (u64 i = 0; i < all.size(); ++i) {
      at = all[i].ticket > all[at].ticket ? i : at;
    }
    return all.empty() ? std::string() : op(all[at]);
  };
  ncclGather(p(1), p(2), 3, 4, 5, c, p(6));
  CHECK(said("%p %p %d %d %d %p %p", p(1), p(2), 3, 4, 5, c, p(6)));
  CHECK(newest(FR_COLLECTIVE) == "gather");
  ncclScatter(p(1), p(2), 3, 4, 5, c, p(6));
  CHECK(said("%p %p %d %d %d %p %p", p(1), p(2), 3, 4, 5, c, p(6)));
  CHECK(newest(FR_COLLECTIVE) == "scatter");
  ncclPutSignal(p(1), 2, 3, 1, p(5), 6, 7, 8, 9, c, p(10));
  CHECK(said("%p %d %d %d %p %d %d %d %d %p %p", p(1), 2, 3, 1, p(5), 6, 7, 8, 9, c, p(10)));
  CHECK(newest(FR_SEND) == "put_signal");
  ncclSignal(1, 2, 3, 4, c, p(5));
  CHECK(said("%d %d %d %d %p %p", 1, 2, 3, 4, c, p(5)));
  CHECK(newest(FR_SEND) == "signal");
  ncclWaitSignal(1, p(2), c, p(3));
  CHECK(said("%d %p %p %p", 1, p(2), c, p(3)));
  CHECK(newest(FR_SEND) == "wait_signal");

  int ranks[1] = {1};
  UniqueId id;
  ncclGetUniqueId(&id);
  ncclComm* out = nullptr;
  ncclCommShrink(c, ranks, 1, &out, p(7), 8);
  CHECK(said("%p %p %d %p %p %d", c, ranks, 1, &out, p(7), 8));
  CHECK(newest(FR_LIFECYCLE) == "ncclCommShrink");
  ncclCommGrow(c, 3, &id, -1, &out, p(7));
  CHECK(said("%p %d %p %d %p %p", c, 3, &id, -1, &out, p(7)));
  CHECK(newest(FR_LIFECYCLE) == "ncclCommGrow");
  ncclCommInitRankScalable(&out, 4, 2, 1, &id, p(7));
  CHECK(said("%p %d %d %d %p %p", &out, 4, 2, 1, &id, p(7)));
  CHECK(newest(FR_LIFECYCLE) == "ncclCommInitRankScalable");
  ncclComm* all[2] = {};
  ncclCommInitAll(all, 2, ranks);
  CHECK(said("%p %d %p", all, 2, ranks));
  std::map<std::string, int> made;
  for (const auto& r : all_records(FR_LIFECYCLE)) {
    made[op(r)] += 1;
  }
  CHECK(made["ncclCommInitAll"] == 1);  // and what came with it
  ncclCommSuspend(c, 3);
  CHECK(said("%p %d", c, 3));
  CHECK(newest(FR_LIFECYCLE) == "ncclCommSuspend");
  ncclCommResume(c);
  CHECK(said("%p", c));
  CHECK(newest(FR_LIFECYCLE) == "ncclCommResume");
  ncclCommFinalize(c);
  CHECK(newest(FR_LIFECYCLE) == "ncclCommFinalize");
  void* handle = nullptr;
  ncclCommRegister(c, p(1), 2, &handle);
  CHECK(said("%p %p %d %p", c, p(1), 2, &handle));
  CHECK(newest(FR_LIFECYCLE) == "ncclCommRegister");
  ncclCommDeregister(c, p(1));
  CHECK(said("%p %p", c, p(1)));
  CHECK(newest(FR_LIFECYCLE) == "ncclCommDeregister");
  ncclCommWindowRegister(c, p(1), 2, &handle, 3);
  CHECK(said("%p %p %d %p %d", c, p(1), 2, &handle, 3));
  CHECK(newest(FR_LIFECYCLE) == "ncclCommWindowRegister");
  ncclCommWindowDeregister(c, p(4));
  CHECK(said("%p %p", c, p(4)));
  CHECK(newest(FR_LIFECYCLE) == "ncclCommWindowDeregister");
  ncclDevCommCreate(c, p(5), p(6));
  CHECK(said("%p %p %p", c, p(5), p(6)));
  CHECK(newest(FR_LIFECYCLE) == "ncclDevCommCreate");
  ncclMemAlloc(&handle, 7);
  CHECK(said("%p %d", &handle, 7));
  CHECK(newest(FR_LIFECYCLE) == "ncclMemAlloc");
  ncclMemFree(p(8));
  CHECK(said("%p", p(8)));
  CHECK(newest(FR_LIFECYCLE) == "ncclMemFree");

  float data[8];
  ncclAllReduce(data, data, 8, 7, 0, c, nullptr);
  ncclCommRevoke(c, 4);
  CHECK(said("%p %d", c, 4));
  CHECK(newest(FR_LIFECYCLE) == "ncclCommRevoke");
  for (const auto& r : all_records(FR_COLLECTIVE)) {
    if (op(r) == "all_reduce") {
      CHECK(r.state == State::kFailed);
      CHECK(view().string(r.error) == "ended by ncclCommRevoke");
    }
  }
  for (const auto& r : all_records(FR_LIFECYCLE)) {
    CHECK(r.has_status);  // each has ended
  }
  ncclCommAbort(all[0]);
  ncclCommAbort(all[1]);
  ncclCommAbort(pair.rank[0]);
  ncclCommAbort(pair.rank[1]);
}

TEST_CASE("calls: collectives with a configuration are the same operations") {
  Pair pair;
  ncclComm* c = pair.rank[0];
  char data[64];
  const int config = 0;
  const auto said = [&](const char* format, auto... args) {
    char text[256];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-security"
    std::snprintf(text, sizeof text, format, args...);
#pragma GCC diagnostic pop
    return std::string(text) == standin_said();
  };
  const void* const x = &config;
  ncclAllReduceConfig(data, data, 4, 0, 3, c, nullptr, x);
  CHECK(said("%d %p", 3, x));
  ncclBroadcastConfig(data, data, 4, 0, 1, c, nullptr, x);
  CHECK(said("%d %p", 1, x));
  ncclReduceConfig(data, data, 4, 0, 4, 1, c, nullptr, x);
  CHECK(said("%d %d %p", 4, 1, x));
  ncclAllGatherConfig(data, data, 4, 0, c, nullptr, x);
  CHECK(said("%p", x));
  ncclReduceScatterConfig(data, data, 4, 0, 2, c, nullptr, x);
  CHECK(said("%d %p", 2, x));
  ncclAlltoAllConfig(data, data, 4, 0, c, nullptr, x);
  CHECK(said("%p", x));
  ncclGatherConfig(data, data, 4, 0, 1, c, nullptr, x);
  CHECK(said("%p %p %d %d %d %p %p %p", data, data, 4, 0, 1, c, nullptr, x));
  ncclScatterConfig(data, data, 4, 0, 1, c, nullptr, x);
  CHECK(said("%p %p %d %d %d %p %p %p", data, data, 4, 0, 1, c, nullptr, x));
  std::map<u64, std::string> names;
  std::map<std::string, RecordCopy> by_name;
  for (const auto& r : all_records(FR_COLLECTIVE)) {
    names[r.payload.seq] = op(r);
    by_name[op(r)] = r;
  }
  CHECK(names == std::map<u64, std::string>{{1, "all_reduce"},
                                            {2, "broadcast"},
                                            {3, "reduce"},
                                            {4, "all_gather"},
                                            {5, "reduce_scatter"},
                                            {6, "all_to_all"},
                                            {7, "gather"},
                                            {8, "scatter"}});
  CHECK(by_name["all_reduce"].payload.reduce_op == 4);  // min
  CHECK(by_name["reduce"].payload.peer == 1);
  ncclCommAbort(pair.rank[0]);
  ncclCommAbort(pair.rank[1]);
}

TEST_CASE("calls: what is done at a group's end is in flight until then") {
  setenv("STANDIN_NCCL_API", "4", 1);  // whose plugins are not told of groups
  Pair pair;
  const auto registering = [] {
    for (const auto& r : all_records(FR_LIFECYCLE)) {
      if (op(r) == "ncclCommWindowRegister") {
        return !r.has_status;
      }
    }
    return false;
  };
  void* window = nullptr;
  ncclGroupStart();
  ncclCommWindowRegister(pair.rank[0], &window, 8, &window, 0);
  CHECK(registering());
  ncclGroupEnd();
  CHECK_FALSE(registering());
  // a group that is only looked at: nothing of it is in flight afterwards
  float data[8];
  ncclGroupStart();
  ncclAllReduce(data, data, 8, 7, 0, pair.rank[0], nullptr);
  ncclGroupSimulateEnd(nullptr);
  for (const auto& r : all_records(FR_COLLECTIVE)) {
    CHECK(r.state == State::kReleased);
  }
  // and the next call is none of it
  for (ncclComm* comm : pair.rank) {
    ncclAllReduce(data, data, 8, 7, 0, comm, nullptr);
  }
  CHECK(all_in(State::kCompleted, FR_COLLECTIVE, 2));
  ncclCommAbort(pair.rank[0]);
  ncclCommAbort(pair.rank[1]);
}

TEST_CASE("calls: a group of more calls than are kept leaves nothing behind") {
  setenv("STANDIN_NCCL_API", "0", 1);
  Pair pair;
  char data[8];
  for (int round = 0; round < 3; ++round) {
    ncclGroupStart();
    for (int i = 0; i < 300; ++i) {
      ncclSend(data, 8, 0, 1, pair.rank[0], nullptr);
    }
    ncclGroupEnd();
  }
  for (u32 i = 0; i < view().n_device_ops(); ++i) {
    DeviceOpCopy o;
    CHECK((!view().read_device_op(i, o) || (o.claim & 1) == 0));
  }
  CHECK(view().device()->ops_lost.load() == 0);
  ncclCommAbort(pair.rank[0]);
  ncclCommAbort(pair.rank[1]);
}

namespace {

// Two ranks of a non-blocking communicator; polled until it is made.
void make_in_background(ncclComm* (&comms)[2], bool polls) {
  hook();
  UniqueId id;
  ncclGetUniqueId(&id);
  ConfigHead config{sizeof(ConfigHead), 0, 0, 0};
  for (int rank = 0; rank < 2; ++rank) {
    REQUIRE(ncclCommInitRankConfig(&comms[rank], 2, id, rank, &config) == kInProgress);
  }
  int error = kInProgress;
  for (ncclComm* comm : comms) {
    while (polls && (ncclCommGetAsyncError(comm, &error), error == kInProgress)) {
      usleep(1000);
    }
  }
}

}  // namespace

TEST_CASE("calls: a rank that never asks for a communicator has it in the making") {
  setenv("NCCL_PROFILER_PLUGIN", FR_LIBRARY, 1);
  ncclComm* comms[2];
  make_in_background(comms, false);
  usleep(50'000);  // it is made, nobody has asked
  u32 n = 0;
  for (const auto& r : all_records(FR_LIFECYCLE)) {
    n += op(r) == "ncclCommInitRankConfig" && !r.has_status ? 1 : 0;
  }
  CHECK(n == 2);
  for (ncclComm* comm : comms) {
    ncclCommAbort(comm);
  }
}

namespace {

void launch_in_background(bool told) {
  setenv("STANDIN_NCCL_API", told ? "6" : "0", 1);
  setenv("NCCL_PROFILER_PLUGIN", told ? FR_LIBRARY : "none", 1);
  ncclComm* comms[2];
  make_in_background(comms, true);
  float data[8];
  constexpr int kCalls = 100;
  for (int i = 0; i < kCalls; ++i) {
    const bool grouped = i % 2 != 0;
    for (ncclComm* comm : comms) {
      int error = kInProgress;
      if (grouped) {
        ncclGroupStart();
      }
      const int result = ncclAllReduce(data, data, 8, 7, 0, comm, nullptr);
      CHECK((grouped ? ncclGroupEnd() : result) == kInProgress);
      while (ncclCommGetAsyncError(comm, &error), error == kInProgress) {
        usleep(10);
      }
    }
  }
  CHECK(all_in(told ? State::kCompleted : State::kReleased, FR_COLLECTIVE, told ? 2 * kCalls : 0));
  CHECK(all_records(FR_COLLECTIVE).size() == 2 * kCalls);
  for (u32 i = 0; i < view().n_device_ops(); ++i) {
    DeviceOpCopy o;
    CHECK((!view().read_device_op(i, o) || (o.claim & 1) == 0));
  }
  for (ncclComm* comm : comms) {
    ncclCommAbort(comm);
  }
}

}  // namespace

TEST_CASE("calls: what a non-blocking communicator launches later is one record, and ends") {
  launch_in_background(true);
}

TEST_CASE("calls: what a non-blocking communicator launches later ends, if nobody tells") {
  launch_in_background(false);
}

TEST_CASE("calls: what NCCL tells nothing of ends with its launch, in the background, too") {
  setenv("STANDIN_NCCL_FAULT", "symmetric", 1);
  setenv("NCCL_PROFILER_PLUGIN", FR_LIBRARY, 1);
  ncclComm* comms[2];
  make_in_background(comms, true);
  const Pair pair;
  float data[8];
  ncclAllReduce(data, data, 8, 7, 0, pair.rank[0], nullptr);
  CHECK(all_in(State::kReleased, FR_COLLECTIVE, 1));
  CHECK(ncclAllReduce(data, data, 8, 7, 0, comms[0], nullptr) == kInProgress);
  const auto newest = [] { return all_records(FR_COLLECTIVE).back(); };
  CHECK_FALSE(newest().has_status);  // nobody has asked
  int error = kInProgress;
  while (ncclCommGetAsyncError(comms[0], &error), error == kInProgress) {
    CHECK_FALSE(newest().has_status);
    usleep(100);
  }
  CHECK(newest().state == State::kReleased);
  for (ncclComm* comm : {comms[0], comms[1], pair.rank[0], pair.rank[1]}) {
    ncclCommAbort(comm);
  }
}

namespace {

// Up to version 3 the plugin is told of no hash before a communicator's first operation.
void name_communicators(const char* version) {
  setenv("STANDIN_NCCL_API", version, 1);
  Pair one;
  const Pair two;
  ncclComm* alone[2] = {};
  for (ncclComm*& comm : alone) {
    UniqueId id;
    ncclGetUniqueId(&id);
    ncclCommInitRank(&comm, 1, id, 0);
  }
  float data[8];
  for (const Pair* pair : {static_cast<const Pair*>(&one), &two}) {
    for (ncclComm* comm : pair->rank) {
      ncclAllReduce(data, data, 8, 7, 0, comm, nullptr);
    }
    pair->synchronize();
  }
  std::map<std::string, int> names;
  for (u32 i = 1; i < view().n_groups(); ++i) {
    const std::string name(view().string(view().group(i)->name));
    if (name.starts_with("nccl:")) {
      names[name] += 1;
      CHECK(view().group(i)->issued.load() != 0);
    }
  }
  CHECK(names.size() == 4);
  CHECK(all_records(FR_COLLECTIVE).size() == 4);
  CHECK_FALSE(names.contains("nccl:0000000000000000"));
  std::size_t profiled = 0;
  for (u32 i = 1; i < view().n_comms(); ++i) {
    const CommRow* row = view().comm(i);
    if (row != nullptr && row->in_use.load() == 2) {
      CHECK(row->hash.load() != 0);
      profiled += row->is_profiled.load();
    }
  }
  CHECK(profiled == 6);
  for (ncclComm* comm : {one.rank[0], one.rank[1], two.rank[0], two.rank[1], alone[0], alone[1]}) {
    ncclCommAbort(comm);
  }
}

}  // namespace

TEST_CASE("calls: communicators have their own names, plugin version 1") {
  name_communicators("1");
}
TEST_CASE("calls: communicators have their own names, plugin version 2") {
  name_communicators("2");
}
TEST_CASE("calls: communicators have their own names, plugin version 3") {
  name_communicators("3");
}
TEST_CASE("calls: communicators have their own names, plugin version 4") {
  name_communicators("4");
}
TEST_CASE("calls: communicators have their own names, plugin version 6") {
  name_communicators("6");
}

TEST_CASE("calls: a destroy that does not return is in flight") {
  setenv("STANDIN_NCCL_FAULT", "device:0:1", 1);
  Pair pair;
  unsetenv("STANDIN_NCCL_FAULT");
  float data[8];
  ncclAllReduce(data, data, 8, 7, 0, pair.rank[0], nullptr);
  std::thread([c = pair.rank[0]] { ncclCommDestroy(c); }).detach();  // for ever
  const auto destroying = [] {
    for (const auto& r : all_records(FR_LIFECYCLE)) {
      if (op(r) == "ncclCommDestroy" && !r.has_status) {
        return true;
      }
    }
    return false;
  };
  for (int i = 0; i < 2000 && !destroying(); ++i) {
    usleep(5000);
  }
  CHECK(destroying());
  ncclCommAbort(pair.rank[1]);
}

TEST_CASE("calls: removing the hooks restores the originals") {
  Pair pair;
  float data[8];
  const u64 head = view().header().head.load();
  const u32 places = hook();
  CHECK(places >= 8);
  CHECK(Library::instance().get<u32 (*)()>("fr_nccl_unhook")() == places);
  Dl_info info{};
  REQUIRE(dladdr(reinterpret_cast<void*>(&ncclBroadcast), &info) != 0);
  const u32 depth_before = view().device()->hooked.load();
  CHECK(depth_before == 0);
  // The plugin still tells of operations; of a reduction only the wrapper knows by what.
  ncclAllReduce(data, data, 8, 7, 2, pair.rank[0], nullptr);
  REQUIRE(all_records(FR_COLLECTIVE).size() == 1);
  CHECK(all_records(FR_COLLECTIVE)[0].payload.reduce_op == 0);
  CHECK(view().header().head.load() == head + 1);
  CHECK(hook() == places);  // and again
  ncclAllReduce(data, data, 8, 7, 2, pair.rank[0], nullptr);
  REQUIRE(all_records(FR_COLLECTIVE).size() == 2);
  CHECK(all_records(FR_COLLECTIVE)[1].payload.reduce_op == 5);
  CHECK(view().header().head.load() == head + 2);
  ncclCommAbort(pair.rank[0]);
  ncclCommAbort(pair.rank[1]);
}
