// render.hpp - reports as text, JSON and tables. Renderers only lay out; every sentence is a field.
#pragma once

#include <string>
#include <vector>

#include "input/files.hpp"
#include "model/case.hpp"
#include "words/report.hpp"

namespace frtrace {

struct TextStyle {
  bool colour = false;
  bool stacks = false;
  bool full = false;             // everything; else a screen of 24 lines
  std::size_t width = 120;       // columns of a line
  std::vector<Rank> ranks = {};  // show only stacks of these ranks; empty: all
  std::string where = "DIR";     // the paths that were read, for the command that shows more
  bool typed = true;             // the user typed the paths, so long ones are not repeated
  Time now = 0;                  // 0: ages are left out
};

std::string render_text(const std::vector<Report>&, const LoadResult&, const TextStyle&);
// The waits, a line per operation and call site over all its numbers and groups.
std::vector<std::string> waiting_lines(const Report&);
// `stacks`: JSON to include under "stacks". `indent` -1: one line.
std::string render_json(const std::vector<Report>&, const LoadResult&,
                        const std::string& stacks = {}, int indent = 1);
std::size_t worst_of(const std::vector<Report>&);

struct TableFilter {
  std::vector<Rank> ranks;          // empty: all
  std::vector<std::string> groups;  // names or descriptions; empty: all
  bool full = false;                // all rows of all groups; else only those near a difference
  std::size_t width = 120;          // columns of the terminal
};
std::string render_table(const std::vector<Case>&, const TableFilter&);

}  // namespace frtrace
