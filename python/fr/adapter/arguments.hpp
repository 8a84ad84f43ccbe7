// arguments.hpp - tensors and custom classes of an operator's arguments, without touching a
// reference count.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>

#include "fr/fr.h"

namespace {

// A custom class inside an IValue, without touching reference counts; null for None.
template <class T>
T* borrowed(const c10::IValue& value) {
  if (!value.isObject()) {
    return nullptr;
  }
  const c10::IValue& capsule = value.toObjectRef().getSlot(0);
  if (!capsule.isCapsule()) {
    return nullptr;
  }
  auto* target =
      static_cast<c10::intrusive_ptr_target*>(const_cast<void*>(capsule.internalToPointer()));
  return static_cast<T*>(target);
}

class Shape {
 public:
  uint64_t numel = 0;  // of the tensors added since it was last cleared
  uint32_t count = 0;
  uint8_t dtype = 0;  // of the first of them

  // Adds a tensor, a list of tensors, a list of lists. False: nothing to record (meta
  // or fake tensors).
  bool add(const c10::IValue& value) {
    if (value.isTensor()) {
      const c10::TensorImpl* tensor = value.unsafeToTensorImpl();
      if (!tensor->key_set().has_backend(c10::BackendComponent::MetaBit)) {
        add(*tensor);
        return true;
      }
      return false;
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

  void splits(const c10::IValue& value) {
    const auto list = value.toListRef();
    put(list.size());
    for (const c10::IValue& n : list) {
      put(static_cast<uint64_t>(n.toInt()));
    }
  }

  void next_side() {
    numel = 0;
    count = 0;
    dtype = 0;
  }

  uint32_t finish(uint32_t n_in, uint32_t n_out, uint32_t flags) {
    words_[0] = (n_in < 0xfff ? n_in : 0xfff) | (n_out < 0xfff ? n_out : 0xfff) << 12 | flags |
                (cut_ ? static_cast<uint32_t>(FR_SHAPE_CUT) : 0u);
    return used_;
  }

  const uint32_t* words() const { return words_; }

 private:
  void add(const c10::TensorImpl& tensor) {
    const auto code =
        static_cast<uint8_t>(static_cast<int>(c10::typeMetaToScalarType(tensor.dtype())) + 1);
    if (count++ == 0) {
      dtype = code;
    }
    const c10::IntArrayRef sizes = tensor.sizes();
    numel += static_cast<uint64_t>(tensor.numel());
    if (cut_ || used_ + 1 + sizes.size() > FR_MAX_SHAPE_WORDS || sizes.size() > 255) {
      cut_ = true;
      return;
    }
    words_[used_++] = static_cast<uint32_t>(sizes.size()) | static_cast<uint32_t>(code) << 8;
    for (const int64_t dim : sizes) {
      words_[used_++] = clip(static_cast<uint64_t>(dim));
    }
  }

  void put(uint64_t value) {
    if (cut_ || used_ >= FR_MAX_SHAPE_WORDS) {
      cut_ = true;
      return;
    }
    words_[used_++] = clip(value);
  }

  static uint32_t clip(uint64_t value) {
    return value > 0xffffffffull ? 0xffffffffu : static_cast<uint32_t>(value);
  }

  uint32_t used_ = 1;
  bool cut_ = false;
  uint32_t words_[FR_MAX_SHAPE_WORDS];  // filled as far as used_
};

// First tensor of an argument, null when there is none.
const c10::TensorImpl* first_tensor(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.unsafeToTensorImpl();
  }
  if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (const c10::TensorImpl* found = first_tensor(element)) {
        return found;
      }
    }
  }
  return nullptr;
}

}  // namespace
