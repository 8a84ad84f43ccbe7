// The hooks on NCCL's functions: each function with its arguments and its record.
#include <map>
#include <string>

#include "calls.hpp"

using namespace fr;
using namespace fr::test;

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
  CHECK(made["ncclCommInitAll"] == 1);  // and the others made with it
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
