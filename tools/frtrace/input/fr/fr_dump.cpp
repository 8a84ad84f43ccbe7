// fr_dump.cpp - reads dumps: a zstd frame around one msgpack map. Every length is checked before
// use; dump_reader.cpp reads the map.
#include "input/fr/fr_dump.hpp"

#include <zstd.h>

#include <algorithm>
#include <exception>

#include "format/encode.hpp"
#include "input/files.hpp"
#include "input/fr/columns.hpp"
#include "input/fr/dump_reader.hpp"
#include "input/memory.hpp"
#include "model/generations.hpp"

namespace frtrace {

namespace {

constexpr std::size_t kMaxDumpBytes = std::size_t{512} << 20;  // decompressed

// Buffers that a thread reuses for the next file, so that the kernel need not clear new pages.
struct Buffers {
  std::vector<char> data;
  std::vector<Object> tape;
  struct Free {
    void operator()(ZSTD_DCtx* c) const { ZSTD_freeDCtx(c); }
  };
  std::unique_ptr<ZSTD_DCtx, Free> zstd;

  // Grows by a factor, as vectors do; the old and the new bytes coexist for a moment.
  void reserve(std::size_t bytes) {
    const std::size_t before = data.size();
    FileMemory::take(bytes);
    data.resize(bytes);
    FileMemory::give(before);
  }
  void shrink() {                                        // a huge file does not keep its memory
    constexpr std::size_t kKept = std::size_t{8} << 20;  // bytes, not counted in the limit
    if (data.size() > kKept) {
      std::vector<char>().swap(data);
    }
    if (tape.capacity() > kKept / sizeof(Object)) {
      std::vector<Object>().swap(tape);
    }
  }
};

// Frees large buffers, however reading ends.
struct Shrinking {
  Buffers& buffers;
  ~Shrinking() { buffers.shrink(); }
};

enum class Unpacked { kWhole, kCut, kFailed };

// The output is bounded, whatever size the frame claims.
Unpacked decompress(std::span<const unsigned char> in, Buffers& b, std::size_t& size,
                    std::string& why) {
  if (b.zstd == nullptr) {
    b.zstd.reset(ZSTD_createDCtx());
    // 8 MiB per thread, as zstd's levels up to 19 need; fr's level needs less.
    constexpr int kWindowLog = 23;
    ZSTD_DCtx_setParameter(b.zstd.get(), ZSTD_d_windowLogMax, kWindowLog);
  }
  if (b.zstd == nullptr) {
    why = "no memory";
    return Unpacked::kFailed;
  }
  ZSTD_DCtx_reset(b.zstd.get(), ZSTD_reset_session_only);
  ZSTD_inBuffer from{in.data(), in.size(), 0};
  size = 0;
  for (;;) {
    if (size == b.data.size()) {
      b.reserve(std::max<std::size_t>(std::size_t{1} << 18, 2 * size));
    }
    ZSTD_outBuffer to{b.data.data(), b.data.size(), size};
    const std::size_t left = ZSTD_decompressStream(b.zstd.get(), &to, &from);
    size = to.pos;
    if (ZSTD_isError(left) != 0U) {
      why = std::string("damaged: ") + ZSTD_getErrorName(left);
      return Unpacked::kFailed;
    }
    if (size > kMaxDumpBytes) {
      why = "larger than any dump (over 512 MiB unpacked)";
      return Unpacked::kFailed;
    }
    if (left == 0) {
      return Unpacked::kWhole;
    }
    if (from.pos == from.size && to.pos < to.size) {
      return Unpacked::kCut;
    }
  }
}

// Reads `size` bytes of b.data. is_cut: the frame around them ended too early.
std::unique_ptr<RankEvidence> read_content(Buffers& b, std::size_t size, bool is_cut,
                                           std::string& why) {
  const Parsed parsed = parse_msgpack(std::span(b.data).first(size), b.tape);
  if (parsed == Parsed::kDamaged) {
    why = is_cut ? "truncated" : "damaged: not a whole msgpack map";
    return nullptr;
  }
  const Object& root = b.tape.front();
  // Identity and counters come before the records: a dump cut behind them lacks only its newest
  // records.
  const bool cut = parsed == Parsed::kCut;
  if (cut && (!is_map(member(&root, "records")) || !is_map(member(&root, "groups")))) {
    why = "truncated";
    return nullptr;
  }
  if (text(member(&root, "format")) != "fr.dump") {
    why = "not recognised: a zstd file that is no fr dump";
    return nullptr;
  }
  if (const int version = number<int>(member(&root, "version")); version != 1) {
    why = "format version " + std::to_string(version) + ", this frtrace reads 1";
    return nullptr;
  }
  // Upper estimate of the model's memory per element; records have a row each.
  constexpr std::size_t kBytesPerElement = 64;
  const Object* rows = member(member(&root, "records"), "rows");
  std::size_t n_rows = 0;
  for ([[maybe_unused]] const Object& row : list(rows)) {
    ++n_rows;
  }
  const std::size_t elements = root.size - (rows != nullptr ? rows->size : 0);
  FileMemory::take(n_rows * sizeof(Record) + elements * kBytesPerElement);
  auto e = std::make_unique<RankEvidence>();
  e->source = Source::kDump;
  e->records.reserve(n_rows);
  read_dump(root, *e);
  if (cut) {
    e->holes.truncated = true;
    e->holes.truncated_at = e->records.size();
    count_kept(*e);
  }
  settle_generations(*e);
  return e;
}

Buffers& buffers() {
  thread_local Buffers all;
  return all;
}

}  // namespace

std::unique_ptr<RankEvidence> load_fr(std::span<const unsigned char> bytes, std::string& why) {
  Buffers& b = buffers();
  const Shrinking shrinking{b};
  try {
    std::size_t size = 0;
    const Unpacked unpacked = decompress(bytes, b, size, why);
    if (unpacked == Unpacked::kFailed) {
      return nullptr;
    }
    return read_content(b, size, unpacked == Unpacked::kCut, why);
  } catch (const OverLimit&) {
    throw;
  } catch (const std::exception&) {
    why = "damaged: not a whole msgpack map";
    return nullptr;
  }
}

void read_unpacked(std::span<const unsigned char> bytes,
                   const std::function<void(const Object& root)>& use, std::string& why) {
  Buffers& b = buffers();
  const Shrinking shrinking{b};
  std::size_t size = 0;
  try {
    const Unpacked unpacked = decompress(bytes, b, size, why);
    if (unpacked == Unpacked::kFailed) {
      return;
    }
    why = unpacked == Unpacked::kCut ? "truncated" : "damaged: not a whole msgpack map";
    if (parse_msgpack(std::span(b.data).first(size), b.tape) == Parsed::kWhole) {
      use(b.tape.front());
    }
  } catch (const OverLimit&) {
    throw;
  } catch (const std::exception& e) {
    why = e.what();
  }
}

std::unique_ptr<RankEvidence> read_region(const fr::View& view, std::string& why) {
  Buffers& b = buffers();
  struct Packed {
    Buffers& owner;
    std::vector<char>& to;
    std::size_t size = 0;
    bool is_full = false;
  } packed{b, b.data};
  const Shrinking shrinking{b};
  try {
    std::vector<char> chunk(fr::ByteSink::kChunkBytes);
    std::vector<fr::schema::KeptOfGroup> per_group(fr::kGroups);
    fr::ByteSink sink{
        chunk.data(), &packed, [](void* context, const char* data, std::size_t bytes) noexcept {
          Packed& p = *static_cast<Packed*>(context);
          try {
            if (p.to.size() - p.size < bytes) {
              p.owner.reserve(std::max<std::size_t>(std::size_t{1} << 18, 2 * (p.size + bytes)));
            }
            std::copy_n(data, bytes, p.to.data() + p.size);
            p.size += bytes;
          } catch (const std::exception&) {
            p.is_full = true;
          }
        }};
    fr::DumpFacts facts;
    facts.incident = view.header().incident.load();
    fr::pack_dump(sink, view, facts, per_group.data());
    sink.flush();
    auto e = packed.is_full ? nullptr : read_content(b, packed.size, false, why);
    if (packed.is_full) {
      throw OverLimit();
    }
    return e;
  } catch (const OverLimit&) {
    throw;
  } catch (const std::exception&) {
    why = "no memory";
    return nullptr;
  }
}

}  // namespace frtrace
