// fingerprint.hpp - FR_FINGERPRINT: of one operation in N, how many NaN and Inf its inputs have, and
// a digest of its outputs. N counts by the group's own numbers, so all members take the same ones.
//
// The inputs are read before the operation, on the thread that issues it; the outputs on the thread
// that learns of the end, before whoever waits may change them. CPU tensors only.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "completion.hpp"

namespace {

struct Digest {
  uint64_t nan = 0, inf = 0, sum = 0, weighted = 0;
  uint64_t words = 0;  // so far
};

// Elements of a floating-point format by their bits.
struct FloatFormat {
  uint64_t magnitude;  // all bits but the sign
  uint64_t infinite;   // magnitude of Inf, NaN above it; 0: no Inf
  uint64_t nan;        // the only magnitude of NaN, where there is no Inf
};

bool float_format(c10::ScalarType type, FloatFormat& format) {
  switch (type) {
    case c10::ScalarType::Half:
    case c10::ScalarType::ComplexHalf:
      format = {0x7fff, 0x7c00, 0};
      return true;
    case c10::ScalarType::BFloat16:
      format = {0x7fff, 0x7f80, 0};
      return true;
    case c10::ScalarType::Float:
    case c10::ScalarType::ComplexFloat:
      format = {0x7fffffff, 0x7f800000, 0};
      return true;
    case c10::ScalarType::Double:
    case c10::ScalarType::ComplexDouble:
      format = {0x7fffffffffffffff, 0x7ff0000000000000, 0};
      return true;
    default:
      break;
  }
  // Types that some releases of torch do not have.
  const char* name = c10::toString(type);
  const auto is = [name](const char* other) { return std::strcmp(name, other) == 0; };
  if (is("Float8_e5m2")) {
    format = {0x7f, 0x7c, 0};
  } else if (is("Float8_e4m3fn")) {
    format = {0x7f, 0, 0x7f};
  } else if (is("Float8_e4m3fnuz") || is("Float8_e5m2fnuz")) {
    format = {0xff, 0, 0x80};
  } else if (is("Float8_e8m0fnu")) {
    format = {0xff, 0, 0xff};
  } else {
    return false;
  }
  return true;
}

// Several elements of kBits bits in a word: an addition carries into the sign bit of those above the
// limit. Each lane of the sums counts its own; a run is short enough for them.
template <unsigned kBits>
__attribute__((optimize("O3"))) void count_floats(const unsigned char* bytes, size_t n_bytes,
                                                  const FloatFormat& format, Digest& digest) {
  constexpr uint64_t kLane = kBits == 64 ? ~0ull : (1ull << (kBits % 64)) - 1;
  constexpr uint64_t kOnes = ~0ull / kLane;
  constexpr uint64_t kHigh = 1ull << (kBits - 1);
  constexpr size_t kRun = kBits == 8 ? 255 : 32768;  // words
  const uint64_t limit = format.infinite != 0 ? format.infinite : format.nan;
  const uint64_t magnitude = format.magnitude * kOnes;
  const uint64_t to_above = (kHigh - 1 - limit) * kOnes, to_reached = (kHigh - limit) * kOnes;
  uint64_t above = 0, reached = 0;
  while (n_bytes > 0) {
    uint64_t run_above = 0, run_reached = 0;
    const auto add = [&](uint64_t word) {
      word &= magnitude;
      run_above += ((word + to_above) >> (kBits - 1)) & kOnes;
      run_reached += ((word + to_reached) >> (kBits - 1)) & kOnes;
    };
    size_t n = n_bytes / 8;
    n = n < kRun ? n : kRun;
    for (size_t i = 0; i < n; ++i) {
      uint64_t word = 0;
      std::memcpy(&word, bytes + 8 * i, 8);
      add(word);
    }
    bytes += 8 * n;
    n_bytes -= 8 * n;
    if (n == 0) {  // the rest, filled with zeros
      uint64_t word = 0;
      std::memcpy(&word, bytes, n_bytes);
      add(word);
      n_bytes = 0;
    }
    for (unsigned lane = 0; lane < 64; lane += kBits) {
      above += run_above >> lane & kLane;
      reached += run_reached >> lane & kLane;
    }
  }
  digest.nan += format.infinite != 0 ? above : reached;
  digest.inf += format.infinite != 0 ? reached - above : 0;
}

// Formats of 8 bits in which all bits together say NaN.
void count_bytes(const unsigned char* bytes, size_t n_bytes, uint64_t nan, Digest& digest) {
  for (size_t i = 0; i < n_bytes; ++i) {
    digest.nan += bytes[i] == nan;
  }
}

__attribute__((optimize("O3"))) void add_words(const unsigned char* bytes, size_t n_bytes,
                                               Digest& digest) {
  uint64_t sum = 0, weighted = 0, weight = 2 * digest.words + 1;
  size_t at = 0;
  for (; at + 8 <= n_bytes; at += 8, weight += 2) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, 8);
    sum += word;
    weighted += word * weight;
  }
  if (at < n_bytes) {
    uint64_t word = 0;
    std::memcpy(&word, bytes + at, n_bytes - at);
    sum += word;
    weighted += word * weight;
  }
  digest.sum += sum;
  digest.weighted += weighted;
  digest.words += (n_bytes + 7) / 8;
}

enum : unsigned { kCount = 1, kSum = 2 };

