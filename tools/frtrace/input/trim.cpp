// trim.cpp - chooses the records of a large set that stay in memory.
#include "input/trim.hpp"

#include <algorithm>
#include <tuple>

#include "input/summary/numbers.hpp"
#include "model/contains.hpp"
#include "model/hash.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

constexpr std::size_t kMinWindow = 32, kMaxWindow = 512, kFewestRecent = 8;
constexpr std::size_t kLastOfGroup = 4;
constexpr std::size_t kNeighbours = 16;                // kept around a slot that differs
constexpr std::size_t kPinsPerGroup = 4, kPins = 256;  // the earliest ones
constexpr std::size_t kWhole = 64;                     // suspected ranks
constexpr std::uint64_t kMaxSpan = 1u << 22;           // seqs of one group; more means damage

std::uint64_t group_key(const RankEvidence& e, const GroupEvidence& g) {
  std::uint64_t h = mix(mix(std::uint64_t{1}, std::string_view(e.id.job)), e.text(g.name));
  h = mix(mix(h, static_cast<std::uint64_t>(e.id.attempt)), e.incident);
  h = mix(h, g.instance);
  for (const RankRange& r : g.ranks) {
    h = mix(mix(mix(h, static_cast<std::uint64_t>(r.first)), r.count),
            static_cast<std::uint64_t>(r.stride));
  }
  return h;
}

bool issues(const Record& r) {
  return r.kind == Kind::kCollective || r.kind == Kind::kSend || r.kind == Kind::kRecv ||
         r.kind == Kind::kLifecycle;
}

bool unfinished(const Record& r) {
  return issues(r) && r.state != State::kCompleted && r.state != State::kReleased &&
         r.state != State::kIdle;
}

bool in_flight(const Record& r) {
  return unfinished(r) && r.state != State::kUnknown && r.state != State::kFailed;
}

// Drops data that is not used for a large set.
void compact(RankEvidence& e) {
  // FR_TIMEOUT_S is the only option that is still used.
  std::erase_if(e.options, [](const auto& o) { return o.first != "FR_TIMEOUT_S"; });
  e.options.shrink_to_fit();
  std::vector<std::pair<std::string, std::string>>().swap(e.layers);
  std::vector<LearnedSite>().swap(e.deadlines);
  e.groups.shrink_to_fit();
  e.lanes.shrink_to_fit();
}

// Keeps the records of a rank that its summary gives without the older ones.
void keep_recent(RankEvidence& e, std::uint64_t budget_records) {
  const auto ranks = static_cast<std::uint64_t>(std::max(e.id.world_size, 1));
  const std::vector<bool> is_recent = reduce::recent(
      e, std::clamp<std::size_t>(budget_records / 2 / ranks, kFewestRecent, reduce::kRecent));
  std::size_t i = 0;
  e.losses.trimmed += std::erase_if(e.records, [&](const Record&) { return !is_recent[i++]; });
  e.records.shrink_to_fit();
}

}  // namespace

Windows::Windows(std::uint64_t budget_records, std::size_t files)
    : budget_(budget_records),
      files_(files),
      window_(std::clamp<std::size_t>(budget_records / 2 / std::max<std::size_t>(files, 1),
                                      kMinWindow, kMaxWindow)) {}

// Summaries are much alike: a single one shows that the set is large before all of it is in memory.
bool Windows::count(const std::vector<std::unique_ptr<RankEvidence>>& of_file) {
  constexpr std::uint64_t kSurely = 2;  // times the budget
  std::uint64_t records = 0, reduced = 0;
  for (const auto& e : of_file) {
    records += e->records.size();
    reduced += e->holes.reduced ? e->records.size() : 0;
  }
  records_ += reduced * files_ > kSurely * budget_ ? std::max(records, budget_ + 1) : records;
  return large();
}

bool Windows::large() const {
  return records_ > budget_;
}

void Windows::cut(RankEvidence& e) {
  take_signatures(e);
  keep_window(e, {});
}

void Windows::take_signatures(const RankEvidence& e) {
  std::vector<std::vector<std::pair<std::uint64_t, std::uint32_t>>> mine(e.groups.size());
  Signatures known(e);
  for (const Record& r : e.records) {
    if (r.kind != Kind::kCollective || r.group == 0 || r.group >= mine.size()) {
      continue;
    }
    const std::uint64_t h = known.hash(r);
    mine[r.group].emplace_back(r.seq, static_cast<std::uint32_t>(h ^ h >> 32) | 1);  // 0: none
  }
  for (std::size_t row = 0; row < mine.size(); ++row) {
    if (mine[row].empty()) {
      continue;
    }
    const auto [low, high] = std::minmax_element(mine[row].begin(), mine[row].end());
    const std::uint64_t key = group_key(e, e.groups[row]);
    Shard& shard = shards_[key % kShards];
    const std::lock_guard lock(shard.mutex);
    Slots& slots = shard.groups[key];
    if (slots.signatures.empty()) {
      slots.first = low->first;
    }
    const std::uint64_t first = std::min(low->first, slots.first);
    const std::uint64_t end = std::max(high->first + 1, slots.first + slots.signatures.size());
    if (end < first || end - first > kMaxSpan) {
      continue;
    }
    slots.signatures.insert(slots.signatures.begin(), slots.first - first, 0);
    slots.first = first;
    slots.signatures.resize(end - first, 0);
    for (const auto& [seq, signature] : mine[row]) {
      std::uint32_t& slot = slots.signatures[seq - first];
      if (slot == 0) {
        slot = signature;
      } else if (slot != signature) {
        slots.differ.insert(seq);
        if (slots.differ.size() > kPinsPerGroup) {
          slots.differ.erase(std::prev(slots.differ.end()));
        }
      }
    }
  }
}

