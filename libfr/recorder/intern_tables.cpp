// intern_tables.cpp - interned strings, stacks and groups; the one lock of the recorder.
#include "recorder/intern_tables.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "recorder/in_flight.hpp"

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

// Bytes of a text that are kept; never half a UTF-8 character.
std::size_t cut_to_fit(const char* text, std::size_t bytes) noexcept {
  if (bytes > kMaxStringBytes) {
    bytes = kMaxStringBytes;
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) {
      --bytes;
    }
  }
  return bytes;
}

u64 hash_of_name(std::string_view name) noexcept {
  return hash_bytes(name.data(), name.size()) | 1;  // 0 is a free entry
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
      group_texts_(region.section<GroupText>(kSecGroupTexts)),
      lanes_(region.section<LaneRow>(kSecLanes)),
      ranks_(region.section<u32>(kSecRanks)),
      view_(View::of(region.base, region.bytes)),
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
  bytes = cut_to_fit(text, bytes);
  const u64 hash = hash_bytes(text, bytes);
  if (const u32 id = index_.find(hash, text, bytes)) {
    return id;
  }
  const std::lock_guard lock(mutex_);
  return intern_new(hash, text, bytes, what);
}

u32 Tables::intern_new(u64 hash, const char* text, std::size_t bytes, For what) noexcept {
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
  const std::size_t bytes = cut_to_fit(text, length(text));
  return bytes != 0 ? intern_new(hash_bytes(text, bytes), text, bytes, For::kName) : 0;
}

// A text of a row that is used again. It goes into the row's own room if it fits: interned strings
// are never given back, and a million groups may have a million names.
u32 Tables::name_in_row(u32 text_row, const char* text) noexcept {
  const std::size_t bytes = length(text);
  const u32 known = bytes != 0 ? index_.find(hash_bytes(text, bytes), text, bytes) : 0;
  if (bytes == 0 || known != 0) {
    return known;
  }
  if (bytes >= kGroupTextBytes) {
    return name(text);
  }
  for (std::size_t i = 0; i < kGroupTextBytes; ++i) {
    group_texts_[text_row].text[i].store(i < bytes ? text[i] : '\0', std::memory_order_relaxed);
  }
  return kStrings + text_row;
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
  const std::lock_guard lock(mutex_);
  const u32 n = header_.n_groups.load(std::memory_order_relaxed);
  const bool is_new_row = n < kGroups;
  const u32 id = is_new_row ? n : forget_a_group();
  if (id == 0) {
    header_.groups_lost.fetch_add(1, std::memory_order_relaxed);
    return 0;
  }
  GroupRow& row = groups_[id];
  row.name.store(is_new_row ? name(info.name) : name_in_row(2 * id, info.name));
  row.desc.store(is_new_row ? name(info.desc) : name_in_row(2 * id + 1, info.desc));
  row.backend.store(name(info.backend));
  row.instance.store(next_instance(id));
  row.n_ranks.store(info.n_ranks);
  row.own_rank.store(info.own_rank);
  store_ranks(id, info);
  row.created_ticks.store(ticks, std::memory_order_relaxed);
  row.destroyed_ticks.store(0, std::memory_order_release);  // the group is complete
  if (is_new_row) {
    header_.n_groups.store(id + 1, std::memory_order_release);
  }
  return id;
}

// The entry of a name, or a free one for it (instance 0); nullptr where the table is full.
Tables::NameCount* Tables::count_of(u64 hash) noexcept {
  u32 at = static_cast<u32>(hash >> 8) & (kNameCounts - 1);
  for (u32 probe = 0; probe < 64; ++probe, at = (at + 1) & (kNameCounts - 1)) {
    NameCount& count = buckets_->forgotten[at];
    if (count.hash == 0 || count.hash == hash) {
      return &count;
    }
  }
  return nullptr;
}

