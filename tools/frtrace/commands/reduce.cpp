// reduce.cpp - `frtrace reduce`: a node's rings and dumps, or several summaries, as one summary file.
#include "commands/reduce.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "commands/arguments.hpp"
#include "input/files.hpp"
#include "recorder/options.hpp"
#include "reduce/shorten.hpp"
#include "reduce/summary.hpp"
#include "report/lines.hpp"

namespace frtrace {

namespace {

namespace fs = std::filesystem;

struct ReduceArguments {
  std::vector<std::string> paths;
  std::string output, job, shm_dir;
};

void complain(const std::string& line) {
  fmt::print(stderr, "{}\n", printable(line));
}

// This user's rings on this node, and the dumps that are here.
std::vector<std::string> default_paths(const ReduceArguments& a, const fr::Options& o) {
  const std::string dumps = o.source("FR_DUMP_DIR") != "default" ? o.dump_dir : "fr-dumps";
  return {fmt::format("{}/fr-{}", a.shm_dir, ::geteuid()), dumps};
}

// <host>-<device of the rings' directory>.frsum: containers of one machine have names of their own.
std::string file_name(const std::string& shm_dir) {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  struct stat st{};
  const bool known = ::stat(shm_dir.c_str(), &st) == 0;
  return fmt::format("{}-{}{}", host, known ? static_cast<std::uint64_t>(st.st_dev) : 0,
                     reduce::kEnding);
}

LoadResult read(const ReduceArguments& a, const std::vector<std::string>& paths) {
  LoadOptions options;
  options.threads = 2;
  options.all_records = true;
  options.settle = false;  // whoever reads all nodes' does that
  LoadResult input = load_paths(paths, options);
  std::erase_if(input.evidence,
                [&](const auto& e) { return !a.job.empty() && e->id.job != a.job; });
  for (const auto& e : input.evidence) {
    reduce::shorten(*e);
  }
  return input;
}

// Written beside and renamed: who collects such files never reads half of one.
bool write(const std::string& bytes, const ReduceArguments& a) {
  if (a.output.empty()) {
    return std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size() &&
           std::fflush(stdout) == 0;
  }
  std::error_code ec;
  const std::string path = fs::is_directory(a.output, ec)
                               ? (fs::path(a.output) / file_name(a.shm_dir)).string()
                               : a.output;
  const std::string beside = fmt::format("{}.{}.tmp", path, ::getpid());
  std::ofstream file(beside, std::ios::binary | std::ios::trunc);
  file << bytes;
  file.close();
  if (!file || std::rename(beside.c_str(), path.c_str()) != 0) {
    complain(fmt::format("frtrace: cannot write {}: {}", path, std::strerror(errno)));
    ::unlink(beside.c_str());
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
  app.add_option("--shm-dir", a.shm_dir,
                 "where the rings are; default: $FR_SHM_DIR, else /dev/shm");
  if (const auto status = parse(app, argc, argv)) {
    return *status;
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
