// ring_copier.cpp - the thread fr-copier. It sleeps on a futex for all its life but the last moments.
#include "watch/ring_copier.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

#include "format/file_name.hpp"
#include "format/text.hpp"
#include "format/ticks.hpp"
#include "format/view.hpp"
#include "recorder/recorder.hpp"
#include "sample/map_file.hpp"
#include "watch/control_page.hpp"
#include "watch/durable_write.hpp"

namespace fr {
namespace {

bool copy_ring(Recorder& r, const void* base, std::size_t bytes, u64 incident,
               NameParts::Beside beside, char (&path)[PATH_MAX]) noexcept {
  char name[kNameBytes];
  format_dump_name(name, sizeof name, *static_cast<const Header*>(base), incident, beside, false);
  for (const auto& dir : r.dump_dirs) {
    const bool fallback = &dir == &r.dump_dirs[1];
    if (dir[0] != '\0' && (!fallback || make_private_parent(dir)) &&
        write_durably(dir, name, base, bytes, path, sizeof path)) {
      return true;
    }
  }
  return false;
}

NameParts::Beside beside(bool dumped, NameParts::Beside what) noexcept {
  return dumped ? what : NameParts::Beside::kNone;
}

}  // namespace

void* RingCopier::thread_main(void* self) noexcept {
  auto& c = *static_cast<RingCopier*>(self);
  for (u32 now = c.state_.load(); now != kAsked; now = c.state_.load(std::memory_order_acquire)) {
    syscall(SYS_futex, &c.state_, FUTEX_WAIT_PRIVATE, now, nullptr, nullptr, 0);
  }
  c.state_.store(kBusy);
  c.state_.store(c.copy_all() ? kDone : kFailed, std::memory_order_release);
  return nullptr;
}

bool RingCopier::copy(u64 incident, bool dumped, u64 limit_ns) noexcept {
  u32 idle = kIdle;
  if (recorder_ == nullptr || !state_.compare_exchange_strong(idle, kAsking)) {
    return false;
  }
  incident_ = incident;
  dumped_ = dumped;
  state_.store(kAsked, std::memory_order_release);
  syscall(SYS_futex, &state_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  const u64 deadline = monotonic_ns() + limit_ns;
  u32 now = kAsked;
  while ((now = state_.load(std::memory_order_acquire)) < kDone && monotonic_ns() < deadline) {
    const timespec pause{0, 500'000};
    nanosleep(&pause, nullptr);
  }
  return now == kDone;
}

void RingCopier::remove_own_copy() noexcept {
  if (state_.load() == kDone) {
    unlink(own_copy_);
  }
}

bool RingCopier::copy_all() noexcept {
  Recorder& r = *recorder_;
  const bool own = copy_ring(r, r.region.base, r.region.bytes, incident_,
                             beside(dumped_, NameParts::Beside::kLater), own_copy_);
  // Copied even if a watchdog has claimed the dead peer: that may be our own, which dies with us.
  for (PeerRow& row : r.control->page().peers) {
    if (&row == r.control->own() || !is_dead(row) || row.ring[0] == '\0') {
      continue;
    }
    char path[PATH_MAX];
    char to[PATH_MAX];
    format(path, sizeof path, "%s/%s", r.region.dir.c_str(), row.ring);
    Mapping m = map_file(path);
    const bool dumped = row.dumped.load() == incident_;
    if (View::of(m.base, m.bytes).ok() &&
        copy_ring(r, m.base, m.bytes, incident_, beside(dumped, NameParts::Beside::kDead), to)) {
      unlink(path);
    }
    unmap_file(m);
  }
  return own;
}

}  // namespace fr
