// collect.cpp - `frtrace collect JOB`: each node's evidence into one directory, by whatever launcher
// there is, and who did not answer; the verdict is frtrace's on that directory. `frtrace dump JOB`:
// all ranks of the job dump now.
#include "commands/collect.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "collect/node.hpp"
#include "commands/fan.hpp"
#include "report/lines.hpp"

namespace frtrace {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kSaved{1};  // between two writings of nodes.json

int fail(const std::string& why) {
  fmt::print(stderr, "frtrace: {}\n", printable(why));
  return kUsage;
}

// The directory of one collection: nodes.json, and a folder of each node's files.
class Gathering {
 public:
  explicit Gathering(fs::path dir) : dir_(std::move(dir)) {}

  // What an earlier run with the same directory came to.
  void resume() {
    std::ifstream in(dir_ / kNodesFile, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    parse_nodes(text, file_);
  }
  bool has(const std::string& node) const {
    return std::any_of(file_.nodes.begin(), file_.nodes.end(),
                       [&](const NodeRow& row) { return row.answered && row.node == node; });
  }
  void set_names(const std::string& job, const std::string& launcher) {
    file_.job = job;
    file_.launcher = launcher;
  }
  void add(const NodeRow& row, const collect::Package& package) {
    const fs::path folder = dir_ / collect::file_name(row.node);
    std::error_code ec;
    fs::create_directory(folder, ec);
    for (const auto& [name, content] : package.files) {
      std::ofstream out(folder / name, std::ios::binary | std::ios::trunc);
      out << content;
      if (!out.flush()) {
        throw std::runtime_error("cannot write " + (folder / name).string());
      }
    }
    const auto old = std::find_if(file_.nodes.begin(), file_.nodes.end(),
                                  [&](const NodeRow& r) { return r.node == row.node; });
    if (old != file_.nodes.end()) {
      *old = row;
    } else {
      file_.nodes.push_back(row);
    }
    if (Clock::now() - saved_ > kSaved) {
      save();
    }
  }
  // Whole or not at all: a run that is killed is resumed by it.
  void save() {
    std::sort(file_.nodes.begin(), file_.nodes.end(),
              [](const NodeRow& a, const NodeRow& b) { return a.node < b.node; });
    const fs::path beside = dir_ / (std::string(kNodesFile) + ".tmp");
    std::ofstream(beside, std::ios::binary | std::ios::trunc) << nodes_json(file_);
    fs::rename(beside, dir_ / kNodesFile);
    saved_ = Clock::now();
  }
  bool nobody_answered() const {
    return std::none_of(file_.nodes.begin(), file_.nodes.end(),
                        [](const NodeRow& row) { return row.answered; });
  }

 private:
  fs::path dir_;
  NodesFile file_;
  Clock::time_point saved_ = Clock::now();
};

std::string default_directory(const std::string& job) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return fmt::format("fr-collect/{}-{:%Y%m%d-%H%M%S}", collect::file_name(job), local);
}

void gather(const FanOptions& o, const std::string& job, bool dump_first, const std::string& dir,
            collect::Launch& launch, const std::vector<NodeRow>& absent) {
  Gathering gathering(dir);
  gathering.resume();
  gathering.set_names(job, collect::launcher_name(launch.launcher));
  for (const NodeRow& row : absent) {
    fmt::print(stderr, "{}: {}\n", printable(row.node), printable(row.why));
    gathering.add(row, {});
  }
  const std::size_t all = launch.nodes.size();
  collect::Launch rest = launch;
  rest.nodes.clear();
  rest.containers.clear();
  for (std::size_t i = 0; i < all; ++i) {
    if (!gathering.has(launch.nodes[i])) {
      rest.nodes.push_back(launch.nodes[i]);
      rest.containers.push_back(i < launch.containers.size() ? launch.containers[i] : "");
    }
  }
  if (rest.nodes.size() < all) {
    fmt::print(stderr, "{} of {} nodes have answered before\n", all - rest.nodes.size(), all);
  }
  if (!rest.nodes.empty()) {
    set_command(o, job, "evidence",
                dump_first ? std::vector<std::string>{"--dump"} : std::vector<std::string>{}, rest);
    collect::Fanout fanout(rest, [&](const NodeRow& row, const collect::Package& package) {
      gathering.add(row, package);
      if (row.answered && row.ranks.empty()) {
        fmt::print(stderr, "{}: {}\n", printable(row.node), printable(row.said));
      }
    });
    fanout.run(fmt::format("collecting by {}", collect::launcher_name(rest.launcher)));
  }
  gathering.save();
  if (!rest.files.empty()) {
    std::error_code ec;
    fs::remove_all(rest.files, ec);
  }
}

}  // namespace

