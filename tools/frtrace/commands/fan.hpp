// fan.hpp - the options by which collect, dump and stacks reach the nodes of a job, and the
// launcher and nodes that follow from them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "collect/fanout.hpp"
#include "collect/launch.hpp"

namespace CLI {
class App;
}

namespace frtrace {

struct FanOptions {
  std::string launcher, hosts, slurm_job;
  std::string name_space, container, selector;  // of kubectl
  bool kubectl = false;
  std::vector<std::string> with;
  std::string frtrace, shm_dir, job_there;
  int timeout_s = 60;

  bool given() const { return !launcher.empty() || !hosts.empty() || kubectl; }
};

void add_fan_options(CLI::App& app, FanOptions& o);

// Nodes that cannot be asked come as rows of `absent`. Returns an error message, or nullopt.
std::optional<std::string> find_nodes(const FanOptions& o, const std::string& job,
                                      collect::Launch& launch, std::vector<NodeRow>& absent);
// Sets what each node runs: `frtrace node WHAT ...`.
void set_command(const FanOptions& o, const std::string& job, const std::string& what,
                 const std::vector<std::string>& more, collect::Launch& launch);

// Whether srun would expand the path as a pattern.
bool has_pattern(const std::string& path);

// A scratch directory, removed by the destructor. srun writes the nodes' output there.
class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Asks all nodes of the job; `rows` gets one row per node. Returns an error message, or nullopt.
std::optional<std::string> ask_nodes(const FanOptions& o, const std::string& job,
                                     const std::string& what, const Scratch& scratch,
                                     std::vector<NodeRow>& rows,
                                     const collect::Fanout::Answered& answered);

// `frtrace node`, run on each node: writes the answer for the collector to stdout.
int node_command(int argc, char** argv);

}  // namespace frtrace
