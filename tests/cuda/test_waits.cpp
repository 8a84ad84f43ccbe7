// The program's own events and synchronisations tell the end of what NCCL does not tell: no plugin,
// no event of fr's. One process per case.
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "rank.hpp"

using namespace fr;
using namespace fr::test;

namespace {

// A rank of a program that knows nothing of fr.
struct Plain {
  Plain() { setenv("FR_TIMING", "auto", 0); }
};
struct Program : Plain, Rank {};

void* new_stream() {
  void* stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, 1) == 0);
  return stream;
}

void* new_event() {
  void* event = nullptr;
  REQUIRE(cuEventCreate(&event, 0) == 0);
  return event;
}

void* record(void* stream) {
  void* event = new_event();
  REQUIRE(cudaEventRecord(event, stream) == 0);
  return event;
}

bool comes(void* event) {
  return eventually([event] { return cudaEventQuery(event) == 0; });
}

// Operations that a thread waits for, by the counters that the watchdog reads.
i64 waited_for() {
  i64 n = 0;
  for (u32 i = 0; i < view().n_groups(); ++i) {
    n += static_cast<i64>(view().group(i)->waited.load() - view().group(i)->wait_ended.load());
  }
  return n;
}

std::size_t without_state() {
  std::size_t n = 0;
  for (const auto& r : collectives()) {
    n += r.has_status ? 0 : 1;
  }
  return n;
}

constexpr int kNotReady = 600;

}  // namespace

TEST_CASE("waits: an event that is asked for tells the end of what is before it on its stream") {
  const Program rank;
  Gate kernel(rank.stream);
  for (int i = 0; i < 3; ++i) {
    rank.all_reduce();
  }
  void* event = record(rank.stream);
  rank.all_reduce();  // behind it
  CHECK(without_state() == 4);
  CHECK(waited_for() == 0);
  CHECK(cudaEventQuery(event) == kNotReady);
  CHECK(in_state(State::kWaiting) == 3);
  CHECK(waited_for() == 3);
  CHECK(cudaEventQuery(event) == kNotReady);
  CHECK(waited_for() == 3);
  kernel.opened = 1;
  CHECK(comes(event));
  CHECK(in_state(State::kCompleted) == 3);
  CHECK(without_state() == 1);
  CHECK(waited_for() == 0);
  const auto ops = operations();
  REQUIRE(ops.size() == 4);
  for (int i = 0; i < 3; ++i) {
    CHECK((ops[static_cast<std::size_t>(i)].flags & (kDevWaitTracked | kDevUnseen)) ==
          kDevWaitTracked);
    CHECK(ops[static_cast<std::size_t>(i)].ended_ticks != 0);
    CHECK(ops[static_cast<std::size_t>(i)].device_end_ns == 0);
  }
  CHECK((ops[3].flags & (kDevWaitTracked | kDevUnseen)) == (kDevWaitTracked | kDevUnseen));
  CHECK(cuda().followed.load() == 4);
  CHECK(cuda().observer_tid.load() == 0);
  ncclCommDestroy(rank.comm);
}

TEST_CASE("waits: each call that asks or waits tells") {
  const Program rank;
  void* event = new_event();
  void* stream = rank.stream;
  const auto tells = [&](auto record_it, auto ask) {
    const auto before = in_state(State::kCompleted);
    rank.all_reduce();
    return record_it() == 0 && eventually([&] { return ask() == 0; }) &&
           in_state(State::kCompleted) == before + 1 && waited_for() == 0;
  };
  const auto records = [&] { return cudaEventRecord(event, stream); };
  const auto queries = [&] { return cudaEventQuery(event); };
  CHECK(tells(records, queries));
  CHECK(tells(records, [&] { return cudaEventSynchronize(event); }));
  CHECK(tells(records, [&] { return cudaStreamQuery(stream); }));
  CHECK(tells(records, [&] { return cudaStreamSynchronize(stream); }));
  CHECK(tells(records, [&] { return cudaDeviceSynchronize(); }));
  CHECK(tells(records, [&] { return cuEventQuery(event); }));
  CHECK(tells(records, [&] { return cuEventSynchronize(event); }));
  CHECK(tells(records, [&] { return cuStreamQuery(stream); }));
  CHECK(tells(records, [&] { return cuStreamSynchronize(stream); }));
  CHECK(tells(records, [&] { return cuCtxSynchronize(); }));
  CHECK(tells([&] { return cudaEventRecordWithFlags(event, stream, 0); }, queries));
  CHECK(tells([&] { return cuEventRecord(event, stream); }, queries));
  CHECK(tells([&] { return cuEventRecordWithFlags(event, stream, 0); }, queries));
  ncclCommDestroy(rank.comm);
}

