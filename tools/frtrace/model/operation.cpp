// operation.cpp - names and signatures of operations.
#include "model/operation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>
#include <type_traits>

#include "format/signature.hpp"
#include "model/hash.hpp"

namespace frtrace {

namespace {

using fr::class_of;
using fr::OpClass;

// A text that members must agree on.
struct Text {
  enum Of : std::uint8_t { kDtype, kReduceOp } of;
  Id id;
};

Id dtype_of(OpClass cls, const Record& r) {
  return cls == OpClass::kScatter || r.in_dtype == 0 ? r.out_dtype : r.in_dtype;
}

// The only list of the values that must agree besides the operation. Calls f(SlotField, Text) and
// f(SlotField, number).
template <class F>
void visit_signature(OpClass cls, const Record& r, bool sizes, F&& f) {
  const fr::MustAgree must = fr::must_agree(cls);
  if (must.in_size && sizes) {
    f(SlotField::kSize, r.in_numel);
  }
  if (must.out_size && sizes && !(must.in_size && r.in_numel == r.out_numel)) {
    f(SlotField::kOutputSize, r.out_numel);
  }
  if (must.types) {
    f(SlotField::kDtype, Text{Text::kDtype, dtype_of(cls, r)});
    f(SlotField::kReduceOp, Text{Text::kReduceOp, r.reduce_op});
    if (must.root) {
      f(SlotField::kRoot, static_cast<std::uint64_t>(static_cast<std::int64_t>(r.peer)));
    }
  }
}

}  // namespace

std::string canonical_op(std::string_view op) {
  std::string out(op.size(), '\0');
  out.resize(fr::canonical_op(op, out.data(), out.size()));
  return out;
}

bool is_strict(std::string_view op) {
  return class_of(canonical_op(op)) == OpClass::kUniform;
}
bool lacks_root(const RankEvidence& e, const Record& r) {
  static constexpr std::string_view kRooted[] = {"broadcast", "reduce", "gather", "scatter"};
  return r.kind == Kind::kCollective && r.peer < 0 &&
         std::ranges::find(kRooted, canonical_op(e.text(r.op))) != std::end(kRooted);
}
bool is_all_to_all(std::string_view op) {
  return class_of(canonical_op(op)) == OpClass::kAllToAll;
}

bool meets_all(std::string_view op) {
  const std::string name = canonical_op(op);
  return name.rfind("all", 0) == 0 || name.rfind("reducescatter", 0) == 0 ||
         name.find("barrier") != std::string::npos;
}

namespace {

std::uint64_t hash_of(std::string_view text) {
  return std::hash<std::string_view>{}(text);
}

template <class Word>
std::uint64_t signature(OpClass cls, std::uint64_t op, const Record& r, bool sizes, Word&& word) {
  std::uint64_t h = mix(1, op);
  visit_signature(cls, r, sizes, [&](SlotField, auto value) {
    if constexpr (std::is_same_v<decltype(value), Text>) {
      h = mix(h, word(value));
    } else {
      h = mix(h, value);
    }
  });
  return h;
}

}  // namespace

std::uint64_t signature_hash(const RankEvidence& e, const Record& r, bool sizes) {
  const std::string op = canonical_op(e.text(r.op));
  return signature(class_of(op), hash_of(op), r, sizes,
                   [&](Text t) { return hash_of(e.text(t.id)); });
}

const Signatures::Names& Signatures::names(const Record& r) {
  const auto is_it = [&](const Names& n) {
    return n.op == r.op && n.in_dtype == r.in_dtype && n.out_dtype == r.out_dtype &&
           n.reduce_op == r.reduce_op;
  };
  if (last_ < known_.size() && is_it(known_[last_])) {
    return known_[last_];
  }
  last_ =
      static_cast<std::size_t>(std::find_if(known_.begin(), known_.end(), is_it) - known_.begin());
  if (last_ == known_.size()) {
    constexpr std::size_t kMost = 64;  // bounds the search, whatever the file contains
    last_ = known_.size() < kMost ? last_ : 0;
    known_.resize(std::max(known_.size(), last_ + 1));
    const std::string op = canonical_op(e_->text(r.op));
    const OpClass cls = class_of(op);
    known_[last_] = {r.op,
                     r.in_dtype,
                     r.out_dtype,
                     r.reduce_op,
                     static_cast<std::uint8_t>(cls),
                     hash_of(op),
                     hash_of(e_->text(dtype_of(cls, r))),
                     hash_of(e_->text(r.reduce_op))};
  }
  return known_[last_];
}

std::uint64_t Signatures::hash(const Record& r, bool sizes) {
  const Names& n = names(r);
  return signature(static_cast<OpClass>(n.op_class), n.op_hash, r, sizes,
                   [&](Text t) { return t.of == Text::kDtype ? n.dtype_hash : n.reduce_hash; });
}

bool Signatures::is_all_to_all(const Record& r) {
  return static_cast<OpClass>(names(r).op_class) == OpClass::kAllToAll;
}

std::vector<std::pair<SlotField, std::string>> signature_fields(const RankEvidence& e,
                                                                const Record& r) {
  std::vector<std::pair<SlotField, std::string>> out;
  out.emplace_back(SlotField::kOperation, std::string(e.text(r.op)));
  visit_signature(class_of(canonical_op(e.text(r.op))), r, true, [&](SlotField field, auto value) {
    if constexpr (std::is_same_v<decltype(value), Text>) {
      out.emplace_back(field, std::string(e.text(value.id)));
    } else {
      out.emplace_back(field,
                       field == SlotField::kRoot ? std::to_string(r.peer) : std::to_string(value));
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
