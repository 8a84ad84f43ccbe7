// groups.hpp - matching of groups; only for case.cpp.
#pragma once

#include "model/case.hpp"

namespace frtrace {

// Fills groups and group_of from the ranks' tables, and gives each group its label.
void match_groups(Case&);

}  // namespace frtrace
