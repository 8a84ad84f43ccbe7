// intern_tables.cpp - interned strings, stacks and groups; the one lock of the recorder.
#include "recorder/intern_tables.hpp"

#include <sys/mman.h>

#include <cstdio>
#include <cstring>
#include <new>

namespace fr {
namespace {

constexpr u32 kMaxStringBytes = 1024;

void copy_text(char* to, std::size_t size, const char* from) noexcept {
  std::snprintf(to, size, "%s", from != nullptr ? from : "");
}

// Its readers hold no lock.
void replace_text(Header::Layer& layer, const char* by) noexcept {
  char text[sizeof layer.text] = {};
  copy_text(text, sizeof text, by);
  layer.revisions.fetch_add(1);
  for (std::size_t i = 0; i < sizeof text; ++i) {
    __atomic_store_n(&layer.text[i], text[i], __ATOMIC_SEQ_CST);
  }
  layer.revisions.fetch_add(1);
}

std::size_t length(const char* text) noexcept {
  return text != nullptr ? std::strlen(text) : 0;
}

}  // namespace

Tables::Tables(const Region& region)
    : header_(region.header()),
      strings_(region.section<StringRow>(kSecStringIndex)),
      string_bytes_(region.section<char>(kSecStringBytes)),
      frames_(region.section<FrameRow>(kSecFrames)),
      stacks_(region.section<StackRow>(kSecStacks)),
      stack_words_(region.section<u32>(kSecStackWords)),
      groups_(region.section<GroupRow>(kSecGroups)),
      ranks_(region.section<u32>(kSecRanks)),
      buckets_(map_buckets()) {
  index_.rows = strings_;
  index_.bytes = string_bytes_;
  header_.n_strings.store(1);
  header_.n_frames.store(1);
  header_.n_stacks.store(1);
  header_.n_groups.store(1);
  groups_[0].own_rank = -1;
}

Tables::Buckets* Tables::map_buckets() {
  void* p =
      mmap(nullptr, sizeof(Buckets), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return static_cast<Buckets*>(p);
}

void Tables::Unmap::operator()(Buckets* b) const noexcept {
  munmap(b, sizeof *b);
}

u32 Tables::intern(const char* text, std::size_t bytes, For what) noexcept {
  if (text == nullptr || bytes == 0) {
    return 0;
  }
  if (bytes > kMaxStringBytes) {
    bytes = kMaxStringBytes;
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) {
      --bytes;  // not in the middle of a UTF-8 character
    }
  }
  const u64 hash = hash_bytes(text, bytes);
  if (const u32 id = index_.find(hash, text, bytes)) {
    return id;
  }
  const std::lock_guard lock(mutex_);
  if (const u32 id = index_.find(hash, text, bytes)) {
    return id;  // another thread was first
  }
  const u32 id = header_.n_strings.load(std::memory_order_relaxed);
  const u32 at = header_.n_string_bytes.load(std::memory_order_relaxed);
  const bool reserve = what == For::kName;
  if (id >= kStrings - (reserve ? 0 : kReserved) ||
      at + bytes > kStringBytes - (reserve ? 0 : kReservedBytes)) {
    header_.strings_lost.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  std::memcpy(string_bytes_ + at, text, bytes);
  strings_[id] = {at, static_cast<u32>(bytes)};
  header_.n_string_bytes.store(at + static_cast<u32>(bytes), std::memory_order_relaxed);
  header_.n_strings.store(id + 1, std::memory_order_release);
  index_.insert(hash, id);
  return id;
}

u32 Tables::name(const char* text) noexcept {
  return intern(text, length(text), For::kName);
}

u32 Tables::frame(const fr_frame& f) noexcept {
  // exact key: string ids are below 2^13
  static_assert(kStrings <= 1u << 13);
  const u64 key = 1ull << 63 | static_cast<u64>(f.file & 0x1fff) << 45 |
                  static_cast<u64>(f.func & 0x1fff) << 32 | f.line;
  u32 at = static_cast<u32>(mix(0, key)) & (kFrameBuckets - 1);
  for (; buckets_->frame_key[at] != 0; at = (at + 1) & (kFrameBuckets - 1)) {
    if (buckets_->frame_key[at] == key) {
      return buckets_->frame_id[at];
    }
  }
  const u32 id = header_.n_frames.load(std::memory_order_relaxed);
  if (id >= kFrames) {
    return 0;
  }
  frames_[id] = {f.file, f.func, f.line};
  header_.n_frames.store(id + 1, std::memory_order_release);
  buckets_->frame_key[at] = key;
  buckets_->frame_id[at] = id;
  return id;
}

u32 Tables::stack(const fr_frame* frames, u32 n) noexcept {
  if (frames == nullptr || n == 0) {
    return 0;
  }
  n = n < FR_MAX_FRAMES ? n : FR_MAX_FRAMES;
  const std::lock_guard lock(mutex_);
  u32 ids[FR_MAX_FRAMES];
  u64 hash = n;
  for (u32 i = 0; i < n; ++i) {
    ids[i] = frame(frames[i]);
    if (ids[i] == 0) {
      header_.stacks_lost.fetch_add(1, std::memory_order_relaxed);
      return 0;
    }
    hash = mix(hash, ids[i]);
  }
  hash |= 1;
  u32 at = static_cast<u32>(hash >> 7) & (kStackBuckets - 1);
  for (; buckets_->stack_hash[at] != 0; at = (at + 1) & (kStackBuckets - 1)) {
    const StackRow& row = stacks_[buckets_->stack_id[at]];
    if (buckets_->stack_hash[at] == hash && row.count == n &&
        std::memcmp(stack_words_ + row.first, ids, n * sizeof(u32)) == 0) {
      return buckets_->stack_id[at];
    }
  }
  const u32 id = header_.n_stacks.load(std::memory_order_relaxed);
  const u32 first = header_.n_stack_words.load(std::memory_order_relaxed);
  if (id >= kStacks || n > kStackWords - first) {
    header_.stacks_lost.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  std::memcpy(stack_words_ + first, ids, n * sizeof(u32));
  stacks_[id] = {first, n};
  header_.n_stack_words.store(first + n, std::memory_order_relaxed);
  header_.n_stacks.store(id + 1, std::memory_order_release);
  buckets_->stack_hash[at] = hash;
  buckets_->stack_id[at] = id;
  return id;
}

u32 Tables::add_group(const fr_group_info& info, u64 ticks) noexcept {
  if (header_.n_groups.load(std::memory_order_relaxed) >= kGroups) {  // its name would be lost room
    header_.groups_lost.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  const u32 name = this->name(info.name);
  const u32 desc = this->name(info.desc);
  const u32 backend = this->name(info.backend);
  const std::lock_guard lock(mutex_);
  const u32 id = header_.n_groups.load(std::memory_order_relaxed);
  if (id >= kGroups) {
    header_.groups_lost.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  GroupRow& row = groups_[id];
  row.name = name;
  row.desc = desc;
  row.backend = backend;
  row.instance = 1;
  for (u32 i = 1; i < id; ++i) {
    row.instance += groups_[i].name == name ? 1 : 0;
  }
  row.n_ranks = info.n_ranks;
  row.own_rank = info.own_rank;
  row.created_ticks.store(ticks, std::memory_order_relaxed);

  // Ranks as runs {first, count, stride}: tensor, pipeline and data parallel groups are
  // one run each.
  const u32 first = header_.n_rank_words.load(std::memory_order_relaxed);
  u32 used = 0;
  bool fits = info.ranks != nullptr && info.n_ranks > 0;
  for (i32 i = 0; fits && i < info.n_ranks;) {
    i32 count = 1;
    i32 stride = 1;
    if (i + 1 < info.n_ranks) {
      stride = info.ranks[i + 1] - info.ranks[i];
      count = 2;
      while (i + count < info.n_ranks &&
             info.ranks[i + count] - info.ranks[i + count - 1] == stride) {
        ++count;
      }
    }
    fits = first + used + 3 <= kRankWords;
    if (fits) {
      ranks_[first + used] = static_cast<u32>(info.ranks[i]);
      ranks_[first + used + 1] = static_cast<u32>(count);
      ranks_[first + used + 2] = static_cast<u32>(stride);
      used += 3;
    }
    i += count;
  }
  row.ranks_first = first;
  row.ranks_words = fits ? used : 0;
  if (fits) {
    header_.n_rank_words.store(first + used, std::memory_order_relaxed);
  }
  header_.n_groups.store(id + 1, std::memory_order_release);
  return id;
}

u32 Tables::find_group(const char* name) noexcept {
  const std::size_t bytes = length(name);
  const u32 id = bytes != 0 ? index_.find(hash_bytes(name, bytes), name, bytes) : 0;
  if (id == 0) {
    return 0;
  }
  for (u32 i = header_.n_groups.load(std::memory_order_acquire); i-- > 1;) {
    if (groups_[i].name == id && groups_[i].destroyed_ticks.load(std::memory_order_relaxed) == 0) {
      return i;
    }
  }
  return 0;
}

void Tables::set_layer(const char* name, const char* text) noexcept {
  const std::lock_guard lock(mutex_);
  const u32 n = header_.n_layers.load(std::memory_order_relaxed);
  u32 i = 0;
  while (i < n && std::strncmp(header_.layers[i].name, name, sizeof header_.layers[i].name) != 0) {
    ++i;
  }
  if (i >= std::size(header_.layers)) {
    return;
  }
  replace_text(header_.layers[i], text);
  if (i == n) {
    copy_text(header_.layers[i].name, sizeof header_.layers[i].name, name);
    header_.n_layers.store(n + 1, std::memory_order_release);
  }
}

bool Tables::set_identity(i32 rank, i32 world_size, i32 local_rank) noexcept {
  const std::lock_guard lock(mutex_);
  bool changed = false;
  if (rank >= 0 && header_.rank.load() < 0) {
    header_.rank.store(rank);
    changed = true;
  }
  if (world_size > 0 && header_.world_size.load() <= 0) {
    header_.world_size.store(world_size);
  }
  if (local_rank >= 0 && header_.local_rank.load() < 0) {
    header_.local_rank.store(local_rank);
  }
  return changed;
}

}  // namespace fr
