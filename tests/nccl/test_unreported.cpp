// test_unreported.cpp - operations without a report of the launch, or with a late one, and
// operations that have no kernel of their own.
#include "only.hpp"

using namespace fr;
using namespace fr::test;

namespace {

// A call that comes back without its Coll event, as behind a running graph.
void* call_alone(Comm6& comm) {
  void* group = comm.group_api();
  void* api = comm.coll_api(group);
  comm.stop(api);
  comm.stop(group);
  return api;
}

}  // namespace

TEST_CASE("nccl: a launch that is reported after the call puts the operation in flight again") {
  const u64 hash = 0xd0;
  Comm6 comm(hash);
  void* api = call_alone(comm);
  CHECK(in_flight(view(), hash) == 0);
  CHECK(only_record(hash).state == State::kReleased);
  void* task = comm.coll(api, 2);
  CHECK(in_flight(view(), hash) == 1);
  CHECK(!only_record(hash).has_status);
  CHECK((only_op(hash).claim & 1) != 0);
  void* kernels[] = {comm.kernel(task, 0), comm.kernel(task, 1)};
  CHECK(only_record(hash).state == State::kStarted);
  comm.kernel_stop(kernels[0]);
  CHECK(in_flight(view(), hash) == 1);
  comm.kernel_stop(kernels[1]);
  CHECK(in_flight(view(), hash) == 0);
  CHECK(only_record(hash).state == State::kCompleted);
  const GroupRow& row = *view().group(group_named(view(), comm_name(hash)));
  CHECK(row.released.load() == 0);
  CHECK(row.ended.load() == 1);
  CHECK(row.completed_seq.load() == 1);
}

TEST_CASE("nccl: a launch that is reported when its row is another operation's changes nothing") {
  const u64 hash = 0xd1;
  Comm6 comm(hash);
  void* api = call_alone(comm);
  for (u32 i = 0; i < kDeviceOps; ++i) {
    comm.kernel_stop(comm.kernel(comm.enqueue(1), 0));
  }
  const u64 stale = view().device()->stale_handles.load();
  comm.kernel_stop(comm.kernel(comm.coll(api, 1), 0));
  CHECK(view().device()->stale_handles.load() > stale);
  CHECK(in_flight(view(), hash) == 0);
}

TEST_CASE("nccl: a kernel that is reported after the end of its operation changes nothing") {
  const u64 hash = 0xd2;
  Comm6 comm(hash);
  void* task = comm.enqueue(1);
  comm.kernel_stop(comm.kernel(task, 0));
  CHECK(only_record(hash).state == State::kCompleted);
  comm.kernel_stop(comm.kernel(task, 0));
  CHECK(only_record(hash).state == State::kCompleted);
  CHECK(in_flight(view(), hash) == 0);
}

// For good: a process of its own.
TEST_CASE("nccl: once an operation is captured kernels are not asked for any more", "[.captured]") {
  const u64 hash = 0xd6;
  Comm6 comm(hash);
  void* before = comm.enqueue(1);
  void* group = comm.group_api(true);
  comm.stop(comm.coll_api(group, "AllReduce", 1024, true));
  comm.stop(group);
  comm.enqueue(1);
  CHECK((comm.mask & kEvKernelCh) == 0);
  Comm6 later(0xd7, 2, 0, 5);
  CHECK((later.mask & kEvKernelCh) == 0);
  CHECK((view().device()->events.load() & kEvKernelCh) == 0);
  const GroupRow& row = *view().group(group_named(view(), comm_name(hash)));
  CHECK(row.completed_seq.load() == 0);
  CHECK(in_flight(view(), hash) == 1);
  comm.kernel_stop(comm.kernel(before, 0));
  CHECK(in_flight(view(), hash) == 0);
  CHECK(row.completed_seq.load() == 1);
}

TEST_CASE("nccl: kernels are not asked for while NCCL reports that a graph is captured") {
  Comm6 comm(0xd5);
  REQUIRE((comm.mask & kEvKernelCh) != 0);
  comm.stop(comm.group_api(true));  // its capture was begun through a call that is not hooked
  CHECK((comm.mask & kEvKernelCh) == 0);
  CHECK((comm.mask & kEvGroupApi) != 0);
  comm.stop(comm.group_api(false));
  CHECK((comm.mask & kEvKernelCh) != 0);
}

