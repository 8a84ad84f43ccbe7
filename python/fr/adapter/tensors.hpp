// tensors.hpp - a tensor among the variables of a sampled frame, read from memory that may be gone.
#pragma once

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "groups.hpp"

namespace {

#ifdef FR_TENSOR_LAYOUT
// Members as the compiler lays them out; only their places are taken.
struct Layout : c10::TensorImpl {
  static constexpr auto kSizes = &Layout::sizes_and_strides_;
  static constexpr auto kType = &Layout::data_type_;
  static constexpr auto kDevice = &Layout::device_opt_;
  bool symbolic() const { return has_symbolic_sizes_strides_; }
};

void name_dtype(c10::ScalarType type, char* out, size_t size) noexcept {
  static constexpr struct {
    c10::ScalarType type;
    const char* name;
  } kNames[] = {{c10::ScalarType::Byte, "uint8"},
                {c10::ScalarType::Char, "int8"},
                {c10::ScalarType::Short, "int16"},
                {c10::ScalarType::Int, "int32"},
                {c10::ScalarType::Long, "int64"},
                {c10::ScalarType::Half, "float16"},
                {c10::ScalarType::Float, "float32"},
                {c10::ScalarType::Double, "float64"},
                {c10::ScalarType::ComplexHalf, "complex32"},
                {c10::ScalarType::ComplexFloat, "complex64"},
                {c10::ScalarType::ComplexDouble, "complex128"}};
  for (const auto& n : kNames) {
    if (n.type == type) {
      std::snprintf(out, size, "%s", n.name);
      return;
    }
  }
  std::snprintf(out, size, "%s", c10::toString(type));
  for (char* c = out; *c != '\0'; ++c) {
    *c = *c >= 'A' && *c <= 'Z' ? static_cast<char>(*c + 32) : *c;
  }
}

const char* device_name(c10::DeviceType type) noexcept {
  switch (type) {
    case c10::DeviceType::CPU:
      return "cpu";
    case c10::DeviceType::CUDA:
      return "cuda";
    case c10::DeviceType::HIP:
      return "hip";
    case c10::DeviceType::XPU:
      return "xpu";
    case c10::DeviceType::MPS:
      return "mps";
    case c10::DeviceType::Meta:
      return "meta";
    default:
      return "device";
  }
}

// "tensor float32[4, 1024] cuda:0" of the TensorImpl at that address; 0 when it is none. Everything
// is copied by peek before it is looked at, nothing of the tensor is called.
size_t describe_tensor(uint64_t address, char* out, size_t size) noexcept {
  constexpr size_t kMaxDims = 16;
  alignas(Layout) unsigned char bytes[sizeof(Layout)];
  if (g_api->peek(address, bytes, sizeof bytes) != sizeof bytes) {
    return 0;
  }
  const auto& impl = *reinterpret_cast<const Layout*>(bytes);
  const auto& sizes = impl.*Layout::kSizes;
  auto type = impl.*Layout::kType;  // of torch 2.6: its calls are not const
  const auto& device = impl.*Layout::kDevice;
  if (!type.isScalarType() || sizes.size() > 64) {
    return 0;
  }
  const bool known = !impl.symbolic();
  const size_t shown = std::min(known ? sizes.size() : 0, kMaxDims);
  int64_t dims[kMaxDims];
  // Inline sizes lie in the copy, the others still where the tensor has them.
  const int64_t* at = sizes.sizes_data();
  if (reinterpret_cast<const unsigned char*>(at) >= bytes &&
      reinterpret_cast<const unsigned char*>(at + shown) <= bytes + sizeof bytes) {
    std::memcpy(dims, at, shown * sizeof *dims);
  } else if (g_api->peek(reinterpret_cast<uint64_t>(at), dims, shown * sizeof *dims) !=
             shown * sizeof *dims) {
    return 0;
  }
  char dtype[32];
  name_dtype(type.toScalarType(), dtype, sizeof dtype);
  size_t used = 0;
  const auto add = [&](int n) {
    used =
        n < 0 || used + static_cast<size_t>(n) >= size ? size - 1 : used + static_cast<size_t>(n);
  };
  add(std::snprintf(out, size, "tensor %s[", dtype));
  for (size_t i = 0; i < shown; ++i) {
    add(std::snprintf(out + used, size - used, i != 0 ? ", %lld" : "%lld",
                      static_cast<long long>(dims[i])));
  }
  add(std::snprintf(out + used, size - used, known && shown == sizes.size() ? "]" : "...]"));
  if (device.has_value()) {
    add(std::snprintf(out + used, size - used, " %s", device_name(device->type())));
    if (device->has_index()) {
      add(std::snprintf(out + used, size - used, ":%d", static_cast<int>(device->index())));
    }
  }
  return used;
}
#endif

}  // namespace