void add_block(const unsigned char* bytes, size_t n_bytes, size_t part, const FloatFormat* format,
               unsigned what, Digest& digest) {
  if ((what & kSum) != 0) {
    add_words(bytes, n_bytes, digest);
  }
  if ((what & kCount) == 0 || format == nullptr) {
    return;
  }
  switch (part) {
    case 1:
      if (format->magnitude == 0xff) {
        return count_bytes(bytes, n_bytes, format->nan, digest);
      }
      return count_floats<8>(bytes, n_bytes, *format, digest);
    case 2:
      return count_floats<16>(bytes, n_bytes, *format, digest);
    case 4:
      return count_floats<32>(bytes, n_bytes, *format, digest);
    default:
      return count_floats<64>(bytes, n_bytes, *format, digest);
  }
}

// Elements of a strided tensor in the order of their indices, a block at a time.
void add_strided(const c10::TensorImpl& tensor, size_t part, const FloatFormat* format,
                 unsigned what, Digest& digest) {
  constexpr size_t kBlock = 4096;
  unsigned char block[kBlock];
  size_t used = 0;
  const c10::IntArrayRef sizes = tensor.sizes();
  const c10::IntArrayRef strides = tensor.strides();
  const size_t size = tensor.itemsize();
  std::vector<int64_t> index(sizes.size(), 0);
  const auto* element = static_cast<const unsigned char*>(tensor.data());
  for (int64_t left = tensor.numel(); left > 0; --left) {
    std::memcpy(block + used, element, size);
    used += size;
    if (used + size > kBlock || left == 1) {
      add_block(block, used, part, format, what, digest);
      used = 0;
    }
    for (size_t d = sizes.size(); d-- > 0;) {
      element += strides[d] * static_cast<int64_t>(size);
      if (++index[d] < sizes[d]) {
        break;
      }
      element -= sizes[d] * strides[d] * static_cast<int64_t>(size);
      index[d] = 0;
    }
  }
}

// False: its elements cannot be read here (sparse, quantized, on a device, bits turned by a flag).
bool add_tensor(const c10::TensorImpl& tensor, unsigned what, Digest& digest) {
  if (tensor.layout() != c10::kStrided || !tensor.has_storage() || !tensor.device().is_cpu() ||
      c10::isQIntType(c10::typeMetaToScalarType(tensor.dtype())) ||
      tensor.key_set().has(c10::DispatchKey::Conjugate) ||
      tensor.key_set().has(c10::DispatchKey::Negative)) {
    return false;
  }
  if (tensor.numel() == 0) {
    return true;
  }
  const c10::ScalarType type = c10::typeMetaToScalarType(tensor.dtype());
  FloatFormat format{};
  const bool is_float = float_format(type, format);
  const size_t part = c10::isComplexType(type) ? tensor.itemsize() / 2 : tensor.itemsize();
  if (tensor.data() == nullptr || (is_float && part > 8)) {
    return false;
  }
  if (tensor.is_contiguous()) {
    const auto* bytes = static_cast<const unsigned char*>(tensor.data());
    size_t left = static_cast<size_t>(tensor.numel()) * tensor.itemsize();
    // What the cache holds is counted and summed in one pass over memory.
    for (size_t n = 0; left > 0; bytes += n, left -= n) {
      n = std::min<size_t>(left, 16384);
      add_block(bytes, n, part, is_float ? &format : nullptr, what, digest);
    }
  } else {
    add_strided(tensor, part, is_float ? &format : nullptr, what, digest);
  }
  return true;
}

bool add_all(const c10::IValue& value, unsigned what, Digest& digest) {
  if (value.isTensor()) {
    return add_tensor(*value.unsafeToTensorImpl(), what, digest);
  }
  if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (!add_all(element, what, digest)) {
        return false;
      }
    }
  }
  return true;
}

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
  return n;
}

bool is_sampled(const fr_ticket& ticket, uint32_t generation) {
  const uint32_t n = every(generation);
  return n != 0 && ticket.kind == FR_COLLECTIVE && ticket.ticket != 0 && ticket.seq % n == 0;
}

void record_sample(fr_op op, const fr_ticket& ticket, uint32_t side, const Digest& digest) {
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

// The outputs of an operation that was issued, until it ends.
class OutputSample {
 public:
  OutputSample(const c10::IValue& outputs, const fr_op& op, const fr_ticket& ticket, bool same)
      : outputs_(outputs),
        op_(op),
        ticket_(ticket),
        side_(same ? FR_SAMPLE_SAME_OUTPUT : FR_SAMPLE_OUTPUT) {
    op_.stack = 0;
  }
  // The first call reads them; the others wait for it: the caller may write to them after that.
  void take() noexcept {
    const std::lock_guard<std::mutex> guard(lock_);
    if (is_taken_) {
      return;
    }
    is_taken_ = true;
    try {
      Digest digest;
      if (add_all(outputs_, side_ == FR_SAMPLE_SAME_OUTPUT ? kCount | kSum : kCount, digest)) {
        record_sample(op_, ticket_, side_, digest);
      }
    } catch (...) {
      // no memory, or a tensor that was taken apart meanwhile: not sampled
    }
    outputs_ = c10::IValue();
  }

 private:
  std::mutex lock_;
  bool is_taken_ = false;
  c10::IValue outputs_;
  fr_op op_;
  const fr_ticket ticket_;
  const uint32_t side_;
};

// Stands in for the Work of a sampled operation: nobody gets past it before the sample is taken.
class SampledWork final : public ForwardedWork {
 public:
  SampledWork(c10::intrusive_ptr<c10d::Work> inner, std::shared_ptr<OutputSample> sample)
      : ForwardedWork(std::move(inner)), sample_(std::move(sample)) {}

  bool isCompleted() override {
    const bool completed = inner_->isCompleted();
    if (completed && inner_->isSuccess()) {
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
  const std::shared_ptr<OutputSample> sample_;
  std::mutex lock_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace
