// requests.cpp - slots of requests for a dump. Everything here may run in a signal handler, where the
// interrupted thread may hold any lock: so no lock, no allocation, no stdio.
#include "watch/requests.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <iterator>

#include "format/codes.hpp"
#include "format/text.hpp"
#include "format/ticks.hpp"

namespace fr {

const char* trigger_name(Trigger trigger) noexcept {
  using Code = dump::Trigger;
  static constexpr Code kCodes[] = {Code::kTimeout,   Code::kManual, Code::kPeer,
                                    Code::kFailure,   Code::kSignal, Code::kPipe,
                                    Code::kException, Code::kExit,   Code::kCrash,
                                    Code::kSignal,  // kEndSignal
                                    Code::kWentOn};
  static_assert(std::size(kCodes) == static_cast<u32>(Trigger::kWentOn) + 1);
  return word(kCodes[static_cast<u32>(trigger)]);
}

bool DumpRequests::open() noexcept {
  event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return event_fd_ >= 0;
}

void DumpRequests::wake() noexcept {
  const u64 one = 1;
  [[maybe_unused]] const ssize_t n = write(event_fd_, &one, sizeof one);  // full = already awake
}

void DumpRequests::drain() noexcept {
  u64 drained = 0;
  [[maybe_unused]] const ssize_t n = read(event_fd_, &drained, sizeof drained);
}

void DumpRequests::note_signal(int signal) noexcept {
  signal_.store(signal);
  wake();
}

bool DumpRequests::request(const char* reason, Trigger trigger, u64 limit_ns, char* path,
                           std::size_t path_bytes) noexcept {
  if (!is_served()) {
    return false;
  }
  for (Request& q : requests_) {
    u32 state = Request::kFree;
    if (!q.state.compare_exchange_strong(state, Request::kClaimed)) {
      continue;
    }
    q.trigger = trigger;
    format(q.reason, sizeof q.reason, "%s", reason);
    q.state.store(Request::kPosted);
    wake();
    const u64 deadline = monotonic_ns() + limit_ns;
    while (q.state.load() != Request::kDone) {
      if (monotonic_ns() > deadline) {
        state = Request::kPosted;
        if (!q.state.compare_exchange_strong(state, Request::kAbandoned)) {
          state = Request::kRunning;
          q.state.compare_exchange_strong(state, Request::kAbandoned);
        }
        if (q.state.load() != Request::kDone) {
          return false;
        }
        break;
      }
      // A futex would need the watchdog to know the waiters; twice a millisecond costs less.
      const timespec pause{0, 500'000};
      nanosleep(&pause, nullptr);
    }
    const bool ok = q.ok;
    if (path != nullptr && path_bytes > 0) {
      format(path, path_bytes, "%s", q.path);
    }
    q.state.store(Request::kFree);
    return ok;
  }
  return false;
}

void DumpRequests::serve(const char* (*write_dump)(void*, const char*, Trigger),
                         void* context) noexcept {
  for (Request& q : requests_) {
    if (q.state.load() == Request::kAbandoned) {
      q.state.store(Request::kFree);
      continue;
    }
    u32 state = Request::kPosted;
    if (!q.state.compare_exchange_strong(state, Request::kRunning)) {
      continue;
    }
    const char* path = write_dump(context, q.reason, q.trigger);
    q.ok = path != nullptr;
    format(q.path, sizeof q.path, "%s", q.ok ? path : "");
    state = Request::kRunning;
    if (!q.state.compare_exchange_strong(state, Request::kDone)) {
      q.state.store(Request::kFree);  // given up on meanwhile
    }
  }
}

}  // namespace fr
