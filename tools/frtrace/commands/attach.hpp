// attach.hpp - `frtrace attach JOB --rank R`: looks into a rank that runs, or leads to its debugger.
#pragma once

namespace frtrace {

int attach_command(int argc, char** argv);

}  // namespace frtrace