TEST_CASE("nccl: what a rank sends itself has no kernel channels and is not waited for") {
  const u64 hash = 0xd3;
  Comm6 comm(hash, 2, 0);
  void* group = comm.group_api();
  void* api = comm.p2p_api(group, "Send");
  comm.stop(api);
  comm.stop(comm.p2p(api, "Send", 0, 1));
  comm.stop(group);
  CHECK(in_flight(view(), hash) == 0);
  CHECK(only_record(hash).state == State::kReleased);
}

TEST_CASE("nccl: what a rank sends another is waited for") {
  const u64 hash = 0xd9;
  Comm6 comm(hash, 2, 0);
  void* group = comm.group_api();
  void* api = comm.p2p_api(group, "Send");
  comm.stop(api);
  void* task = comm.p2p(api, "Send", 1, 1);
  comm.stop(group);
  CHECK(in_flight(view(), hash) == 1);
  comm.kernel_stop(comm.kernel(task, 0));
  CHECK(in_flight(view(), hash) == 0);
}

TEST_CASE("nccl: after what a rank sends itself the kernels that are reported are of others") {
  const u64 hash = 0xd8;
  Comm6 comm(hash, 2, 0);
  void* before = comm.enqueue(1);
  void* group = comm.group_api();
  void* api = comm.p2p_api(group, "Send");
  comm.stop(api);
  comm.stop(comm.p2p(api, "Send", 0, 1));
  comm.stop(group);
  void* after = comm.enqueue(1);
  comm.kernel_stop(comm.kernel(after, 0));
  const GroupRow& row = *view().group(group_named(view(), comm_name(hash)));
  CHECK(row.completed_seq.load() == 0);
  comm.kernel_stop(comm.kernel(before, 0));
  CHECK(in_flight(view(), hash) == 0);
  CHECK(row.completed_seq.load() == 1);
  CHECK((comm.mask & kEvKernelCh) != 0);  // other communicators' are right
  // The row of a send is made before it has a record.
  group = comm.group_api();
  api = comm.p2p_api(group, "Send");
  comm.stop(api);
  comm.p2p(api, "Send", 1, 1);
  const auto ops = device_ops(view(), hash);
  REQUIRE(ops.size() > 1);
  CHECK((ops.front().flags & kDevNoKernels) == 0);
  CHECK((ops.back().flags & kDevNoKernels) != 0);
  comm.stop(group);
}

TEST_CASE("nccl: what a rank sends itself and others at once is not ended by kernels") {
  const u64 hash = 0xd4;
  Comm6 comm(hash, 2, 0);
  const fr_group_info info{sizeof info, 2, 0, 0, "ep", "", "nccl", nullptr};
  const u32 id = Library::instance().get<fr_group_t (*)(const fr_group_info*)>("fr_group")(&info);
  fr_op op{};
  op.struct_bytes = sizeof op;
  op.group = id;
  op.kind = FR_COLLECTIVE;
  fr_ticket ticket;
  Library::instance().get<void (*)(const fr_op*, fr_ticket*)>("fr_begin")(&op, &ticket);
  Library::instance().get<void (*)(const fr_ticket*)>("fr_enter")(&ticket);
  void* group = comm.group_api();
  void* own = comm.p2p_api(group, "Send");
  comm.stop(own);
  void* other = comm.p2p_api(group, "Send");
  comm.stop(other);
  comm.stop(comm.p2p(own, "Send", 0, 2));
  void* task = comm.p2p(other, "Send", 1, 1);
  comm.stop(group);
  Library::instance().get<int (*)()>("fr_leave")();
  const GroupRow& row = *view().group(id);
  CHECK(row.ended.load() == 0);
  comm.kernel_stop(comm.kernel(task, 0));
  CHECK(row.completed_seq.load() == 0);
  // No wait for it is seen, and it has no transfers: it must not stay in flight for ever.
  while (row.ended.load() == 0) {
    usleep(5000);
  }
  CHECK(row.completed_seq.load() == 0);
  CHECK(row.released.load() == 1);
}
