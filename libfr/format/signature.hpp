// signature.hpp - what all members of a group must agree on in one operation. The one table of it:
// the watchdog compares running ranks by it, frtrace dumps.
#pragma once

#include <cstddef>
#include <string_view>

#include "format/layout.hpp"

namespace fr {

enum class OpClass : u8 {
  kUniform,    // sizes and dtypes of input and output equal on all
  kInputOnly,  // reduce: the output counts on the root only
  kGather,     // one input each, lists on the root
  kScatter,    // one output each, lists on the root
  kAllGather,  // own inputs may be uneven, the gathered total is not
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kOther  // not known: only the name must agree
};

// Same function under another spelling: "c10d::_allgather_base_", "nccl:AllGatherBase" give
// "allgatherbase". Returns the length; what does not fit is cut.
std::size_t canonical_op(std::string_view op, char* out, std::size_t bytes) noexcept;
OpClass class_of(std::string_view canonical) noexcept;

// Members of a record that must be equal, besides the operation. Members that may differ (own rank,
// splits, lists on the root only, shapes of objects, call sites) are not among them.
struct MustAgree {
  bool in_size, out_size, types, root;
};
constexpr MustAgree must_agree(OpClass c) noexcept {
  const bool in = c == OpClass::kUniform || c == OpClass::kInputOnly || c == OpClass::kGather ||
                  c == OpClass::kReduceScatter;
  const bool out = c == OpClass::kUniform || c == OpClass::kScatter || c == OpClass::kAllGather;
  const bool types = c != OpClass::kBarrier && c != OpClass::kOther;
  const bool root =
      types && c != OpClass::kAllGather && c != OpClass::kReduceScatter && c != OpClass::kAllToAll;
  return {in, out, types, root};
}

// An operation by its name: the hash of its canonical form and its class.
struct OpName {
  u32 hash;  // never 0
  OpClass op_class;
};
OpName op_name(std::string_view op) noexcept;

// The dtype that counts.
inline u8 agreed_dtype(OpClass c, const Payload& p) noexcept {
  return c == OpClass::kScatter || p.in_dtype == 0 ? p.out_dtype : p.in_dtype;
}
// 0: the record does not say what it would be compared by.
u32 signature(OpName op, const Payload& p) noexcept;

}  // namespace fr
