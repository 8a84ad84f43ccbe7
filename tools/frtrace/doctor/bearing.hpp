// bearing.hpp - what the doctor finds bad on this machine that bears on a verdict about it. Called
// after the verdict is made: it adds to the words and changes no answer.
#pragma once

#include "doctor/machine.hpp"
#include "words/report.hpp"

namespace frtrace {

// At most 2 s. in_job: this process was started by the job and has its environment and limits;
// else they are those of its ranks that still run here, where there are any.
void look_at_machine(Report&, doctor::Where, bool in_job);

}  // namespace frtrace
