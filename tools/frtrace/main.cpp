// frtrace - reads what the ranks of a job left behind and names the stalled operation and the rank at fault.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "commands/arguments.hpp"
#include "commands/attach.hpp"
#include "commands/check.hpp"
#include "commands/clean.hpp"
#include "commands/collect.hpp"
#include "commands/doctor.hpp"
#include "commands/fan.hpp"
#include "commands/live.hpp"
#include "commands/metrics.hpp"
#include "commands/output.hpp"
#include "commands/reduce.hpp"
#include "commands/spare.hpp"
#include "commands/stacks.hpp"
#include "commands/verdict.hpp"
#include "doctor/bearing.hpp"
#include "input/files.hpp"
#include "live/lock_files.hpp"
#include "live/mapped_ring.hpp"
#include "live/ringless.hpp"
#include "live/running_job.hpp"
#include "recorder/options.hpp"
#include "report/lines.hpp"
#include "report/page.hpp"
#include "report/perfetto.hpp"
#include "report/render.hpp"
#include "report/stacks_tree.hpp"
#include "report/to_torch.hpp"
#include "system/here.hpp"
#include "words/diagnose.hpp"

namespace {

using namespace frtrace;

// Names of files may be anybody's.
void complain(const std::string& line) {
  std::cerr << printable(line) << "\n";
}

void print_options() {
  for (const fr::OptionSpec& o : fr::option_table()) {
    std::string names = o.name;
    for (const char* alias : o.aliases) {
      if (alias != nullptr && *alias != '\0') {
        names += fmt::format(", {}", alias);
      }
    }
    fmt::print("{}\n    default {}: {}\n", names, o.default_text, o.meaning);
  }
}

// "\r reading 1200 of 16384 files", on a terminal and only when it takes long.
class Progress {
 public:
  ~Progress() { erase(); }
  void operator()(std::size_t done, std::size_t of) {
    const auto now = std::chrono::steady_clock::now();
    if (now - shown_ < (drawn_ ? std::chrono::milliseconds(200) : std::chrono::seconds(1))) {
      return;
    }
    shown_ = now;
    drawn_ = true;
    fmt::print(stderr, "\r\033[Kreading: {} of {} files", done, of);
    std::fflush(stderr);
  }
  void erase() {
    if (drawn_) {
      std::fputs("\r\033[K", stderr);
      drawn_ = false;
    }
  }

