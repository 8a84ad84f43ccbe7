// view.hpp - reads a region: the own one, a peer's, a file left by a dead process.
//
// A View never trusts what it reads: every offset, count and id is checked against the mapping, and
// what does not hold reads as empty. It copies records torn-safe, so it may run beside the
// recorders. No allocation, no lock: the dump path uses it. Stateless; linked into libfr and
// frtrace alike.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "format/layout.hpp"

namespace fr {

// A counter that another thread or process writes meanwhile. Acquire: a counter that is read later
// must not be older than one that was read before.
inline u64 get(const std::atomic<u64>& a) noexcept {
  return a.load(std::memory_order_acquire);
}

struct RecordCopy {
  u64 ticket;
  Payload payload;
  // Status as of the copy; state is only meaningful with has_status.
  bool has_status;
  State state;
  u64 started_ticks;  // 0 unknown
  u64 ended_ticks;    // 0 unknown
  u32 error;          // string id
  u32 end_tid;
  // Shape words (or the bytes of a note), nullptr when not captured or overwritten.
  const u32* shape;
  u32 n_shape;
  bool shape_lost;  // there were words, the blob ring has overwritten them
  u32 shape_buffer[512];
};

// A DeviceOp of one generation.
struct DeviceOpCopy {
  u32 claim;
  u32 flags;
  u64 ticket;  // of its record + 1
  u64 stream;
  u64 launching_ticks, launched_ticks, started_ticks, ended_ticks;  // 0 not yet
  u64 device_start_ns, device_end_ns;
  u32 comm;
  u32 channels, channels_started, channels_ended;
  u32 transfers_started, transfers_ended;
  u32 algorithm, protocol;
  u32 parts, parts_launched;
};

struct PhaseCopy {
  u32 claim;
  u32 op;
  u64 ticket;
  u64 ticks;
  PhaseKind kind;
  u32 channel;
  i32 peer;
  u32 n_steps, next_step, waits, pid;
  u64 first, second;

  bool is_live() const noexcept { return (claim & 1) != 0; }
  Net net() const noexcept {
    return kind == kPhaseKernel ? Net::kNone : static_cast<Net>(second >> 48);
  }
  u32 net_device() const noexcept { return static_cast<u32>(second >> 32) & 0xffff; }
  u32 net_number() const noexcept { return static_cast<u32>(second); }
  u32 oldest_step() const noexcept;  // the first that has begun and not ended
  Wait wait() const noexcept { return static_cast<Wait>(waits >> 4 * (oldest_step() % 8) & 15); }
};

enum class Slot { kEmpty, kTorn, kWhole };

class View {
 public:
  View() = default;
  // Checks magic, version, sizes and the section table of [base, base + bytes).
  // On failure returns a View that is !ok(), error() says why ("not a ring", "version 7", ...).
  static View of(const void* base, std::size_t bytes) noexcept;

  bool ok() const noexcept { return header_ != nullptr; }
  const char* error() const noexcept { return error_; }
  const Header& header() const noexcept { return *header_; }

  std::string_view options() const noexcept;  // "NAME=value\tsource\n"...
  u32 n_strings() const noexcept;
  std::string_view string(u32 id) const noexcept;  // "" for 0 and for ids out of range
  u32 n_frames() const noexcept;
  FrameRow frame(u32 id) const noexcept;  // {0,0,0} out of range
  u32 n_stacks() const noexcept;
  std::span<const u32> stack(u32 id) const noexcept;  // frame ids, innermost first
  u32 n_groups() const noexcept;
  const GroupRow* group(u32 id) const noexcept;                      // nullptr out of range
  std::span<const u32> group_ranks(const GroupRow&) const noexcept;  // {first, count, stride}...
  u32 n_lanes() const noexcept;                                      // rows, used or not
  const LaneRow* lane(u32 id) const noexcept;                        // nullptr when unused
  u32 n_crumbs() const noexcept;
  const Crumb* crumb(u32 id) const noexcept;  // nullptr when unused
  u32 n_sites() const noexcept { return n_rows(kSecSites); }
  const SiteRow* site(u32 id) const noexcept;  // nullptr when unused
  u32 n_slots() const noexcept;
  // Copies the record in a slot, at most a few attempts beside a writer. A record of a group that
  // has lost its row to another group has group 0.
  Slot read(u32 slot, RecordCopy& out) const noexcept;

  // Reports of the device library; empty in rings from before it was asked.
  const Device* device() const noexcept;
  const Cuda* cuda() const noexcept;
  bool has_device() const noexcept;  // it has said something
  u32 n_comms() const noexcept { return n_rows(kSecComms); }
  const CommRow* comm(u32 id) const noexcept;  // nullptr when unused
  u32 n_device_ops() const noexcept { return n_rows(kSecDeviceOps); }
  bool read_device_op(u32 id, DeviceOpCopy& out) const noexcept;  // false when never used
  u32 n_phases() const noexcept { return n_rows(kSecPhases); }
  bool read_phase(u32 id, PhaseCopy& out) const noexcept;

 private:
  u32 n_rows(Section s) const noexcept;
  template <class T>
  const T* section(Section s, u32 index) const noexcept;
  const unsigned char* base_ = nullptr;
  const Header* header_ = nullptr;
  const char* error_ = "empty";
};

// Converts raw ticks to unix time through a region's anchors.
class TickClock {
 public:
  explicit TickClock(const Header&) noexcept;
  // 0 for 0 ticks and when no rate is known.
  u64 unix_ns(u64 ticks) const noexcept;

 private:
  bool ok_ = false;
  u64 ticks0_ = 0, unix0_ = 0;
  double ns_per_tick_ = 0;
};

// The text of a layer, in `to`; "" while it is being replaced.
std::string_view layer_text(const Header::Layer&, char (&to)[sizeof(Header::Layer::text)]) noexcept;

// Reads an Anchor torn-safe; false while it was never written.
bool read_anchor(const Anchor&, u64& ticks, u64& unix_ns, u64& monotonic_ns) noexcept;

}  // namespace fr
