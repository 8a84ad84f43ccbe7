// scale.hpp - one large set, for measuring how fast it is read.
#pragma once

#include <string>

namespace hangsim {

struct Scale {
  int world, records, jobs;
  std::string format, out;
};
// A group of all ranks and groups of every 8 ranks; rank 5 never issues the last all_reduce over
// all. 8 ranks are simulated, the others repeat them. Writes out/fr, out/torch and out/truth.json.
void write_scale(const Scale&);

}  // namespace hangsim