// The row of the group that was destroyed first and has nothing in flight, made empty; 0 none.
u32 Tables::forget_a_group() noexcept {
  u32 id = 0;
  u64 first = ~u64{0};
  for (u32 i = 1; i < kGroups; ++i) {
    const u64 destroyed = get(groups_[i].destroyed_ticks);
    if (destroyed != 0 && destroyed < first && count_open(groups_[i]) == 0) {
      first = destroyed;
      id = i;
    }
  }
  if (id == 0) {
    return 0;
  }
  GroupRow& row = groups_[id];
  const std::string_view name = view_.string(row.name.load());
  const u64 hash = hash_of_name(name);
  if (NameCount* count = count_of(hash)) {
    *count = {hash, std::max(count->instance, row.instance.load())};
  }
  header_.groups_forgotten.fetch_add(1, std::memory_order_release);
  // The index of records goes on, beyond the quota: the old group's records are not protected.
  const u64 index = ((get(row.issued) >> kIndexShift) + 2 * kQuietQuota) & kIndexMask;
  row.issued.store(index << kIndexShift);
  for (std::atomic<u64>* counter :
       {&row.enqueued_ticks, &row.p2p_issued, &row.p2p_ticks, &row.lifecycle_issued, &row.dropped,
        &row.untracked, &row.started_seq, &row.started_ticks, &row.completed_seq,
        &row.completed_ticks, &row.ended, &row.failed, &row.p2p_ended, &row.lifecycle_ended,
        &row.waited, &row.wait_ended, &row.wait_only, &row.wait_only_ended, &row.released}) {
    counter->store(0, std::memory_order_relaxed);
  }
  for (u32 i = 1; i < kLanes; ++i) {
    LaneRow& lane = lanes_[i];
    if ((static_cast<u32>(get(lane.key) >> 33) & 0xffffff) == id) {
      for (std::atomic<u64>* counter :
           {&lane.enqueued, &lane.enqueued_ticks, &lane.started_seq, &lane.completed_seq,
            &lane.completed_ticks, &lane.ended, &lane.failed}) {
        counter->store(0, std::memory_order_relaxed);
      }
    }
  }
  return id;
}

// 1 for the first group of a row's name. Ranks must agree on it, however their rows are used again.
u32 Tables::next_instance(u32 group) noexcept {
  const u32 id = groups_[group].name.load();
  const std::string_view name = view_.string(id);
  u32 last = 0;
  for (u32 i = 1; i < header_.n_groups.load(std::memory_order_relaxed); ++i) {
    const u32 other = groups_[i].name.load();
    if (i != group && (other == id || (other >= kStrings && view_.string(other) == name))) {
      last = std::max(last, groups_[i].instance.load());
    }
  }
  if (get(header_.groups_forgotten) != 0) {
    const NameCount* count = count_of(hash_of_name(name));
    last = std::max(last, count != nullptr ? count->instance : 0);
  }
  return last + 1;
}

// Ranks as runs {first, count, stride}: tensor, pipeline and data parallel groups are one run each.
// Returns the words written, 0 where they do not fit.
u32 Tables::store_runs(const fr_group_info& info, u32 first, u32 room) noexcept {
  u32 used = 0;
  for (i32 i = 0; info.ranks != nullptr && i < info.n_ranks;) {
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
    if (used + 3 > room) {
      return 0;
    }
    ranks_[first + used] = static_cast<u32>(info.ranks[i]);
    ranks_[first + used + 1] = static_cast<u32>(count);
    ranks_[first + used + 2] = static_cast<u32>(stride);
    used += 3;
    i += count;
  }
  return used;
}

// Into the room that the row has from an earlier group, or behind everybody's.
void Tables::store_ranks(u32 group, const fr_group_info& info) noexcept {
  GroupRow& row = groups_[group];
  const u32 end = header_.n_rank_words.load(std::memory_order_relaxed);
  u32 first = row.ranks_first.load();
  u32 used = store_runs(info, first, rank_room_[group]);
  if (used == 0) {
    used = store_runs(info, end, kRankWords - end);
    first = used != 0 ? end : first;
    if (used != 0) {
      rank_room_[group] = used;
      header_.n_rank_words.store(end + used, std::memory_order_relaxed);
    }
  }
  row.ranks_first.store(first);
  row.ranks_words.store(used);
}

u32 Tables::find_group(const char* name) noexcept {
  const std::size_t bytes = length(name);
  const u32 id = bytes != 0 ? index_.find(hash_bytes(name, bytes), name, bytes) : 0;
  if (id == 0 && (bytes == 0 || get(header_.groups_forgotten) == 0)) {
    return 0;
  }
  for (u32 i = header_.n_groups.load(std::memory_order_acquire); i-- > 1;) {
    const bool is_living = get(groups_[i].destroyed_ticks) == 0;
    const u32 its = groups_[i].name.load();
    if (is_living && ((id != 0 && its == id) || (its >= kStrings && view_.string(its) == name))) {
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

// The process was that rank of a world that it has left: elastic jobs number their ranks anew.
bool Tables::has_left_world() const noexcept {
  for (u32 i = 1; i < header_.n_groups.load(); ++i) {
    const GroupRow& row = groups_[i];
    if (get(row.destroyed_ticks) != 0 && row.own_rank.load() == header_.rank.load() &&
        row.n_ranks.load() == header_.world_size.load() &&
        view_.string(row.desc.load()) == "default_pg") {
      return true;
    }
  }
  return false;
}

bool Tables::set_identity(i32 rank, i32 world_size, i32 local_rank) noexcept {
  const std::lock_guard lock(mutex_);
  bool changed = false;
  const bool moves = rank >= 0 && world_size > 0 && has_left_world();
  if (rank >= 0 && (header_.rank.load() < 0 || (moves && header_.rank.load() != rank))) {
    header_.rank.store(rank);
    changed = true;
  }
  if (moves) {
    header_.world_size.store(world_size);
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
