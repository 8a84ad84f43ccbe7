// The hooks on NCCL's functions: this program is linked against the stand-in, like libtorch_cuda
// against the real one.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>
#include <thread>

#include "calls.hpp"

using namespace fr;
using namespace fr::test;

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
  CHECK(records[0].payload.reduce_op == 5);  // not reported to any plugin
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
  CHECK(all_in(State::kReleased, FR_COLLECTIVE, 2));  // no wait of the program's is seen here
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

TEST_CASE("calls: what is done at a group's end is in flight until then") {
  setenv("STANDIN_NCCL_API", "4", 1);  // plugins of version 4 see no groups
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

// Up to version 3 the plugin gets no hash before a communicator's first operation.
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
  // The plugin still reports operations; only the wrapper knows the operator of a reduction.
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
