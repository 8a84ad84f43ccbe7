// ring.cpp - regions: the memory that a process maps while it runs and leaves when it dies, and raw
// copies of it.
//
// A ring is read by way of the dump that it makes (read_region), so ring and dump cannot differ.
// Only the parts special to rings are here: a ring may be cut off, and its process may live.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <optional>

#include "format/view.hpp"
#include "input/files.hpp"
#include "input/fr/fr_dump.hpp"
#include "sample/process.hpp"
#include "system/here.hpp"

namespace frtrace {

namespace {

bool same_machine(const Identity& id) {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  std::getline(in, boot_id);
  return !id.boot_id.empty() && id.boot_id == boot_id && id.host == host_name();
}

// A region of a file that ends early: the missing part reads as never written. Needs a complete
// header and complete tables; a row that was cut in the middle is dropped, too.
class Completed {
 public:
  explicit Completed(std::span<const unsigned char> bytes) {
    if (bytes.size() < fr::kHeaderBytes) {
      return;
    }
    const auto& header = *reinterpret_cast<const fr::Header*>(bytes.data());
    constexpr std::uint64_t kMost = std::uint64_t{1} << 31;
    if (header.region_bytes <= bytes.size() || header.region_bytes > kMost ||
        header.section_count < fr::kFirstSections) {
      return;
    }
    std::uint64_t kept = bytes.size();
    for (std::uint32_t s = 0; s < std::min<std::uint32_t>(header.section_count, fr::kSections);
         ++s) {
      const fr::SectionRow& row = header.sections[s];
      const std::uint64_t size = std::uint64_t{row.count} * row.stride_bytes;
      if (row.count == 0) {
        continue;  // not in this ring
      }
      if (row.offset_bytes > header.region_bytes || size > header.region_bytes - row.offset_bytes ||
          row.stride_bytes == 0) {
        return;
      }
      if (row.offset_bytes + size <= bytes.size()) {
        continue;
      }
      if (s < fr::kSecStatus) {
        return;
      }
      if (row.offset_bytes <= bytes.size()) {
        kept = row.offset_bytes +
               (bytes.size() - row.offset_bytes) / row.stride_bytes * row.stride_bytes;
      }
    }
    void* p = ::mmap(nullptr, header.region_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p != MAP_FAILED) {
      data_ = p;
      size_ = header.region_bytes;
      std::memcpy(data_, bytes.data(), kept);
    }
  }
  ~Completed() {
    if (data_ != nullptr) {
      ::munmap(data_, size_);
    }
  }
  Completed(const Completed&) = delete;
  Completed& operator=(const Completed&) = delete;

  fr::View view() const { return fr::View::of(data_, size_); }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace

std::unique_ptr<RankEvidence> load_ring(std::span<const unsigned char> bytes, Time now,
                                        RingKind kind, std::string& why) {
  fr::View view = fr::View::of(bytes.data(), bytes.size());
  std::optional<Completed> completed;
  if (!view.ok() && std::string_view(view.error()) == "truncated") {
    view = completed.emplace(bytes).view();
    if (!view.ok()) {
      why = "truncated ring: its tables are not whole";
      return nullptr;
    }
  }
  if (!view.ok()) {
    why = std::string("damaged ring: ") + view.error();
    return nullptr;
  }
  auto e = read_region(view, why);
  if (e == nullptr) {
    return nullptr;
  }
  e->source = Source::kRing;
  if (completed) {
    const std::uint64_t written =
        std::min<std::uint64_t>(view.header().head.load(), view.n_slots());
    const std::uint64_t present = e->records.size() + e->losses.torn;
    e->losses.cut = written > present ? written - present : 0;
    e->losses.overwritten -= std::min(e->losses.overwritten, e->losses.cut);
    e->holes.truncated = true;
    e->holes.truncated_at = e->records.size();
    count_kept(*e);
  }
  e->written = plausible(static_cast<Time>(view.header().heartbeat_unix_ns.load()));
  e->written -= e->written != 0 ? e->clock_set : 0;
  for (const Record& r : e->records) {
    e->written = std::max({e->written, r.time, r.ended});
  }
  e->written = std::max(e->written, e->exit.time);
  if (kind == RingKind::kCopy && e->exit.signal != 0) {
    return e;  // its own copy, taken in its signal handler
  }
  if (same_machine(e->id)) {
    if (fr::is_alive(e->id.pid, e->id.proc_start)) {
      if (kind == RingKind::kRegion) {
        e->source = Source::kLiveRing;
        e->written = now - e->clock_set;
      }
    } else {
      e->process_gone = true;
    }
  } else {
    // A copy without an exit record was taken from a dead process by a peer.
    e->process_gone = kind == RingKind::kCopy;
  }
  return e;
}

}  // namespace frtrace
