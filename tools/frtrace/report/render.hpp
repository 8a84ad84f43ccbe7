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
  std::vector<Rank> ranks = {};  // stacks of these only; empty: all
  std::string where = "DIR";     // the paths that were read, for the command that shows more
  bool typed = true;             // by the reader, who need not be told them where they are long
  Time now = 0;                  // 0: ages are left out
};

std::string render_text(const std::vector<Report>&, const LoadResult&, const TextStyle&);
// Who waits where, a line for each operation and call site over all its numbers and groups.
std::vector<std::string> waiting_lines(const Report&);
// stacks: JSON to go with it under "stacks". indent: -1: one line.
std::string render_json(const std::vector<Report>&, const LoadResult&,
                        const std::string& stacks = {}, int indent = 1);
std::size_t worst_of(const std::vector<Report>&);

struct TableFilter {
  std::vector<Rank> ranks;          // empty: all
  std::vector<std::string> groups;  // names or descriptions; empty: all
  bool full = false;                // all rows of all groups; else those that differ
  std::size_t width = 120;          // columns of the terminal
};
std::string render_table(const std::vector<Case>&, const TableFilter&);

}  // namespace frtrace
