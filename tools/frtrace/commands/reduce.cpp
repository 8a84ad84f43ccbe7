// reduce.cpp - `frtrace reduce`: a node's rings and dumps, or several summaries, as one summary
// file.
#include "commands/reduce.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "commands/arguments.hpp"
#include "commands/lines.hpp"
#include "commands/output.hpp"
#include "input/files.hpp"
#include "input/summary/shorten.hpp"
#include "input/summary/summary.hpp"
#include "live/mapped_ring.hpp"
#include "recorder/job_name.hpp"
#include "recorder/options.hpp"
#include "report/lines.hpp"
#include "system/here.hpp"

namespace frtrace {

namespace {

namespace fs = std::filesystem;

struct ReduceArguments {
  std::vector<std::string> paths;
  std::string output, job, shm_dir;
  double every_s = 2;
  bool lines = false;
};

void complain(const std::string& line) {
  fmt::print(stderr, "{}\n", printable(line));
}

// This user's rings on this node, and the dumps that are here.
std::vector<std::string> default_paths(const ReduceArguments& a, const fr::Options& o) {
  const std::string dumps = o.source("FR_DUMP_DIR") != "default" ? o.dump_dir : "fr-dumps";
  return {ring_directory(a.shm_dir), dumps};
}

// <host>-<device of the rings' directory>.frsum: containers of one machine have names of their own.
std::string file_name(const std::string& shm_dir) {
  struct stat st{};
  const bool known = ::stat(shm_dir.c_str(), &st) == 0;
  return fmt::format("{}-{}{}", host_name(), known ? static_cast<std::uint64_t>(st.st_dev) : 0,
                     reduce::kEnding);
}

LoadResult read(const ReduceArguments& a, const std::vector<std::string>& paths) {
  LoadOptions options;
  options.threads = 2;
  options.all_records = true;
  options.settle = false;  // the reader of all nodes' summaries settles
  LoadResult input = load_paths(paths, options);
  std::erase_if(input.evidence,
                [&](const auto& e) { return !a.job.empty() && e->id.job != a.job; });
  for (const auto& e : input.evidence) {
    reduce::shorten(*e);
  }
  return input;
}

bool write(const std::string& bytes, const ReduceArguments& a) {
  if (a.output.empty()) {
    return std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() &&
           std::fflush(stdout) == 0;
  }
  std::error_code ec;
  const std::string path = fs::is_directory(a.output, ec)
                               ? (fs::path(a.output) / file_name(a.shm_dir)).string()
                               : a.output;
  if (const auto error = write_whole(path, bytes)) {
    complain(fmt::format("frtrace: cannot write {}: {}", path, *error));
    return false;
  }
  fmt::print("{}\n", printable(path));
  return true;
}

int reduce_once(const ReduceArguments& a) {
  LoadResult input = read(a, a.paths);
  for (const Unreadable& u : input.unreadable) {
    complain("not read: " + u.file + ": " + u.why);
  }
  if (input.evidence.empty()) {
    complain("frtrace: no rings and no dumps" + (a.job.empty() ? "" : " of job " + a.job) + " in " +
             fmt::format("{}", fmt::join(a.paths, ", ")));
    return kNothing;
  }
  return write(reduce::encode(input.evidence), a) ? kNoFault : kUsage;
}

// Waits for wait_ms. True: the reader of stdout or the other end of stdin is gone.
bool is_left(int wait_ms) {
  struct stat st{};
  const bool held =
      ::fstat(STDIN_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode));
  pollfd ends[] = {{STDOUT_FILENO, 0, 0}, {held ? STDIN_FILENO : -1, POLLIN, 0}};
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(wait_ms);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (left.count() <= 0 || ::poll(ends, 2, static_cast<int>(left.count()) + 1) <= 0) {
      return false;
    }
    char byte = 0;
    const bool has_more = (ends[1].revents & POLLIN) != 0 && ::read(STDIN_FILENO, &byte, 1) > 0;
    if ((ends[0].revents & POLLERR) != 0 || (ends[1].revents != 0 && !has_more)) {
      return true;
    }
  }
}

// Runs until the reader or the parent is gone, or no rank lives, so that no process stays on a
// node.
int say_lines(const ReduceArguments& a) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const pid_t parent = ::getppid();
  std::string node = file_name(a.shm_dir);
  node.resize(node.size() - std::strlen(reduce::kEnding));
  reduce::NodeLines lines(a.shm_dir, node, a.job.empty() ? "" : fr::job_in_files(a.job));
  bool was_there = false;
  while (::getppid() == parent) {
    const std::string out = lines.look(unix_now());
    if (std::fwrite(out.data(), 1, out.size(), stdout) != out.size() || std::fflush(stdout) != 0) {
      return kNoFault;
    }
    was_there = was_there || !out.empty();
    if (lines.is_over()) {
      break;
    }
    if (is_left(static_cast<int>(a.every_s * 1000))) {
      break;
    }
  }
  return was_there ? kNoFault : kNothing;
}

}  // namespace

int reduce_command(int argc, char** argv) {
  CLI::App app{
      "Writes a summary of rings and dumps, for verdicts over many nodes: a file that frtrace "
      "reads\n"
      "like dumps. Summaries of summaries are made alike, in any order.",
      "frtrace reduce"};
  ReduceArguments a;
  const fr::Options o = fr::read_options();
  a.shm_dir = o.shm_dir;
  app.add_option("path", a.paths,
                 "rings, dumps, summaries, or directories of them; default: this user's rings on "
                 "this node, and $FR_DUMP_DIR, else ./fr-dumps");
  app.add_option("-o", a.output,
                 "write there, and print the path; a directory: <host>-<n>.frsum in it; default: "
                 "stdout");
  app.add_option("--job", a.job, "only this job; default: all");
  CLI::Option* lines =
      app.add_flag("--lines", a.lines,
                   "with --every: what the living rings say, as lines of JSON on stdout, only what "
                   "changed; ends with the job, its reader or its parent");
  app.add_option("--every", a.every_s, "seconds between two looks")
      ->check(CLI::Range(0.1, 86400.0))
      ->needs(lines);
  add_shm_dir(app, a.shm_dir);
  if (const auto status = parse(app, argc, argv)) {
    return *status;
  }
  if (a.lines) {
    return say_lines(a);
  }
  if (a.output.empty() && ::isatty(STDOUT_FILENO) != 0) {
    complain("frtrace: a summary is no text: -o FILE, or a pipe");
    return kUsage;
  }
  if (a.paths.empty()) {
    a.paths = default_paths(a, o);
  }
  return reduce_once(a);
}

}  // namespace frtrace
