// switch.hpp - the switch that tests/ablate/switches.py puts into each function that decides something.
#pragma once

#include <bitset>

namespace fr_ablate {

inline constexpr int kSwitches = 4096;
inline int g_off = -1;        // the one that is off
inline bool g_notes = false;  // note which switches a case comes to
inline std::bitset<kSwitches> g_reached = {};

inline bool is_off(int number) {
  if (g_notes) {
    g_reached.set(static_cast<std::size_t>(number));
  }
  return number == g_off;
}

}  // namespace fr_ablate
