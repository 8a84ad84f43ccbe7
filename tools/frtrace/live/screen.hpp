// screen.hpp - a running job as lines of a terminal. Lays out only.
#pragma once

#include <string>
#include <vector>

#include "live/running_job.hpp"

namespace frtrace {

struct ScreenStyle {
  std::size_t width = 120, height = 0;  // height 0: as many lines as it takes
  std::size_t scrolled = 0;             // groups passed over at the top
  bool colour = false;
  std::string node, time;  // host name, time of day
};

// verdict: the verdict so far, "": none yet.
std::vector<std::string> screen_lines(const JobNow&, const std::string& verdict,
                                      const ScreenStyle&);

}  // namespace frtrace
