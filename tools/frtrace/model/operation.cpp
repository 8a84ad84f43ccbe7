// Names and signatures of operations.
#include "model/operation.hpp"

#include <fmt/format.h>

#include <map>

#include "model/hash.hpp"

namespace frtrace {

namespace {

enum class OpClass {
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

OpClass class_of(const std::string& canonical) {
  static const std::map<std::string, OpClass, std::less<>> kClasses = {
      {"allreduce", OpClass::kUniform},
      {"allreducecoalesced", OpClass::kUniform},
      {"allreducesparse", OpClass::kOther},
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
  const auto it = kClasses.find(canonical);
  return it == kClasses.end() ? OpClass::kOther : it->second;
}

// The one list of what must agree. f(name, text) and f(name, number).
template <class F>
void visit_signature(const RankEvidence& e, const Record& r, F&& f) {
  const std::string op = canonical_op(e.text(r.op));
  f("operation", std::string_view(op));
  const OpClass cls = class_of(op);
  const bool in = cls == OpClass::kUniform || cls == OpClass::kInputOnly ||
                  cls == OpClass::kGather || cls == OpClass::kReduceScatter;
  const bool out =
      cls == OpClass::kUniform || cls == OpClass::kScatter || cls == OpClass::kAllGather;
  if (in) {
    f("size", r.in_numel);
  }
  if (out && !(in && r.in_numel == r.out_numel)) {
    f("output size", r.out_numel);
  }
  if (cls != OpClass::kBarrier && cls != OpClass::kOther) {
    const bool by_output = cls == OpClass::kScatter;
    f("dtype", e.text(by_output || r.in_dtype == 0 ? r.out_dtype : r.in_dtype));
    f("reduce op", e.text(r.reduce_op));
    if (cls != OpClass::kAllGather && cls != OpClass::kReduceScatter && cls != OpClass::kAllToAll) {
      f("root", static_cast<std::uint64_t>(static_cast<std::int64_t>(r.peer)));
    }
  }
}

}  // namespace

std::string canonical_op(std::string_view op) {
  if (const std::size_t colon = op.rfind(':'); colon != std::string_view::npos) {
    op.remove_prefix(colon + 1);  // "c10d::allreduce_", "nccl:all_reduce"
  }
  std::string out;
  for (const char ch : op) {
    if (ch != '_') {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(ch)));
    }
  }
  return out;
}

bool is_strict(std::string_view op) {
  return class_of(canonical_op(op)) == OpClass::kUniform;
}
bool is_all_to_all(std::string_view op) {
  return class_of(canonical_op(op)) == OpClass::kAllToAll;
}

bool meets_all(std::string_view op) {
  const std::string name = canonical_op(op);
  return name.rfind("all", 0) == 0 || name.rfind("reducescatter", 0) == 0 ||
         name.find("barrier") != std::string::npos;
}

std::uint64_t signature_hash(const RankEvidence& e, const Record& r) {
  std::uint64_t h = 1;
  visit_signature(e, r, [&h](const char*, auto value) { h = mix(h, value); });
  return h;
}

std::vector<std::pair<std::string, std::string>> signature_fields(const RankEvidence& e,
                                                                  const Record& r) {
  std::vector<std::pair<std::string, std::string>> out;
  visit_signature(e, r, [&](std::string_view name, auto value) {
    if (name == "operation") {
      out.emplace_back(name, std::string(e.text(r.op)));
    } else if (name == "root") {
      out.emplace_back(name, fmt::format("{}", r.peer));
    } else {
      out.emplace_back(name, fmt::format("{}", value));
    }
  });
  return out;
}

bool blocks(const Record& r) {
  if (!communicates(r)) {
    return false;
  }
  if (r.state == State::kWaiting) {
    return true;
  }
  return (r.state == State::kEnqueued || r.state == State::kStarted) &&
         (r.flags & (kWaitOnly | kUntracked)) == 0;
}

}  // namespace frtrace
