#include "input/threads.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <exception>
#include <msgpack.hpp>

namespace frtrace {

namespace {

struct Parsed {
  using Object = msgpack::object;

  static bool is_map(const Object* o) { return o != nullptr && o->type == msgpack::type::MAP; }
  static std::string_view text(const Object* o) {
    return o != nullptr && o->type == msgpack::type::STR
               ? std::string_view(o->via.str.ptr, o->via.str.size)
               : std::string_view();
  }
  static std::int64_t integer(const Object* o) {
    if (o == nullptr) {
      return 0;
    }
    switch (o->type) {
      case msgpack::type::POSITIVE_INTEGER:
        return static_cast<std::int64_t>(o->via.u64);
      case msgpack::type::NEGATIVE_INTEGER:
        return o->via.i64;
      case msgpack::type::BOOLEAN:
        return o->via.boolean ? 1 : 0;
      default:
        return 0;
    }
  }
  static const Object* member(const Object* o, std::string_view key) {
    for (std::uint32_t i = 0; is_map(o) && i < o->via.map.size; ++i) {
      if (text(&o->via.map.ptr[i].key) == key) {
        return &o->via.map.ptr[i].val;
      }
    }
    return nullptr;
  }
  template <class Fn>
  static void each(const Object* o, Fn fn) {
    for (std::uint32_t i = 0;
         o != nullptr && o->type == msgpack::type::ARRAY && i < o->via.array.size; ++i) {
      fn(&o->via.array.ptr[i]);
    }
  }
};

}  // namespace

std::string demangled(std::string symbol) {
  if (symbol.compare(0, 2, "_Z") != 0) {
    return symbol;
  }
  int status = 0;
  char* plain = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  if (plain != nullptr && status == 0) {
    symbol = plain;
  }
  std::free(plain);
  return symbol;
}

ThreadsEvidence read_threads(std::string_view threads, std::string_view facts) {
  try {
    const msgpack::object_handle t = threads.empty()
                                         ? msgpack::object_handle()
                                         : msgpack::unpack(threads.data(), threads.size());
    const msgpack::object_handle f =
        facts.empty() ? msgpack::object_handle() : msgpack::unpack(facts.data(), facts.size());
    return read_threads<Parsed>(threads.empty() ? nullptr : &t.get(),
                                facts.empty() ? nullptr : &f.get());
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace frtrace
