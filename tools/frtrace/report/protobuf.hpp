// protobuf.hpp - writes messages of Protocol Buffers: tags, varints, nested messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace frtrace {

class ProtoWriter {
 public:
  void number(std::uint32_t field, std::uint64_t value) {
    varint(std::uint64_t{field} << 3);
    varint(value);
  }
  void fixed64(std::uint32_t field, std::uint64_t value) {
    varint(std::uint64_t{field} << 3 | 1);
    for (int shift = 0; shift < 64; shift += 8) {
      out_.push_back(static_cast<char>(value >> shift & 0xff));
    }
  }
  void text(std::uint32_t field, std::string_view value) {
    varint(std::uint64_t{field} << 3 | 2);
    varint(value.size());
    out_ += value;
  }
  // `fill` writes the members. The length before them has one byte until it needs more.
  template <class F>
  void message(std::uint32_t field, F&& fill) {
    varint(std::uint64_t{field} << 3 | 2);
    const std::size_t at = out_.size();
    out_.push_back(0);
    fill();
    std::uint64_t length = out_.size() - at - 1;
    std::size_t last = at;
    for (; length > 0x7f; length >>= 7) {
      out_[last] = static_cast<char>((length & 0x7f) | 0x80);
      out_.insert(++last, 1, '\0');
    }
    out_[last] = static_cast<char>(length);
  }
  void append(std::string_view members) { out_ += members; }

  std::size_t size() const { return out_.size(); }
  bool empty() const { return out_.empty(); }
  const std::string& bytes() const { return out_; }
  void clear() { out_.clear(); }
  std::string take() { return std::move(out_); }

 private:
  void varint(std::uint64_t value) {
    for (; value > 0x7f; value >>= 7) {
      out_.push_back(static_cast<char>((value & 0x7f) | 0x80));
    }
    out_.push_back(static_cast<char>(value));
  }

  std::string out_;
};

}  // namespace frtrace
