// device_digest.hpp - the digest of digest.hpp by torch's own operations: they are enqueued on the
// stream that is current on the tensors' device, and the host waits for none of them.
//
// Everything is counted in integers over the raw bytes, so that the numbers are those of the CPU
// whatever the dtype. The sums take no memory beside the tensor: with the words in rows of kRow,
//
//     sum of w(i) * (2 i + 1) = 2 kRow * sum of r * row(r) + sum of (2 c + 1) * column(c)
//
// where row and column are sums of one row or column. Counting takes pieces of kPieceBytes and at
// most twice their memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "digest.hpp"

namespace {

constexpr int64_t kPieceBytes = 32 << 20;
constexpr int64_t kRow = 4096;  // words
constexpr uint64_t kCheckFactor = 0x9e3779b97f4a7c15;

// Nothing of the program's sees our operations: no autograd, no mode, no autocast, no observer.
class Unseen {
  c10::impl::ForceDispatchKeyGuard keys_{
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::default_excluded_set |
          c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot})};
  at::DisableRecordFunctionGuard observers_;
};

class DeviceDigest {
 public:
  DeviceDigest(c10::Device device, unsigned what)
      : device_(device), what_(what), guard_(device.type()), stream_(guard_.getStream(device)) {}

  // False: something cannot be read, or lies elsewhere.
  bool add(const c10::IValue& value) {
    if (value.isTensor()) {
      return add(*value.unsafeToTensorImpl());
    }
    if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (!add(element)) {
          return false;
        }
      }
    }
    return true;
  }

  bool add(const c10::TensorImpl& tensor) {
    Elements e;
    const int64_t n_bytes = tensor.numel() * static_cast<int64_t>(tensor.itemsize());
    if (tensor.device() != device_ || !elements_of(tensor, e) ||
        tensor.key_set().has(c10::DispatchKey::Python) ||
        (!tensor.is_contiguous() && n_bytes > kPieceBytes)) {
      return false;
    }
    if (n_bytes == 0) {
      return true;
    }
    // Its memory is not used anew before what is enqueued here has read it.
    guard_.recordDataPtrOnStream(tensor.storage().data_ptr(), stream_);
    at::Tensor copy;
    auto* data = static_cast<char*>(const_cast<void*>(tensor.data()));
    if (!tensor.is_contiguous()) {
      const c10::ScalarType type = c10::typeMetaToScalarType(tensor.dtype());
      copy = at::for_blob(data, tensor.sizes())
                 .strides(tensor.strides())
                 .options(of_type(type))
                 .target_device(device_)
                 .make_tensor()
                 .clone(at::MemoryFormat::Contiguous);
      data = static_cast<char*>(copy.data_ptr());
    }
    if ((what_ & kCount) != 0 && e.is_float) {
      count(data, n_bytes, e);
    }
    if ((what_ & kSum) != 0) {
      add_words(data, n_bytes);
    }
    return true;
  }

  // {NaN, Inf, sum, weighted sum, check} on the device; see Digest and is_whole().
  at::Tensor result(uint64_t nonce) {
    at::Tensor zero = at::zeros({}, of_type(at::kLong));
    const auto or_zero = [&](const at::Tensor& t) { return t.defined() ? t : zero; };
    const at::Tensor words =
        at::stack({or_zero(nan_), or_zero(inf_), or_zero(sum_), or_zero(weighted_)});
    const at::Tensor check = words.sum().mul(number(kCheckFactor)).add(number(nonce));
    return at::cat({words, check.reshape({1})});
  }

 private:
  static at::Scalar number(uint64_t n) { return at::Scalar(static_cast<int64_t>(n)); }
  at::TensorOptions of_type(c10::ScalarType type) const {
    return at::TensorOptions().device(device_).dtype(type);
  }
  at::Tensor at_memory(char* data, at::IntArrayRef sizes, c10::ScalarType type) const {
    return at::for_blob(data, sizes).options(of_type(type)).target_device(device_).make_tensor();
  }
  static void add_to(at::Tensor& sum, const at::Tensor& more) {
    sum = sum.defined() ? sum.add(more) : more;
  }

  void count(char* data, int64_t n_bytes, const Elements& e) {
    const c10::ScalarType type = e.part == 1   ? at::kByte
                                 : e.part == 2 ? at::kShort
                                 : e.part == 4 ? at::kInt
                                               : at::kLong;
    const FloatFormat& f = e.format;
    for (int64_t at = 0; at < n_bytes; at += kPieceBytes) {
      const int64_t n = std::min(n_bytes - at, kPieceBytes) / static_cast<int64_t>(e.part);
      const at::Tensor bits = at_memory(data + at, {n}, type).bitwise_and(number(f.magnitude));
      if (f.infinite == 0) {
        add_to(nan_, count_true(bits.eq(number(f.nan))));
      } else {
        add_to(nan_, count_true(bits.gt(number(f.infinite))));
        add_to(inf_, count_true(bits.eq(number(f.infinite))));
      }
    }
  }

  // torch sums bytes by way of 64 bits for each. Here eight lanes of a word count up to kRun first.
  at::Tensor count_true(const at::Tensor& mask) const {
    constexpr int64_t kRun = 128;
    auto* bytes = static_cast<char*>(mask.data_ptr());
    const int64_t runs = mask.numel() / (8 * kRun);
    const int64_t rest = mask.numel() - runs * 8 * kRun;
    at::Tensor n = at_memory(bytes + runs * 8 * kRun, {rest}, at::kByte).sum();
    if (runs > 0) {
      const at::Tensor lanes = at_memory(bytes, {runs, kRun}, at::kLong).sum(at::IntArrayRef{1});
      n = n.add(at_memory(static_cast<char*>(lanes.data_ptr()), {8 * runs}, at::kByte).sum());
    }
    return n;
  }

  void add_words(char* data, int64_t n_bytes) {
    if (reinterpret_cast<uintptr_t>(data) % 8 == 0) {
      add_aligned(data, n_bytes);
      return;
    }
    for (int64_t at = 0; at < n_bytes; at += kPieceBytes) {
      const int64_t n = std::min(n_bytes - at, kPieceBytes);
      const at::Tensor copy = at_memory(data + at, {n}, at::kByte).clone();
      add_aligned(static_cast<char*>(copy.data_ptr()), n);
    }
  }

  void add_aligned(char* data, int64_t n_bytes) {
    const int64_t rows = n_bytes / (8 * kRow);
    if (rows > 0) {
      const at::Tensor words = at_memory(data, {rows, kRow}, at::kLong);
      const at::Tensor by_row = words.sum(at::IntArrayRef{1});
      const at::Tensor by_column = words.sum(at::IntArrayRef{0});
      const at::Tensor numbers = at::arange(rows, of_type(at::kLong));
      add_sums(by_row.sum(),
               by_row.mul(numbers).sum().mul(2 * kRow).add(by_column.mul(odd(kRow)).sum()),
               rows * kRow);
    }
    data += rows * kRow * 8;
    n_bytes -= rows * kRow * 8;
    if (n_bytes > 0) {  // the rest, filled with zeros
      const int64_t n = (n_bytes + 7) / 8;
      const at::Tensor words = at::zeros({n}, of_type(at::kLong));
      at_memory(static_cast<char*>(words.data_ptr()), {n_bytes}, at::kByte)
          .copy_(at_memory(data, {n_bytes}, at::kByte));
      add_sums(words.sum(), words.mul(odd(n)).sum(), n);
    }
  }

  at::Tensor odd(int64_t n) const { return at::arange(1, 2 * n, 2, of_type(at::kLong)); }

  // weighted: as if no words came before.
  void add_sums(const at::Tensor& sum, const at::Tensor& weighted, int64_t n_words) {
    add_to(weighted_, words_ == 0 ? weighted : weighted.add(sum, 2 * words_));
    add_to(sum_, sum);
    words_ += n_words;
  }

  const c10::Device device_;
  const unsigned what_;
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream stream_;
  at::Tensor nan_, inf_, sum_, weighted_;
  int64_t words_ = 0;
};

constexpr int64_t kResultWords = 5;

// All of a result has arrived, and it is that of this nonce.
bool is_whole(const uint64_t words[kResultWords], uint64_t nonce) {
  return (words[0] + words[1] + words[2] + words[3]) * kCheckFactor + nonce == words[4];
}

}  // namespace
