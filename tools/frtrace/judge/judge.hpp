// judge.hpp - from proposed causes to a verdict.
//
// Tier by tier (rules.hpp) the judge takes a proposal if it explains a waiting rank that no cause
// taken so far explains. So one fault comes out as one cause, two independent faults as two, and
// consequences of a cause are not blamed. A rank without evidence is named only if no other cause
// is. If nothing is named, the first open question is the verdict: `undecided`.
#pragma once

#include <vector>

#include "causes/cause.hpp"

namespace frtrace {

struct Judgement {
  std::vector<Cause> causes;     // the causes taken; the first explains most waits
  std::vector<Cause> open;       // open questions beside the named causes
  std::vector<int> unexplained;  // evidence of waiting ranks that no cause explains
  Confidence confidence = Confidence::kCertain;
  const Cause& main() const { return causes.front(); }
};

Judgement judge(const Facts&);

}  // namespace frtrace
