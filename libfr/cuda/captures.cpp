// captures.cpp - which streams are being captured.
#include "cuda/captures.hpp"

#include "cuda/operations.hpp"
#include "recorder/recorder.hpp"

namespace fr::cuda {
namespace {

constexpr u64 kPerThread = 1ull << 63;  // no pointer has it

constexpr u32 kCaptures = 32;
struct CaptureRow {
  std::atomic<u64> key{0};  // 0: free
  std::atomic<u64> since_ns{0};
};
CaptureRow g_captured[kCaptures];
std::atomic<u32> g_n_captured{0};

// A thread's own default stream is the only default stream that can be captured.
u64 key_of_capture(Stream stream) noexcept {
  return is_default_stream(stream) ? kPerThread | own_tid() : reinterpret_cast<u64>(stream);
}

template <class Which>
void end_where(Which which) noexcept {
  if (!is_capturing()) {
    return;
  }
  u32 ended = 0;
  for (CaptureRow& row : g_captured) {
    u64 key = row.key.load();
    if (key != 0 && which(row, key) && row.key.compare_exchange_strong(key, 0)) {
      ++ended;
    }
  }
  if (ended != 0) {
    g_n_captured.fetch_sub(ended);
    kOperations.capture_changed();
  }
}

}  // namespace

void capture_began(Stream stream) noexcept {
  const u64 key = key_of_capture(stream);
  // An earlier capture of this stream is over: otherwise it could not begin another one.
  end_where([key](const CaptureRow&, u64 other) { return other == key; });
  for (CaptureRow& row : g_captured) {
    u64 none = 0;
    if (row.key.load() == 0) {
      row.since_ns.store(monotonic_ns());
      if (row.key.compare_exchange_strong(none, key)) {
        g_n_captured.fetch_add(1);
        break;
      }
    }
  }
  kOperations.capture_changed();
}

void capture_ended(Stream stream) noexcept {
  const u64 key = key_of_capture(stream);
  end_where([key](const CaptureRow&, u64 other) { return other == key; });
}

void captures_ended() noexcept {
  end_where([](const CaptureRow&, u64) { return true; });
}

void lapse_captures() noexcept {
  constexpr u64 kNoTimeout_ns = 60'000'000'000;
  const Recorder* r = is_capturing() ? recorder() : nullptr;
  if (r == nullptr) {
    return;
  }
  const u64 limit_ns = r->options.timeout_ns != 0 ? r->options.timeout_ns : kNoTimeout_ns;
  const u64 now_ns = monotonic_ns();
  end_where([=](const CaptureRow& row, u64) { return row.since_ns.load() + limit_ns < now_ns; });
}

bool is_capturing() noexcept {
  return g_n_captured.load(std::memory_order_relaxed) != 0;
}

}  // namespace fr::cuda
