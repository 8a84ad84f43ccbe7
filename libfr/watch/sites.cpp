// sites.cpp - keys and rows of call sites, and the visits that the ring shows.
#include "watch/sites.hpp"

#include "format/call_site.hpp"
#include "format/hash.hpp"
#include "format/text.hpp"
#include "fr/fr.h"
#include "recorder/recorder.hpp"
#include "watch/deadlines.hpp"

namespace fr {
namespace {

constexpr u64 kVisit_ns = 1'000'000'000;
constexpr u64 kNewest = 4096;  // records that one tick looks at

u64 hash_text(std::string_view text) noexcept {
  return hash_bytes(text.data(), text.size());
}

bool is_over(const RecordCopy& r) noexcept {
  return (r.payload.flags & FR_UNTRACKED) != 0 ||
         (r.has_status && (r.state == State::kCompleted || r.state == State::kFailed ||
                           r.state == State::kReleased || r.state == State::kIdle));
}

}  // namespace

bool Sites::init() noexcept {
  rows_ = recorder_.region.section<SiteRow>(kSecSites);
  return rows_ != nullptr;
}

// The same for all ranks and runs of a program: the group's name may be a number that counts, so it
// goes by what the group is for and how large it is.
SiteRow& Sites::of(const RecordCopy& record) noexcept {
  const View& view = recorder_.view;
  const Payload& p = record.payload;
  const GroupRow* group = view.group(p.group);
  const u64 created = group != nullptr ? get(group->created_ticks) : 0;
  const u64 spread = mix(mix(p.group, p.op), p.stack);
  Cached& cached = cached_[spread % kCached];
  if (cached.site != 0 && cached.group == p.group && cached.op == p.op && cached.stack == p.stack &&
      cached.created_ticks == created) {
    return rows_[cached.site - 1];
  }
  const Site at = user_site(view, p.stack);
  const std::string_view op = view.string(p.op);
  const std::string_view desc = group != nullptr ? view.string(group->desc.load()) : "";
  const auto ranks = group != nullptr ? static_cast<u64>(group->n_ranks.load()) : 0;
  const u64 key =
      mix(mix(mix(hash_text(op), hash_text(desc)), mix(hash_text(at.file), at.line)), ranks) | 1;
  const std::string_view file = at.file.substr(at.file.rfind('/') + 1);
  char text[200];
  format(text, sizeof text, "%.*s:%u %.*s of %.*s", static_cast<int>(file.size()), file.data(),
         at.line, static_cast<int>(op.size()), op.data(), static_cast<int>(desc.size()),
         desc.data());
  SiteRow& row = site_of(rows_, kSites, key, text);
  cached = {created, p.group, p.op, p.stack, static_cast<u32>(&row - rows_) + 1};
  return row;
}

void Sites::take(const RecordCopy& record, u64 now_ns) noexcept {
  SiteRow& row = of(record);
  u64& last_ns = visited_ns_[&row - rows_];
  if (last_ns == 0 || now_ns >= last_ns + kVisit_ns) {
    last_ns = now_ns;
    row.visits.store(get(row.visits) + 1, std::memory_order_relaxed);
  }
}

void Sites::count_visits(u64 now_ns) noexcept {
  static RecordCopy r;  // of the watchdog's thread
  const View& view = recorder_.view;
  const u64 head = get(view.header().head);
  const u64 slots = view.n_slots();
  const auto read = [&](u64 ticket) {
    return view.read(static_cast<u32>(ticket % slots), r) == Slot::kWhole && r.ticket == ticket;
  };
  u32 kept = 0;
  for (u32 i = 0; i < n_open_; ++i) {
    const bool is_there = read(open_[i]);
    if (is_there && is_over(r)) {
      take(r, now_ns);
    } else if (is_there) {
      open_[kept++] = open_[i];
    }
  }
  n_open_ = kept;
  const u64 most = slots < kNewest ? slots : kNewest;
  next_ = head - next_ > most ? head - most : next_;
  for (; next_ < head; ++next_) {
    if (!read(next_)) {
      if (head - next_ < 64) {
        return;  // being written: the next look has it
      }
      continue;
    }
    if (r.payload.kind > FR_RECV) {
      continue;
    }
    if (is_over(r)) {
      take(r, now_ns);
    } else if (n_open_ < kOpen) {
      open_[n_open_++] = next_;
    }
  }
}

}  // namespace fr
