// pickle.cpp - a pickle machine that builds plain data and refuses everything else.
#include "input/pickle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "input/memory.hpp"
#include "input/pickle_opcodes.hpp"
#include "input/pickle_values.hpp"

namespace frtrace::pickle {

namespace {

// Containers open at once (MARK); a dump nests four.
constexpr std::size_t kMaxMarks = 256;

class Machine {
 public:
  Machine(std::span<const unsigned char> in, Arena& arena)
      : begin_(in.data()), p_(in.data()), end_(in.data() + in.size()), arena_(arena) {
    stack_.resize(256);
    memo_.resize(1024);
  }

  bool run(Value& root) {
    // The bottom of the stack is a mark that no opcode pops.
    stack_[0].type = Type::kMark;
    top_ = 1;
    while (why_.empty()) {
      frequent();
      if (p_ == end_) {
        return truncated();
      }
      const unsigned char op = *p_++;
      if (op == kStop) {
        if (top_ < 2 || !marks_.empty()) {
          return fail("damaged: the end inside a container");
        }
        root = stack_[top_ - 1];
        return true;
      }
      step(op);
    }
    return false;
  }

  std::string take_why() { return std::move(why_); }

  // After a cut, the complete part; see parse().
  bool salvage(Value& root) {
    if (!cut_ || top_ < 2 || !stack_[1].is_container()) {
      return false;
    }
    why_.clear();
    return whole_part(arena_, {stack_.data(), top_}, marks_, root);
  }

 private:
  // Handles the most frequent opcodes of a dump, on local variables. Stops at any other opcode and
  // at any error, which `step` then reports.
  void frequent() {
    if (top_ + 4 > stack_.size()) {
      FileMemory::take(stack_.size() * 2 * sizeof(Value));
      stack_.resize(stack_.size() * 2);  // one opcode pushes one value: bounded by the input
    }
    const unsigned char* p = p_;
    Value* top = stack_.data() + top_;
    Value* const full = stack_.data() + stack_.size() - 4;
    const Value* const memo = memo_.data();
    const std::size_t known = memo_end_;
    const auto remember = [&](std::size_t i) {
      if (i >= known || memo[i].type == Type::kMark) {
        return false;
      }
      *top++ = memo[i];
      return true;
    };
    constexpr std::ptrdiff_t kLongest = 10;  // bytes of the longest of these opcodes
    while (end_ - p >= kLongest && top < full) {
      switch (*p) {
        case kBinGet:
          if (!remember(p[1])) {
            break;
          }
          p += 2;
          continue;
        case kLongBinGet:
          if (!remember(little<std::uint32_t>(p + 1))) {
            break;
          }
          p += 5;
          continue;
        case kBinInt1:
          *top++ = integer(p[1]);
          p += 2;
          continue;
        case kBinInt2:
          *top++ = integer(little<std::uint16_t>(p + 1));
          p += 3;
          continue;
        case kBinInt:
          *top++ = integer(little<std::int32_t>(p + 1));
          p += 5;
          continue;
        case kLong1:
          if (p[1] != 8) {
            break;
          }
          *top++ = integer(little<std::int64_t>(p + 2));
          p += 10;
          continue;
        case kNoneOp:
          *top++ = Value{};
          ++p;
          continue;
        case kNewTrue:
        case kNewFalse:
          *top++ = boolean(*p == kNewTrue);
          ++p;
          continue;
        default:
          break;
      }
      break;
    }
    p_ = p;
    top_ = static_cast<std::size_t>(top - stack_.data());
  }

  bool truncated() {
    cut_ = why_.empty();
    return fail("truncated");
  }

  bool fail(std::string_view what) {
    if (why_.empty()) {
      why_ = fmt::format("{} at byte {}", what, p_ - begin_);
    }
    return false;
  }

  std::size_t left() const { return static_cast<std::size_t>(end_ - p_); }

  bool have(std::size_t n) { return n <= left() || truncated(); }

