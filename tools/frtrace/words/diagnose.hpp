// diagnose.hpp - turns a case into its report: facts, causes, one judge, words. A pure function.
#pragma once

#include <memory>
#include <vector>

#include "facts/facts.hpp"
#include "model/nodes.hpp"
#include "words/report.hpp"

namespace frtrace {

Report diagnose(const Case&);
Report diagnose(const Facts&);
// The first and the last attempt with evidence before the report's attempt. Reading and diagnosing
// all would take as long for each as for the reported attempt.
std::vector<int> attempts_before(const std::vector<std::unique_ptr<RankEvidence>>&, const Report&);
// Adds a line on how that attempt ended, unless it ended without a fault.
void add_attempt_before(const std::vector<std::unique_ptr<RankEvidence>>&, int attempt, Report&);
// Names nodes that did not answer `frtrace collect`. Nothing is known about their ranks: blaming
// such a rank for its missing evidence is a guess, `possible` at most.
void weigh_silent_nodes(Report& report, const std::vector<NodeRow>& nodes);

}  // namespace frtrace
