// differs.cpp - how the operations that the ranks issued at one place of a group differ.
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "model/contains.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

std::string field_text(SlotField field) {
  static constexpr const char* kTexts[] = {"operation", "size",      "output size", "sizes",
                                           "dtype",     "reduce op", "root"};
  static_assert(std::size(kTexts) == static_cast<std::size_t>(SlotField::kRoot) + 1);
  return kTexts[static_cast<std::size_t>(field)];
}

}  // namespace

std::string differences_text(const Facts& f, const Cause& c) {
  const Divergence& d = *c.divergence;
  if (d.splits) {
    return fmt::format("rank {} sends {} rows to rank {}, which expects {}", d.splits->from,
                       d.splits->sent, d.splits->to, d.splits->expected);
  }
  const auto shape = [&](bool right) {
    const Side side = side_of(f, d, right == (c.right == 1) ? 1 : 0);
    const Shape x = parse_shape(f.ev(side.evidence), *side.record);
    return x.known ? shape_text(x.in.empty() ? x.out : x.in) : std::string();
  };
  std::vector<std::string> out;
  for (const FieldDifference& x : d.fields) {
    const char* between = c.right < 0 ? " and " : " instead of ";
    const bool plain = c.right < 0 && x.field == SlotField::kOperation;
    std::string text = given(!plain, field_text(x.field) + ' ') + x.own + led(between, x.others);
    if (x.field == SlotField::kSizes) {
      const Record& own = *side_of(f, d, c.right == 1 ? 0 : 1).record;
      text = fmt::format("sizes {} in, {} out", own.in_numel, own.out_numel);
    }
    if ((x.field == SlotField::kSize || x.field == SlotField::kOutputSize) &&
        d.classes.size() == 2) {
      const std::string own = shape(false), others = shape(true);
      text = own.empty() || others.empty() || own == others
                 ? text
                 : fmt::format("shape {}{}{}", own, between, others);
    }
    if (!contains(out, text)) {
      out.push_back(std::move(text));
    }
  }
  return fmt::format("{}", fmt::join(out, "; "));
}

}  // namespace frtrace