TEST_CASE("waits: a device's synchronisation tells of all its streams") {
  const Program rank;
  void* other = new_stream();
  rank.all_reduce();
  rank.all_reduce(other);
  rank.all_reduce(nullptr);
  CHECK(cudaDeviceSynchronize() == 0);
  CHECK(in_state(State::kCompleted) == 3);
  rank.all_reduce(nullptr);
  CHECK(cudaStreamSynchronize(nullptr) == 0);
  CHECK(in_state(State::kCompleted) == 4);
  ncclCommDestroy(rank.comm);
}

TEST_CASE("waits: of default streams and devices nothing is told where there are several") {
  const Program one;
  const Program two;  // its context is the current one
  one.all_reduce();
  one.all_reduce(nullptr);
  two.all_reduce(nullptr);
  CHECK(cudaStreamSynchronize(nullptr) == 0);
  CHECK(cudaDeviceSynchronize() == 0);
  CHECK(in_state(State::kCompleted) == 0);
  CHECK(cudaStreamSynchronize(one.stream) == 0);
  CHECK(in_state(State::kCompleted) == 1);
  ncclCommAbort(one.comm);
  ncclCommAbort(two.comm);
}

TEST_CASE("waits: what nobody asks for is not in flight, and its place is needed at some time") {
  const Program rank;
  Gate kernel(rank.stream);
  for (int i = 0; i < 300; ++i) {
    rank.all_reduce();
  }
  CHECK(without_state() == 300);
  CHECK(waited_for() == 0);
  CHECK(cuda().unasked.load() == 64);
  CHECK(cuda().unfollowed.load() == 0);
  kernel.opened = 1;
  CHECK(cudaStreamSynchronize(rank.stream) == 0);
  CHECK(in_state(State::kCompleted) == 300 - 64);
  CHECK(view().device()->ops_lost.load() == 0);
  ncclCommDestroy(rank.comm);
}

TEST_CASE("waits: what is waited for keeps its place") {
  const Program rank;
  Gate kernel(rank.stream);
  rank.all_reduce();
  CHECK(cudaEventQuery(record(rank.stream)) == kNotReady);
  for (int i = 0; i < 300; ++i) {
    rank.all_reduce();
  }
  CHECK(in_state(State::kWaiting) == 1);
  CHECK(cuda().unasked.load() == 0);
  CHECK(cuda().unfollowed.load() == 301 - 256);
  kernel.opened = 1;
  CHECK(cudaStreamSynchronize(rank.stream) == 0);
  CHECK(in_state(State::kCompleted) == 256);
  rank.all_reduce();
  CHECK(cudaStreamSynchronize(rank.stream) == 0);
  CHECK(in_state(State::kCompleted) == 257);
  ncclCommDestroy(rank.comm);
}

TEST_CASE("waits: who has asked once and no more does not wait") {
  setenv("FR_WARN_S", "1", 1);
  setenv("FR_TIMEOUT_S", "1", 1);
  const Program rank;
  Gate kernel(rank.stream);
  rank.all_reduce();
  void* event = record(rank.stream);
  CHECK(cudaEventQuery(event) == kNotReady);
  CHECK(waited_for() == 1);
  CHECK(eventually([] { return in_state(State::kIdle) == 1; }));
  CHECK(waited_for() == 0);
  CHECK(cudaEventQuery(event) == kNotReady);  // asks again after all
  CHECK(in_state(State::kWaiting) == 1);
  CHECK(waited_for() == 1);
  kernel.opened = 1;
  CHECK(comes(event));
  CHECK(in_state(State::kCompleted) == 1);
  CHECK(waited_for() == 0);
  CHECK_FALSE(std::filesystem::exists(getenv("FR_DUMP_DIR")));
  ncclCommDestroy(rank.comm);
}

