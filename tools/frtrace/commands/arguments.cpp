// arguments.cpp - the options of frtrace, read by CLI11.
#include "commands/arguments.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <string_view>

#include "format/version.hpp"
#include "report/lines.hpp"

namespace frtrace {

namespace {

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

// Checks and defaults beyond CLI11's. Returns an error message, or nullopt.
std::optional<std::string> complete(Arguments& a, std::vector<std::string>& ranks,
                                    std::vector<std::string>& groups) {
  constexpr std::string_view kEndings[] = {".json", ".txt", ".html", ".perfetto-trace"};
  if (!a.output.empty() &&
      std::none_of(std::begin(kEndings), std::end(kEndings),
                   [&](std::string_view e) { return a.output.ends_with(e); })) {
    return fmt::format("{}: the format follows from the ending, {}", a.output,
                       fmt::join(kEndings, " or "));
  }
  give_back_paths(ranks, a.paths);
  give_back_paths(groups, a.paths);
  if (!parse_ranks(ranks, a.filter.ranks)) {
    return "--ranks takes numbers and ranges such as 0,2-5";
  }
  a.filter.groups = split(groups);
  return std::nullopt;
}

}  // namespace

std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40) {
    return size.ws_col;
  }
  const char* given = std::getenv("COLUMNS");
  const int columns = given != nullptr ? std::atoi(given) : 0;
  return columns >= 40 ? static_cast<std::size_t>(columns) : 120;
}

std::optional<int> parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    app.exit(e);
    return kUsage;
  }
  return std::nullopt;
}

void add_shm_dir(CLI::App& app, std::string& directory) {
  app.add_option("--shm-dir", directory,
                 "where the rings are; default: $FR_SHM_DIR, else /dev/shm");
}

std::optional<int> read_arguments(int argc, char** argv, Arguments& a) {
  CLI::App app{
      "Says what is stuck in a distributed job, and which rank did it.\n"
      "Reads fr dumps and rings and PyTorch Flight Recorder dumps (pickle, JSON), told apart by\n"
      "content; unreadable files are named and left out.",
      "frtrace"};
  std::vector<std::string> ranks, groups;
  bool incomplete = false;
  int mismatch_cap = 0;
  app.set_version_flag("--version", std::string("frtrace ") + fr::version_text());
  app.add_option("path", a.paths,
                 "dump directories and files; default: $FR_DUMP_DIR, else ./fr-dumps");
  app.add_flag("--json", a.json, "the report as JSON (schema frtrace.report/1)");
  app.add_flag(
      "-j,--table", a.table,
      "table of the collectives per group, one column per class of ranks with equal history");
  app.add_flag("--all", a.filter.full,
               "with --table: all rows, not only from five before the first that differs");
  app.add_option("--ranks,--selected-ranks", ranks,
                 "ranks shown by --table and --stacks: 0,2-5 or several numbers")
      ->expected(1, -1);
  app.add_option("--groups,--pg-filters", groups, "likewise, groups by name or description")
      ->expected(1, -1);
  app.add_option("-p,--prefix", a.load.prefix, "only files whose name begins so");
  app.add_option("--job", a.selection.job, "only this job; default: each apart");
  app.add_option("--attempt", a.selection.attempt, "this attempt; default: the last");
  app.add_option("--incident", a.selection.incident, "this incident; default: the last");
  app.add_flag("--stacks,--print_stack_trace", a.stacks,
               "call-site stacks of blamed and waiting ranks, thread stacks of all as one tree");
  app.add_option("--to-torch", a.to_torch, "write PyTorch Flight Recorder pickles there");
  app.add_option("-o", a.output,
                 "write there instead of stdout; format by ending: .json, .txt, .html, "
                 ".perfetto-trace");
  app.add_flag("--no-locals", a.no_locals,
               "leave variables of stack frames out, for output that goes to others");
  app.add_option("--threads", a.load.threads,
                 "threads that read files; default: one per processor");
  app.add_flag("--all-records", a.load.all_records,
               "keep all records of a very large set in memory, not only those around the fault");
  app.add_flag("--allow-incomplete-ranks", incomplete,
               "accepted; incomplete input never stops the analysis");
  app.add_option("--mismatch_cap", mismatch_cap, "accepted, without effect");
  app.add_flag("-v,--verbose,--full", a.full,
               "all that is known instead of a screen of 24 lines; names the files read");
  app.add_flag("--clean", a.clean, "remove rings and control pages of dead jobs of this user");
  app.add_flag("--options", a.options, "print the recorder's options (environment variables)");
  app.footer(
      "Exit status: 0 no fault found, 1 fault found, 2 wrong usage, 3 nothing readable,\n"
      "4 evidence not sufficient to decide.");
  if (const auto status = parse(app, argc, argv)) {
    return status;
  }
  if (const auto wrong = complete(a, ranks, groups)) {
    std::fputs(printable(fmt::format("frtrace: {}", *wrong)).c_str(), stderr);
    std::fputs("\n", stderr);
    return kUsage;
  }
  return std::nullopt;
}

}  // namespace frtrace
