// late_rank.cpp - compares the arrivals of this node's ranks at the last operations of a call site.
#include "watch/late_rank.hpp"

#include <algorithm>
#include <climits>
#include <cstdio>

#include "format/call_site.hpp"
#include "format/text.hpp"
#include "format/ticks.hpp"
#include "recorder/log.hpp"
#include "recorder/recorder.hpp"
#include "sample/map_file.hpp"
#include "watch/control_page.hpp"

namespace fr {
namespace {

constexpr u64 kEvery_ns = 5'000'000'000;
constexpr u64 kLong_ns = 100'000'000;       // a wait that counts
constexpr u64 kRecent_ns = 30'000'000'000;  // the last of them is not older
constexpr u32 kMostly = 5;                  // of the last 10
constexpr u32 kRecords = 4096;              // of a ring that are looked at

// Calls fn with the newest collectives of a ring, newest first, until it returns false.
template <class Fn>
void each_collective(const View& view, Fn fn) noexcept {
  static RecordCopy r;  // of the watchdog's thread
  const u64 head = get(view.header().head);
  const u32 slots = view.n_slots();
  for (u64 back = 1; back <= head && back <= slots && back <= kRecords; ++back) {
    const u64 ticket = head - back;
    if (view.read(static_cast<u32>(ticket % slots), r) == Slot::kWhole && r.ticket == ticket &&
        r.payload.kind == FR_COLLECTIVE && !fn(r)) {
      return;
    }
  }
}

}  // namespace

// The last operations of the call site that waited long most recently. False: there is none, or it
// did not run often enough.
bool LateRank::find_waits(u64 now) noexcept {
  const View& view = recorder_.view;
  const TickClock clock(view.header());
  n_ = 0;
  each_collective(view, [&](const RecordCopy& r) {
    const u64 begun = clock.unix_ns(r.payload.ticks);
    const u64 ended = clock.unix_ns(r.ended_ticks);
    if (!r.has_status || r.state != State::kCompleted || begun == 0 || ended < begun) {
      return true;
    }
    if (ended + kRecent_ns < now && n_ == 0) {
      return false;
    }
    if (n_ == 0 && ended - begun >= kLong_ns) {
      group_ = r.payload.group;
      op_ = r.payload.op;
      stack_ = r.payload.stack;
    } else if (n_ == 0 || r.payload.group != group_ || r.payload.stack != stack_ ||
               r.payload.op != op_) {
      return true;
    }
    waited_[n_++] = {r.payload.seq, begun, ended, begun, 0, nullptr};
    return n_ < kOf;
  });
  return n_ == kOf;
}

void LateRank::add_arrivals(const PeerRow& peer) noexcept {
  char path[PATH_MAX];
  format(path, sizeof path, "%s/%s", recorder_.region.dir.c_str(), peer.ring);
  Mapping m = map_file(path);
  const View view = View::of(m.base, m.bytes);
  const GroupRow& own = *recorder_.view.group(group_);
  const std::string_view name = recorder_.view.string(own.name.load());
  u32 group = 0;
  for (u32 i = 1; view.ok() && i < view.n_groups() && group == 0; ++i) {
    const GroupRow& g = *view.group(i);
    const bool same = view.string(g.name.load()) == name && g.instance == own.instance;
    group = same && g.destroyed_ticks.load() == 0 ? i : 0;
  }
  if (group != 0) {
    const TickClock clock(view.header());
    each_collective(view, [&](const RecordCopy& r) {
      if (r.payload.group != group) {
        return true;
      }
      for (u32 i = 0; i < n_; ++i) {
        Waited& w = waited_[i];
        if (w.seq == r.payload.seq) {
          const u64 arrived = clock.unix_ns(r.payload.ticks);
          w.before_ns = std::max(w.before_ns, std::min(w.last_ns, arrived));
          w.last = arrived > w.last_ns ? &peer : w.last;
          w.last_ns = std::max(w.last_ns, arrived);
        }
      }
      return r.payload.seq > waited_[n_ - 1].seq;
    });
  }
  unmap_file(m);
}

void LateRank::tell() noexcept {
  for (PeerRow& peer : recorder_.control->page().peers) {
    u32 late = 0;
    u64 sum_ns = 0;
    for (const Waited& w : waited_) {
      const u64 alone = w.last_ns - w.before_ns;
      // It was what all waited for: the end came soon after.
      if (w.last == &peer && alone >= kLong_ns && w.ended_ns < w.last_ns + alone / 2) {
        ++late;
        sum_ns += alone;
      }
    }
    const u64 span_ns = waited_[0].ended_ns - waited_[kOf - 1].begun_ns;
    u32 untold = 0;
    if (late < kMostly || sum_ns < span_ns / 10 ||
        !peer.late_told.compare_exchange_strong(untold, 1)) {
      continue;
    }
    const View& view = recorder_.view;
    const Site site = user_site(view, stack_);
    const std::string_view op = view.string(op_);
    const std::string_view file = site.file.substr(site.file.rfind('/') + 1);
    char where[200] = "";
    if (!file.empty()) {
      std::snprintf(where, sizeof where, " at %.*s:%u", static_cast<int>(file.size()), file.data(),
                    site.line);
    }
    log_line(kLogWarn,
             "rank %d is late again and again: %u of the last %u %.*s%s waited for it, %.1f s on "
             "average; where it is: frtrace stacks %d",
             peer.rank.load(), late, kOf, static_cast<int>(op.size()), op.data(), where,
             static_cast<double>(sum_ns) / 1e9 / late, peer.pid.load());
  }
}

void LateRank::look(u64 now) noexcept {
  if (now - looked_ns_ < kEvery_ns || !recorder_.control->is_shared()) {
    return;
  }
  looked_ns_ = now;
  if (!find_waits(unix_now_ns())) {
    return;
  }
  for (const PeerRow& peer : recorder_.control->page().peers) {
    if (&peer != recorder_.control->own() && peer.ring[0] != '\0' &&
        peer.state.load(std::memory_order_acquire) == kPeerLive) {
      add_arrivals(peer);
    }
  }
  tell();
}

}  // namespace fr
