// slow_exit.cpp - begins and ends the record of an exit that takes long.
#include "watch/slow_exit.hpp"

#include "record/record.hpp"

namespace fr {

void SlowExit::begin(u32 op, u64 now_ns) noexcept {
  if (phase_.load() == kRuns) {
    op_ = op;
    since_ns_ = now_ns;
    signal_before_ = hot() != nullptr ? hot()->header->exit.signal.load() : 0;
    phase_.store(kExits);
  }
}

void SlowExit::look(u64 now_ns) noexcept {
  Hot* h = hot();
  if (h == nullptr || phase_.load() != kExits) {
    return;
  }
  const u64 cpu_ns = clock_now_ns(CLOCK_PROCESS_CPUTIME_ID);
  if (cpu_ns > cpu_ns_ + kBusy_ns) {
    since_ns_ = now_ns;  // teardown of a large process takes long, and works
  }
  cpu_ns_ = cpu_ns;
  if (now_ns < since_ns_ + kQuickExit_ns) {
    return;
  }
  fr_op op{};
  op.struct_bytes = sizeof op;
  op.op = op_;
  op.kind = FR_LIFECYCLE;
  op.peer = -1;
  fr::begin(*h, op, ticket_);
  u32 expected = kExits;
  if (!phase_.compare_exchange_strong(expected, kRecorded)) {
    fr::end(*h, ticket_, State::kCompleted, 0);  // it ended meanwhile
  }
}

void SlowExit::end() noexcept {
  Hot* h = hot();
  if (phase_.exchange(kEnded) == kRecorded && h != nullptr &&
      h->header->exit.signal.load() == signal_before_) {
    fr::end(*h, ticket_, State::kCompleted, 0);
  }
}

}  // namespace fr
