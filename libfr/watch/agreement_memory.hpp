// agreement_memory.hpp - what an Agreement holds: mostly zero pages that nothing touches.
#pragma once

#include "format/hash.hpp"
#include "fr/fr.h"
#include "watch/agreement.hpp"
#include "watch/groups.hpp"

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

}  // namespace fr
