// operation.hpp - properties of one operation: its canonical name, the values that all members of a
// group must agree on, whether a rank waits in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

// A hash of the values that all members of a group must agree on in one slot, by operation. Legal
// differences (lists on the root only, uneven splits) are left out. Without `sizes`, sizes are,
// too.
std::uint64_t signature_hash(const RankEvidence&, const Record&, bool sizes = true);
// The same for many records of one rank, which issues the same few operations repeatedly.
class Signatures {
 public:
  explicit Signatures(const RankEvidence& e) : e_(&e) {}
  std::uint64_t hash(const Record&, bool sizes = true);
  bool is_all_to_all(const Record&);

 private:
  struct Names {  // the texts of an operation, and their parts of the hash
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
// The same values one by one, as texts: {kSize, "4096"}, {kDtype, "Float"}...
std::vector<std::pair<SlotField, std::string>> signature_fields(const RankEvidence&, const Record&);
// Only a fault makes signatures of this operation differ, even if it completed.
bool is_strict(std::string_view op);
bool is_all_to_all(std::string_view op);
// Members must agree on the root, and the record has none.
bool lacks_root(const RankEvidence&, const Record&);
// No member leaves such an operation before all have entered it.
bool meets_all(std::string_view op);
// The canonical name of a function with several spellings: "_allgather_base_",
// "all_gather_into_tensor".
std::string canonical_op(std::string_view op);

inline bool is_p2p(const Record& r) {
  return r.kind == Kind::kSend || r.kind == Kind::kRecv;
}
// A collective, send or receive: an operation that a rank may wait in.
inline bool communicates(const Record& r) {
  return r.kind == Kind::kCollective || is_p2p(r);
}
// The operation is in flight, and the rank continues only when it ends.
bool blocks(const Record&);

}  // namespace frtrace
