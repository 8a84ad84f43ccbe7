// frtrace - reads what the ranks of a job left behind and says what is stuck, and who did it.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "commands/clean.hpp"
#include "commands/stacks.hpp"
#include "input/files.hpp"
#include "live/lock_files.hpp"
#include "model/case.hpp"
#include "recorder/options.hpp"
#include "report/lines.hpp"
#include "report/render.hpp"
#include "report/stacks_tree.hpp"
#include "report/to_torch.hpp"
#include "words/diagnose.hpp"

namespace {

using namespace frtrace;

enum Status { kNoFault = 0, kFault = 1, kUsage = 2, kNothing = 3, kNotDecided = 4 };

// Names of files may be anybody's.
void complain(const std::string& line) {
  std::cerr << printable(line) << "\n";
}

// A list option takes what follows it: hands paths back ("--ranks 0 1 dumps",
// "--groups a,b dumps").
void give_back_paths(std::vector<std::string>& texts, std::vector<std::string>& paths) {
  while (texts.size() > 1 && ::access(texts.back().c_str(), F_OK) == 0) {
    paths.push_back(texts.back());
    texts.pop_back();
  }
}

// "0,2-5" -> 0 2 3 4 5; false when it does not read so.
bool parse_ranks(const std::vector<std::string>& texts, std::vector<Rank>& out) {
  constexpr Rank kMaxRank = 1 << 24;
  for (const std::string& text : texts) {
    const char* p = text.data();
    const char* const end = p + text.size();
    while (p < end) {
      Rank first = 0, last = 0;
      auto parsed = std::from_chars(p, end, first);
      if (parsed.ec != std::errc() || first < 0) {
        return false;
      }
      last = first;
      p = parsed.ptr;
      if (p < end && *p == '-') {
        parsed = std::from_chars(p + 1, end, last);
        if (parsed.ec != std::errc() || last < first) {
          return false;
        }
        p = parsed.ptr;
      }
      if (last > kMaxRank || (p < end && *p != ',')) {
        return false;
      }
      for (Rank r = first; r <= last; ++r) {
        out.push_back(r);
      }
      p += p < end ? 1 : 0;
    }
  }
  return true;
}

std::vector<std::string> split(const std::vector<std::string>& texts) {
  std::vector<std::string> out;
  for (const std::string& text : texts) {
    std::size_t from = 0;
    while (from <= text.size()) {
      const std::size_t to = std::min(text.find(',', from), text.size());
      if (to > from) {
        out.push_back(text.substr(from, to - from));
      }
      from = to + 1;
    }
  }
  return out;
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

// Of the terminal; COLUMNS is for a pipe. 120 where neither is known.
std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40) {
    return size.ws_col;
  }
  const char* given = std::getenv("COLUMNS");
  const int columns = given != nullptr ? std::atoi(given) : 0;
  return columns >= 40 ? static_cast<std::size_t>(columns) : 120;
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

int status_of(const std::vector<Report>& reports) {
  int status = kNoFault;
  for (const Report& r : reports) {
    if (r.kind == Verdict::kUndecided) {
      status = status == kFault ? kFault : kNotDecided;
    } else if (r.kind != Verdict::kOk) {
      status = kFault;
    }
  }
  return status;
}

int run(int argc, char** argv) {
  CLI::App app{
      "Says what is stuck in a distributed job, and which rank did it.\n"
      "Reads fr dumps and rings and PyTorch Flight Recorder dumps (pickle, JSON), told apart by\n"
      "content; unreadable files are named and left out.",
      "frtrace"};
  std::vector<std::string> paths, rank_texts, group_texts;
  std::string prefix, job, output, to_torch;
  int attempt = 0;
  std::uint64_t incident = 0;
  bool json = false, table = false, stacks = false, options = false;
  bool full = false, incomplete = false, clean = false, all_rows = false;
  int mismatch_cap = 0;
  LoadOptions load;
  app.set_version_flag("--version", std::string("frtrace ") + FR_VERSION);
  app.add_option("path", paths,
                 "dump directories and files; default: $FR_DUMP_DIR, else ./fr-dumps");
  app.add_flag("--json", json, "the report as JSON (schema frtrace.report/1)");
  app.add_flag(
      "-j,--table", table,
      "table of the collectives per group, one column per class of ranks with equal history");
  app.add_flag("--all", all_rows,
               "with --table: all rows, not only from five before the first that differs");
  app.add_option("--ranks,--selected-ranks", rank_texts,
                 "ranks shown by --table and --stacks: 0,2-5 or several numbers")
      ->expected(1, -1);
  app.add_option("--groups,--pg-filters", group_texts, "likewise, groups by name or description")
      ->expected(1, -1);
  app.add_option("-p,--prefix", prefix, "only files whose name begins so");
  CLI::Option* job_option = app.add_option("--job", job, "only this job; default: each apart");
  CLI::Option* attempt_option =
      app.add_option("--attempt", attempt, "this attempt; default: the last");
  CLI::Option* incident_option =
      app.add_option("--incident", incident, "this incident; default: the last");
  app.add_flag("--stacks,--print_stack_trace", stacks,
               "call-site stacks of blamed and waiting ranks, thread stacks of all as one tree");
  app.add_option("--to-torch", to_torch, "write PyTorch Flight Recorder pickles there");
  app.add_option("-o", output, "write there instead of stdout; format by ending: .json, .txt");
  app.add_option("--threads", load.threads, "threads that read files; default: one per processor");
  app.add_flag("--all-records", load.all_records,
               "keep all records of a very large set in memory, not only those around the fault");
  app.add_flag("--allow-incomplete-ranks", incomplete,
               "accepted; incomplete input never stops the analysis");
  app.add_option("--mismatch_cap", mismatch_cap, "accepted, without effect");
  app.add_flag("-v,--verbose,--full", full,
               "all that is known instead of a screen of 24 lines; names the files read");
  app.add_flag("--clean", clean, "remove rings and control pages of dead jobs of this user");
  app.add_flag("--options", options, "print the recorder's options (environment variables)");
  app.footer(
      "Exit status: 0 no fault found, 1 fault found, 2 wrong usage, 3 nothing readable,\n"
      "4 evidence not sufficient to decide.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    app.exit(e);
    return kUsage;
  }
  if (options) {
    print_options();
    return kNoFault;
  }
  if (clean) {
    return clean_rings(fr::read_options().shm_dir);
  }
  if (!output.empty() && !output.ends_with(".json") && !output.ends_with(".txt")) {
    complain("frtrace: " + output + ": the format follows from the ending, .json or .txt");
    return kUsage;
  }
  give_back_paths(rank_texts, paths);
  give_back_paths(group_texts, paths);
  TableFilter filter;
  if (!parse_ranks(rank_texts, filter.ranks)) {
    std::cerr << "frtrace: --ranks takes numbers and ranges such as 0,2-5\n";
    return kUsage;
  }
  filter.groups = split(group_texts);
  const bool default_path = paths.empty();
  if (default_path) {
    const fr::Options o = fr::read_options();
    paths.push_back(o.source("FR_DUMP_DIR") != "default" ? o.dump_dir : "fr-dumps");
  }

  Progress progress;
  if (::isatty(STDERR_FILENO) != 0) {
    load.progress = [&](std::size_t done, std::size_t of) { progress(done, of); };
  }
  load.prefix = prefix;
  load.all_records = load.all_records || !to_torch.empty();
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const LoadResult input = load_paths(paths, load);
  const double read_s = seconds();
  progress.erase();
  Selection selection;
  if (job_option->count() != 0) {
    selection.job = job;
  }
  if (attempt_option->count() != 0) {
    selection.attempt = attempt;
  }
  if (incident_option->count() != 0) {
    selection.incident = incident;
  }
  const std::vector<Case> cases = make_cases(input.evidence, selection);
  if (!to_torch.empty() && !cases.empty()) {
    std::string why;
    const int files = save_torch(cases, to_torch, why);
    if (files < 0) {
      complain("frtrace: cannot write " + why);
      return kUsage;
    }
    complain(fmt::format("wrote {} PyTorch dumps to {}", files, to_torch));
  }
  std::vector<Report> reports;
  for (const Case& c : cases) {
    reports.push_back(diagnose(c));
    look_at_lock_files(reports.back());
  }
  if (full) {
    fmt::print(stderr, "time: reading {:.3f} s, diagnosis {:.3f} s\n", read_s, seconds() - read_s);
  }

  const bool colour =
      output.empty() && ::isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  std::vector<StackTree> trees;
  for (const Case& c : cases) {
    if (stacks) {
      trees.push_back(merge_stacks(stack_inputs(c, filter.ranks)));
      look_at_lock_files(trees.back());
    }
  }
  std::string out;
  if (reports.empty()) {
    for (const Unreadable& u : input.unreadable) {
      complain("not read: " + u.file + ": " + u.why);
    }
    for (const std::string& path : input.absent) {
      complain("frtrace: " + path + ": no such file or directory" +
               (default_path ? " (a job without a hang leaves no dumps)" : ""));
    }
    if (!input.evidence.empty()) {
      std::cerr << "frtrace: no evidence of that job, attempt or incident\n";
    } else if (input.absent.size() < paths.size()) {
      complain("frtrace: nothing readable in " + paths.front() +
               (paths.size() > 1 ? " and the others" : ""));
    }
    if (json || output.ends_with(".json")) {
      out = render_json(reports, input);
    }
  } else if (json || output.ends_with(".json")) {
    out = render_json(reports, input, trees.empty() ? "" : render_stacks_json(trees.front()));
  } else if (table) {
    filter.width = terminal_width();
    filter.full = full || all_rows;
    out = render_table(cases, filter);
  } else {
    TextStyle style;
    style.colour = colour;
    style.stacks = stacks;
    style.full = full;
    style.width = std::clamp<std::size_t>(terminal_width(), 80, 120);
    style.ranks = filter.ranks;
    style.where = fmt::format("{}", fmt::join(paths, " "));
    style.now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                    std::chrono::system_clock::now().time_since_epoch())
                    .count();
    out = render_text(reports, input, style);
    for (const StackTree& tree : trees) {
      out += "\n" + render_stacks_text(tree);
    }
  }
  if (output.empty()) {
    std::fwrite(out.data(), 1, out.size(), stdout);
  } else if (!out.empty()) {
    std::ofstream file(output, std::ios::binary | std::ios::trunc);
    file << out;
    if (!file.flush()) {
      complain("frtrace: cannot write " + output);
      return kUsage;
    }
  }
  return reports.empty() ? static_cast<int>(kNothing) : status_of(reports);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc > 1 && std::string_view(argv[1]) == "stacks") {
      return frtrace::stacks_command(argc - 1, argv + 1);
    }
    return run(argc, argv);
  } catch (const std::exception& e) {
    complain(std::string("frtrace: ") + e.what());
    return kNothing;
  }
}
