// pickle_values.cpp - the containers of pickled values, and strings of protocol 0.
#include "input/pickle_values.hpp"

#include <algorithm>
#include <charconv>

#include "input/memory.hpp"

namespace frtrace::pickle {

namespace {

constexpr std::size_t kChunk = std::size_t{1} << 18;

void utf8(std::string& out, std::uint32_t c) {
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | (c >> 6)), put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | (c >> 12)), put(0x80 | ((c >> 6) & 0x3f)), put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | ((c >> 18) & 7)), put(0x80 | ((c >> 12) & 0x3f)), put(0x80 | ((c >> 6) & 0x3f));
    put(0x80 | (c & 0x3f));
  }
}

}  // namespace

std::string unescape(std::string_view in) {
  std::string out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i] != '\\' || i + 1 == in.size()) {
      out += in[i];
      continue;
    }
    const char kind = in[++i];
    const std::size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    if (digits != 0 && i + digits < in.size()) {
      std::uint32_t c = 0;
      const char* const first = in.data() + i + 1;
      if (std::from_chars(first, first + digits, c, 16).ptr == first + digits) {
        utf8(out, c);
        i += digits;
        continue;
      }
    }
    switch (kind) {
      case 'n':
        out += '\n';
        break;
      case 't':
        out += '\t';
        break;
      case 'r':
        out += '\r';
        break;
      case '\\':
      case '\'':
      case '"':
        out += kind;
        break;
      default:
        out += '\\', out += kind;
    }
  }
  return out;
}

const Value* find(const Value& dict, std::string_view key) {
  const std::span<const Value> all = pairs(dict);
  for (std::size_t i = all.size(); i >= 2; i -= 2) {
    if (all[i - 2].type == Type::kString && all[i - 2].whole_text() == key) {
      return &all[i - 1];
    }
  }
  return nullptr;
}

namespace {

constexpr std::size_t kSpareChunks = 64;
thread_local std::vector<std::unique_ptr<std::byte[]>> spare_chunks;

}  // namespace

Arena::~Arena() {
  while (!chunks_.empty() && spare_chunks.size() < kSpareChunks) {
    spare_chunks.push_back(std::move(chunks_.back()));
    chunks_.pop_back();
  }
}

void* Arena::more(std::size_t bytes) {
  const bool alone = bytes > kChunk / 4;
  FileMemory::take(alone ? bytes : kChunk);
  if (alone) {  // a separate block: the rest of the last chunk stays in use
    large_.emplace_back(new std::byte[bytes]);
    total_ += bytes;
    return large_.back().get();
  }
  if (spare_chunks.empty()) {
    chunks_.emplace_back(new std::byte[kChunk]);
  } else {
    chunks_.push_back(std::move(spare_chunks.back()));
    spare_chunks.pop_back();
  }
  total_ += kChunk;
  next_ = chunks_.back().get() + bytes;
  left_ = kChunk - bytes;
  return chunks_.back().get();
}

std::string_view Arena::keep(std::string_view text) {
  char* const to = array<char>(text.size() + 1);
  std::memcpy(to, text.data(), text.size());
  to[text.size()] = '\0';
  return {to, text.size()};
}

void append(Arena& arena, Node& node, std::span<const Value> values) {
  if (values.empty()) {
    return;
  }
  const std::size_t wanted = node.count + values.size();
  if (wanted > node.capacity) {
    // Exact at first: most lists are filled once.
    const std::size_t capacity =
        node.capacity == 0 ? wanted : std::max<std::size_t>(wanted, std::size_t{node.capacity} * 2);
    Value* const grown = arena.array<Value>(capacity);
    if (node.count != 0) {
      std::memcpy(static_cast<void*>(grown), node.items, node.count * sizeof(Value));
    }
    node.items = grown;
    node.capacity = static_cast<std::uint32_t>(capacity);
  }
  std::memcpy(static_cast<void*>(node.items + node.count), values.data(),
              values.size() * sizeof(Value));
  node.count = static_cast<std::uint32_t>(wanted);
}

std::optional<std::int64_t> decimal(std::string_view text) {
  if (!text.empty() && text.back() == 'L') {
    text.remove_suffix(1);
  }
  std::int64_t v = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), v);
  if (text.size() <= kMaxNumberText && parsed.ec == std::errc::result_out_of_range) {
    return text.front() == '-' ? INT64_MIN : INT64_MAX;
  }
  const bool whole = parsed.ec == std::errc() && parsed.ptr == text.data() + text.size();
  return whole && text.size() <= kMaxNumberText ? std::optional(v) : std::nullopt;
}

// Items stay on the stack until the last one of their container is read: root, MARK, key, value,
// key, list, MARK, item, item, an unfinished item...
bool whole_part(Arena& arena, std::span<Value> stack, const std::vector<std::size_t>& marks,
                Value& root) {
  root = stack[1];
  std::size_t level = 0;  // index in `marks`
  // The values of the container at `at` that it does not have yet.
  const auto open_values = [&](std::size_t at) {
    const bool marked = level < marks.size() && marks[level] == at + 1;
    level += marked ? 1 : 0;
    const std::size_t begin = at + (marked ? 2 : 1);
    const std::size_t end = level < marks.size() ? marks[level] : stack.size();
    return stack.subspan(begin, end - begin);
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
        list = static_cast<std::size_t>(&values[i + 1] - stack.data());
      }
      append(arena, *root.node, values.subspan(i, 2));
    }
    if (list == 1) {
      return root.node->count != 0;
    }
  } else if (root.type != Type::kList) {
    return false;
  }
  Node& node = *stack[list].node;
  append(arena, node, open_values(list));
  // The last item has no keys yet, or only some of them: it was being filled.
  const auto keys = [&](std::size_t i) {
    return node.items[i].type == Type::kDict ? node.items[i].node->count : 0;
  };
  if (node.count > 0 && node.items[node.count - 1].type == Type::kDict &&
      keys(node.count - 1) < (node.count > 1 ? keys(node.count - 2) : 2)) {
    --node.count;
  }
  return true;
}

}  // namespace frtrace::pickle
