// pickle.cpp - a pickle machine that builds data only and refuses the rest.
#include "input/pickle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "input/memory.hpp"
#include "input/pickle_opcodes.hpp"
#include "input/pickle_values.hpp"

namespace frtrace::pickle {

namespace {

// Containers that are open at once (MARK); those of a dump are four deep.
constexpr std::size_t kMaxMarks = 256;
constexpr std::size_t kMaxNumberText = 64;  // of the text forms of protocol 0

class Machine {
 public:
  Machine(std::span<const unsigned char> in, Arena& arena)
      : begin_(in.data()), p_(in.data()), end_(in.data() + in.size()), arena_(arena) {
    stack_.resize(256);
    memo_.resize(1024);
  }

  bool run(Value& root) {
    // The bottom of the stack is a mark of its own: no opcode pops it.
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

  // After a cut, what is whole: see parse. Items lie on the stack until the last of their container
  // is read: root, MARK, key, value, key, list, MARK, item, item, an unfinished item...
  bool salvage(Value& root) {
    if (!cut_ || top_ < 2 || !stack_[1].is_container()) {
      return false;
    }
    why_.clear();
    root = stack_[1];
    std::size_t level = 0;  // of marks_
    // The values of the container at `at` that were not added yet.
    const auto open_values = [&](std::size_t at) {
      if (level < marks_.size() && marks_[level] == at + 1) {
        ++level;
        const std::size_t end = level < marks_.size() ? marks_[level] : top_;
        return std::span<const Value>(&stack_[at + 2], end - at - 2);
      }
      const std::size_t end = level < marks_.size() ? marks_[level] : top_;
      return std::span<const Value>(&stack_[at + 1], end - at - 1);
    };
    std::size_t list = 1;
    if (root.type == Type::kDict) {
      const auto values = open_values(1);
      for (std::size_t i = 0; i + 1 < values.size(); i += 2) {
        const bool newest = i + 2 == values.size();
        if (newest && values[i + 1].is_container()) {
          if (values[i + 1].type != Type::kList) {
            break;
          }
          list = static_cast<std::size_t>(&values[i + 1] - stack_.data());
        }
        append(arena_, *root.node, values.subspan(i, 2));
      }
      if (list == 1) {
        return root.node->count != 0;
      }
    } else if (root.type != Type::kList) {
      return false;
    }
    Node& node = *stack_[list].node;
    append(arena_, node, open_values(list));
    // Without its keys, or with some of them: it was about to be filled.
    const auto keys = [&](std::size_t i) {
      return node.items[i].type == Type::kDict ? node.items[i].node->count : 0;
    };
    if (node.count > 0 && node.items[node.count - 1].type == Type::kDict &&
        keys(node.count - 1) < (node.count > 1 ? keys(node.count - 2) : 2)) {
      --node.count;
    }
    return true;
  }

 private:
  // The opcodes that most of a dump consists of, on locals; stops at any other, and where anything
  // is out of order, which `step` then names.
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
    constexpr std::ptrdiff_t kLongest = 10;  // of these opcodes
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

  // The top `n` values; none of them a mark.
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

  // The values above the last mark; removes both.
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
    // Every PUT takes bytes of the input and memos are numbered from 0 on.
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
    if (!text.empty() && text.back() == 'L') {
      text.remove_suffix(1);
    }
    std::int64_t v = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), v);
    if (text.size() > kMaxNumberText) {
      fail("damaged: not a number");
    } else if (parsed.ec == std::errc::result_out_of_range) {
      v = text.front() == '-' ? INT64_MIN : INT64_MAX;
    } else if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) {
      fail("damaged: not a number");
    }
    return v;
  }

  void string_of(Type type, std::size_t size) {
    if (size > UINT32_MAX) {
      fail("truncated");  // by its claim: hardly a cut
      return;
    }
    if (!have(size)) {
      return;
    }
    push(string(type, p_, size));
    p_ += size;
  }

  void escaped(std::string_view text) {
    if (text.find('\\') != std::string_view::npos) {
      text = arena_.keep(unescape(text));
    }
    push(string(Type::kString, text.data(), text.size()));
  }

  void step(unsigned char op) {
    switch (op) {
      // --- by far the most frequent first
      case kBinGet:
        if (have(1)) {
          get(*p_++);
        }
        return;
      case kLongBinGet:
        if (have(4)) {
          const std::size_t index = little<std::uint32_t>(p_);
          p_ += 4;
          get(index);
        }
        return;
      case kMarkOp:
        if (marks_.size() >= kMaxMarks) {
          fail("hostile or unrecognised pickle: nested too deeply");
          return;
        }
        marks_.push_back(top_);
        stack_[top_].type = Type::kMark;
        ++top_;
        return;
      case kEmptyList:
        container(Type::kList, {});
        return;
      case kAppends:
        extend(pop_mark(), Type::kList, Type::kList);
        return;
      case kEmptyDict:
        container(Type::kDict, {});
        return;
      case kSetItems:
        extend(pop_mark(), Type::kDict, Type::kDict);
        return;
      case kBinInt1:
        if (have(1)) {
          push(integer(*p_++));
        }
        return;
      case kBinInt2:
        if (have(2)) {
          push(integer(little<std::uint16_t>(p_)));
          p_ += 2;
        }
        return;
      case kBinInt:
        if (have(4)) {
          push(integer(little<std::int32_t>(p_)));
          p_ += 4;
        }
        return;
      case kLong1:
        if (have(1) && have(1 + std::size_t{*p_})) {
          push(integer(long_value(p_ + 1, *p_)));
          p_ += 1 + std::size_t{*p_};
        }
        return;
      case kBinPut:
        if (have(1)) {
          put(*p_++);
        }
        return;
      case kLongBinPut:
        if (have(4)) {
          const std::size_t index = little<std::uint32_t>(p_);
          p_ += 4;
          put(index);
        }
        return;
      case kMemoize:
        put(memo_end_);
        return;
      case kBinUnicode:
        if (have(4)) {
          const std::size_t size = little<std::uint32_t>(p_);
          p_ += 4;
          string_of(Type::kString, size);
        }
        return;
      case kShortBinUnicode:
        if (have(1)) {
          const std::size_t size = *p_++;
          string_of(Type::kString, size);
        }
        return;
      case kNoneOp:
        push(Value{});
        return;
      case kNewTrue:
        push(boolean(true));
        return;
      case kNewFalse:
        push(boolean(false));
        return;
      case kTuple1:
        tuple(1);
        return;
      case kTuple2:
        tuple(2);
        return;
      case kTuple3:
        tuple(3);
        return;
      // --- the others
      case kEmptyTuple:
        container(Type::kTuple, {});
        return;
      case kTupleOp:
        from_mark(Type::kTuple);
        return;
      case kListOp:
        from_mark(Type::kList);
        return;
      case kFrozenSet:
        from_mark(Type::kSet);
        return;
      case kEmptySet:
        container(Type::kSet, {});
        return;
      case kAddItems:
        extend(pop_mark(), Type::kSet, Type::kSet);
        return;
      case kDictOp: {
        const std::span<const Value> values = pop_mark();
        if (values.size() % 2 != 0) {
          fail("damaged: a key without a value");
        } else if (why_.empty()) {
          container(Type::kDict, values);
        }
        return;
      }
      case kAppend:
        if (const Value* v = pop(1); v != nullptr) {
          const Value item = *v;
          extend({&item, 1}, Type::kList, Type::kSet);
        }
        return;
      case kSetItem:
        if (const Value* v = pop(2); v != nullptr) {
          const Value pair[2] = {v[0], v[1]};
          extend({pair, 2}, Type::kDict, Type::kDict);
        }
        return;
      case kPop:
        if (top_ > 1 && stack_[top_ - 1].type == Type::kMark) {
          pop_mark();
        } else {
          pop(1);
        }
        return;
      case kPopMark:
        pop_mark();
        return;
      case kDup:
        if (const Value* v = pop(1); v != nullptr) {
          const Value twice = *v;
          push(twice);
          push(twice);
        }
        return;
      case kBinFloat:
        if (have(8)) {
          Value v;
          v.type = Type::kFloat;
          v.f = std::bit_cast<double>(__builtin_bswap64(little<std::uint64_t>(p_)));
          push(v);
          p_ += 8;
        }
        return;
      case kLong4:
        if (have(4)) {
          const std::size_t size = little<std::uint32_t>(p_);
          p_ += 4;
          if (have(size)) {
            push(integer(long_value(p_, size)));
            p_ += size;
          }
        }
        return;
      case kBinBytes:
        if (have(4)) {
          const std::size_t size = little<std::uint32_t>(p_);
          p_ += 4;
          string_of(Type::kBytes, size);
        }
        return;
      case kBinString:
        if (have(4)) {
          const std::size_t size = little<std::uint32_t>(p_);
          p_ += 4;
          string_of(Type::kString, size);
        }
        return;
      case kShortBinBytes:
      case kShortBinString:
        if (have(1)) {
          const std::size_t size = *p_++;
          string_of(op == kShortBinBytes ? Type::kBytes : Type::kString, size);
        }
        return;
      case kBinUnicode8:
      case kBinBytes8:
      case kByteArray8:
        if (have(8)) {
          const std::uint64_t size = little<std::uint64_t>(p_);
          p_ += 8;
          string_of(op == kBinUnicode8 ? Type::kString : Type::kBytes, size);
        }
        return;
      case kFrame:  // a hint for buffered reading; the whole input is here
        if (have(8)) {
          p_ += 8;
        }
        return;
      case kProto:
        if (have(1) && *p_++ > 5) {
          fail("a pickle protocol newer than 5");
        }
        return;
      case kIntText: {
        const std::string_view text = line();
        if (text == "00" || text == "01") {
          push(boolean(text == "01"));
          return;
        }
        push(integer(number(text)));
        return;
      }
      case kLongText:
        push(integer(number(line())));
        return;
      case kFloatText: {
        const std::string_view text = line();
        if (text.size() > kMaxNumberText) {
          fail("damaged: not a number");
          return;
        }
        Value v;
        v.type = Type::kFloat;
        v.f = std::strtod(std::string(text).c_str(), nullptr);
        push(v);
        return;
      }
      case kStringText: {
        std::string_view text = line();
        if (text.size() < 2 || text.front() != text.back() ||
            (text.front() != '\'' && text.front() != '"')) {
          fail("damaged: a string without quotes");
          return;
        }
        text = text.substr(1, text.size() - 2);
        escaped(text);
        return;
      }
      case kUnicodeText:
        escaped(line());
        return;
      case kGetText:
        get(static_cast<std::size_t>(number(line())));
        return;
      case kPutText:
        put(static_cast<std::size_t>(number(line())));
        return;
      default:
        if (const char* name = forbidden(op); name != nullptr) {
          fail(
              fmt::format("hostile or unrecognised pickle: it would construct objects ({})", name));
        } else {
          fail(fmt::format("damaged: unknown opcode 0x{:02x}", op));
        }
    }
  }

  void tuple(std::size_t n) {
    if (const Value* v = pop(n); v != nullptr) {
      container(Type::kTuple, {v, n});
    }
  }

  void from_mark(Type type) {
    const std::span<const Value> values = pop_mark();
    if (why_.empty()) {
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

bool parse(std::span<const unsigned char> in, Arena& arena, Value& root, std::string& why) {
  Machine machine(in, arena);
  if (machine.run(root)) {
    return true;
  }
  why = machine.take_why();
  return false;
}

bool parse(std::span<const unsigned char> in, Arena& arena, Value& root, std::string& why,
           bool& cut) {
  Machine machine(in, arena);
  cut = false;
  if (machine.run(root)) {
    return true;
  }
  why = machine.take_why();
  cut = machine.salvage(root);
  return cut;
}

}  // namespace frtrace::pickle
