// diagnose.hpp - a case to its report: facts, causes, one judge, words. A pure function.
#pragma once

#include <vector>

#include "collect/nodes.hpp"
#include "facts/facts.hpp"
#include "report/report.hpp"

namespace frtrace {

Report diagnose(const Case&);
Report diagnose(const Facts&);
// Names nodes that did not answer `frtrace collect`. Nothing is known of their ranks: to blame one
// because there is no evidence of it is a guess, `possible` at most.
void weigh_silent_nodes(Report& report, const std::vector<NodeRow>& nodes);

}  // namespace frtrace
