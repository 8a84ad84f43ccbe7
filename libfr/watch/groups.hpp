// groups.hpp - recognises one rank's group in another rank's ring, and finds its members.
#pragma once

#include <cstring>
#include <iterator>
#include <span>

#include "format/hash.hpp"
#include "format/view.hpp"

namespace fr {

// Ranges as a group has them: {first, count, stride}...
inline bool is_in(std::span<const u32> ranges, i32 rank) noexcept {
  for (std::size_t i = 0; i + 2 < ranges.size(); i += 3) {
    const u32 stride = ranges[i + 2] != 0 ? ranges[i + 2] : 1;
    const u32 ahead = static_cast<u32>(rank) - ranges[i];
    if (rank >= 0 && static_cast<u32>(rank) >= ranges[i] && ahead % stride == 0 &&
        ahead / stride < ranges[i + 1]) {
      return true;
    }
  }
  return false;
}

inline bool is_on(const NodeRow& node, u32 rank) noexcept {
  const u32 first = static_cast<u32>(node.first_rank);
  return node.stride != 0 && rank >= first && (rank - first) % node.stride == 0 &&
         (rank - first) / node.stride < node.n_ranks;
}

// Where Python's calls are recorded only (python/fr/fallback.py) numbers fit nobody else's.
inline u64 capture_of(const View& view) noexcept {
  const Header& h = view.header();
  for (u32 i = 0; i < h.n_layers.load(std::memory_order_acquire) && i < std::size(h.layers); ++i) {
    if (std::strncmp(h.layers[i].name, "torch", sizeof h.layers[i].name) == 0) {
      return std::strncmp(h.layers[i].text, "Python", 6) == 0 ? 1 : 0;
    }
  }
  return 0;
}

// One key on all ranks, as frtrace makes it; never 0.
inline u64 group_key(const View& view, const GroupRow& row) noexcept {
  const std::string_view name = view.string(row.name.load());
  u64 key = mix(hash_bytes(name.data(), name.size()), row.instance.load());
  for (const u32 word : view.group_ranks(row)) {
    key = mix(key, word);
  }
  key = mix(key, static_cast<u32>(row.n_ranks.load()));
  key = mix(key, capture_of(view));
  return key != 0 ? key : 1;
}

}  // namespace fr
