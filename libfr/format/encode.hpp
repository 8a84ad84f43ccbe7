// encode.hpp - a region as a dump file (grammar: ../README.md), encoded into memory of its own.
//
// All memory is mapped by init(); encode() allocates nothing and takes no lock, so it works while
// the process it describes hangs. One thread at a time: the watchdog's.
#pragma once

#include <cstddef>

#include "format/codes.hpp"
#include "format/view.hpp"

namespace fr {

struct NodesAnswer;
struct RasAnswer;
struct ThreadReport;
namespace schema {
struct KeptOfGroup;
}

struct DumpFacts {
  const char* reason = "";
  const char* trigger = "";  // a word of dump::Trigger
  u64 incident = 0;
  dump::Salvage salvage = dump::Salvage::kNone;  // kNone: its own dump
  int salvaged_by = -1;                          // rank; -1: the writer's is not known
  i64 oom_kills = -1;  // of a dead peer: kills since this process began; -1 unknown
  const Control* control = nullptr;
  // Does the process with this pid and start time live? nullptr: not looked up, peers count as live.
  bool (*is_alive)(i32 pid, u64 start) noexcept = nullptr;
  const ThreadReport* threads = nullptr;
  const RasAnswer* ras = nullptr;      // nullptr: it was not asked
  const NodesAnswer* nodes = nullptr;  // nullptr: this rank told no other node
};

// Where the packed bytes of a dump go: collected in a chunk, which is handed on when it is full.
struct ByteSink {
  static constexpr std::size_t kChunkBytes = 128 * 1024;

  char* chunk;  // kChunkBytes, the caller's
  void* context;
  void (*take)(void* context, const char* data, std::size_t bytes) noexcept;
  std::size_t used = 0;   // of the chunk
  std::size_t total = 0;  // written so far

  void write(const char* data, std::size_t n) noexcept;  // what msgpack::packer calls
  void flush() noexcept;
};

// Packs what `view` and `facts` say into `to`, by the grammar, not compressed. frtrace reads rings
// this way: what it knows of a ring is what a dump of it would say. per_group: kGroups elements of
// working memory.
void pack_dump(ByteSink& to, const View& view, const DumpFacts& facts,
               schema::KeptOfGroup* per_group) noexcept;

class DumpEncoder {
 public:
  // Maps the buffers for regions of up to n_records. False without memory.
  bool init(u32 n_records) noexcept;
  // Returns the file's content, valid until the next call; {nullptr, 0} when it did not fit.
  struct Bytes {
    const void* data;
    std::size_t size;
  };
  Bytes encode(const View& view, const DumpFacts& facts) noexcept;

  std::size_t raw_bytes() const noexcept { return raw_bytes_; }  // of the last encode, uncompressed

 private:
  void compress(const char* data, std::size_t bytes, bool last) noexcept;
  void* zstd_ = nullptr;  // ZSTD_CCtx in workspace_
  void* workspace_ = nullptr;
  std::size_t workspace_bytes_ = 0;
  char* in_ = nullptr;  // ByteSink's chunk
  char* out_ = nullptr;
  std::size_t out_size_ = 0;
  std::size_t out_used_ = 0;
  std::size_t raw_bytes_ = 0;
  bool overflow_ = false;
  schema::KeptOfGroup* per_group_ = nullptr;
};

}  // namespace fr