void Windows::keep_window(RankEvidence& e,
                          const std::vector<std::vector<std::uint64_t>>& pins) const {
  if (e.holes.reduced && pins.empty()) {
    keep_recent(e, budget_);
    return;
  }
  const std::size_t n = e.records.size();
  std::vector<bool> keep(n, false);
  std::vector<std::size_t> of_group(e.groups.size(), 0);
  const std::size_t oldest = n - std::min(n, 4 * window_);
  std::size_t from = n, old_unfinished = 0;
  for (std::size_t i = n; i-- > 0;) {
    const Record& r = e.records[i];
    if (unfinished(r)) {
      if (i >= oldest) {
        from = i;
      } else if (old_unfinished++ < 4 * window_) {
        keep[i] = true;
      }
    }
    if (issues(r) && r.group < of_group.size() && of_group[r.group]++ < kLastOfGroup) {
      keep[i] = true;
    }
    if (r.kind == Kind::kCollective && r.group < pins.size()) {
      const auto& seqs = pins[r.group];
      if (contains(seqs, r.seq)) {
        const std::size_t last = std::min(n, i + kNeighbours + 1);
        std::fill(keep.begin() + static_cast<std::ptrdiff_t>(i - std::min(i, kNeighbours)),
                  keep.begin() + static_cast<std::ptrdiff_t>(last), true);
      }
    }
  }
  for (std::size_t i = from - std::min(from, window_); i < n; ++i) {
    keep[i] = true;
  }
  std::vector<Record> kept;
  kept.reserve(static_cast<std::size_t>(std::count(keep.begin(), keep.end(), true)));
  for (std::size_t i = 0; i < n; ++i) {
    if (keep[i]) {
      kept.push_back(e.records[i]);
    }
  }
  e.losses.trimmed += n - kept.size();
  e.records = std::move(kept);
  std::erase_if(e.device.spans, [&](const DeviceSpan& s) {
    return !std::binary_search(e.records.begin(), e.records.end(), s,
                               [](const auto& a, const auto& b) { return a.ticket < b.ticket; });
  });
  e.device.spans.shrink_to_fit();
  if (e.holes.reduced) {
    e.records.shrink_to_fit();  // all ranks of the file share its tables
  } else {
    compact(e);
  }
}

std::vector<std::vector<std::uint64_t>> Windows::pins_of(const RankEvidence& e) const {
  std::vector<std::vector<std::uint64_t>> out;
  for (std::size_t row = 0; row < e.groups.size() && !pins_.empty(); ++row) {
    if (const auto it = pins_.find(group_key(e, e.groups[row])); it != pins_.end()) {
      out.resize(row + 1);
      out[row] = it->second;
    }
  }
  return out;
}

void Windows::cut_again(RankEvidence& e) const {
  keep_window(e, pins_of(e));
}

Windows::Again Windows::look_again(const std::vector<std::unique_ptr<RankEvidence>>& all) {
  Again again;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> differ;  // key, seq
  for (Shard& shard : shards_) {
    for (const auto& [key, slots] : shard.groups) {
      for (const std::uint64_t seq : slots.differ) {
        differ.emplace_back(key, seq);
      }
    }
    shard.groups.clear();
  }
  std::sort(differ.begin(), differ.end());
  for (std::size_t i = 0; i < std::min(differ.size(), kPins); ++i) {
    pins_[differ[i].first].push_back(differ[i].second);
  }

  // The highest sequence number of each group, and the first rank that reached it.
  std::unordered_map<std::uint64_t, std::pair<std::uint64_t, std::size_t>> furthest;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (const GroupEvidence& g : all[i]->groups) {
      if (g.used) {
        auto& [most, who] = furthest.try_emplace(group_key(*all[i], g), 0, i).first->second;
        if (g.enqueued > most) {
          most = g.enqueued, who = i;
        }
      }
    }
  }
  // Ranks that ended first, then ranks with nothing in flight.
  std::vector<std::tuple<bool, bool, Rank, std::size_t>> suspects;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const RankEvidence& e = *all[i];
    const bool behind = std::any_of(e.groups.begin(), e.groups.end(), [&](const auto& g) {
      return g.used && g.enqueued < furthest[group_key(e, g)].first;
    });
    const bool ended = e.exit.present || e.process_gone;
    if (behind || ended) {
      const bool waits = std::any_of(e.records.begin(), e.records.end(), in_flight);
      suspects.emplace_back(!ended, waits, e.id.rank, i);
    }
  }
  std::sort(suspects.begin(), suspects.end());
  suspects.resize(std::min(suspects.size(), kWhole));
  std::set<std::size_t> whole;
  for (const auto& [alive, waits, rank, i] : suspects) {
    whole.insert(i);
    for (const GroupEvidence& g : all[i]->groups) {
      if (g.used) {
        whole.insert(furthest[group_key(*all[i], g)].second);
      }
    }
  }
  again.whole.assign(whole.begin(), whole.end());
  for (std::size_t i = 0; i < all.size() && !pins_.empty(); ++i) {
    if (whole.contains(i) || all[i]->losses.trimmed == 0) {
      continue;
    }
    if (!pins_of(*all[i]).empty()) {
      again.pinned.push_back(i);
    }
  }
  return again;
}

}  // namespace frtrace
