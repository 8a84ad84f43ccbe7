// rings.hpp - the rings of this machine, of containers too: what is in /dev/shm, or wherever
// FR_SHM_DIR of a process says, of every mount namespace whose processes we may look into.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace frtrace {

// A directory of rings, as it is reached from here: in a container through /proc/<pid>/root, which the
// kernel follows.
struct RingPlace {
  std::string path;
  std::string root;  // "/proc/<pid>/root", "" here
};

struct FoundRing {
  std::string path, name, root;
  std::string job, host;
  int attempt = 0, rank = -1, pid = 0;  // of its own pid namespace
  int signal = 0;                       // that it answers `frtrace stacks` by
  std::uint64_t pid_namespace = 0;
  bool same_pids = false;  // its pid is one of ours
  bool runs = false;       // by its pid, else by its watchdog's last sign
  std::string dump_dir;    // as seen from here
};

std::vector<RingPlace> ring_places(const std::string& shm_dir);
// Of a job: by fr's name for it, or by Slurm's number of it. "": of every job.
std::vector<FoundRing> rings_of(const std::vector<RingPlace>& places, const std::string& job);
// Names of the jobs that have rings there.
std::vector<std::string> jobs_in(const std::vector<RingPlace>& places);
// A variable that a process was started with; "" where it had none, or may not be read.
std::string variable_of(int pid, const std::string& name);

}  // namespace frtrace
