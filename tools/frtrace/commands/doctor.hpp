// doctor.hpp - `frtrace doctor`: finds properties of this machine that make jobs hang.
#pragma once

namespace frtrace {

// argv[0] is "doctor". Exit status: 0 nothing is bad, 1 something is, 2 wrong usage, 3 there is no
// such job, 4 nothing is known to be bad and something that matters is not known.
int doctor_command(int argc, char** argv);

}  // namespace frtrace
