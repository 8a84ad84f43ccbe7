// intern_tables.hpp - the miss path of the tables in the region: strings, frames, stacks, groups.
//
// One lock, held only while something is seen for the first time. Neither the dump path nor a
// signal handler takes it: they read what is published by the counters in the header.
#pragma once

#include <mutex>

#include "fr/fr.h"
#include "record/intern.hpp"
#include "recorder/region.hpp"

namespace fr {

class Tables {
 public:
  // Prepares for a fresh region; row 0 of every table is "none".
  explicit Tables(const Region& region);

  u32 intern(const char* text, std::size_t bytes) noexcept;  // 0 = full or empty
  u32 stack(const fr_frame* frames, u32 n) noexcept;
  u32 add_group(const fr_group_info& info, u64 ticks) noexcept;
  u32 find_group(const char* name) noexcept;
  void set_layer(const char* name, const char* text) noexcept;
  // Fills identity the launcher did not give. Returns true when the rank changed.
  bool set_identity(i32 rank, i32 world_size, i32 local_rank) noexcept;

 private:
  static constexpr u32 kFrameBuckets = 32768;
  static constexpr u32 kStackBuckets = 8192;

  u32 frame(const fr_frame& f) noexcept;

  std::mutex mutex_;
  Header& header_;
  StringRow* strings_;
  char* string_bytes_;
  FrameRow* frames_;
  StackRow* stacks_;
  u32* stack_words_;
  GroupRow* groups_;
  u32* ranks_;
  StringIndex index_{};
  u64 frame_key_[kFrameBuckets] = {};
  u32 frame_id_[kFrameBuckets] = {};
  u64 stack_hash_[kStackBuckets] = {};
  u32 stack_id_[kStackBuckets] = {};
};

}  // namespace fr
