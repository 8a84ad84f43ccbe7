// incident.cpp - the part of the control page that signal handlers use: which processes are dead,
// and which incident is open. Lock-free: a rank that dies inside must not hold up the others.
#include <cstring>

#include "format/text.hpp"
#include "format/ticks.hpp"
#include "sample/process.hpp"
#include "watch/control_page.hpp"

namespace fr {
namespace {

// Errors, signals and exits within this time belong to the incident that is open.
constexpr u64 kJoinWindow_ns = 30'000'000'000ull;
// So long after the last sign of life of a rank that hung, the ends of the others still belong to
// that hang: whoever ends a job by hand does so one process after the other.
constexpr u64 kLasts_ns = 600'000'000'000ull;

// True for the caller that gets the word up to `to`.
bool raise_to(std::atomic<u64>& word, u64 to) noexcept {
  u64 seen = word.load();
  while (seen < to) {
    if (word.compare_exchange_weak(seen, to)) {
      return true;
    }
  }
  return false;
}

}  // namespace

bool is_dead(const PeerRow& row) noexcept {
  return row.state.load(std::memory_order_acquire) == kPeerLive &&
         !is_alive(row.pid.load(), row.proc_start.load());
}

bool ControlPage::is_paused() const noexcept {
  for (const PeerRow& row : page_->peers) {
    if (row.paused.load(std::memory_order_relaxed) != 0 &&
        row.state.load(std::memory_order_acquire) == kPeerLive && !is_dead(row)) {
      return true;
    }
  }
  return false;
}

u64 ControlPage::open_incident(u64 last, i32 rank, const char* reason, bool join) noexcept {
  Control& page = *page_;
  u64 current = page.incident.load(std::memory_order_acquire);
  if (current > last) {
    return current;
  }
  const u64 now = unix_now_ns();
  if (join && page.incident_unix_ns.load() != 0) {
    const u64 age = now - page.incident_unix_ns.load();
    const bool over = page.over.load() >= current;
    if (lasts(current) || (!over && age < kJoinWindow_ns)) {
      return current;
    }
  }
  if (!page.incident.compare_exchange_strong(current, current + 1)) {
    return current;  // another rank was first: its incident is ours
  }
  page.reason_seq.fetch_add(1);
  std::atomic_thread_fence(std::memory_order_release);
  format(page.reason, sizeof page.reason, "%s", reason);
  page.incident_rank.store(rank);
  page.incident_unix_ns.store(now);
  page.reason_seq.fetch_add(1, std::memory_order_release);
  return current + 1;
}

// A rank of this node still hangs in what the incident was opened for.
bool ControlPage::lasts(u64 incident) const noexcept {
  const u64 now = unix_now_ns();
  for (const PeerRow& row : page_->peers) {
    if (incident != 0 && row.hung.load() == incident &&
        row.state.load(std::memory_order_acquire) != kPeerFree &&
        now - row.heartbeat_unix_ns.load() < kLasts_ns) {
      return true;
    }
  }
  return false;
}

bool ControlPage::shares_rank() const noexcept {
  const i32 rank = own_ != nullptr ? own_->rank.load() : -1;
  for (const PeerRow& row : page_->peers) {
    if (rank >= 0 && &row != own_ && row.rank.load() == rank &&
        row.state.load(std::memory_order_acquire) == kPeerLive && !is_dead(row)) {
      return true;
    }
  }
  return false;
}

bool ControlPage::claim_over(u64 incident) noexcept {
  return raise_to(page_->over, incident);
}

bool ControlPage::claim_dump_line(u64 incident) noexcept {
  return raise_to(page_->dump_said, incident);
}

void ControlPage::note_warning(u64 now_unix_ns) noexcept {
  if (own_ != nullptr) {
    own_->warned_unix_ns.store(now_unix_ns);
  }
}

bool ControlPage::claim_warning(u64 now, u64 apart_ns, char* ranks, std::size_t bytes) noexcept {
  u64 said = page_->warned_unix_ns.load();
  ranks[0] = '\0';
  if ((said <= now && said + apart_ns > now) ||
      !page_->warned_unix_ns.compare_exchange_strong(said, now)) {
    return false;
  }
  // In order, though the rows are in that of the ranks' starts.
  std::size_t used = 0;
  u32 n = 0;
  for (i32 last = -1, next = 0; next >= 0; last = next) {
    next = -1;
    for (const PeerRow& row : page_->peers) {
      const u64 warned = row.warned_unix_ns.load();
      const i32 rank = row.rank.load();
      if (rank > last && (next < 0 || rank < next) && warned != 0 && warned <= now &&
          now - warned < apart_ns && row.state.load(std::memory_order_acquire) == kPeerLive) {
        next = rank;
      }
    }
    if (next >= 0) {
      used += format(ranks + used, bytes - used, n++ == 0 ? "ranks %d" : ",%d", next);
    }
  }
  if (n > 1) {
    format(ranks + used, bytes - used, " of this node: ");
  } else {
    ranks[0] = '\0';
  }
  return true;
}

void ControlPage::reason(char* text, std::size_t bytes) const noexcept {
  const u32 seq = page_->reason_seq.load(std::memory_order_acquire);
  const std::size_t n = bytes < sizeof page_->reason ? bytes : sizeof page_->reason;
  std::memcpy(text, page_->reason, n);
  text[n - 1] = '\0';
  std::atomic_thread_fence(std::memory_order_acquire);
  if ((seq & 1) != 0 || page_->reason_seq.load() != seq) {
    text[0] = '\0';
  }
}

bool ControlPage::follow(u64 incident, i32 rank, const char* reason) noexcept {
  // Before the number: a process that sees it must not take it for one of this node's.
  raise_to(page_->nodes.followed, incident);
  if (!raise_to(page_->incident, incident)) {
    return false;
  }
  page_->reason_seq.fetch_add(1);
  format(page_->reason, sizeof page_->reason, "%s", reason);
  page_->incident_rank.store(rank);
  page_->incident_unix_ns.store(unix_now_ns());
  page_->reason_seq.fetch_add(1);
  return true;
}

}  // namespace fr
