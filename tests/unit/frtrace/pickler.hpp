// pickler.hpp - pickles by hand, opcode by opcode, as torch::jit::Pickler or Python writes them.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace frtest {

class Pickler {
 public:
  explicit Pickler(int protocol = 2) {
    if (protocol >= 2) {
      op('\x80').byte(static_cast<unsigned>(protocol));
    }
  }
  Pickler& op(char c) { return raw({&c, 1}); }
  Pickler& byte(unsigned v) { return op(static_cast<char>(v)); }
  Pickler& raw(std::string_view s) {
    data.append(s);
    return *this;
  }
  template <class T>
  Pickler& little(T v) {
    char bytes[sizeof v];
    std::memcpy(bytes, &v, sizeof v);
    return raw({bytes, sizeof v});
  }
  Pickler& str(std::string_view s) {
    if (const auto it = memo.find(std::string(s)); it != memo.end()) {
      return op('h').byte(it->second);
    }
    op('X').little(static_cast<std::uint32_t>(s.size())).raw(s);
    if (memo.size() < 200) {
      const auto n = static_cast<unsigned>(memo.size());
      memo.emplace(s, n);
      op('q').byte(n);
    }
    return *this;
  }
  Pickler& num(std::int64_t v) {
    if (v >= 0 && v < 256) {
      return op('K').byte(static_cast<unsigned>(v));
    }
    return op('\x8a').byte(8).little(v);
  }
  Pickler& none() { return op('N'); }
  Pickler& boolean(bool v) { return op(v ? '\x88' : '\x89'); }
  Pickler& dict() { return raw("}("); }
  Pickler& end_dict() { return op('u'); }
  Pickler& list() { return raw("]("); }
  Pickler& end_list() { return op('e'); }
  std::vector<unsigned char> done() const {
    std::vector<unsigned char> out(data.begin(), data.end());
    out.push_back('.');
    return out;
  }

  std::string data;
  std::map<std::string, unsigned> memo;
};

inline std::span<const unsigned char> bytes_of(std::string_view s) {
  return {reinterpret_cast<const unsigned char*>(s.data()), s.size()};
}

}  // namespace frtest
