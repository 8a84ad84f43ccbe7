// digest.hpp - how many NaN and Inf tensors have, and two sums over their bytes: on the CPU in one
// pass over memory. device_digest.hpp has the same for devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cstring>
#include <vector>

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

// Counts several elements of kBits bits per word: an addition sets the sign bit of each element
// above the limit. Each lane of the sums counts its own elements; kRun words cannot overflow a
// lane.
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

// How a tensor's elements are to be read.
struct Elements {
  FloatFormat format{};
  bool is_float = false;
  size_t part = 0;  // bytes: of a complex number half of it
};

// False: the elements cannot be read (sparse, quantized, no memory, or a conjugate or negative
// view).
bool elements_of(const c10::TensorImpl& tensor, Elements& e) {
  const c10::DispatchKeySet keys = tensor.key_set();
  if (tensor.layout() != c10::kStrided || !tensor.has_storage() ||
      c10::isQIntType(c10::typeMetaToScalarType(tensor.dtype())) ||
      keys.has(c10::DispatchKey::Conjugate) || keys.has(c10::DispatchKey::Negative)) {
    return false;
  }
  const c10::ScalarType type = c10::typeMetaToScalarType(tensor.dtype());
  e.is_float = float_format(type, e.format);
  e.part = c10::isComplexType(type) ? tensor.itemsize() / 2 : tensor.itemsize();
  return tensor.numel() == 0 || (tensor.data() != nullptr && !(e.is_float && e.part > 8));
}

bool add_tensor(const c10::TensorImpl& tensor, unsigned what, Digest& digest) {
  Elements e;
  if (!tensor.device().is_cpu() || !elements_of(tensor, e)) {
    return false;
  }
  if (tensor.numel() == 0) {
    return true;
  }
  const FloatFormat* format = e.is_float ? &e.format : nullptr;
  if (tensor.is_contiguous()) {
    const auto* bytes = static_cast<const unsigned char*>(tensor.data());
    size_t left = static_cast<size_t>(tensor.numel()) * tensor.itemsize();
    // Blocks that fit the cache: counting and summing then read main memory only once.
    for (size_t n = 0; left > 0; bytes += n, left -= n) {
      n = std::min<size_t>(left, 16384);
      add_block(bytes, n, e.part, format, what, digest);
    }
  } else {
    add_strided(tensor, e.part, format, what, digest);
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

}  // namespace
