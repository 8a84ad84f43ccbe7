// diagnose.hpp - a case to its report: facts, causes, one judge, words. A pure function.
#pragma once

#include <memory>
#include <vector>

#include "facts/facts.hpp"
#include "model/nodes.hpp"
#include "words/report.hpp"

namespace frtrace {

Report diagnose(const Case&);
Report diagnose(const Facts&);
// Of the attempts before the report's of which there is evidence, the first and the last: to read and
// diagnose all takes as long for each as for the one told of.
std::vector<int> attempts_before(const std::vector<std::unique_ptr<RankEvidence>>&, const Report&);
// Adds a line on how that attempt ended, unless it ended without a fault.
void add_attempt_before(const std::vector<std::unique_ptr<RankEvidence>>&, int attempt, Report&);
// Names nodes that did not answer `frtrace collect`. Nothing is known of their ranks: to blame one
// because there is no evidence of it is a guess, `possible` at most.
void weigh_silent_nodes(Report& report, const std::vector<NodeRow>& nodes);

}  // namespace frtrace