  void push(Value v) { stack_[top_++] = v; }

  // The top `n` values, none of which may be a mark.
  Value* pop(std::size_t n) {
    if (top_ < n + 1) {
      fail("damaged: the stack is empty");
      return nullptr;
    }
    for (std::size_t i = top_ - n; i < top_; ++i) {
      if (stack_[i].type == Type::kMark) {
        fail("damaged: a mark where a value is due");
        return nullptr;
      }
    }
    top_ -= n;
    return &stack_[top_];
  }

  // Returns the values above the last mark; removes both.
  std::span<const Value> pop_mark() {
    if (marks_.empty()) {
      fail("damaged: no mark");
      return {};
    }
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    const std::span<const Value> out(stack_.data() + mark + 1, top_ - mark - 1);
    top_ = mark;
    return out;
  }

  void container(Type type, std::span<const Value> values) {
    Node* node = new (arena_.allocate(sizeof(Node))) Node;
    if (!values.empty()) {
      append(arena_, *node, values);
    }
    Value v;
    v.type = type;
    v.node = node;
    push(v);
  }

  void extend(std::span<const Value> values, Type type, Type other) {
    if (!why_.empty()) {
      return;
    }
    Value& to = stack_[top_ - 1];
    if (to.type != type && to.type != other) {
      fail("damaged: items for what holds none");
    } else if (type == Type::kDict && values.size() % 2 != 0) {
      fail("damaged: a key without a value");
    } else if (!values.empty()) {
      append(arena_, *to.node, values);
    }
  }

  void put(std::size_t index) {
    if (stack_[top_ - 1].type == Type::kMark) {
      fail("damaged: nothing to remember");
      return;
    }
    // Every PUT takes bytes of the input, and memos are numbered from 0.
    if (index >= static_cast<std::size_t>(end_ - begin_)) {
      fail("damaged: a memo beyond reason");
      return;
    }
    if (index >= memo_.size()) {
      FileMemory::take(std::max(index + 1, memo_.size() * 2) * sizeof(Value));
      memo_.resize(std::max(index + 1, memo_.size() * 2), Value{Type::kMark, 0, {0}});
    }
    if (index >= memo_end_) {
      for (std::size_t i = memo_end_; i < index; ++i) {
        memo_[i].type = Type::kMark;
      }
      memo_end_ = index + 1;
    }
    memo_[index] = stack_[top_ - 1];
  }

  void get(std::size_t index) {
    if (index >= memo_end_ || memo_[index].type == Type::kMark) {
      fail("damaged: an unknown memo");
      return;
    }
    push(memo_[index]);
  }

  std::string_view line() {
    const void* const newline = std::memchr(p_, '\n', left());
    if (newline == nullptr) {
      p_ = end_;
      truncated();
      return {};
    }
    const auto* const stop = static_cast<const unsigned char*>(newline);
    std::string_view out(reinterpret_cast<const char*>(p_), static_cast<std::size_t>(stop - p_));
    p_ = stop + 1;
    if (!out.empty() && out.back() == '\r') {
      out.remove_suffix(1);
    }
    return out;
  }

  std::int64_t number(std::string_view text) {
    const std::optional<std::int64_t> v = decimal(text);
    if (!v) {
      fail("damaged: not a number");
    }
    return v.value_or(0);
  }

  void escaped(std::string_view text) {
    if (text.find('\\') != std::string_view::npos) {
      text = arena_.keep(unescape(text));
    }
    push(string(Type::kString, text.data(), text.size()));
  }

  // Reads a number; false: the input ends before it.
  template <class T>
  bool read(T& v) {
    if (!have(sizeof(T))) {
      return false;
    }
    v = little<T>(p_);
    p_ += sizeof(T);
    return true;
  }

  template <class Size>
  void sized_string(Type type) {
    Size given{};
    if (!read(given)) {
      return;
    }
    const std::uint64_t size = given;
    if (size > UINT32_MAX) {
      fail("truncated");  // its claimed size is wrong: hardly a cut
    } else if (have(size)) {
      push(string(type, p_, size));
      p_ += size;
    }
  }