 private:
  std::chrono::steady_clock::time_point shown_ = std::chrono::steady_clock::now();
  bool drawn_ = false;
};

struct Answers {
  std::vector<Case> cases;
  std::vector<Report> reports;     // of each case
  std::vector<StackTree> trees;    // likewise, where asked for
  std::vector<std::string> pages;  // page_data() likewise
};

// Looking at this machine, for lock files and for what else bears on it, comes after the diagnosis and changes no verdict.
Answers answers_of(const Arguments& a, const LoadResult& input) {
  Answers out;
  out.cases = make_cases(input.evidence, a.selection);
  for (Case& c : out.cases) {
    for (const auto& [job, line] : input.spare) {
      if (job == c.job) {
        c.notes.push_back(line);
      }
    }
    const Facts facts(c);
    out.reports.push_back(diagnose(facts));
    weigh_silent_nodes(out.reports.back(), input.nodes);
    for (const int attempt : attempts_before(input.evidence, out.reports.back())) {
      add_attempt_before(input.evidence, attempt, out.reports.back());
    }
    look_at_lock_files(out.reports.back());
    look_for_ringless(out.reports.back());
    look_at_machine(out.reports.back(), {"", "", fr::read_options().shm_dir}, false);
    if (a.wants_html()) {
      StackTree all = merge_stacks(stack_inputs(c, {}));
      look_at_lock_files(all);
      out.pages.push_back(page_data(facts, out.reports.back(), all));
    } else if (a.stacks) {
      out.trees.push_back(merge_stacks(stack_inputs(c, a.filter.ranks)));
      look_at_lock_files(out.trees.back());
    }
  }
  return out;
}

void say_why_nothing(const Arguments& a, const LoadResult& input, bool default_path) {
  for (const Unreadable& u : input.unreadable) {
    complain("not read: " + u.file + ": " + u.why);
  }
  for (const std::string& path : input.absent) {
    complain("frtrace: " + path + ": no such file or directory" +
             (default_path ? " (a job without a hang leaves no dumps)" : ""));
  }
  // Where all ranks were killed at once, no rank wrote a dump: its ring still holds the evidence.
  const std::string shm_dir = fr::read_options().shm_dir;
  if (const std::size_t n = input.absent.empty() ? 0 : jobs_here(shm_dir, unix_now()).size()) {
    complain(fmt::format("frtrace: rings of {} job{} are on this machine: frtrace {}", n,
                         n == 1 ? "" : "s", ring_directory(shm_dir)));
  }
  if (!input.evidence.empty()) {
    complain("frtrace: no evidence of that job, attempt or incident");
  } else if (input.absent.size() < a.paths.size()) {
    complain("frtrace: nothing readable in " + a.paths.front() +
             (a.paths.size() > 1 ? " and the others" : ""));
  }
}

std::string as_text(const Arguments& a, const LoadResult& input, const Answers& answers) {
  TextStyle style;
  style.colour =
      a.output.empty() && ::isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  style.stacks = a.stacks;
  style.full = a.full;
  style.width = std::clamp<std::size_t>(terminal_width(), 80, 120);
  style.ranks = a.filter.ranks;
  style.where = fmt::format("{}", fmt::join(a.paths, " "));
  style.now = unix_now();
  std::string out = render_text(answers.reports, input, style);
  for (const StackTree& tree : answers.trees) {
    out += "\n" + render_stacks_text(tree);
  }
  return out;
}

std::string as_table(const Arguments& a, const Answers& answers) {
  TableFilter filter = a.filter;
  filter.width = terminal_width();
  filter.full = filter.full || a.full;
  return render_table(answers.cases, filter);
}

// The page lasts: it says no ages.
std::string as_page(const Arguments& a, const LoadResult& input, const Answers& answers) {
  TextStyle style;
  style.full = a.full;
  style.where = fmt::format("{}", fmt::join(a.paths, " "));
  return render_html({answers.reports, input, answers.pages,
                      render_text(answers.reports, input, style), style.where});
}

// Before anything looks at them, so that none gets into any sentence.
void drop_variables(LoadResult& input) {
  for (const auto& e : input.evidence) {
    for (ThreadStack& t : e->threads.threads) {
      t.variables.clear();
    }
  }
}

std::string as_trace(const Arguments& a, const Answers& answers) {
  PerfettoOptions options;
  options.ranks = a.filter.ranks;
  options.groups = a.filter.groups;
  PerfettoTrace trace = render_perfetto(answers.cases, answers.reports, options);
  if (!trace.left_out.empty()) {
    complain("frtrace: " + trace.left_out);
  }
  return std::move(trace.data);
}

bool write(const std::string& out, const std::string& path) {
  if (path.empty()) {
    std::fwrite(out.data(), 1, out.size(), stdout);
    return true;
  }
  if (out.empty()) {
    return true;
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << out;
  if (!file.flush()) {
    complain("frtrace: cannot write " + path);
    return false;
  }
  return true;
}

bool write_torch(const std::vector<Case>& cases, const std::string& directory) {
  std::string why;
  const int files = save_torch(cases, directory, why);
  complain(files < 0 ? "frtrace: cannot write " + why
                     : fmt::format("wrote {} PyTorch dumps to {}", files, directory));
  return files >= 0;
}

int report(Arguments& a) {
  const bool default_path = a.paths.empty();
  if (default_path) {
    const fr::Options o = fr::read_options();
    a.paths.push_back(o.source("FR_DUMP_DIR") != "default" ? o.dump_dir : "fr-dumps");
  }
  Progress progress;
  if (::isatty(STDERR_FILENO) != 0) {
    a.load.progress = [&](std::size_t done, std::size_t of) { progress(done, of); };
  }
  a.load.all_records = a.load.all_records || !a.to_torch.empty();
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  LoadResult input = load_paths(a.paths, a.load);
  add_spare_evidence(input, fr::read_options());
  if (a.no_locals) {
    drop_variables(input);
  }
  const double read_s = seconds();
  progress.erase();
  const Answers answers = answers_of(a, input);
  if (a.full) {
    fmt::print(stderr, "time: reading {:.3f} s, diagnosis {:.3f} s\n", read_s, seconds() - read_s);
  }
  if (!a.to_torch.empty() && !answers.cases.empty() && !write_torch(answers.cases, a.to_torch)) {
    return kUsage;
  }
  const bool nothing = answers.reports.empty();
  if (nothing) {
    say_why_nothing(a, input, default_path);
  }
  std::string out;
  if (a.wants_json()) {
    out = render_json(answers.reports, input,
                      answers.trees.empty() ? "" : render_stacks_json(answers.trees.front()));
  } else if (!nothing && a.wants_html()) {
    out = as_page(a, input, answers);
  } else if (!nothing && a.output.ends_with(".perfetto-trace")) {
    out = as_trace(a, answers);
  } else if (!nothing) {
    out = a.table ? as_table(a, answers) : as_text(a, input, answers);
  }
  if (!write(out, a.output)) {
    return kUsage;
  }
  return nothing ? static_cast<int>(kNothing) : status_of(answers.reports);
}

int run(int argc, char** argv) {
  Arguments a;
  if (const auto status = read_arguments(argc, argv, a)) {
    return *status;
  }
  if (a.options) {
    print_options();
    return kNoFault;
  }
  return a.clean ? clean_rings(fr::read_options().shm_dir) : report(a);
}

// The evidence that the nodes sent is then reported like that of any directory.
int collect(int argc, char** argv) {
  Arguments collected;
  const auto status = collect_command(argc, argv, collected);
  return status ? *status : report(collected);
}

// By the first argument; without one of these names it is a path or an option.
constexpr struct {
  std::string_view name;
  int (*run)(int argc, char** argv);
} kCommands[] = {
    {"attach", attach_command},   {"check", check_command},    {"collect", collect},
    {"doctor", doctor_command},   {"dump", dump_command},      {"live", live_command},
    {"metrics", metrics_command}, {"node", node_command},      {"reduce", reduce_command},
    {"stacks", stacks_command},   {"verdict", verdict_command}};

}  // namespace

int main(int argc, char** argv) {
  try {
    for (const auto& command : kCommands) {
      if (argc > 1 && argv[1] == command.name) {
        return command.run(argc - 1, argv + 1);
      }
    }
    return run(argc, argv);
  } catch (const std::exception& e) {
    complain(std::string("frtrace: ") + e.what());
    return kNothing;
  }
}
