// packer.hpp - what the sections of a dump are written with. Only for format/encode*.cpp.
#pragma once

#include <concepts>
#include <cstring>
#include <msgpack.hpp>
#include <string_view>

#include "format/encode.hpp"
#include "format/schema.hpp"

namespace fr {

namespace packing {

using Packer = msgpack::packer<ByteSink>;

inline void text(Packer& p, std::string_view s) {
  p.pack_str(static_cast<u32>(s.size()));
  p.pack_str_body(s.data(), static_cast<u32>(s.size()));
}

inline void key_int(Packer& p, const char* key, i64 value) {
  text(p, key);
  p.pack_int64(value);
}

inline void key_uint(Packer& p, const char* key, u64 value) {
  text(p, key);
  p.pack_uint64(value);
}

// The region's clocks as a dump's: ns since the base, nil = unknown.
class Times {
 public:
  explicit Times(const View& view) noexcept
      : clock_(view.header()), base_(view.header().start_unix_ns) {
    u64 ticks = 0;
    u64 unix_ns = 0;
    u64 mono = 0;
    read_anchor(view.header().last, ticks, unix_ns, mono);
    mono_to_unix_ns_ = static_cast<i64>(unix_ns - mono);
    device_to_mono_ns_ = view.device() != nullptr ? schema::get(view.device()->clock_offset_ns) : 0;
  }

  u64 base() const noexcept { return base_; }
  void pack(Packer& p, schema::Ticks t) const { pack(p, schema::UnixNs{clock_.unix_ns(t.value)}); }
  void pack(Packer& p, schema::UnixNs t) const {
    if (t.value == 0) {
      p.pack_nil();
    } else {
      p.pack_int64(static_cast<i64>(t.value - base_));
    }
  }
  // The device's clock counts ns too; its offset to the host's monotonic clock is an upper bound,
  // the best of all completions seen.
  void pack(Packer& p, schema::DeviceNs t) const {
    const bool is_known = t.value != 0 && (t.is_host_clock || device_to_mono_ns_ != 0);
    const i64 offset = t.is_host_clock ? 0 : device_to_mono_ns_;
    pack(p, schema::UnixNs{is_known ? t.value + static_cast<u64>(offset + mono_to_unix_ns_) : 0});
  }

 private:
  TickClock clock_;
  u64 base_;
  i64 mono_to_unix_ns_;
  i64 device_to_mono_ns_;  // 0 unknown
};

// ---- cells, by what the schema says that they hold

template <std::integral T>
void cell(Packer& p, const Times&, T value) {
  if constexpr (std::signed_integral<T>) {
    p.pack_int64(value);
  } else {
    p.pack_uint64(value);
  }
}
inline void cell(Packer& p, const Times&, std::string_view s) {
  text(p, s);
}
inline void cell(Packer& p, const Times& times, schema::Ticks t) {
  times.pack(p, t);
}
inline void cell(Packer& p, const Times& times, schema::UnixNs t) {
  times.pack(p, t);
}
inline void cell(Packer& p, const Times& times, schema::DeviceNs t) {
  times.pack(p, t);
}
template <class T>
void cell(Packer& p, const Times& times, schema::Maybe<T> m) {
  if (m.is_known) {
    cell(p, times, m.value);
  } else {
    p.pack_nil();
  }
}
void cell(Packer& p, const Times& times, schema::RankRuns runs);
void cell(Packer& p, const Times& times, schema::Shape shape);
inline void cell(Packer& p, const Times&, schema::Truth t) {
  t.value ? p.pack_true() : p.pack_false();
}
template <std::integral T, std::size_t N>
void cell(Packer& p, const Times& times, std::span<const T, N> values) {
  p.pack_array(static_cast<u32>(values.size()));
  for (const T v : values) {
    cell(p, times, v);
  }
}
template <std::size_t N>
void cell(Packer& p, const Times& times, const std::array<u32, N>& values) {
  cell(p, times, std::span<const u32, N>(values));
}
template <class Columns, class Get>
void cell(Packer& p, const Times& times, const schema::Maps<Columns, Get>& maps);
template <class Columns, class Get>
void cell(Packer& p, const Times& times, const schema::Rows<Columns, Get>& rows);

template <class... C, class Cells>
void pack_row(Packer& p, const Times& times, const std::tuple<C...>& columns, const Cells& cells) {
  p.pack_array(sizeof...(C));
  std::apply([&](const auto&... c) { (cell(p, times, c.get(cells)), ...); }, columns);
}

// Keys and values of one map, behind its pack_map().
template <class... C, class Cells>
void pack_members(Packer& p, const Times& times, const std::tuple<C...>& keys, const Cells& cells) {
  std::apply([&](const auto&... k) { ((text(p, k.name), cell(p, times, k.get(cells))), ...); },
             keys);
}
template <class... C, class Cells>
void pack_map(Packer& p, const Times& times, const std::tuple<C...>& keys, const Cells& cells) {
  p.pack_map(sizeof...(C));
  pack_members(p, times, keys, cells);
}

template <class Columns, class Get>
void cell(Packer& p, const Times& times, const schema::Maps<Columns, Get>& maps) {
  p.pack_array(maps.n);
  for (u32 i = 0; i < maps.n; ++i) {
    pack_map(p, times, maps.columns, maps.get(i));
  }
}
template <class Columns, class Get>
void cell(Packer& p, const Times& times, const schema::Rows<Columns, Get>& rows) {
  p.pack_array(rows.n);
  for (u32 i = 0; i < rows.n; ++i) {
    pack_row(p, times, rows.columns, rows.get(i));
  }
}

// { "fields": [...], "rows": [...] } with a row for each of 0..n-1: row_of(i, row) calls row(cells),
// or returns false where there is none.
template <class... C, class RowOf>
void pack_table(Packer& p, const Times& times, const char* name, const std::tuple<C...>& columns,
                u32 n, RowOf row_of) {
  text(p, name);
  p.pack_map(2);
  text(p, "fields");
  p.pack_array(sizeof...(C));
  std::apply([&](const auto&... c) { (text(p, c.name), ...); }, columns);
  text(p, "rows");
  p.pack_array(n);
  for (u32 i = 0; i < n; ++i) {
    if (!row_of(i, [&](const auto& cells) { pack_row(p, times, columns, cells); })) {
      p.pack_nil();
    }
  }
}

// ---- sections, in encode_device.cpp and encode_process.cpp

void pack_device(Packer& p, const View& view, const Times& times);
void pack_exit(Packer& p, const Header& h, const Times& times);
void pack_peers(Packer& p, const DumpFacts& facts, const Times& times);
void pack_threads(Packer& p, const ThreadReport* all, const Times& times);
void pack_notes(Packer& p, const View& view, const Times& times);

}  // namespace packing
}  // namespace fr
