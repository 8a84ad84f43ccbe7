// by_address.hpp - variables of a rank while its GIL is held: fr's watchdog reads them by address,
// as for `frtrace stacks`.
#pragma once

#include <string>

#include "live/rings.hpp"

namespace frtrace {

// The selected frame: a thread by name or number, "" the main thread; a Python frame counted from
// the innermost, -1 the innermost frame of user code.
struct Look {
  std::string thread;
  int frame = -1;
};

// Prints the value of a name, `len(name)` or `name.shape`; for "" all variables of the frame; with
// `frames` the frames instead. False: there is no such value.
bool look_by_address(const FoundRing& ring, const Look& look, const std::string& expression,
                     bool frames = false);

}  // namespace frtrace