  template <class Index>
  void get_at() {
    if (Index index{}; read(index)) {
      get(index);
    }
  }

  template <class Index>
  void put_at() {
    if (Index index{}; read(index)) {
      put(index);
    }
  }

  template <class T>
  void fixed_int() {
    if (T v{}; read(v)) {
      push(integer(v));
    }
  }

  template <class Size>
  void long_int() {
    if (Size size{}; read(size) && have(size)) {
      push(integer(long_value(p_, size)));
      p_ += size;
    }
  }

  void step(unsigned char op) {
    // The most frequent first.
    if (!memo_step(op) && !container_step(op) && !string_step(op) && !number_step(op) &&
        !rare_step(op)) {
      const char* name = forbidden(op);
      fail(
          name != nullptr
              ? fmt::format("hostile or unrecognised pickle: it would construct objects ({})", name)
              : fmt::format("damaged: unknown opcode 0x{:02x}", op));
    }
  }

  // Each returns false for an opcode of another group.
  bool memo_step(unsigned char op) {
    switch (op) {
      case kBinGet:
        get_at<std::uint8_t>();
        return true;
      case kLongBinGet:
        get_at<std::uint32_t>();
        return true;
      case kBinPut:
        put_at<std::uint8_t>();
        return true;
      case kLongBinPut:
        put_at<std::uint32_t>();
        return true;
      case kMemoize:
        put(memo_end_);
        return true;
      case kGetText:
        get(static_cast<std::size_t>(number(line())));
        return true;
      case kPutText:
        put(static_cast<std::size_t>(number(line())));
        return true;
      default:
        return false;
    }
  }

  bool container_step(unsigned char op) {
    switch (op) {
      case kMarkOp:
        mark();
        return true;
      case kEmptyList:
        container(Type::kList, {});
        return true;
      case kAppends:
        extend(pop_mark(), Type::kList, Type::kList);
        return true;
      case kEmptyDict:
        container(Type::kDict, {});
        return true;
      case kSetItems:
        extend(pop_mark(), Type::kDict, Type::kDict);
        return true;
      case kTuple1:
      case kTuple2:
      case kTuple3:
        tuple(op - kTuple1 + 1u);
        return true;
      case kEmptyTuple:
        container(Type::kTuple, {});
        return true;
      case kTupleOp:
        from_mark(Type::kTuple);
        return true;
      case kListOp:
        from_mark(Type::kList);
        return true;
      case kDictOp:
        from_mark(Type::kDict);
        return true;
      case kFrozenSet:
        from_mark(Type::kSet);
        return true;
      case kEmptySet:
        container(Type::kSet, {});
        return true;
      case kAddItems:
        extend(pop_mark(), Type::kSet, Type::kSet);
        return true;
      case kAppend:
        if (const Value* v = pop(1); v != nullptr) {
          const Value item = *v;
          extend({&item, 1}, Type::kList, Type::kSet);
        }
        return true;
      case kSetItem:
        if (const Value* v = pop(2); v != nullptr) {
          const Value pair[2] = {v[0], v[1]};
          extend({pair, 2}, Type::kDict, Type::kDict);
        }
        return true;
      default:
        return false;
    }
  }

  bool string_step(unsigned char op) {
    switch (op) {
      case kShortBinUnicode:
      case kShortBinString:
        sized_string<std::uint8_t>(Type::kString);
        return true;
      case kBinUnicode:
      case kBinString:
        sized_string<std::uint32_t>(Type::kString);
        return true;
      case kBinUnicode8:
        sized_string<std::uint64_t>(Type::kString);
        return true;
      case kShortBinBytes:
        sized_string<std::uint8_t>(Type::kBytes);
        return true;
      case kBinBytes:
        sized_string<std::uint32_t>(Type::kBytes);
        return true;
      case kBinBytes8:
      case kByteArray8:
        sized_string<std::uint64_t>(Type::kBytes);
        return true;
      case kUnicodeText:
        escaped(line());
        return true;
      case kStringText: {
        const std::string_view text = line();
        if (text.size() < 2 || text.front() != text.back() ||
            (text.front() != '\'' && text.front() != '"')) {
          fail("damaged: a string without quotes");
        } else {
          escaped(text.substr(1, text.size() - 2));
        }
        return true;
      }
      default:
        return false;
    }
  }

