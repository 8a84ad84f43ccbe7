// arguments.hpp - the command line of frtrace.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "input/files.hpp"
#include "model/case.hpp"
#include "report/render.hpp"
#include "system/exit_status.hpp"

namespace CLI {
class App;
}

namespace frtrace {

struct Arguments {
  std::vector<std::string> paths;  // empty: the default directory
  Selection selection;
  LoadOptions load;
  TableFilter filter;
  std::string output, to_torch;  // "": stdout, none
  bool json = false, table = false, stacks = false, full = false;
  bool no_locals = false;
  bool options = false, clean = false;  // instead of a verdict

  bool wants_html() const { return output.ends_with(".html"); }
  bool wants_json() const { return json || output.ends_with(".json"); }
};

// An exit status if the command is done: --help, --version, or wrong usage (reported on stderr).
std::optional<int> parse(CLI::App& app, int argc, char** argv);
std::optional<int> read_arguments(int argc, char** argv, Arguments& out);

// --shm-dir, of the commands that look at this machine's rings.
void add_shm_dir(CLI::App& app, std::string& directory);

// Columns of the terminal; for a pipe $COLUMNS. 120 if neither is known.
std::size_t terminal_width();

}  // namespace frtrace
