// launch.hpp - how a command reaches each node of a job: the command lines of srun, ssh, pdsh,
// clush and kubectl. Nothing is run here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace frtrace::collect {

enum class Launcher { kLocal, kSrun, kSsh, kPdsh, kClush, kKubectl };

const char* launcher_name(Launcher);
std::optional<Launcher> launcher_of(std::string_view name);

// Facts that select the launcher if the user names none.
struct Surroundings {
  std::string job;
  bool hosts = false;       // a list of hosts was given
  bool pods = false;        // an option that only kubectl has was given
  bool kubernetes = false;  // KUBERNETES_SERVICE_HOST
  std::string slurm_job;    // --slurm-job, else SLURM_JOB_ID
};
Launcher default_launcher(const Surroundings&);

struct Launch {
  Launcher launcher = Launcher::kLocal;
  std::vector<std::string> nodes;  // hosts or pods
  std::string slurm_job;
  std::string name_space;               // of kubectl, "" its own default
  std::vector<std::string> containers;  // of each pod
  std::vector<std::string> extra;       // arguments for the launcher itself
  std::vector<std::string> command;     // for the node: absolute path of frtrace, its arguments
  std::string files;                    // srun: where each node's output goes
  bool lasts = false;  // it says lines until its stdin ends; by srun, ssh, kubectl, local
  int timeout_s = 60;
};

// One process of the launcher.
struct Command {
  enum class Answer { kStdout, kLines, kFiles };
  std::vector<std::string> argv;
  std::vector<std::string>
      env;  // NAME=value is set; "PREFIX*" unsets all variables with that prefix
  std::vector<std::size_t> nodes;  // which of Launch::nodes answer through it
  Answer answer = Answer::kStdout;
};

// How many of these run at a time.
std::size_t window_of(Launcher);
// Whether packages come as lines of base64: the launcher puts the node's name before each line.
bool wants_lines(Launcher);
// A name that no launcher takes for an option, a pattern or a shell's syntax.
bool is_node_name(std::string_view);
// One word of a POSIX shell.
std::string quoted(std::string_view);

std::vector<Command> plan(const Launch&);

}  // namespace frtrace::collect
