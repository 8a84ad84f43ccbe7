// small_dump.hpp - fr dumps packed by hand, in the grammar of libfr/format/README.md.
#pragma once

#include <zstd.h>

#include <cstdint>
#include <map>
#include <msgpack.hpp>
#include <string>
#include <vector>

namespace frtest {

using Packer = msgpack::packer<msgpack::sbuffer>;

inline std::vector<unsigned char> compress(const char* data, std::size_t size) {
  std::vector<unsigned char> out(ZSTD_compressBound(size));
  out.resize(ZSTD_compress(out.data(), out.size(), data, size, 3));
  return out;
}

// A small dump of rank `rank`: two finished all_reduces, a third in flight.
// `extra`: keys and columns that no reader knows yet.
inline msgpack::sbuffer plain_dump(int rank, bool extra = false) {
  msgpack::sbuffer buffer;
  Packer p(buffer);
  const auto key = [&](const char* k) { p.pack(std::string(k)); };
  p.pack_map(extra ? 16 : 15);
  key("format"), p.pack("fr.dump");
  key("version"), p.pack(1);
  if (extra) {
    key("from_the_future"), p.pack_map(1), p.pack(7), p.pack_array(2), p.pack(1.5), p.pack_nil();
  }
  key("identity"), p.pack_map(9);
  key("job"), p.pack("jobname");
  key("attempt"), p.pack(0);
  key("rank"), p.pack(rank);
  key("world_size"), p.pack(2);
  key("host"), p.pack("n1");
  key("pid"), p.pack(42 + rank);
  key("cwd"), p.pack("/home/u");
  key("start_unix_ns"), p.pack(std::int64_t{1'000'000'000'000});
  key("memory"), p.pack("shm");
  key("reason"), p.pack("no progress");
  key("incident"), p.pack(3);
  key("written_unix_ns"), p.pack(std::int64_t{1'060'000'000'000});
  key("clock"), p.pack_map(1), key("base_unix_ns"), p.pack(std::int64_t{1'000'000'000'000});
  key("options"), p.pack_array(1), p.pack_array(3);
  p.pack("FR_TIMEOUT_S"), p.pack("30"), p.pack("default");
  key("strings"), p.pack_array(6);
  for (const char* s : {"", "0", "default_pg", "all_reduce", "/home/u/train.py", "step"}) {
    p.pack(s);
  }
  key("frames"), p.pack_array(1), p.pack_array(3), p.pack(4), p.pack(5), p.pack(57);
  key("stacks"), p.pack_array(2), p.pack_array(0), p.pack_array(1), p.pack(0);
  // The columns in another order than the grammar's, to be looked up by name.
  key("groups"), p.pack_map(2), key("fields"), p.pack_array(10);
  for (const char* f : {"enqueued", "group", "name", "desc", "ranks", "n_ranks", "completed",
                        "ended", "kept", "first_kept"}) {
    p.pack(f);
  }
  key("rows"), p.pack_array(2);
  p.pack_nil();
  p.pack_array(10);
  p.pack(rank == 0 ? 3 : 2), p.pack(1), p.pack(1), p.pack(2);
  p.pack_array(1), p.pack_array(3), p.pack(0), p.pack(2), p.pack(1);
  p.pack(2), p.pack(2), p.pack(2), p.pack(3), p.pack(1);
  key("records"), p.pack_map(2), key("fields");
  const std::vector<const char*> fields = {"ticket",   "time",  "kind",  "seq",
                                           "group",    "op",    "stack", "in_numel",
                                           "in_dtype", "state", "ended", "shape"};
  p.pack_array(static_cast<std::uint32_t>(fields.size()) + (extra ? 1 : 0));
  for (const char* f : fields) {
    p.pack(f);
  }
  if (extra) {
    p.pack("colour");
  }
  key("rows");
  const int n = rank == 0 ? 3 : 2;
  p.pack_array(static_cast<std::uint32_t>(n) + 1);
  for (int i = n; i >= 1; --i) {  // slot order is not ticket order
    p.pack_array(static_cast<std::uint32_t>(fields.size()) + (extra ? 1 : 0));
    p.pack(i), p.pack(std::int64_t{i} * 1'000'000'000), p.pack("collective"), p.pack(i), p.pack(1);
    p.pack(3), p.pack(1), p.pack(64), p.pack("Float"), p.pack(i == 3 ? "enqueued" : "completed");
    i == 3 ? p.pack_nil() : p.pack(std::int64_t{i} * 1'000'000'000 + 5);
    p.pack_array(3), p.pack(1u | 1u << 24), p.pack(1), p.pack(64);
    if (extra) {
      p.pack("red");
    }
  }
  p.pack_nil();
  key("exit"), p.pack_nil();
  key("losses"), p.pack_map(1), key("dropped"), p.pack(0);
  return buffer;
}

inline std::vector<unsigned char> dump(int rank, bool extra = false) {
  const msgpack::sbuffer plain = plain_dump(rank, extra);
  return compress(plain.data(), plain.size());
}

// A dump of rank `rank` with `n` strings of `bytes` bytes besides.
inline std::vector<unsigned char> large_dump(int rank, std::size_t n, std::size_t bytes) {
  msgpack::sbuffer buffer;
  Packer p(buffer);
  p.pack_map(5);
  p.pack("format"), p.pack("fr.dump");
  p.pack("version"), p.pack(1);
  p.pack("identity"), p.pack(std::map<std::string, int>{{"rank", rank}});
  p.pack("groups"), p.pack(std::map<std::string, std::vector<int>>{{"rows", {}}});
  p.pack("strings"), p.pack_array(static_cast<std::uint32_t>(n));
  for (std::size_t i = 0; i < n; ++i) {
    p.pack(std::string(bytes, static_cast<char>('a' + i % 26)));
  }
  return compress(buffer.data(), buffer.size());
}

}  // namespace frtest
