// stress.hpp - how long a stress runs, and from which random numbers: `make stress TIME=60 SEED=1`.
#pragma once

#include <chrono>
#include <cstdlib>

#include "../unit/catch.hpp"

namespace fr::test {

inline double stress_seconds() {
  const char* given = std::getenv("FR_STRESS_S");
  return given != nullptr ? std::atof(given) : 3;
}

inline unsigned stress_seed() {
  const char* given = std::getenv("FR_STRESS_SEED");
  return given != nullptr ? static_cast<unsigned>(std::atoi(given)) : 1;
}

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace fr::test
