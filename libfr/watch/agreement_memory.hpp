// agreement_memory.hpp - what an Agreement holds: mostly zero pages that nothing touches.
#pragma once

#include <span>

#include "format/hash.hpp"
#include "fr/fr.h"
#include "watch/agreement.hpp"

namespace fr {

// The record of a member that is told of.
struct Agreement::Held {
  u32 ring, signature, site;
  Payload payload;
};

struct Agreement::Memory {
  Ring rings[kRings];
  Group groups[kGroupsHere];
  Held held[2][kRings];
  RecordCopy record;
  Dispute dispute;
  Origin origin;
  bool origin_told;
  u64 told[kTold];  // keys of groups
  u32 n_told;
};

// 64 bits of a FR_SAMPLE; 0 where the record has none.
inline u64 sample_word(const RecordCopy& r, u32 at) noexcept {
  return r.n_shape != FR_SAMPLE_WORDS ? 0 : r.shape[at] | static_cast<u64>(r.shape[at + 1]) << 32;
}
inline bool is_same_output(const RecordCopy& r) noexcept {
  return static_cast<u32>(sample_word(r, FR_SAMPLE_SIDE)) == FR_SAMPLE_SAME_OUTPUT;
}
inline u32 output_signature(const RecordCopy& r) noexcept {
  return static_cast<u32>(mix(sample_word(r, FR_SAMPLE_SUM), sample_word(r, FR_SAMPLE_WEIGHTED)) >>
                          32);
}

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

}  // namespace fr
