// perfetto.hpp - the operations of all ranks on one timeline, for ui.perfetto.dev.
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
  std::size_t most_bytes = std::size_t{200} * 1000 * 1000;  // the viewer fails on more
};

struct PerfettoTrace {
  std::string data;
  std::string left_out;  // "" if nothing; the trace has it as well
};
// `reports` has one report per case.
PerfettoTrace render_perfetto(const std::vector<Case>&, const std::vector<Report>&,
                              const PerfettoOptions&);

}  // namespace frtrace
