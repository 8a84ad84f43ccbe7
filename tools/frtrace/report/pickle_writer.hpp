// pickle_writer.hpp - writes a pickle of plain data; the reader is input/pickle.hpp.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace frtrace {

// Protocol 2, as torch::jit::Pickler writes it: a repeated string is a reference to the first.
class PickleWriter {
 public:
  PickleWriter() { out_ = "\x80\x02"; }

  void none() { out_ += 'N'; }
  void boolean(bool v) { out_ += v ? '\x88' : '\x89'; }
  void number(std::int64_t v) {
    if (v >= 0 && v < 256) {
      out_ += 'K';
      out_ += static_cast<char>(v);
    } else if (v >= INT32_MIN && v <= INT32_MAX) {
      out_ += 'J';
      little(static_cast<std::int32_t>(v));
    } else {
      out_ += "\x8a\x08";
      little(v);
    }
  }
  void text(std::string_view s) {
    const auto [it, added] = strings_.try_emplace(std::string(s), next_);
    if (!added) {
      get(it->second);
      return;
    }
    out_ += 'X';
    little(static_cast<std::uint32_t>(s.size()));
    out_ += s;
    put();
  }
  void open_dict() { out_ += "}("; }
  void close_dict() { out_ += 'u'; }
  void open_list() { out_ += "]("; }
  void close_list() { out_ += 'e'; }
  void pair() { out_ += '\x86'; }
  // Memoizes the value just written and returns its number.
  std::uint32_t put() {
    out_ += 'r';
    little(next_);
    return next_++;
  }
  void get(std::uint32_t i) {
    if (i < 256) {
      out_ += 'h';
      out_ += static_cast<char>(i);
    } else {
      out_ += 'j';
      little(i);
    }
  }
  std::string finish() {
    out_ += '.';
    return std::move(out_);
  }

 private:
  template <class T>
  void little(T v) {
    char bytes[sizeof v];
    std::memcpy(bytes, &v, sizeof v);
    out_.append(bytes, sizeof bytes);
  }
  std::string out_;
  std::unordered_map<std::string, std::uint32_t> strings_;
  std::uint32_t next_ = 0;
};

}  // namespace frtrace
