// operation.hpp - what an operation is by itself: its canonical name, what all members of a group
// must agree on, whether a rank waits in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// What all members of a group must agree on in one slot, by operation: legal inequalities (only
// the root has lists, uneven splits) are not part of it. Without `sizes` all but these.
std::uint64_t signature_hash(const RankEvidence&, const Record&, bool sizes = true);
// The same for many records of one rank, which issues the same few operations again and again.
class Signatures {
 public:
  explicit Signatures(const RankEvidence& e) : e_(&e) {}
  std::uint64_t hash(const Record&, bool sizes = true);
  bool is_all_to_all(const Record&);

 private:
  struct Names {  // an operation by its names, and what these contribute
    Id op, in_dtype, out_dtype, reduce_op;
    std::uint8_t op_class;
    std::uint64_t op_hash, dtype_hash, reduce_hash;
  };
  const Names& names(const Record&);

  const RankEvidence* e_;
  std::vector<Names> known_;
  std::size_t last_ = 0;
};
enum class SlotField : std::uint8_t {
  kOperation,
  kSize,
  kOutputSize,
  kSizes,
  kDtype,
  kReduceOp,
  kRoot
};
// The same one by one, as texts: {kSize, "4096"}, {kDtype, "Float"}...
std::vector<std::pair<SlotField, std::string>> signature_fields(const RankEvidence&, const Record&);
// Only a fault makes the signatures of such operations differ, even when they completed.
bool is_strict(std::string_view op);
bool is_all_to_all(std::string_view op);
// Members must agree on its root, and the record has none.
bool lacks_root(const RankEvidence&, const Record&);
// No member leaves such an operation before all have entered it.
bool meets_all(std::string_view op);
// Same function under another spelling: "_allgather_base_", "all_gather_into_tensor".
std::string canonical_op(std::string_view op);

inline bool is_p2p(const Record& r) {
  return r.kind == Kind::kSend || r.kind == Kind::kRecv;
}
// Collective, send or receive: what a rank may wait in.
inline bool communicates(const Record& r) {
  return r.kind == Kind::kCollective || is_p2p(r);
}
// In flight, and the rank goes on only when it ends.
bool blocks(const Record&);

}  // namespace frtrace
