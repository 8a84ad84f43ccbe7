// scale.hpp - one large set, for measuring how fast it is read.
#pragma once

#include <string>

namespace hangsim {

struct Scale {
  int world, records, jobs;
  std::string format, out;
};
// Groups of all and of every 8 ranks; rank 5 never comes to the last all_reduce of all. 8 ranks are
// simulated, the others play them over again. Writes out/fr, out/torch and out/truth.json.
void write_scale(const Scale&);

}  // namespace hangsim
