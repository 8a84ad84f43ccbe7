// CUDA's events and errors, over stand-ins for CUDA and NCCL: this program is linked against both,
// like a framework against the real ones. One process per case: a broken device stays broken.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "rank.hpp"
#include "record/clock.hpp"

using namespace fr;
using namespace fr::test;

TEST_CASE("cuda: events tell start and end where NCCL tells nothing") {
  const Rank rank;
  const u64 before = monotonic_ns();
  for (int i = 0; i < 3; ++i) {
    REQUIRE(rank.all_reduce() == 0);
  }
  CHECK(eventually([] { return in_state(State::kCompleted) == 3; }));
  const u64 after = monotonic_ns();
  for (const auto& r : collectives()) {
    CHECK((r.payload.flags & FR_UNTRACKED) == 0);
    CHECK(r.started_ticks >= r.payload.ticks);
    CHECK(r.ended_ticks >= r.started_ticks);
  }
  const auto ops = operations();
  REQUIRE(ops.size() == 3);
  u64 previous = before;
  for (const auto& op : ops) {
    CHECK((op.flags & (kDevTimed | kDevHostTimes | kDevUnseen)) == (kDevTimed | kDevHostTimes));
    // brought from the device's clock, which has another zero
    CHECK(op.device_start_ns + 1'000'000 >= previous);
    CHECK(op.device_end_ns >= op.device_start_ns);
    CHECK(op.device_end_ns <= after);
    previous = op.device_end_ns;
  }
  CHECK(cuda().timed.load() == 3);
  CHECK(cuda().call.load() == 0);
  ncclCommDestroy(rank.comm);
}

TEST_CASE("cuda: the last operation of a communicator is seen to have ended before its end") {
  const Rank rank;
  for (int i = 0; i < 20; ++i) {
    rank.all_reduce();
  }
  ncclCommDestroy(rank.comm);
  CHECK(in_state(State::kCompleted) == 20);
}

TEST_CASE("cuda: pairs are used again") {
  const Rank rank;
  for (std::size_t done = 0; done < 3000;) {
    for (int i = 0; i < 500; ++i) {
      rank.all_reduce();
    }
    done += 500;
    REQUIRE(eventually([&] { return cuda().timed.load() == done; }));
  }
  CHECK(cuda().exhausted.load() == 0);
  ncclCommDestroy(rank.comm);
}

