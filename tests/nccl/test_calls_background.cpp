// The hooks on NCCL's functions: calls of non-blocking communicators go on after they return.
#include <unistd.h>

#include <cstdlib>

#include "calls.hpp"

using namespace fr;
using namespace fr::test;

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

  // a communicator that no other rank joins, given up
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
  usleep(50'000);  // it is made, but no call has asked for its state
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
  CHECK_FALSE(newest().has_status);  // no call has asked for its state
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
