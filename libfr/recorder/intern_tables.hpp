// intern_tables.hpp - the miss path of the tables in the region: strings, frames, stacks, groups.
//
// One lock, held only while something is seen for the first time. Neither the dump path nor a
// signal handler takes it: they read what is published by the counters in the header.
#pragma once

#include <memory>
#include <mutex>

#include "format/view.hpp"
#include "fr/fr.h"
#include "record/intern.hpp"
#include "recorder/region.hpp"

namespace fr {

class Tables {
 public:
  // Prepares for a fresh region; row 0 of every table is "none".
  explicit Tables(const Region& region);

  // 0 = full or empty. The last kReserved ids and their bytes are for names of groups and operations,
  // which a verdict cannot do without; call sites made at run time must not use them up.
  enum class For { kAnything, kName };
  static constexpr u32 kReserved = 512;
  static constexpr u32 kReservedBytes = 16 * 1024;
  u32 intern(const char* text, std::size_t bytes, For what = For::kAnything) noexcept;
  u32 stack(const fr_frame* frames, u32 n) noexcept;
  u32 add_group(const fr_group_info& info, u64 ticks) noexcept;
  u32 find_group(const char* name) noexcept;
  void set_layer(const char* name, const char* text) noexcept;
  // Fills identity the launcher did not give. Returns true when the rank changed.
  bool set_identity(i32 rank, i32 world_size, i32 local_rank) noexcept;

 private:
  bool has_left_world() const noexcept;
  static constexpr u32 kFrameBuckets = 32768;
  static constexpr u32 kStackBuckets = 8192;

  // Number of groups made per name, over groups that gave their row to another one.
  static constexpr u32 kNameCounts = 16384;  // power of two; names above it count from 1 again
  struct NameCount {
    u64 hash;  // 0 free
    u32 instance;
  };

  // Zero pages of the kernel's, resident only where something was interned.
  struct Buckets {
    u64 frame_key[kFrameBuckets];
    u32 frame_id[kFrameBuckets];
    u64 stack_hash[kStackBuckets];
    u32 stack_id[kStackBuckets];
    NameCount forgotten[kNameCounts];
  };
  struct Unmap {
    void operator()(Buckets* b) const noexcept;
  };
  static Buckets* map_buckets();  // throws std::bad_alloc

  // These hold the lock already.
  u32 frame(const fr_frame& f) noexcept;
  u32 intern_new(u64 hash, const char* text, std::size_t bytes, For what) noexcept;
  u32 name(const char* text) noexcept;
  u32 name_in_row(u32 text_row, const char* text) noexcept;
  u32 forget_a_group() noexcept;
  NameCount* count_of(u64 hash) noexcept;
  u32 next_instance(u32 group) noexcept;
  u32 store_runs(const fr_group_info& info, u32 first, u32 room) noexcept;
  void store_ranks(u32 group, const fr_group_info& info) noexcept;

  std::mutex mutex_;
  Header& header_;
  StringRow* strings_;
  char* string_bytes_;
  FrameRow* frames_;
  StackRow* stacks_;
  u32* stack_words_;
  GroupRow* groups_;
  GroupText* group_texts_;
  LaneRow* lanes_;
  u32* ranks_;
  u32 rank_room_[kGroups] = {};  // words from ranks_first on that are this row's
  View view_;
  StringIndex index_{};
  std::unique_ptr<Buckets, Unmap> buckets_;
};

}  // namespace fr
