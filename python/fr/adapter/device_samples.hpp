// device_samples.hpp - samples of tensors on a device, on their way to the ring.
//
//   issue, wait()                       the device's stream         fr-watchdog, every 100 ms
//   a slot is reserved, the digest and  ... digest, copy into the   a slot with a right check
//   a copy of it are enqueued           slot's pinned memory        becomes a record
//
// The host never waits and never queries the device: the check in a slot's memory shows whether the
// slot has arrived. Records are made in the order in which samples were enqueued. A missed sample
// (no free slot, or an unreadable tensor) is a record too, at its place in that order.
#pragma once

#include <ATen/ops/empty.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device_digest.hpp"
#include "fr/fr.h"
#include "groups.hpp"

namespace {

// Samples of this process, those on the CPU included; every() of fingerprint.hpp sets them to 0 in
// a forked child.
std::atomic<uint64_t> g_recorded{0}, g_missed{0};

void record_sample(fr_op op, const fr_ticket& ticket, uint32_t side, const Digest& digest) {
  (side == FR_SAMPLE_MISSED ? g_missed : g_recorded).fetch_add(1, std::memory_order_relaxed);
  uint32_t words[FR_SAMPLE_WORDS] = {side, 0};
  const auto put = [&](uint32_t at, uint64_t value) {
    words[at] = static_cast<uint32_t>(value);
    words[at + 1] = static_cast<uint32_t>(value >> 32);
  };
  put(FR_SAMPLE_NAN, digest.nan);
  put(FR_SAMPLE_INF, digest.inf);
  put(FR_SAMPLE_SUM, digest.sum);
  put(FR_SAMPLE_WEIGHTED, digest.weighted);
  op.kind = FR_SAMPLE;
  op.flags = 0;
  op.seq = ticket.seq;
  op.shape = words;
  op.n_shape = FR_SAMPLE_WORDS;
  fr_ticket unused;
  g_api->begin(&op, &unused);
}

// For tests: tensors on the CPU are sampled as on a device; their copies are held until released.
enum Rehearsal : int { kNoRehearsal = 0, kHeld, kAtOnce };
std::atomic<int> g_rehearsal{kNoRehearsal};

// The operation and the side of it that a sample describes.
struct Sampled {
  fr_op op;
  fr_ticket ticket;
  uint32_t side;
};

class DeviceSamples {
 public:
  static constexpr uint64_t kSlots = 8;

  explicit DeviceSamples(uint32_t generation) : generation_(generation) {}

  // Whether tensors there are sampled at all.
  static bool serves(c10::Device device) {
#ifdef FR_GUARD_HAS_isStreamCapturing
    const bool on_cuda = device.is_cuda();
#else
    const bool on_cuda = device.is_cuda() && capturing() >= 0;
#endif
    return on_cuda || (device.is_cpu() && g_rehearsal.load() != kNoRehearsal);
  }

  // Enqueues the digest on the stream that is current on that device.
  void take(const c10::IValue& tensors, c10::Device device, unsigned what,
            const Sampled& of) noexcept {
    if (off_[static_cast<uint8_t>(device.index())].load()) {
      miss(of, nullptr);
      return;
    }
    try {
      if (is_capturing(device)) {
        return;  // nothing runs during capture, and replays are not recorded
      }
    } catch (...) {
      miss(of, "torch could not tell whether the stream is captured");
      return;
    }
    Slot* slot = reserve(of);
    if (slot == nullptr) {
      miss(of, "more were on their way at once than there is room for");
      return;
    }
    const bool done = enqueue(*slot, tensors, device, what);
    slot->state.store(done ? kEnqueued : kMissed, std::memory_order_release);
  }

  // why: the reason, logged once; nullptr: it is logged already.
  void miss(const Sampled& of, const char* why) noexcept {
    if (why != nullptr) {
      say(why);
    }
    if (Slot* slot = reserve(of)) {
      slot->state.store(kMissed, std::memory_order_release);
      return;
    }
    const std::lock_guard<std::mutex> guard(lock_);
    if (head_ == tail_) {
      record_missed(of, 1);
    } else {
      ++slots_[(tail_ - 1) % kSlots].missed_after;
    }
  }

  // Records the samples that have arrived. Never waits, since the watchdog's thread calls it, too.
  void record_arrived() noexcept {
    const std::unique_lock<std::mutex> guard(lock_, std::try_to_lock);
    if (!guard.owns_lock()) {
      return;
    }
    for (; head_ != tail_; ++head_) {
      Slot& slot = slots_[head_ % kSlots];
      const uint8_t state = slot.state.load(std::memory_order_acquire);
      if (state == kFilling || (state == kEnqueued && !record_if_whole(slot))) {
        return;
      }
      const uint64_t missed = slot.missed_after + (state == kMissed ? 1 : 0);
      if (missed != 0) {
        record_missed(slot.of, missed);
      }
    }
  }

  uint32_t generation() const { return generation_; }
  uint64_t waiting() {
    const std::lock_guard<std::mutex> guard(lock_);
    return tail_ - head_;
  }

  // In a rehearsal: lets the first n held copies arrive.
  void release(size_t n) {
    const std::lock_guard<std::mutex> guard(lock_);
    for (; n > 0 && !held_.empty(); --n) {
      held_.front().first.copy_(held_.front().second);
      held_.erase(held_.begin());
    }
  }

 private:
  enum State : uint8_t { kFilling, kEnqueued, kMissed };
  struct Slot {
    std::atomic<uint8_t> state{kFilling};
    uint64_t missed_after = 0;
    uint64_t nonce = 0;
    Sampled of{};
  };

