// judge.hpp - from proposed causes to a verdict.
//
// Tier by tier (rules.hpp) the judge takes a proposal if it explains a waiting rank that nothing
// taken so far explains. So one fault comes out as one cause, two independent faults as two, and
// what merely follows from a cause is not blamed. A rank without evidence is named only when no
// other cause is; where nothing is named the first open question is the verdict: `undecided`.
#pragma once

#include <vector>

#include "causes/cause.hpp"

namespace frtrace {

struct Judgement {
  std::vector<Cause> causes;     // taken; the first is the one that explains most
  std::vector<Cause> open;       // questions that stay beside the named causes
  std::vector<int> unexplained;  // evidence of waiting ranks that no cause explains
  Confidence confidence = Confidence::kCertain;
  const Cause& main() const { return causes.front(); }
};

Judgement judge(const Facts&);

}  // namespace frtrace
