// fingerprint.hpp - FR_FINGERPRINT: for one operation in N, counts the NaN and Inf of its inputs
// and takes a digest of its outputs. The group's sequence numbers decide, so that all members
// sample the same operations.
//
// On the CPU the inputs are read before the operation, on the thread that issues it; the outputs on
// the thread that observes the completion, before any waiting thread can change them. On a device
// both are enqueued on the caller's stream (device_samples.hpp).
#pragma once

#include <c10/core/Event.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>

#include "completion.hpp"
#include "device_samples.hpp"
#include "digest.hpp"

namespace {

// ---------------------------------------------------------------- which operations

std::atomic<uint64_t> g_every{0};  // generation << 32 | FR_FINGERPRINT

uint32_t every(uint32_t generation) {
  const uint64_t known = g_every.load(std::memory_order_relaxed);
  if (known >> 32 == generation) {
    return static_cast<uint32_t>(known);
  }
  char text[32] = "";
  g_api->option("FR_FINGERPRINT", text, sizeof text);
  const auto n = static_cast<uint32_t>(std::strtoul(text, nullptr, 10));
  g_every.store(static_cast<uint64_t>(generation) << 32 | n, std::memory_order_relaxed);
  g_recorded.store(0);
  g_missed.store(0);
  return n;
}

bool is_sampled(const fr_ticket& ticket, uint32_t generation) {
  const uint32_t n = every(generation);
  return n != 0 && ticket.kind == FR_COLLECTIVE && ticket.ticket != 0 && ticket.seq % n == 0;
}

// The outputs of an operation that was issued, until it ends.
class OutputSample {
 public:
  // device: of the outputs.
  OutputSample(const c10::IValue& outputs, const Sampled& of, c10::Device device)
      : outputs_(outputs), of_(of), device_(device), is_on_device_(DeviceSamples::serves(device)) {
    of_.op.stack = 0;
  }
  ~OutputSample() {
    if (!is_taken_) {
      miss("the caller did not wait for the operation");
    }
  }
  bool is_on_device() const { return is_on_device_; }

  // The first call reads the outputs; other calls wait for it, since the caller may write to the
  // outputs afterwards. On a device both happen on the current stream, which waits for the
  // operation.
  void take() noexcept {
    const std::lock_guard<std::mutex> guard(lock_);
    const bool is_first = !std::exchange(is_taken_, true);
    if (is_on_device_) {
      if (is_first && of_generation_ == g_api->generation()) {
        device_samples(of_generation_).take(outputs_, device_, what(), of_);
      }
      order_streams(is_first);
    } else if (is_first) {
      read();
    }
    outputs_ = c10::IValue();
  }

  // why: see DeviceSamples.
  void miss(const char* why) noexcept {
    is_taken_ = true;
    if (of_generation_ != g_api->generation()) {
      return;
    }
    if (is_on_device_) {
      device_samples(of_generation_).miss(of_, why);
    } else {
      record_sample(of_.op, of_.ticket, FR_SAMPLE_MISSED, Digest());
    }
  }

 private:
  unsigned what() const { return of_.side == FR_SAMPLE_SAME_OUTPUT ? kCount | kSum : kCount; }

  void read() noexcept {
    try {
      Digest digest;
      const bool is_read = add_all(outputs_, what(), digest);
      record_sample(of_.op, of_.ticket, is_read ? of_.side : FR_SAMPLE_MISSED,
                    is_read ? digest : Digest());
    } catch (...) {
      // no memory, or a tensor that was taken apart meanwhile: not sampled
    }
  }

  // A second stream that waits for the operation waits for the sample, too.
  void order_streams(bool is_first) noexcept {
    if (device_.is_cpu()) {
      return;
    }
    try {
      const c10::Stream stream = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
      if (is_first) {
        sampled_.emplace(device_.type());
        sampled_->record(stream);
      } else if (sampled_) {
        sampled_->block(stream);
      }
    } catch (...) {
      // the device failed: the program learns of it by its own next call
    }
  }

  std::mutex lock_;
  bool is_taken_ = false;
  c10::IValue outputs_;
  Sampled of_;
  const c10::Device device_;
  const bool is_on_device_;
  const uint32_t of_generation_ = g_api->generation();
  std::optional<c10::Event> sampled_;
};

// Stands in for the Work of a sampled operation: no wait returns before the sample is taken.
class SampledWork final : public ForwardedWork {
 public:
  SampledWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<OutputSample> sample)
      : ForwardedWork(std::move(inner)), sample_(std::move(sample)) {}

  bool isCompleted() override {
    const bool completed = inner_->isCompleted();
    // On a device the caller's streams may not wait for the operation yet.
    if (completed && inner_->isSuccess() && !sample_->is_on_device()) {
      sample_->take();
    }
    return completed;
  }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool completed = inner_->wait(timeout);
    if (completed) {
      sample_->take();
    }
    return completed;
  }
  void synchronize() override {
    inner_->synchronize();
    take_on_device();
  }
#ifdef FR_WORK_HAS_blockCurrentStream
  void blockCurrentStream() override {
    inner_->blockCurrentStream();
    take_on_device();
  }
#endif
  // The callbacks of a device's future run when the operation is enqueued, on streams that wait for
  // it, and what waits for the new future waits for those.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    const std::lock_guard<std::mutex> guard(lock_);
    if (!future_) {
      const auto inner = inner_->getFuture();
      future_ = inner->then(
          [sample = sample_](c10::ivalue::Future& done) {
            const c10::IValue value = done.value();  // throws what the operation failed with
            sample->take();
            return value;
          },
          inner->elementType());
    }
    return future_;
  }

 private:
  void take_on_device() noexcept {
    if (sample_->is_on_device()) {
      sample_->take();
    }
  }

  const std::shared_ptr<OutputSample> sample_;
  std::mutex lock_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace
