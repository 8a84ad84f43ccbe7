// nodes.hpp - what it means for a verdict that some nodes did not answer `frtrace collect`.
#pragma once

#include <vector>

#include "collect/nodes.hpp"
#include "report/report.hpp"

namespace frtrace {

// Names them. Nothing is known of their ranks: to blame one because there is no evidence of it is a
// guess, `possible` at most.
void weigh_silent_nodes(Report& report, const std::vector<NodeRow>& nodes);

}  // namespace frtrace
