// verdict.hpp - `frtrace verdict`: what libfr starts after an incident (libfr/watch/verdict.cpp), so
// that the job's own log says who is at fault.
#pragma once

namespace frtrace {

int verdict_command(int argc, char** argv);

}  // namespace frtrace