namespace {

// Each in a process of its own: after a hang that went on the next one is waited for longer.
void hangs_while_a_thread_asks(bool polls) {
  setenv("FR_WARN_S", "1", 1);
  setenv("FR_TIMEOUT_S", "1", 1);
  const Program rank;
  Gate kernel(rank.stream);
  rank.all_reduce();
  void* event = record(rank.stream);
  std::atomic<bool> over{false};
  std::thread waiter([&] {
    cuCtxSetCurrent(rank.context);
    while (polls && !over.load()) {
      cudaEventQuery(event);
      usleep(10'000);
    }
    cudaStreamSynchronize(rank.stream);
  });
  const std::filesystem::path dumps = getenv("FR_DUMP_DIR");
  CHECK(eventually(
      [&] { return std::filesystem::exists(dumps) && !std::filesystem::is_empty(dumps); }));
  // The thread that asks may get no processor for a while, and then it waits no more.
  CHECK(eventually([] { return in_state(State::kWaiting) == 1; }));
  kernel.opened = 1;
  over = true;
  waiter.join();
  CHECK(in_state(State::kWaiting) == 0);
  CHECK(waited_for() == 0);
  ncclCommAbort(rank.comm);
}

}  // namespace

TEST_CASE("waits: while it is asked for, a hang is one") {
  hangs_while_a_thread_asks(true);
}

TEST_CASE("waits: while a thread waits, a hang is one") {
  hangs_while_a_thread_asks(false);
}

namespace {

// One operation behind a kernel with an event behind it, one that has ended on another stream.
struct TwoStreams : Program {
  TwoStreams() : other(new_stream()), kernel(stream) {
    fr::nccl::UniqueId id;
    ncclGetUniqueId(&id);
    REQUIRE(ncclCommInitRank(&second, 1, id, 0) == 0);
    all_reduce();
    event = record(stream);
    ncclAllReduce(data, data, 4, 7, 0, second, other);
    CHECK(comes(record(other)));
    CHECK(in_state(State::kCompleted) == 1);
  }
  ~TwoStreams() {
    CHECK(in_state(State::kCompleted) == 1);
    CHECK(waited_for() == 0);
    kernel.opened = 1;
    ncclCommAbort(comm);
    ncclCommAbort(second);
  }
  void* other;
  Gate kernel;
  void* event = nullptr;
  ncclComm* second = nullptr;
};

}  // namespace

TEST_CASE("waits: an event that is recorded anew tells of its new place alone") {
  const TwoStreams two;
  REQUIRE(cudaEventRecord(two.event, two.other) == 0);
  CHECK(comes(two.event));
}

TEST_CASE("waits: a destroyed event tells nothing, though its address is another's") {
  const TwoStreams two;
  REQUIRE(cudaEventDestroy(two.event) == 0);
  CHECK(new_event() == two.event);
  CHECK(cudaEventQuery(two.event) == 0);
}

TEST_CASE("waits: a destroyed stream tells nothing, though its address is another's") {
  const TwoStreams two;
  REQUIRE(cudaStreamDestroy(two.stream) == 0);
  CHECK(new_stream() == two.stream);
  CHECK(cudaStreamSynchronize(two.stream) == 0);
  CHECK(comes(record(two.stream)));
}

TEST_CASE("waits: what is captured does not run, and its events tell nothing") {
  const Program rank;
  void* other = new_stream();
  Gate kernel(other);
  rank.all_reduce(other);
  REQUIRE(cudaStreamBeginCapture(rank.stream, 1) == 0);
  rank.all_reduce();
  void* captured = record(rank.stream);
  void* meanwhile = record(other);
  void* graph = nullptr;
  CHECK(cudaStreamEndCapture(rank.stream, &graph) == 0);
  CHECK(cudaEventQuery(captured) == 1);
  CHECK(cudaEventQuery(meanwhile) == kNotReady);
  CHECK(cudaStreamSynchronize(rank.stream) == 0);
  CHECK(without_state() == 2);
  kernel.opened = 1;
  CHECK(cudaStreamSynchronize(other) == 0);
  CHECK(in_state(State::kCompleted) == 1);
  CHECK(cuda().followed.load() == 1);
  ncclCommAbort(rank.comm);
}

TEST_CASE("waits: events and streams beyond the tables are counted") {
  const Program rank;
  Gate kernel(rank.stream);
  rank.all_reduce();
  std::vector<void*> events;
  for (int i = 0; i < 2000; ++i) {
    events.push_back(record(rank.stream));
  }
  CHECK(cuda().untied.load() >= 2000 - 1024);
  std::vector<void*> streams;
  for (int i = 0; i < 40; ++i) {
    rank.all_reduce(streams.emplace_back(new_stream()));
  }
  CHECK(cuda().unfollowed.load() == 41 - 32);
  kernel.opened = 1;
  CHECK(cudaDeviceSynchronize() == 0);
  CHECK(in_state(State::kCompleted) == 32);
  // An operation that is over frees its place for the next one.
  const u64 untied = cuda().untied.load();
  rank.all_reduce();
  for (int i = 0; i < 100; ++i) {
    record(rank.stream);
  }
  CHECK(cuda().untied.load() == untied);
  CHECK(cudaStreamDestroy(streams[0]) == 0);
  rank.all_reduce(new_stream());
  CHECK(cuda().unfollowed.load() == 41 - 32);
  ncclCommAbort(rank.comm);
}

TEST_CASE("waits: a framework's record is in flight while its thread asks") {
  auto& fr = Library::instance();
  const Program rank;
  fr_group_info info{};
  info.struct_bytes = sizeof info;
  info.name = "pg";
  info.n_ranks = 1;
  const fr_group_t pg = fr.get<fr_group_t (*)(const fr_group_info*)>("fr_group")(&info);
  Gate kernel(rank.stream);
  const bool coalesced = GENERATE(false, true);
  const auto before = collectives().size();
  for (int i = 0; i < 2; ++i) {
    fr_op o{};
    o.struct_bytes = sizeof o;
    o.group = pg;
    o.kind = FR_COLLECTIVE;
    o.peer = -1;
    fr_ticket t;
    if (coalesced) {
      ncclGroupStart();
    }
    fr.get<void (*)(const fr_op*, fr_ticket*)>("fr_begin")(&o, &t);
    fr.get<void (*)(const fr_ticket*)>("fr_enter")(&t);
    ncclGroupStart();
    rank.all_reduce();
    rank.all_reduce();
    ncclGroupEnd();
    CHECK(fr.get<int (*)()>("fr_leave")() == 1);
    if (coalesced) {
      ncclGroupEnd();
    }
  }
  const GroupRow& g = *view().group(pg);
  CHECK((g.issued.load() & kSeqMask) - g.untracked.load() - g.ended.load() == 0);
  void* event = record(rank.stream);
  CHECK(in_state(State::kIdle) == 2);
  CHECK(waited_for() == 0);
  CHECK(cudaEventQuery(event) == kNotReady);
  CHECK(in_state(State::kWaiting) == 2);
  CHECK(waited_for() == 2);
  kernel.opened = 1;
  CHECK(comes(event));
  CHECK(g.completed_seq.load() == 2);
  CHECK(waited_for() == 0);
  CHECK((g.issued.load() & kSeqMask) - g.untracked.load() - g.ended.load() == 0);
  CHECK(collectives().size() == before + 2);
  ncclCommAbort(rank.comm);
}

TEST_CASE("waits: what ends otherwise is no longer waited for") {
  const Program rank;
  Gate kernel(rank.stream);
  rank.all_reduce();
  void* event = record(rank.stream);
  CHECK(cudaEventQuery(event) == kNotReady);
  CHECK(waited_for() == 1);
  ncclCommAbort(rank.comm);
  CHECK(in_state(State::kFailed) == 1);
  CHECK(waited_for() == 0);
  cudaEventQuery(event);
  CHECK(waited_for() == 0);
  kernel.opened = 1;
  CHECK(view().device()->stale_handles.load() == 0);
}

TEST_CASE("waits: what nobody waits for any more is released with its communicator") {
  setenv("FR_WARN_S", "1", 1);
  const Program rank;
  Gate kernel(rank.stream);
  rank.all_reduce();
  CHECK(cudaEventQuery(record(rank.stream)) == kNotReady);
  CHECK(eventually([] { return in_state(State::kIdle) == 1; }));
  kernel.opened = 1;
  ncclCommDestroy(rank.comm);
  CHECK(in_state(State::kReleased) == 1);
}

TEST_CASE("waits: what has ended otherwise gives its place") {
  const Program rank;
  for (int i = 0; i < 200; ++i) {
    rank.all_reduce();
  }
  ncclCommDestroy(rank.comm);
  for (int i = 0; i < 2; ++i) {  // the watchdog has looked in between
    REQUIRE(Library::instance().get<int (*)(const char*, char*, size_t)>("fr_dump")("", nullptr,
                                                                                    0) == 1);
  }
  fr::nccl::UniqueId id;
  ncclGetUniqueId(&id);
  ncclComm* next = nullptr;
  REQUIRE(ncclCommInitRank(&next, 1, id, 0) == 0);
  for (int i = 0; i < 200; ++i) {
    ncclAllReduce(Rank::data, Rank::data, 4, 7, 0, next, rank.stream);
  }
  CHECK(cuda().unasked.load() == 0);
  CHECK(cudaStreamSynchronize(rank.stream) == 0);
  CHECK(in_state(State::kCompleted) == 200);
  ncclCommDestroy(next);
}

TEST_CASE("waits: with FR_TIMING=off, too") {
  setenv("FR_TIMING", "off", 1);
  const Program rank;
  rank.all_reduce();
  CHECK(cudaStreamSynchronize(rank.stream) == 0);
  CHECK(in_state(State::kCompleted) == 1);
  ncclCommDestroy(rank.comm);
}

TEST_CASE("waits: a forked child tells nothing") {
  const Program rank;
  rank.all_reduce();
  void* event = record(rank.stream);
  const GroupRow& g = *view().group(collectives()[0].payload.group);
  const pid_t child = fork();
  if (child == 0) {
    cudaEventQuery(event);
    rank.all_reduce();
    cudaStreamQuery(rank.stream);
    _exit(g.completed_seq.load() == 0 && g.waited.load() == 0 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(comes(event));
  CHECK(in_state(State::kCompleted) == 1);
  ncclCommDestroy(rank.comm);
}

// Threads that issue, one that asks for all their events, as ProcessGroupNCCL has it, and one that
// waits for their streams.
TEST_CASE("waits: threads") {
  constexpr int kThreads = 3;
  constexpr int kCalls = 150;
  std::vector<std::unique_ptr<Program>> ranks;
  for (int i = 0; i < kThreads; ++i) {
    ranks.push_back(std::make_unique<Program>());
  }
  std::mutex lock;
  std::vector<void*> events;
  std::atomic<int> issuing{kThreads};
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) {
    threads.emplace_back([&] {
      cuCtxSetCurrent(rank->context);
      for (int i = 0; i < kCalls; ++i) {
        rank->all_reduce();
        void* event = nullptr;
        cuEventCreate(&event, 0);
        cudaEventRecord(event, rank->stream);
        const std::lock_guard guard(lock);
        events.push_back(event);
      }
      --issuing;
    });
  }
  threads.emplace_back([&] {
    for (bool left = true; left;) {
      const bool last = issuing.load() == 0;
      std::vector<void*> now;
      {
        const std::lock_guard guard(lock);
        now.swap(events);
      }
      std::erase_if(now, [](void* event) {
        return cudaEventQuery(event) == 0 && cudaEventDestroy(event) == 0;
      });
      const std::lock_guard guard(lock);
      events.insert(events.end(), now.begin(), now.end());
      left = !last || !events.empty();
    }
  });
  threads.emplace_back([&] {
    while (issuing.load() != 0) {
      for (const auto& rank : ranks) {
        cudaStreamSynchronize(rank->stream);
      }
    }
  });
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& rank : ranks) {
    cudaStreamSynchronize(rank->stream);
  }
  CHECK(in_state(State::kCompleted) + cuda().unfollowed.load() + cuda().unasked.load() ==
        kThreads * kCalls);
  CHECK(in_state(State::kCompleted) > kCalls);
  CHECK(in_state(State::kWaiting) == 0);
  CHECK(waited_for() == 0);
  CHECK(view().header().status_lost.load() == 0);
  for (const auto& rank : ranks) {
    ncclCommDestroy(rank->comm);
  }
}
