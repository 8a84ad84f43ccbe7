// view.cpp - checks a region and copies rows out of it while others write.
#include "format/view.hpp"

#include <cstring>

#include "format/hash.hpp"
#include "format/sections.hpp"
#include "fr/fr.h"

namespace fr {
namespace {

// Where elements must lie, for their atomics.
constexpr u32 kAlignment[kSections] = {1,
                                       alignof(GroupRow),
                                       4,
                                       alignof(LaneRow),
                                       alignof(StringRow),
                                       1,
                                       alignof(FrameRow),
                                       alignof(StackRow),
                                       4,
                                       4,
                                       alignof(Crumb),
                                       alignof(Status),
                                       alignof(Record),
                                       alignof(Device),
                                       alignof(CommRow),
                                       alignof(DeviceOp),
                                       alignof(Phase),
                                       alignof(Cuda),
                                       alignof(GroupText),
                                       alignof(SiteRow)};

u32 at_most(u32 n, u32 limit) {
  return n < limit ? n : limit;
}

}  // namespace

bool read_anchor(const Anchor& a, u64& ticks, u64& unix_ns, u64& monotonic_ns) noexcept {
  for (int tries = 0; tries < 100; ++tries) {
    const u64 before = a.seq.load(std::memory_order_acquire);
    if (before == 0) {
      return false;
    }
    ticks = a.ticks.load(std::memory_order_relaxed);
    unix_ns = a.unix_ns.load(std::memory_order_relaxed);
    monotonic_ns = a.monotonic_ns.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if ((before & 1) == 0 && a.seq.load(std::memory_order_relaxed) == before) {
      return ticks != 0;
    }
  }
  return false;
}

TickClock::TickClock(const Header& header) noexcept {
  u64 mono0 = 0;
  u64 ticks1 = 0;
  u64 unix1 = 0;
  u64 mono1 = 0;
  if (!read_anchor(header.first, ticks0_, unix0_, mono0)) {
    return;
  }
  if (header.clock_kind == ClockKind::kMonotonic) {
    ns_per_tick_ = 1;
    ok_ = true;
  } else if (read_anchor(header.last, ticks1, unix1, mono1) && ticks1 > ticks0_ && mono1 > mono0) {
    // the rate from the monotonic clock: unix time may have been stepped in between
    ns_per_tick_ = static_cast<double>(mono1 - mono0) / static_cast<double>(ticks1 - ticks0_);
    ok_ = true;
  }
}

std::string_view layer_text(const Header::Layer& layer,
                            char (&to)[sizeof(Header::Layer::text)]) noexcept {
  const u32 before = layer.revisions.load();
  for (std::size_t i = 0; i < sizeof to; ++i) {
    to[i] = __atomic_load_n(&layer.text[i], __ATOMIC_SEQ_CST);
  }
  const bool whole = before % 2 == 0 && layer.revisions.load() == before;
  return {to, whole ? strnlen(to, sizeof to) : 0};
}

u64 TickClock::unix_ns(u64 ticks) const noexcept {
  if (!ok_ || ticks == 0) {
    return 0;
  }
  const i64 delta = static_cast<i64>(ticks - ticks0_);
  const double ns = static_cast<double>(delta) * ns_per_tick_;
  if (!(ns > -9e18 && ns < 9e18)) {
    return 0;  // damaged anchors
  }
  return unix0_ + static_cast<u64>(static_cast<i64>(ns));
}

View View::of(const void* base, std::size_t bytes) noexcept {
  View v;
  const auto* h = static_cast<const Header*>(base);
  if (base == nullptr || bytes < kHeaderBytes) {
    v.error_ = "too short for a ring";
  } else if (h->magic.load(std::memory_order_acquire) != kRegionMagic) {
    v.error_ = "not a ring";
  } else if (h->version != kLayoutVersion || h->header_bytes != kHeaderBytes) {
    v.error_ = "a ring of another layout version";
  } else if (h->region_bytes > bytes) {
    v.error_ = "truncated";
  } else if (h->section_count < kFirstSections || h->n_records < kMinRecords ||
             h->n_records > kMaxRecords || (h->n_records & (h->n_records - 1)) != 0) {
    v.error_ = "damaged header";
  } else {
    v.error_ = nullptr;
    for (u32 s = 0; s < at_most(h->section_count, kSections); ++s) {
      const SectionRow& row = h->sections[s];
      const u64 size = static_cast<u64>(row.count) * row.stride_bytes;
      if (s >= kFirstSections && row.count == 0) {
        continue;  // later sections may be absent
      }
      if (row.stride_bytes < kRowBytes[s] || row.offset_bytes % 64 != 0 ||
          row.stride_bytes % kAlignment[s] != 0 || row.offset_bytes > bytes ||
          size > bytes - row.offset_bytes) {
        v.error_ = "damaged section table";
      }
    }
    const u32 blob = h->sections[kSecBlob].count;
    if (h->sections[kSecStatus].count != h->n_records ||
        h->sections[kSecRecords].count != h->n_records || blob == 0 || (blob & (blob - 1)) != 0) {
      v.error_ = "damaged section table";
    }
  }
  if (v.error_ == nullptr) {
    v.base_ = static_cast<const unsigned char*>(base);
    v.header_ = h;
  }
  return v;
}

template <class T>
const T* View::section(Section s, u32 index) const noexcept {
  const SectionRow& row = header_->sections[s];
  return reinterpret_cast<const T*>(base_ + row.offset_bytes +
                                    static_cast<u64>(index) * row.stride_bytes);
}

std::string_view View::options() const noexcept {
  const char* text = section<char>(kSecOptions, 0);
  return {text, strnlen(text, header_->sections[kSecOptions].count)};
}

u32 View::n_strings() const noexcept {
  const u32 interned = header_->sections[kSecStringIndex].count;
  if (get(header_->groups_forgotten) != 0) {
    return interned + n_rows(kSecGroupTexts);
  }
  return at_most(header_->n_strings.load(std::memory_order_acquire), interned);
}

std::string_view View::string(u32 id) const noexcept {
  const u32 interned = header_->sections[kSecStringIndex].count;
  if (id >= interned && id - interned < n_rows(kSecGroupTexts)) {
    const auto* text =
        reinterpret_cast<const char*>(section<GroupText>(kSecGroupTexts, id - interned));
    return {text, strnlen(text, kGroupTextBytes)};
  }
  if (id == 0 || id >= interned || id >= header_->n_strings.load(std::memory_order_acquire)) {
    return {};
  }
  const StringRow row = *section<StringRow>(kSecStringIndex, id);
  const u32 size = header_->sections[kSecStringBytes].count;
  if (row.offset > size || row.bytes > size - row.offset) {
    return {};
  }
  return {section<char>(kSecStringBytes, row.offset), row.bytes};
}

u32 View::n_frames() const noexcept {
  return at_most(header_->n_frames.load(std::memory_order_acquire),
                 header_->sections[kSecFrames].count);
}

FrameRow View::frame(u32 id) const noexcept {
  return id < n_frames() ? *section<FrameRow>(kSecFrames, id) : FrameRow{};
}

u32 View::n_stacks() const noexcept {
  return at_most(header_->n_stacks.load(std::memory_order_acquire),
                 header_->sections[kSecStacks].count);
}

std::span<const u32> View::stack(u32 id) const noexcept {
  if (id == 0 || id >= n_stacks()) {
    return {};
  }
  const StackRow row = *section<StackRow>(kSecStacks, id);
  const u32 size = header_->sections[kSecStackWords].count;
  if (row.first > size || row.count > size - row.first || row.count > FR_MAX_FRAMES) {
    return {};
  }
  return {section<u32>(kSecStackWords, row.first), row.count};
}

u32 View::n_groups() const noexcept {
  return at_most(header_->n_groups.load(std::memory_order_acquire),
                 header_->sections[kSecGroups].count);
}

const GroupRow* View::group(u32 id) const noexcept {
  return id < n_groups() ? section<GroupRow>(kSecGroups, id) : nullptr;
}

std::span<const u32> View::group_ranks(const GroupRow& row) const noexcept {
  const u32 size = header_->sections[kSecRanks].count;
  const u32 first = row.ranks_first.load();
  const u32 words = row.ranks_words.load();
  if (words % 3 != 0 || first > size || words > size - first) {
    return {};
  }
  return {section<u32>(kSecRanks, first), words};
}

u32 View::n_lanes() const noexcept {
  return header_->sections[kSecLanes].count;
}

const LaneRow* View::lane(u32 id) const noexcept {
  if (id >= n_lanes()) {
    return nullptr;
  }
  const auto* row = section<LaneRow>(kSecLanes, id);
  return row->key.load(std::memory_order_acquire) != 0 ? row : nullptr;
}

u32 View::n_crumbs() const noexcept {
  return header_->sections[kSecCrumbs].count;
}

const Crumb* View::crumb(u32 id) const noexcept {
  if (id >= n_crumbs()) {
    return nullptr;
  }
  const auto* row = section<Crumb>(kSecCrumbs, id);
  return row->tid.load(std::memory_order_acquire) != 0 ? row : nullptr;
}

const SiteRow* View::site(u32 id) const noexcept {
  const SiteRow* row = id < n_sites() ? section<SiteRow>(kSecSites, id) : nullptr;
  return row != nullptr && row->key.load(std::memory_order_acquire) != 0 ? row : nullptr;
}

u32 View::n_slots() const noexcept {
  return header_->n_records;
}

Slot View::read(u32 slot, RecordCopy& out) const noexcept {
  const auto* record = section<Record>(kSecRecords, slot);
  u64 before = 0;
  for (int tries = 0;; ++tries) {
    before = record->seq.load(std::memory_order_acquire);
    if (before == 0) {
      return Slot::kEmpty;
    }
    u64 words[kPayloadWords];
    for (u32 i = 0; i < kPayloadWords; ++i) {
      words[i] = record->payload[i].load(std::memory_order_relaxed);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    if ((before & 1) == 0 && record->seq.load(std::memory_order_relaxed) == before) {
      std::memcpy(&out.payload, words, sizeof words);
      break;
    }
    if (tries == 3) {
      return Slot::kTorn;
    }
  }
  out.ticket = (before - 2) / 2;
  const GroupRow* row = group(out.payload.group);
  if (row != nullptr && out.payload.ticks < get(row->created_ticks)) {
    out.payload.group = 0;  // the group is destroyed, and another one has its row
  }

  // The status: observers may change it at any time; the last consistent one counts.
  const auto* status = section<Status>(kSecStatus, slot);
  out.has_status = false;
  out.state = State::kLocked;
  out.started_ticks = out.ended_ticks = 0;
  out.error = out.end_tid = 0;
  for (int tries = 0; tries < 4; ++tries) {
    const u64 tag = status->tag.load(std::memory_order_acquire);
    const State state = static_cast<State>(tag & 7);
    if ((tag >> 3) != out.ticket + 1) {
      break;  // nothing is known of this ticket yet
    }
    const u64 started = status->started_ticks.load(std::memory_order_relaxed);
    const u64 ended = status->ended_ticks.load(std::memory_order_relaxed);
    const u32 error = status->error.load(std::memory_order_relaxed);
    const u32 tid = status->tid.load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (state == State::kLocked || status->tag.load(std::memory_order_relaxed) != tag) {
      continue;
    }
    out.has_status = true;
    out.state = state;
    out.started_ticks = started;
    out.ended_ticks =
        state == State::kStarted || state == State::kWaiting || state == State::kIdle ? 0 : ended;
    out.error = state == State::kFailed ? error : 0;
    out.end_tid = tid;
    break;
  }

  // Shape words: inline, or in the blob ring, where the hash tells whether they still stand.
  out.shape = nullptr;
  out.n_shape = 0;
  out.shape_lost = false;
  const u32 n = out.payload.n_shape;
  const u32 n_words = out.payload.kind == FR_NOTE ? (n + 3) / 4 : n;
  if (n == 0 || n_words > FR_MAX_SHAPE_WORDS) {
    return Slot::kWhole;
  }
  if (n_words <= kInlineWords) {
    std::memcpy(out.shape_buffer, out.payload.words, n_words * 4);
  } else {
    const u32 mask = header_->sections[kSecBlob].count - 1;
    const u64 position = out.payload.words[0] | static_cast<u64>(out.payload.words[1]) << 32;
    for (u32 i = 0; i < n_words; ++i) {
      out.shape_buffer[i] =
          section<std::atomic<u32>>(kSecBlob, static_cast<u32>(position + i) & mask)
              ->load(std::memory_order_relaxed);
    }
    if (hash_words(out.shape_buffer, n_words) != out.payload.shape_hash) {
      out.shape_lost = true;
      return Slot::kWhole;
    }
  }
  out.shape = out.shape_buffer;
  out.n_shape = n;
  return Slot::kWhole;
}

// ---------------------------------------------------------------- device

u32 View::n_rows(Section s) const noexcept {
  return header_ != nullptr && s < header_->section_count ? header_->sections[s].count : 0;
}

const Device* View::device() const noexcept {
  return n_rows(kSecDevice) != 0 ? section<Device>(kSecDevice, 0) : nullptr;
}

const Cuda* View::cuda() const noexcept {
  return n_rows(kSecCuda) != 0 ? section<Cuda>(kSecCuda, 0) : nullptr;
}

bool View::has_device() const noexcept {
  const Device* d = device();
  const Cuda* c = cuda();
  return d != nullptr && (d->plugin_api.load() != 0 || comm(1) != nullptr ||
                          (c != nullptr && c->error_ready.load() != 0));
}

const CommRow* View::comm(u32 id) const noexcept {
  const CommRow* row = id < n_comms() ? section<CommRow>(kSecComms, id) : nullptr;
  return row != nullptr && row->in_use.load(std::memory_order_acquire) != 0 ? row : nullptr;
}

bool View::read_device_op(u32 id, DeviceOpCopy& out) const noexcept {
  if (id >= n_device_ops()) {
    return false;
  }
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const DeviceOp& op = *section<DeviceOp>(kSecDeviceOps, id);
  for (int tries = 0; tries < 8; ++tries) {
    const u32 claim = op.claim.load(std::memory_order_acquire);
    if (claim == 0) {
      return false;
    }
    out = {claim,
           op.flags.load(kRelaxed),
           op.ticket.load(kRelaxed),
           op.stream.load(kRelaxed),
           op.launching_ticks.load(kRelaxed),
           op.launched_ticks.load(kRelaxed),
           op.started_ticks.load(kRelaxed),
           op.ended_ticks.load(kRelaxed),
           op.device_start_ns.load(kRelaxed),
           op.device_end_ns.load(kRelaxed),
           op.comm.load(kRelaxed),
           op.channels.load(kRelaxed),
           op.channels_started.load(kRelaxed),
           op.channels_ended.load(kRelaxed),
           op.transfers_started.load(kRelaxed),
           op.transfers_ended.load(kRelaxed),
           op.algorithm.load(kRelaxed),
           op.protocol.load(kRelaxed),
           op.parts.load(kRelaxed),
           op.parts_launched.load(kRelaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if ((op.claim.load(kRelaxed) >> 1) == claim >> 1) {
      return true;
    }
  }
  return false;
}

bool View::read_phase(u32 id, PhaseCopy& out) const noexcept {
  if (id >= n_phases()) {
    return false;
  }
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const Phase& p = *section<Phase>(kSecPhases, id);
  for (int tries = 0; tries < 8; ++tries) {
    const u32 claim = p.claim.load(std::memory_order_acquire);
    if (claim == 0) {
      return false;
    }
    const u32 what = p.what.load(kRelaxed);
    out = {claim,
           p.op.load(kRelaxed),
           p.ticket.load(kRelaxed),
           p.ticks.load(kRelaxed),
           static_cast<PhaseKind>(what & 0xff),
           what >> 8,
           p.peer.load(kRelaxed),
           p.n_steps.load(kRelaxed),
           p.next_step.load(kRelaxed),
           p.waits.load(kRelaxed),
           p.pid.load(kRelaxed),
           p.first.load(kRelaxed),
           p.second.load(kRelaxed)};
    std::atomic_thread_fence(std::memory_order_acquire);
    if ((p.claim.load(kRelaxed) >> 1) == claim >> 1) {
      return true;
    }
  }
  return false;
}

u32 PhaseCopy::oldest_step() const noexcept {
  for (u32 s = next_step; s < next_step + 8; ++s) {
    if ((waits >> 4 * (s % 8) & 15) != 0) {
      return s;
    }
  }
  return next_step;
}

}  // namespace fr
