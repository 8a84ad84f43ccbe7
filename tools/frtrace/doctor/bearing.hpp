// bearing.hpp - bad findings of the doctor on this machine that bear on a verdict. Called after the
// verdict is made: it adds to the report's text and changes no answer.
#pragma once

#include "doctor/machine.hpp"
#include "words/report.hpp"

namespace frtrace {

// At most 2 s. in_job: this process was started by the job and has its environment and limits;
// otherwise those of its ranks that still run here are used.
void look_at_machine(Report&, doctor::Where, bool in_job);

}  // namespace frtrace
