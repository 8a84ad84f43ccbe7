#include "commands/fan.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "collect/node.hpp"
#include "commands/arguments.hpp"
#include "recorder/options.hpp"
#include "system/here.hpp"

namespace frtrace {

namespace {

namespace fs = std::filesystem;
using collect::Launch;
using collect::Launcher;

constexpr std::chrono::seconds kAsk{30};  // squeue, scontrol, kubectl get

// Labels by which the pods of a job are found; the last is that of a plain Job.
constexpr const char* kLabels[] = {"training.kubeflow.org/job-name",
                                   "jobset.sigs.k8s.io/jobset-name", "batch.kubernetes.io/job-name",
                                   "job-name"};

std::string own_path() {
  char path[PATH_MAX] = {};
  return ::readlink("/proc/self/exe", path, sizeof path - 1) > 0 ? path : "frtrace";
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Standard output of a program; nullopt: it failed, `why` says how.
std::optional<std::string> output_of(std::vector<std::string> argv, std::string& why) {
  collect::Command command;
  command.argv = std::move(argv);
  std::optional<std::string> out;
  collect::Processes one(1, kAsk);
  one.run(
      {command},
      [&](std::size_t, collect::Ended end) {
        if (end.how == collect::Ended::How::kExited && end.status == 0) {
          out = std::move(end.out);
          return;
        }
        const std::string said = end.err.substr(0, end.err.find('\n'));
        why = command.argv.front() + ": " +
              (!said.empty()                                 ? said
               : end.how == collect::Ended::How::kNotStarted ? std::strerror(end.status)
               : end.how == collect::Ended::How::kDeadline   ? "no answer"
                                                             : "failed");
      },
      [] {});
  return out;
}

std::vector<std::string> first_words(std::istream& in) {
  std::vector<std::string> out;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word;
    if (words >> word && word.front() != '#' &&
        std::find(out.begin(), out.end(), word) == out.end()) {
      out.push_back(word);
    }
  }
  return out;
}

// A file with a host per line (text after the name, such as slots=8, is ignored), or a list.
std::vector<std::string> hosts_of(const std::string& given) {
  if (std::ifstream file(given); file && given.find(',') == std::string::npos) {
    return first_words(file);
  }
  std::string lines = given;
  std::replace(lines.begin(), lines.end(), ',', '\n');
  std::istringstream in(lines);
  return first_words(in);
}

std::optional<std::string> find_slurm_nodes(Launch& l) {
  std::string why;
  if (!collect::is_node_name(l.slurm_job)) {
    return fmt::format("{}: no number of a Slurm job; --slurm-job", l.slurm_job);
  }
  const auto list = output_of({"squeue", "-h", "-j", l.slurm_job, "-o", "%N"}, why);
  if (!list) {
    return why;
  }
  const std::string names = list->substr(0, list->find('\n'));
  if (names.empty()) {
    return fmt::format("Slurm's job {} does not run", l.slurm_job);
  }
  const auto hosts = output_of({"scontrol", "show", "hostnames", names}, why);
  if (!hosts) {
    return why;
  }
  std::istringstream in(*hosts);
  l.nodes = first_words(in);
  return std::nullopt;
}

std::string text_at(const nlohmann::json& object, std::initializer_list<const char*> path) {
  const nlohmann::json* at = &object;
  for (const char* key : path) {
    if (!at->is_object() || !at->contains(key)) {
      return "";
    }
    at = &(*at)[key];
  }
  return at->is_string() ? at->get<std::string>() : "";
}

std::string container_of(const FanOptions& o, const nlohmann::json& pod) {
  const nlohmann::json none = nlohmann::json::array();
  const auto spec = pod.find("spec");
  const nlohmann::json& all = spec != pod.end() && spec->is_object() && spec->contains("containers")
                                  ? (*spec)["containers"]
                                  : none;
  return !o.container.empty()             ? o.container
         : all.is_array() && !all.empty() ? text_at(all.front(), {"name"})
                                          : "";
}

std::optional<std::string> find_pods(const FanOptions& o, const std::string& job, Launch& l,
                                     std::vector<NodeRow>& absent) {
  std::vector<std::string> selectors;
  for (const char* label : kLabels) {
    selectors.push_back(fmt::format("{}={}", label, job));
  }
  if (!o.selector.empty()) {
    selectors = {o.selector};
  } else if (!collect::is_node_name(job)) {
    return fmt::format("{}: not the name of a Kubernetes object; --selector", job);
  }
  for (const std::string& selector : selectors) {
    std::vector<std::string> argv{"kubectl"};
    argv.insert(argv.end(), o.with.begin(), o.with.end());
    argv.insert(argv.end(), {"get", "pods", "-l", selector, "-o", "json"});
    if (!o.name_space.empty()) {
      argv.insert(argv.end(), {"-n", o.name_space});
    }
    std::string why;
    const auto said = output_of(argv, why);
    if (!said) {
      return why;
    }
    const nlohmann::json all = nlohmann::json::parse(*said, nullptr, false);
    if (!all.is_object() || !all.contains("items") || !all["items"].is_array()) {
      return "kubectl get pods: no list of pods";
    }
    for (const nlohmann::json& pod : all["items"]) {
      const std::string name = text_at(pod, {"metadata", "name"});
      const std::string phase = text_at(pod, {"status", "phase"});
      if (phase == "Running") {
        l.nodes.push_back(name);
        l.containers.push_back(container_of(o, pod));
      } else {
        NodeRow row;
        row.node = name;
        row.why = "the pod is " + (phase.empty() ? "in no known phase" : phase);
        absent.push_back(std::move(row));
      }
    }
    if (!l.nodes.empty() || !absent.empty()) {
      return std::nullopt;
    }
  }
  return fmt::format("kubectl finds no pods of {}; --selector, --namespace", job);
}

std::optional<std::string> nodes_of(const FanOptions& o, const std::string& job, Launch& l,
                                    std::vector<NodeRow>& absent) {
  if (l.launcher == Launcher::kSrun) {
    return find_slurm_nodes(l);
  }
  if (l.launcher == Launcher::kKubectl) {
    return find_pods(o, job, l, absent);
  }
  if (l.launcher == Launcher::kLocal) {
    l.nodes = {host_name()};
    return std::nullopt;
  }
  if (o.hosts.empty()) {
    return fmt::format("--launcher {} needs --hosts", collect::launcher_name(l.launcher));
  }
  l.nodes = hosts_of(o.hosts);
  return l.nodes.empty() ? std::optional<std::string>(o.hosts + ": no hosts") : std::nullopt;
}

}  // namespace

void add_fan_options(CLI::App& app, FanOptions& o) {
  o.shm_dir = fr::read_options().shm_dir;
  app.add_option("--launcher", o.launcher,
                 "srun, ssh, pdsh, clush, kubectl or local; default: ssh with --hosts; srun where "
                 "JOB is a number or SLURM_JOB_ID is set; kubectl in a pod; else local")
      ->check(CLI::IsMember({"auto", "srun", "ssh", "pdsh", "clush", "kubectl", "local"}));
  app.add_option("--hosts", o.hosts, "a,b,c or a file with a host per line");
  app.add_option("--slurm-job", o.slurm_job,
                 "Slurm's number of the job, if JOB is not; default: $SLURM_JOB_ID");
  app.add_flag("--kubectl", o.kubectl, "the same as --launcher kubectl");
  app.add_option("-n,--namespace", o.name_space, "kubectl's");
  app.add_option("-c,--container", o.container, "of the pods; default: the first of each");
  app.add_option("-l,--selector", o.selector,
                 "of the pods; default: label of a PyTorchJob, JobSet or Job named JOB");
  app.add_option("--with", o.with, "argument for the launcher itself, e.g. --with=-Fssh_config");
  app.add_option("--frtrace", o.frtrace,
                 "its path on the nodes; default: this one's; in a pod frtrace");
  app.add_option("--job", o.job_there,
                 "name that the nodes' recorders know the job by; default: JOB, in pods any");
  app.add_option("--timeout", o.timeout_s, "seconds that a node has for its answer")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  add_shm_dir(app, o.shm_dir);
}

std::optional<std::string> find_nodes(const FanOptions& o, const std::string& job, Launch& l,
                                      std::vector<NodeRow>& absent) {
  collect::Surroundings around;
  around.job = job;
  around.hosts = !o.hosts.empty();
  around.pods = o.kubectl || !o.selector.empty();
  around.kubernetes = !variable("KUBERNETES_SERVICE_HOST").empty();
  around.slurm_job = !o.slurm_job.empty() ? o.slurm_job : variable("SLURM_JOB_ID");
  const auto named = collect::launcher_of(o.launcher);
  l.launcher = o.kubectl ? Launcher::kKubectl : named.value_or(default_launcher(around));
  const bool is_number = job.find_first_not_of("0123456789") == std::string::npos;
  l.slurm_job = !o.slurm_job.empty() ? o.slurm_job : is_number ? job : around.slurm_job;
  l.name_space = o.name_space;
  l.extra = o.with;
  l.timeout_s = o.timeout_s;
  if (auto wrong = nodes_of(o, job, l, absent)) {
    return wrong;
  }
  const auto bad = std::find_if_not(l.nodes.begin(), l.nodes.end(), [](const std::string& name) {
    return collect::is_node_name(name);
  });
  return bad != l.nodes.end() ? std::optional(*bad + ": not the name of a node") : std::nullopt;
}

void set_command(const FanOptions& o, const std::string& job, const std::string& what,
                 const std::vector<std::string>& more, Launch& l) {
  const bool in_pods = l.launcher == Launcher::kKubectl;
  const std::string there = !o.job_there.empty() ? o.job_there : in_pods ? "" : job;
  l.command = {!o.frtrace.empty() ? o.frtrace
               : in_pods          ? "frtrace"
                                  : own_path(),
               "node", what, "--shm-dir=" + o.shm_dir, fmt::format("--limit={}", l.timeout_s)};
  if (!there.empty()) {
    l.command.push_back("--job=" + there);
  }
  if (collect::wants_lines(l.launcher)) {
    l.command.emplace_back("--lines");
  }
  l.command.insert(l.command.end(), more.begin(), more.end());
}

// In the working directory: nodes share it more often than the temporary directory.
Scratch::Scratch() {
  path_ = fs::current_path() / fmt::format(".frtrace.{}.tmp", ::getpid());
  ::umask(077);
  fs::create_directories(path_);
}

Scratch::~Scratch() {
  std::error_code ec;
  fs::remove_all(path_, ec);
}

std::optional<std::string> ask_nodes(const FanOptions& o, const std::string& job,
                                     const std::string& what, const Scratch& scratch,
                                     std::vector<NodeRow>& rows,
                                     const collect::Fanout::Answered& answered) {
  Launch launch;
  if (auto wrong = find_nodes(o, job, launch, rows)) {
    return wrong;
  }
  launch.files = scratch.path();
  if (launch.launcher == Launcher::kSrun && has_pattern(launch.files)) {
    return launch.files + ": srun reads % and \\ in a path as patterns";
  }
  set_command(o, job, what, {}, launch);
  collect::Fanout fanout(launch, [&](const NodeRow& row, collect::Package package) {
    rows.push_back(row);
    answered(row, std::move(package));
  });
  fanout.run(fmt::format("{} by {}", what, collect::launcher_name(launch.launcher)));
  return std::nullopt;
}

bool has_pattern(const std::string& path) {
  return path.find_first_of("%\\") != std::string::npos;
}

int node_command(int argc, char** argv) {
  CLI::App app{"What collect, dump and stacks run on each node: an answer for them on stdout."};
  collect::NodeQuestion q;
  bool lines = false;
  app.add_option("what", q.what)
      ->required()
      ->check(CLI::IsMember({"summary", "evidence", "dump", "stacks"}));
  app.add_option("--job", q.job);
  app.add_option("--shm-dir", q.shm_dir)->required();
  app.add_option("--ranks", q.ranks)->delimiter(',');
  app.add_option("--limit", q.limit_s);
  app.add_flag("--dump", q.dump_first);
  app.add_flag("--lines", lines);
  if (const auto status = parse(app, argc, argv)) {
    return *status;
  }
  ::alarm(static_cast<unsigned>(std::max(1, q.limit_s)));  // whatever a file system does to it
  const collect::Package package = collect::answer(q);
  const std::string bytes = collect::pack(package);
  const std::string out = lines ? collect::to_base64_lines(bytes) : bytes;
  std::fwrite(out.data(), 1, out.size(), stdout);
  return std::fflush(stdout) == 0 ? kNoFault : static_cast<int>(kNothing);
}

}  // namespace frtrace
