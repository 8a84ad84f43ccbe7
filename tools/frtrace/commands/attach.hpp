// attach.hpp - `frtrace attach JOB --rank R`: inspects a running rank, or opens its debugger.
#pragma once

namespace frtrace {

int attach_command(int argc, char** argv);

}  // namespace frtrace
