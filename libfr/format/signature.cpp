// signature.cpp - the table of operations by what their members must agree on.
#include "format/signature.hpp"

#include "format/hash.hpp"

namespace fr {
namespace {

constexpr struct {
  std::string_view name;
  OpClass op_class;
} kClasses[] = {
    {"allreduce", OpClass::kUniform},
    {"allreducecoalesced", OpClass::kUniform},
    {"broadcast", OpClass::kUniform},
    {"reduce", OpClass::kInputOnly},
    {"gather", OpClass::kGather},
    {"scatter", OpClass::kScatter},
    {"allgather", OpClass::kAllGather},
    {"allgathercoalesced", OpClass::kAllGather},
    {"allgatherbase", OpClass::kUniform},
    {"allgatherintotensor", OpClass::kUniform},
    {"allgatherintotensorcoalesced", OpClass::kUniform},
    {"reducescatter", OpClass::kReduceScatter},
    {"reducescatterbase", OpClass::kUniform},
    {"reducescattertensor", OpClass::kUniform},
    {"reducescattertensorcoalesced", OpClass::kUniform},
    {"alltoall", OpClass::kAllToAll},
    {"alltoallbase", OpClass::kAllToAll},
    {"alltoallsingle", OpClass::kAllToAll},
    {"barrier", OpClass::kBarrier},
    {"monitoredbarrier", OpClass::kBarrier},
};

}  // namespace

std::size_t canonical_op(std::string_view op, char* out, std::size_t bytes) noexcept {
  if (const std::size_t colon = op.rfind(':'); colon != std::string_view::npos) {
    op.remove_prefix(colon + 1);  // "c10d::allreduce_", "nccl:all_reduce"
  }
  std::size_t n = 0;
  for (const char c : op) {
    if (c != '_' && n < bytes) {
      out[n++] = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  return n;
}

OpClass class_of(std::string_view canonical) noexcept {
  for (const auto& row : kClasses) {
    if (row.name == canonical) {
      return row.op_class;
    }
  }
  return OpClass::kOther;
}

OpName op_name(std::string_view op) noexcept {
  char text[64];
  const std::string_view canonical(text, canonical_op(op, text, sizeof text));
  const u32 hash = static_cast<u32>(hash_bytes(canonical.data(), canonical.size()) >> 32);
  return {hash != 0 ? hash : 1, class_of(canonical)};
}

u32 signature(OpName op, const Payload& p) noexcept {
  const MustAgree must = must_agree(op.op_class);
  const u8 dtype = agreed_dtype(op.op_class, p);
  if (must.types && dtype == 0) {
    return 0;
  }
  u64 h = mix(op.hash, must.in_size ? p.in_numel : 0);
  if (must.out_size) {
    h = mix(h, p.out_numel);
  }
  if (must.types) {
    h = mix(h, dtype | static_cast<u64>(p.reduce_op) << 8 |
                   static_cast<u64>(must.root ? static_cast<u32>(p.peer) : 0) << 16);
  }
  const u32 folded = static_cast<u32>(h ^ (h >> 32));
  return folded != 0 ? folded : 1;
}

}  // namespace fr
