// packer.hpp - what the sections of a dump are written with. Only for cold/dump*.cpp.
#pragma once

#include <cstring>
#include <initializer_list>
#include <msgpack.hpp>
#include <string_view>

#include "format/encode.hpp"

namespace fr {

// What msgpack::packer writes into: collects a chunk, compresses it when full.
struct ZstdStream {
  DumpEncoder& e;

  void write(const char* data, std::size_t n) noexcept {
    e.raw_bytes_ += n;
    while (n > 0) {
      if (e.in_used_ == DumpEncoder::kChunkBytes) {
        flush(false);
      }
      const std::size_t part =
          n < DumpEncoder::kChunkBytes - e.in_used_ ? n : DumpEncoder::kChunkBytes - e.in_used_;
      std::memcpy(e.in_ + e.in_used_, data, part);
      e.in_used_ += part;
      data += part;
      n -= part;
    }
  }

  void flush(bool last) noexcept;
};

namespace packing {

using Packer = msgpack::packer<ZstdStream>;

inline void text(Packer& p, std::string_view s) {
  p.pack_str(static_cast<u32>(s.size()));
  p.pack_str_body(s.data(), static_cast<u32>(s.size()));
}

inline std::string_view fixed(const char* s, std::size_t size) {
  return {s, strnlen(s, size)};
}

template <std::size_t N>
void key_text(Packer& p, const char* key, const char (&value)[N]) {
  text(p, key);
  text(p, fixed(value, N));
}

inline void key_int(Packer& p, const char* key, i64 value) {
  text(p, key);
  p.pack_int64(value);
}

inline void key_uint(Packer& p, const char* key, u64 value) {
  text(p, key);
  p.pack_uint64(value);
}

inline void fields(Packer& p, std::initializer_list<const char*> names) {
  text(p, "fields");
  p.pack_array(static_cast<u32>(names.size()));
  for (const char* name : names) {
    text(p, name);
  }
}

// pack_row(i) packs row i, or nothing and returns false where there is none.
template <class PackRow>
void pack_rows(Packer& p, u32 n, PackRow pack_row) {
  text(p, "rows");
  p.pack_array(n);
  for (u32 i = 0; i < n; ++i) {
    if (!pack_row(i)) {
      p.pack_nil();
    }
  }
}

// Times relative to the base; nil = unknown.
struct Times {
  TickClock clock;
  u64 base;

  void ticks(Packer& p, u64 value) const { unix_ns(p, clock.unix_ns(value)); }
  void unix_ns(Packer& p, u64 value) const {
    if (value == 0) {
      p.pack_nil();
    } else {
      p.pack_int64(static_cast<i64>(value - base));
    }
  }
};

inline u64 get(const std::atomic<u64>& a) {
  return a.load(std::memory_order_relaxed);
}

// ---- sections, in dump_device.cpp and dump_process.cpp

void pack_device(Packer& p, const View& view, const Times& times);
void pack_ras(Packer& p, const RasAnswer* ras);
void pack_exit(Packer& p, const Header& h, const Times& times);
void pack_peers(Packer& p, const Control* control, const Times& times);
void pack_threads(Packer& p, const ThreadReport* all);

}  // namespace packing
}  // namespace fr
