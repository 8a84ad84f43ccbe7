// perfetto.hpp - the operations of all ranks on one time line, for ui.perfetto.dev.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "model/case.hpp"
#include "words/report.hpp"

namespace frtrace {

struct PerfettoOptions {
  std::vector<Rank> ranks = {};                             // empty: all
  std::vector<std::string> groups = {};                     // names or descriptions; empty: all
  std::size_t most_bytes = std::size_t{200} * 1000 * 1000;  // more is too much for the viewer
};

struct PerfettoTrace {
  std::string data;
  std::string left_out;  // "" nothing; it stands in the trace as well
};
// One report per case.
PerfettoTrace render_perfetto(const std::vector<Case>&, const std::vector<Report>&,
                              const PerfettoOptions&);

}  // namespace frtrace
