// verdict.hpp - `frtrace verdict`: libfr starts it after an incident (libfr/watch/verdict.cpp), so
// that the job's own log names the rank at fault.
#pragma once

namespace frtrace {

int verdict_command(int argc, char** argv);

}  // namespace frtrace