  static bool is_capturing(c10::Device device) {
#ifdef FR_GUARD_HAS_isStreamCapturing
    const c10::impl::VirtualGuardImpl guard(device.type());
    return guard.isStreamCapturing(guard.getStream(device));
#else
    return device.is_cuda() && capturing() != 0;  // some stream of the process
#endif
  }

  // For torch before 2.13: its guards do not report captures; see fr_capturing.
  static int capturing() {
    constexpr size_t kWith = offsetof(fr_api, capturing) + sizeof(fr_api::capturing);
    return g_api->struct_bytes >= kWith ? g_api->capturing() : -1;
  }

  Slot* reserve(const Sampled& of) noexcept {
    record_arrived();
    const std::lock_guard<std::mutex> guard(lock_);
    if (tail_ - head_ == kSlots) {
      return nullptr;
    }
    Slot& slot = slots_[tail_ % kSlots];
    slot.state.store(kFilling, std::memory_order_relaxed);
    slot.missed_after = 0;
    slot.nonce = (++tail_ + (static_cast<uint64_t>(generation_) << 32)) * 0xbf58476d1ce4e5b9;
    slot.of = of;
    return &slot;
  }

  bool enqueue(Slot& slot, const c10::IValue& tensors, c10::Device device, unsigned what) noexcept {
    try {
      const Unseen unseen;
      std::call_once(has_host_, [&] {
        const auto options = at::TensorOptions().dtype(at::kLong).device(at::kCPU);
        host_ = at::empty({static_cast<int64_t>(kSlots), kResultWords},
                          options.pinned_memory(!device.is_cpu()));
        host_.zero_();
      });
      DeviceDigest digest(device, what);
      if (!digest.add(tensors)) {
        say("their elements cannot be read, or are strided and take more than 32 MiB");
        return false;
      }
      const at::Tensor result = digest.result(slot.nonce);
      at::Tensor place = host_.select(0, &slot - slots_.data());
      if (g_rehearsal.load() == kHeld) {
        const std::lock_guard<std::mutex> guard(lock_);
        held_.emplace_back(place, result);
      } else {
        place.copy_(result, /*non_blocking=*/true);
      }
      return true;
    } catch (const c10::Error& error) {
      switch_off(device, error.what_without_backtrace());
    } catch (const std::exception& error) {
      switch_off(device, error.what());
    } catch (...) {
      switch_off(device, "unknown exception");
    }
    return false;
  }

  void switch_off(c10::Device device, const char* why) noexcept {
    if (off_[static_cast<uint8_t>(device.index())].exchange(true)) {
      return;
    }
    try {
      std::string text = device.str() + " is not sampled any more: " + why;
      say(text.substr(0, text.find('\n')).c_str());
    } catch (...) {
      say("no memory");
    }
  }

  // Logs each reason once.
  void say(const char* why) noexcept {
    try {
      {
        const std::lock_guard<std::mutex> guard(lock_);
        if (said_.size() == 16 || std::find(said_.begin(), said_.end(), why) != said_.end()) {
          return;
        }
        said_.emplace_back(why);
      }
      const std::string text =
          std::string("FR_FINGERPRINT: samples on a device are missed: ") + why;
      g_api->log(1, text.c_str());
      g_api->set_layer("samples", text.c_str());
    } catch (...) {
      // no memory
    }
  }

  // The memory is read by peek, since the driver unmaps it while the process exits.
  bool record_if_whole(const Slot& slot) noexcept {
    uint64_t words[kResultWords];
    const auto* at = static_cast<const uint64_t*>(host_.const_data_ptr()) +
                     static_cast<size_t>(&slot - slots_.data()) * kResultWords;
    if (g_api->peek(reinterpret_cast<uint64_t>(at), words, sizeof words) != sizeof words ||
        !is_whole(words, slot.nonce)) {
      return false;
    }
    Digest digest;
    digest.nan = words[0];
    digest.inf = words[1];
    digest.sum = words[2];
    digest.weighted = words[3];
    record_sample(slot.of.op, slot.of.ticket, slot.of.side, digest);
    return true;
  }

  // Writes one record for n consecutive missed samples; g_missed counts all of them.
  void record_missed(const Sampled& of, uint64_t n) noexcept {
    record_sample(of.op, of.ticket, FR_SAMPLE_MISSED, Digest());
    g_missed.fetch_add(n - 1, std::memory_order_relaxed);
  }

  const uint32_t generation_;
  std::mutex lock_;  // never held while something is enqueued
  uint64_t head_ = 0, tail_ = 0;
  std::array<Slot, kSlots> slots_;
  std::once_flag has_host_;
  at::Tensor host_;  // a row per slot
  std::array<std::atomic<bool>, 256> off_{};
  std::vector<std::string> said_;
  std::vector<std::pair<at::Tensor, at::Tensor>> held_;
};

// Never destroyed: the watchdog's thread reads it until the process ends. A forked child makes its
// own.
std::atomic<DeviceSamples*> g_device_samples{nullptr};

void device_tick() {
  DeviceSamples* samples = g_device_samples.load(std::memory_order_acquire);
  if (samples != nullptr && samples->generation() == g_api->generation()) {
    samples->record_arrived();
  }
}

DeviceSamples& device_samples(uint32_t generation) {
  DeviceSamples* known = g_device_samples.load(std::memory_order_acquire);
  if (known != nullptr && known->generation() == generation) {
    return *known;
  }
  auto made = std::make_unique<DeviceSamples>(generation);
  if (!g_device_samples.compare_exchange_strong(known, made.get())) {
    return *known;
  }
  g_api->set_tick(device_tick);
  return *made.release();
}

}  // namespace