std::optional<int> collect_command(int argc, char** argv, Arguments& then) {
  CLI::App app{
      "Gathers a job's evidence from its nodes and says the verdict. Writes nodes.json: who was\n"
      "asked, who answered, and why not. With the -o of an earlier run only nodes that have not\n"
      "answered are asked again.",
      "frtrace collect"};
  FanOptions o;
  std::string job, dir;
  bool dump_first = false;
  app.add_option("job", job, "fr's name of the job, Slurm's number, or a Kubernetes object's name")
      ->required();
  app.add_option("-o", dir, "directory for what is collected; default: fr-collect/JOB-TIME");
  app.add_flag("--dump", dump_first, "have all ranks dump first, with the stacks of their threads");
  app.add_flag("--json", then.json, "the report as JSON (schema frtrace.report/1)");
  app.add_flag("-v,--verbose,--full", then.full, "all that is known instead of a screen");
  add_fan_options(app, o);
  if (const auto status = parse(app, argc, argv)) {
    return status;
  }
  collect::Launch launch;
  std::vector<NodeRow> absent;
  if (const auto wrong = find_nodes(o, job, launch, absent)) {
    return fail(*wrong);
  }
  dir = dir.empty() ? default_directory(job) : dir;
  ::umask(077);  // frames' variables are in it
  fs::create_directories(dir);
  if (launch.launcher == collect::Launcher::kSrun) {
    launch.files = fs::absolute(dir) / ".srun";
    if (has_pattern(launch.files)) {
      return fail(dir + ": srun reads % and \\ in a path as patterns");
    }
    fs::remove_all(launch.files);
    fs::create_directories(launch.files);
  }
  gather(o, job, dump_first, dir, launch, absent);
  fmt::print(stderr, "collected in {}\n", printable(dir));
  then.paths = {dir};
  return std::nullopt;
}

namespace {

// On all nodes; what each says on stdout.
int dump_everywhere(const FanOptions& o, const std::string& job) {
  const Scratch scratch;
  std::vector<NodeRow> rows;
  const auto wrong =
      ask_nodes(o, job, "dump", scratch, rows, [](const NodeRow&, const collect::Package&) {});
  if (wrong) {
    return fail(*wrong);
  }
  bool any = false, all = true;
  for (const NodeRow& row : rows) {
    fmt::print("{}: {}\n", printable(row.node), printable(row.answered ? row.said : row.why));
    any = any || (row.answered && row.exit != kNothing);
    all = all && row.answered && (row.exit == kNoFault || row.exit == kNothing);
  }
  return !any ? kNothing : all ? kNoFault : kNotDecided;
}

}  // namespace

int dump_command(int argc, char** argv) {
  CLI::App app{
      "Has all ranks of a job on this node dump now; on all of its nodes with --launcher (auto:\n"
      "as collect chooses it) or --hosts. Training goes on.",
      "frtrace dump"};
  FanOptions o;
  std::string job;
  app.add_option("job", job, "as for collect")->required();
  add_fan_options(app, o);
  app.footer(
      "Exit status: 0 all have dumped, 2 wrong usage, 3 no rank of the job, 4 some did not.");
  if (const auto status = parse(app, argc, argv)) {
    return *status;
  }
  if (o.given()) {
    return dump_everywhere(o, job);
  }
  collect::NodeQuestion q;
  q.what = "dump";
  q.job = job;
  q.shm_dir = o.shm_dir;
  q.limit_s = o.timeout_s;
  const collect::Package said = collect::answer(q);
  (said.status == kNothing ? std::cerr << "frtrace: " : std::cout) << printable(said.said) << "\n";
  return said.status;
}

}  // namespace frtrace
