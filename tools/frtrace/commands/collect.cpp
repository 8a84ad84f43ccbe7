// collect.cpp - `frtrace collect JOB`: collects each node's evidence into one directory, through
// the launcher at hand, and lists the nodes that did not answer; frtrace then judges the directory.
// `frtrace dump JOB`: makes all ranks of the job dump now.
#include "commands/collect.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
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
#include "commands/output.hpp"
#include "input/files.hpp"
#include "model/case.hpp"
#include "report/lines.hpp"
#include "words/diagnose.hpp"
#include "words/question.hpp"

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

  // Loads nodes.json of an earlier run with the same directory.
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
    add_files(row, package);
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
  void add_files(const NodeRow& row, const collect::Package& package) const {
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
  }
  // Whole or not at all: a run that is killed is resumed by it.
  void save() {
    std::sort(file_.nodes.begin(), file_.nodes.end(),
              [](const NodeRow& a, const NodeRow& b) { return a.node < b.node; });
    if (const auto error = write_whole(dir_ / kNodesFile, nodes_json(file_))) {
      throw std::runtime_error(fmt::format("cannot write {}: {}", kNodesFile, *error));
    }
    saved_ = Clock::now();
  }
  // Whether the node has one of these ranks.
  bool has_any(const std::string& node, const std::vector<Rank>& ranks) const {
    return std::any_of(file_.nodes.begin(), file_.nodes.end(), [&](const NodeRow& row) {
      return row.node == node && std::any_of(row.ranks.begin(), row.ranks.end(), [&](int rank) {
               return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
             });
    });
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

struct CollectArguments {
  FanOptions fan;
  std::string job, dir;
  bool dump_first = false, whole = false;
};

// The nodes of `all` for which `wanted` is true.
template <class Wanted>
collect::Launch some_of(const collect::Launch& all, Wanted&& wanted) {
  collect::Launch out = all;
  out.nodes.clear();
  out.containers.clear();
  for (std::size_t i = 0; i < all.nodes.size(); ++i) {
    if (wanted(all.nodes[i])) {
      out.nodes.push_back(all.nodes[i]);
      out.containers.push_back(i < all.containers.size() ? all.containers[i] : "");
    }
  }
  return out;
}

// First round: the summary of each node, or all its evidence.
void gather(const CollectArguments& a, const collect::Launch& launch, Gathering& gathering) {
  collect::Launch rest =
      some_of(launch, [&](const std::string& node) { return !gathering.has(node); });
  if (rest.nodes.size() < launch.nodes.size()) {
    fmt::print(stderr, "{} of {} nodes have answered before\n",
               launch.nodes.size() - rest.nodes.size(), launch.nodes.size());
  }
  if (!rest.nodes.empty()) {
    set_command(a.fan, a.job, a.whole ? "evidence" : "summary",
                a.dump_first ? std::vector<std::string>{"--dump"} : std::vector<std::string>{},
                rest);
    collect::Fanout fanout(rest, [&](const NodeRow& row, const collect::Package& package) {
      gathering.add(row, package);
      if (row.answered && row.ranks.empty()) {
        fmt::print(stderr, "{}: {}\n", printable(row.node), printable(row.said));
      }
    });
    fanout.run(fmt::format("collecting by {}", collect::launcher_name(rest.launcher)));
  }
  gathering.save();
}

// The ranks for which whole dumps may tell more than their summaries.
std::vector<Rank> in_question(const std::string& dir) {
  const LoadResult input = load_paths({dir}, LoadOptions{});
  std::vector<Rank> out;
  for (const Case& c : make_cases(input.evidence, {})) {
    const Facts facts(c);
    const std::vector<Rank> ranks = ranks_in_question(facts, diagnose(facts));
    out.insert(out.end(), ranks.begin(), ranks.end());
  }
  out.resize(std::min(out.size(), kMostInQuestion));
  return out;
}

// Second round: all evidence of these ranks. If a node does not answer, its summary remains.
void gather_whole(const CollectArguments& a, const collect::Launch& launch,
                  const std::vector<Rank>& ranks, const Gathering& gathering) {
  collect::Launch some =
      some_of(launch, [&](const std::string& node) { return gathering.has_any(node, ranks); });
  if (some.nodes.empty()) {
    return;
  }
  set_command(a.fan, a.job, "evidence", {fmt::format("--ranks={}", fmt::join(ranks, ","))}, some);
  collect::Fanout fanout(some, [&](const NodeRow& row, const collect::Package& package) {
    gathering.add_files(row, package);
    if (!row.answered) {
      fmt::print(stderr, "{}: {}\n", printable(row.node), printable(row.why));
    }
  });
  fanout.run(
      fmt::format("{} whole by {}", ranks_words(ranks), collect::launcher_name(some.launcher)));
}

void collect_all(const CollectArguments& a, const collect::Launch& launch,
                 const std::vector<NodeRow>& absent) {
  Gathering gathering(a.dir);
  gathering.resume();
  gathering.set_names(a.job, collect::launcher_name(launch.launcher));
  for (const NodeRow& row : absent) {
    fmt::print(stderr, "{}: {}\n", printable(row.node), printable(row.why));
    gathering.add(row, {});
  }
  gather(a, launch, gathering);
  if (!a.whole) {
    if (const std::vector<Rank> ranks = in_question(a.dir); !ranks.empty()) {
      gather_whole(a, launch, ranks, gathering);
    }
  }
  if (!launch.files.empty()) {
    std::error_code ec;
    fs::remove_all(launch.files, ec);
  }
}

}  // namespace

std::optional<int> collect_command(int argc, char** argv, Arguments& then) {
  CLI::App app{
      "Gathers a job's evidence from its nodes and says the verdict. Writes nodes.json: who was\n"
      "asked, who answered, and why not. With the -o of an earlier run only nodes that have not\n"
      "answered are asked again.",
      "frtrace collect"};
  CollectArguments a;
  app.add_option("job", a.job,
                 "fr's name of the job, Slurm's number, or a Kubernetes object's name")
      ->required();
  app.add_option("-o", a.dir, "directory for what is collected; default: fr-collect/JOB-TIME");
  app.add_flag("--dump", a.dump_first,
               "have all ranks dump first, with the stacks of their threads");
  app.add_flag("--whole", a.whole,
               "all that every rank left; default: a summary of each node, then all of at most 64 "
               "ranks that the verdict names or doubts");
  app.add_flag("--json", then.json, "the report as JSON (schema frtrace.report/1)");
  app.add_flag("-v,--verbose,--full", then.full, "all that is known instead of a screen");
  add_fan_options(app, a.fan);
  if (const auto status = parse(app, argc, argv)) {
    return status;
  }
  collect::Launch launch;
  std::vector<NodeRow> absent;
  if (const auto wrong = find_nodes(a.fan, a.job, launch, absent)) {
    return fail(*wrong);
  }
  const std::string dir = a.dir = a.dir.empty() ? default_directory(a.job) : a.dir;
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
  collect_all(a, launch, absent);
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
