// msgpack_tree.hpp - a msgpack value as one flat list of elements, and tolerant access to it: a
// value of the wrong type reads as absent, and every accessor takes nullptr.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace frtrace {

// A dump of the largest ring, 2^20 records of 22 columns, has fewer.
inline constexpr std::size_t kMaxElements = std::size_t{1} << 25;

// One element, in the order of the input. The children of a container come right after it.
struct Object {
  enum Type : std::uint8_t { kOther, kInt, kText, kArray, kMap } type = kOther;
  std::uint32_t size = 0;  // bytes of a text; elements up to the one after a container
  union {
    std::int64_t i = 0;
    const char* s;  // into the input
  };
  bool is_container() const { return type >= kArray; }
};

enum class Parsed { kWhole, kCut, kDamaged };
// Parses into `to`: its first element is then the root, and its memory can be reused for other
// files. kCut: the input ends too early, and the root has the complete part. Throws only the
// exceptions of allocation and msgpack-c.
Parsed parse_msgpack(std::span<const char> in, std::vector<Object>& to);

inline const Object* after(const Object* o) {
  return o + (o->is_container() ? o->size : 1);
}

inline std::optional<std::int64_t> to_int(const Object* o) {
  return o != nullptr && o->type == Object::kInt ? std::optional(o->i) : std::nullopt;
}

template <class T>
T number(const Object* o, T fallback = T{}) {
  return o != nullptr && o->type == Object::kInt ? static_cast<T>(o->i) : fallback;
}

inline std::string_view text(const Object* o) {
  return o != nullptr && o->type == Object::kText ? std::string_view(o->s, o->size)
                                                  : std::string_view();
}

// The children of an array; keys and values of a map in turn.
class List {
 public:
  List() = default;
  List(const Object* o, Object::Type type) {
    if (o != nullptr && o->type == type) {
      first_ = o + 1;
      last_ = o + o->size;
    }
  }
  struct Iterator {
    const Object* at;
    const Object& operator*() const { return *at; }
    Iterator& operator++() {
      at = after(at);
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at != other.at; }
  };
  Iterator begin() const { return {first_}; }
  Iterator end() const { return {last_}; }
  bool empty() const { return first_ == last_; }

 private:
  const Object* first_ = nullptr;
  const Object* last_ = nullptr;
};

inline List list(const Object* o) {
  return {o, Object::kArray};
}

// A short array, accessed by position.
class Row {
 public:
  explicit Row(const Object* o) {
    for (const Object& cell : list(o)) {
      if (size_ == cells_.size()) {
        break;  // columns of a future version, not used
      }
      cells_[size_++] = &cell;
    }
  }
  const Object* operator[](std::size_t i) const { return i < size_ ? cells_[i] : nullptr; }
  bool empty() const { return size_ == 0; }

 private:
  std::size_t size_ = 0;
  std::array<const Object*, 64> cells_;
};

inline const Object* member(const Object* o, std::string_view key) {
  const Object* k = nullptr;
  for (const Object& item : List(o, Object::kMap)) {
    if (k == nullptr) {
      k = &item;
    } else if (text(k) == key) {
      return &item;
    } else {
      k = nullptr;
    }
  }
  return nullptr;
}

inline bool is_map(const Object* o) {
  return o != nullptr && o->type == Object::kMap;
}

}  // namespace frtrace
