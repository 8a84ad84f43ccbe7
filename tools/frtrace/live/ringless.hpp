// ringless.hpp - processes of this machine that were started as a rank of a job and have no ring,
// because they have not made their first group or run without fr. Called after the verdict is made:
// it adds to the report's text and changes no answer.
#pragma once

#include "words/report.hpp"

namespace frtrace {

void look_for_ringless(Report&);

}  // namespace frtrace
