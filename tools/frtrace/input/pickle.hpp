// pickle.hpp - reads plain data from a Python pickle, protocols 0 to 5.
//
// Opcodes that import, construct or call anything are not implemented: a pickle with one is refused
// as a whole. Strings point into the input; containers are in an arena, its size bounded by the
// size of the input. Values shared by the memo stay shared: a reader that walks the tree by
// reference, not by content, must bound its own steps (a few bytes can name one list a thousand
// times) and its own depth (a list can contain itself).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace frtrace::pickle {

enum class Type : std::uint8_t {
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kBytes,
  kTuple,
  kList,
  kDict,
  kSet,
  kMark  // inside the machine only
};

struct Node;

// Many entries may share one string: the work on each of them is limited to this size.
inline constexpr std::size_t kMaxTextBytes = 4096;  // as the longest path

// 16 bytes. An access of the wrong type reads as absent.
struct Value {
  Type type = Type::kNone;
  std::uint32_t size = 0;  // of a string
  union {
    std::int64_t i = 0;
    double f;
    const char* s;
    Node* node;
  };

  bool is_container() const { return type >= Type::kTuple && type <= Type::kSet; }
  // The full text: the caller must bound how often it reads it.
  std::string_view whole_text() const {
    return type == Type::kString || type == Type::kBytes ? std::string_view(s, size)
                                                         : std::string_view();
  }
  std::string_view text() const { return whole_text().substr(0, kMaxTextBytes); }
};

// Items of a list, tuple or set; keys and values of a dict in turn.
struct Node {
  Value* items = nullptr;
  std::uint32_t count = 0;
  std::uint32_t capacity = 0;
  std::uint32_t tag = 0;  // for the reader's own use, initially 0
};

inline std::span<const Value> items(const Value& v) {
  return v.is_container() && v.type != Type::kDict
             ? std::span<const Value>(v.node->items, v.node->count)
             : std::span<const Value>();
}
inline std::span<const Value> pairs(const Value& v) {
  return v.type == Type::kDict ? std::span<const Value>(v.node->items, v.node->count)
                               : std::span<const Value>();
}
// The last of several equal keys, as in Python; nullptr if absent.
const Value* find(const Value& dict, std::string_view key);

// Chunks that never move. A thread that reads several files reuses them: otherwise the kernel
// clears new pages, a third of the time.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  void* allocate(std::size_t bytes) {
    bytes = (bytes + 15) & ~std::size_t{15};
    if (bytes > left_) {
      return more(bytes);
    }
    void* const out = next_;
    next_ += bytes;
    left_ -= bytes;
    return out;
  }
  template <class T>
  T* array(std::size_t n) {
    return static_cast<T*>(allocate(n * sizeof(T)));
  }
  std::string_view keep(std::string_view text);
  std::size_t bytes() const { return total_; }

 private:
  void* more(std::size_t bytes);

  std::vector<std::unique_ptr<std::byte[]>> chunks_, large_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0, total_ = 0;
};

// Appends to a list or set, or appends keys and values to a dict.
void append(Arena&, Node&, std::span<const Value> values);

// Parses the root object; false, and `why`, if the input is not a complete pickle of plain data.
// With `cut`, an input that ends too early sets `*cut` and gives the complete part: a dict of the
// root's keys before the cut; if the last value is a list, its complete items. The same for a root
// that is a list.
bool parse(std::span<const unsigned char> in, Arena& arena, Value& root, std::string& why,
           bool* cut = nullptr);

}  // namespace frtrace::pickle
