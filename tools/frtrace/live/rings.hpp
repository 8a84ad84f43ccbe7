// rings.hpp - the rings of this machine, including containers: those in /dev/shm, or in a process's
// FR_SHM_DIR, in each mount namespace of a process that we may inspect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace frtrace {

// A directory of rings and the path to it from here: for a container through /proc/<pid>/root.
struct RingPlace {
  std::string path;
  std::string root;  // "/proc/<pid>/root", "" here
};

struct FoundRing {
  std::string path, name, root;
  std::string job, host;
  int attempt = 0, rank = -1, pid = 0;  // of its own pid namespace
  int signal = 0;                       // requests the answer for `frtrace stacks`
  std::uint64_t pid_namespace = 0;
  bool same_pids = false;  // the pid is of our pid namespace
  bool runs = false;       // by its pid, else by its watchdog's last sign
  std::string dump_dir;    // as seen from here
};

std::vector<RingPlace> ring_places(const std::string& shm_dir);
// The rings of a job, given fr's name or Slurm's number for it; "": of every job.
std::vector<FoundRing> rings_of(const std::vector<RingPlace>& places, const std::string& job);
// Names of the jobs that have rings there.
std::vector<std::string> jobs_in(const std::vector<RingPlace>& places);
// A variable of the process's initial environment; "": unset, or not readable.
std::string variable_of(int pid, const std::string& name);

}  // namespace frtrace