  bool number_step(unsigned char op) {
    switch (op) {
      case kNoneOp:
        push(Value{});
        return true;
      case kNewTrue:
      case kNewFalse:
        push(boolean(op == kNewTrue));
        return true;
      case kBinInt1:
        fixed_int<std::uint8_t>();
        return true;
      case kBinInt2:
        fixed_int<std::uint16_t>();
        return true;
      case kBinInt:
        fixed_int<std::int32_t>();
        return true;
      case kLong1:
        long_int<std::uint8_t>();
        return true;
      case kLong4:
        long_int<std::uint32_t>();
        return true;
      case kBinFloat:
        if (std::uint64_t bits = 0; read(bits)) {
          push(real(std::bit_cast<double>(__builtin_bswap64(bits))));
        }
        return true;
      case kIntText: {
        const std::string_view text = line();
        push(text == "00" || text == "01" ? boolean(text == "01") : integer(number(text)));
        return true;
      }
      case kLongText:
        push(integer(number(line())));
        return true;
      case kFloatText: {
        const std::string_view text = line();
        if (text.size() > kMaxNumberText) {
          fail("damaged: not a number");
        } else {
          push(real(std::strtod(std::string(text).c_str(), nullptr)));
        }
        return true;
      }
      default:
        return false;
    }
  }

  bool rare_step(unsigned char op) {
    switch (op) {
      case kPop:
        if (top_ > 1 && stack_[top_ - 1].type == Type::kMark) {
          pop_mark();
        } else {
          pop(1);
        }
        return true;
      case kPopMark:
        pop_mark();
        return true;
      case kDup:
        if (const Value* v = pop(1); v != nullptr) {
          const Value twice = *v;
          push(twice);
          push(twice);
        }
        return true;
      case kFrame:  // a hint for buffered reading; the whole input is in memory
        if (have(8)) {
          p_ += 8;
        }
        return true;
      case kProto:
        if (have(1) && *p_++ > 5) {
          fail("a pickle protocol newer than 5");
        }
        return true;
      default:
        return false;
    }
  }

  void mark() {
    if (marks_.size() >= kMaxMarks) {
      fail("hostile or unrecognised pickle: nested too deeply");
      return;
    }
    marks_.push_back(top_);
    stack_[top_].type = Type::kMark;
    ++top_;
  }

  void tuple(std::size_t n) {
    if (const Value* v = pop(n); v != nullptr) {
      container(Type::kTuple, {v, n});
    }
  }

  void from_mark(Type type) {
    const std::span<const Value> values = pop_mark();
    if (type == Type::kDict && values.size() % 2 != 0) {
      fail("damaged: a key without a value");
    } else if (why_.empty()) {
      container(type, values);
    }
  }

  const unsigned char* begin_;
  const unsigned char* p_;
  const unsigned char* end_;
  Arena& arena_;
  std::vector<Value> stack_;
  std::size_t top_ = 0;
  std::vector<std::size_t> marks_;
  std::vector<Value> memo_;
  std::size_t memo_end_ = 0;
  std::string why_;
  bool cut_ = false;
};

}  // namespace

bool parse(std::span<const unsigned char> in, Arena& arena, Value& root, std::string& why,
           bool* cut) {
  Machine machine(in, arena);
  if (machine.run(root)) {
    return true;
  }
  why = machine.take_why();
  return cut != nullptr && (*cut = machine.salvage(root));
}

}  // namespace frtrace::pickle