TEST_CASE("cuda: a group of calls has one pair of events on each of its streams") {
  const Rank rank;
  void* other = nullptr;
  REQUIRE(cuStreamCreate(&other, 1) == 0);
  ncclGroupStart();
  for (int i = 0; i < 4; ++i) {
    rank.all_reduce();
    rank.all_reduce(other);
  }
  usleep(20'000);
  CHECK(cuda().timed.load() == 0);  // nothing has been launched
  ncclGroupEnd();
  CHECK(eventually([] { return in_state(State::kCompleted) == 8; }));
  CHECK(cuda().timed.load() == 2);
  ncclCommDestroy(rank.comm);
}

TEST_CASE("cuda: what waits in its stream has not started, other streams go on") {
  const Rank rank;
  const Rank elsewhere;
  Gate kernel(rank.stream);
  rank.all_reduce();
  for (int i = 0; i < 5; ++i) {
    elsewhere.all_reduce();
  }
  CHECK(eventually([] { return in_state(State::kCompleted) == 5; }));
  const auto first = operations()[0];
  CHECK(first.launched_ticks != 0);
  CHECK(first.started_ticks == 0);
  kernel.opened = 1;
  CHECK(eventually([] { return in_state(State::kCompleted) == 6; }));
  ncclCommDestroy(rank.comm);
  ncclCommDestroy(elsewhere.comm);
}

TEST_CASE("cuda: beside NCCL's own stamps these count, and nothing is lost") {
  setenv("NCCL_PROFILER_PLUGIN", FR_LIBRARY, 1);
  hook();
  ncclGroupStart();
  fr::nccl::UniqueId id;
  ncclGetUniqueId(&id);
  const Rank one(2, &id, 0);
  const Rank two(2, &id, 1);
  REQUIRE(ncclGroupEnd() == 0);
  for (const Rank* rank : {&one, &two}) {
    rank->all_reduce();
  }
  ncclGroupStart();  // not all channels announced for these are reported
  ncclSend(Rank::data, 4, 7, 1, one.comm, one.stream);
  ncclRecv(Rank::data, 4, 7, 0, two.comm, two.stream);
  ncclGroupEnd();
  const auto ended = [] {
    std::size_t n = 0;
    for (const auto& op : operations()) {
      n += op.ended_ticks != 0 && (op.flags & kDevUnseen) == 0 ? 1 : 0;
    }
    return n;
  };
  CHECK(eventually([&] { return ended() == 4; }));
  CHECK(in_state(State::kCompleted) == 2);
  for (const auto& op : operations()) {
    CHECK((op.flags & kDevTimed) != 0);
    CHECK(op.channels_started != 0);
    CHECK((op.flags & kDevHostTimes) == 0);
    CHECK(op.device_end_ns > op.device_start_ns);
  }
  CHECK(eventually([] { return cuda().timed.load() == 4; }));
  CHECK(view().device()->stale_handles.load() == 0);
  ncclCommDestroy(one.comm);
  ncclCommDestroy(two.comm);
}

TEST_CASE("cuda: an operation that runs shows as started") {
  setenv("STANDIN_NCCL_FAULT", "transport:0:1", 1);  // its kernel never ends
  const Rank rank;
  rank.all_reduce();
  CHECK(eventually([] { return in_state(State::kStarted) == 1; }));
  CHECK(operations()[0].started_ticks != 0);
  CHECK(operations()[0].ended_ticks == 0);
  ncclCommAbort(rank.comm);
  CHECK(in_state(State::kFailed) == 1);
}

TEST_CASE("cuda: nothing of ours gets into a graph, and its capture is not broken") {
  const Rank rank;
  const Rank elsewhere;
  Gate kernel(elsewhere.stream);
  elsewhere.all_reduce();  // asked about all the while
  REQUIRE(cudaStreamBeginCapture(rank.stream, 0) == 0);
  rank.all_reduce();
  elsewhere.all_reduce();  // is not captured itself, but goes without, too
  const u64 rounds = cuda().polled_ticks.load();
  CHECK(eventually([&] { return cuda().polled_ticks.load() > rounds + 1000; }));
  void* graph = nullptr;
  CHECK(cudaStreamEndCapture(rank.stream, &graph) == 0);
  CHECK(cuda().captured.load() == 2);
  kernel.opened = 1;
  CHECK(eventually([] { return in_state(State::kCompleted) == 1; }));
  std::size_t captured = 0;
  for (const auto& r : collectives()) {
    captured += (r.payload.flags & FR_CAPTURED) != 0 ? 1 : 0;
  }
  CHECK(captured == 1);
  CHECK(collectives().size() == 3);
  ncclCommDestroy(rank.comm);
  ncclCommDestroy(elsewhere.comm);
}

TEST_CASE("cuda: without a free pair an operation is not followed, and that is counted") {
  const Rank rank;
  Gate kernel(rank.stream);
  constexpr std::size_t kMore = 100;
  const u32 pairs = cuda().pairs.load();
  CHECK(pairs == 1024);
  for (std::size_t i = 0; i < pairs + kMore; ++i) {
    REQUIRE(rank.all_reduce() == 0);
  }
  CHECK(cuda().exhausted.load() >= kMore);
  kernel.opened = 1;
  CHECK(eventually([] {
    std::size_t in_flight = 0;
    for (const auto& r : collectives()) {
      in_flight += (r.payload.flags & FR_UNTRACKED) == 0 && !r.has_status ? 1 : 0;
    }
    return in_flight == 0;
  }));
  CHECK(in_state(State::kCompleted) + kMore >= pairs);
  ncclCommDestroy(rank.comm);
}

TEST_CASE("cuda: each context has its own events, a default stream is its device's alone") {
  const Rank one(1, nullptr, 0, 0);
  const Rank two(1, nullptr, 0, 1);
  CHECK(cuda().pairs.load() == 2048);
  one.all_reduce();  // its context is not the current one
  two.all_reduce();
  CHECK(eventually([] { return in_state(State::kCompleted) == 2; }));
  two.all_reduce(nullptr);
  CHECK(eventually([] { return in_state(State::kCompleted) == 3; }));
  CHECK(cuda().no_context.load() == 0);
  one.all_reduce(nullptr);  // current is the other device
  CHECK(cuda().no_context.load() == 1);
  CHECK(cuda().refused.load() == 0);
  ncclCommAbort(one.comm);
  ncclCommAbort(two.comm);
}

TEST_CASE("cuda: a call that is refused gives its events back") {
  setenv("STANDIN_NCCL_FAULT", "refuse:0:1", 1);
  const Rank rank;
  CHECK(rank.all_reduce() == 1);
  CHECK(in_state(State::kFailed) == 1);
  CHECK(rank.all_reduce() == 0);
  CHECK(eventually([] { return in_state(State::kCompleted) == 1; }));
  CHECK(cuda().timed.load() == 1);
  ncclCommDestroy(rank.comm);
}

TEST_CASE("cuda: the first asynchronous error is kept, with FR_TIMING=off, too") {
  setenv("FR_TIMING", "off", 1);
  const Rank rank;
  rank.all_reduce();  // FR_TIMING=off: not followed
  setenv("STANDIN_NCCL_FAULT", "", 1);
  void* memory = nullptr;
  CHECK(cudaMalloc(&memory, 1) == 2);
  CHECK(cudaGetLastError() == 2);
  CHECK(cuda().error_claimed.load() == 0);  // of the call, not of the device
  standin_cuda_break(700);
  CHECK(cudaStreamSynchronize(rank.stream) == 700);
  CHECK(cudaGetLastError() == 700);
  REQUIRE(cuda().error_ready.load() == 1);
  CHECK(cuda().error_code.load() == 700);
  CHECK(view().string(cuda().error_name.load()) == "cudaErrorIllegalAddress");
  CHECK(view().string(cuda().error_call.load()) == "cudaStreamSynchronize");
  CHECK(cuda().error_tid.load() == static_cast<u32>(gettid()));
  CHECK(cuda().error_ticks.load() != 0);
  CHECK(cuda().observer_tid.load() == 0);
  CHECK(cuda().pairs.load() == 0);
}

TEST_CASE("cuda: an error names the oldest operation in flight, also when only fr-cuda meets it") {
  const Rank rank;
  Gate kernel(rank.stream);
  rank.all_reduce();
  rank.all_reduce();
  standin_cuda_break(719);
  CHECK(eventually([] { return cuda().error_ready.load() == 1; }));
  // the error is there first, then the operation fails with it
  CHECK(eventually([] { return in_state(State::kFailed) == 1; }));
  const auto records = collectives();
  REQUIRE(records.size() == 2);
  CHECK(records[0].state == State::kFailed);
  CHECK(view().string(records[0].error) ==
        "CUDA: kernel failed (cudaErrorLaunchFailure, 719), returned by cuEventQuery");
  CHECK(cuda().error_ticket.load() == records[0].ticket + 1);
  // an operation without usable events does not stay in flight for ever
  CHECK(eventually([] { return in_state(State::kReleased) == 1; }));
  CHECK(cuda().unread.load() >= 1);
}

TEST_CASE("cuda: who meets an error second leaves its operation to who met it first") {
  const Rank rank;
  Gate kernel(rank.stream);
  rank.all_reduce();
  rank.all_reduce();
  // The application's thread is held between claiming the error and finding the operation.
  static std::atomic<u64> unread_meanwhile{0};
  using Provider = u32 (*)();
  Library::instance().get<void (*)(Provider)>("fr_set_stack_provider")([]() -> u32 {
    if (gettid() != getpid()) {
      return 0;  // fr-cuda was first after all
    }
    u64 last = cuda().polled_ticks.load();
    for (int rounds = 0; rounds < 3; usleep(100)) {  // fr-cuda comes by meanwhile
      const u64 now = cuda().polled_ticks.load();
      rounds += now != last ? 1 : 0;
      last = now;
    }
    unread_meanwhile.store(cuda().unread.load());
    return 0;
  });
  standin_cuda_break(700);
  CHECK(cudaStreamSynchronize(rank.stream) == 700);
  CHECK(unread_meanwhile.load() == 0);
  const auto records = collectives();
  REQUIRE(records.size() == 2);
  CHECK(records[0].state == State::kFailed);
  CHECK(cuda().error_ticket.load() == records[0].ticket + 1);
  CHECK(eventually([] { return in_state(State::kReleased) == 1; }));
}

TEST_CASE("cuda: a call that never returns takes fr-cuda with it, and nothing else") {
  const Rank rank;
  CHECK(rank.all_reduce() == 0);
  CHECK(eventually([] { return in_state(State::kCompleted) == 1; }));
  standin_cuda_block("cuEventQuery");
  for (int i = 0; i < 3; ++i) {
    CHECK(rank.all_reduce() == 0);
  }
  CHECK(eventually([] { return view().string(cuda().call.load()) == "cuEventQuery"; }));
  const u64 since = cuda().call_ticks.load();
  CHECK(rank.all_reduce() == 0);
  char path[4096];
  CHECK(Library::instance().get<int (*)(const char*, char*, size_t)>("fr_dump")("test", path,
                                                                                sizeof path) == 1);
  CHECK(cuda().call_ticks.load() == since);
  CHECK(in_state(State::kCompleted) == 1);
  ncclCommAbort(rank.comm);  // does not wait for the other ranks
}

TEST_CASE("cuda: where events cannot even be made, operations go without") {
  setenv("STANDIN_CUDA_BLOCK", "cuEventCreate:100", 1);
  const Rank rank;
  CHECK(rank.all_reduce() == 0);
  CHECK(view().string(cuda().call.load()) == "cuEventCreate");
  CHECK(cuda().no_context.load() == 1);
  REQUIRE(collectives().size() == 1);
  CHECK((collectives()[0].payload.flags & FR_UNTRACKED) != 0);
  ncclCommDestroy(rank.comm);
}

TEST_CASE("cuda: a forked child makes no device call") {
  const Rank rank;
  rank.all_reduce();
  CHECK(eventually([] { return in_state(State::kCompleted) == 1; }));
  const Cuda* row = &cuda();
  const u64 timed = row->timed.load();
  const pid_t child = fork();
  if (child == 0) {
    rank.all_reduce();
    _exit(row->timed.load() == timed && row->refused.load() == 0 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  rank.all_reduce();  // and the parent goes on
  CHECK(eventually([] { return in_state(State::kCompleted) == 2; }));
  ncclCommDestroy(rank.comm);
}

TEST_CASE("cuda: threads with streams of their own") {
  constexpr int kThreads = 4;
  constexpr int kCalls = 100;
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int i = 0; i < kThreads; ++i) {
    ranks.push_back(std::make_unique<Rank>());
  }
  std::vector<std::thread> threads;
  for (const auto& rank : ranks) {
    threads.emplace_back([&rank] {
      cuCtxSetCurrent(rank->context);
      for (int i = 0; i < kCalls; ++i) {
        if (i % 10 == 0) {
          ncclGroupStart();
          rank->all_reduce();
          rank->all_reduce();
          ncclGroupEnd();
        } else {
          rank->all_reduce();
        }
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  constexpr std::size_t kAll = kThreads * (kCalls + kCalls / 10);
  CHECK(eventually([] { return in_state(State::kCompleted) == kAll; }));
  CHECK(cuda().timed.load() == kThreads * kCalls);
  for (const auto& rank : ranks) {
    ncclCommDestroy(rank->comm);
  }
}
