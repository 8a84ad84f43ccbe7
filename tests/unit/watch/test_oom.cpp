// The kernel's count of processes killed for want of memory, by files as both versions have them.
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "catch.hpp"
#include "watch/oom.hpp"

using namespace fr;
namespace fs = std::filesystem;

namespace {

class Root {
 public:
  Root() : path_(fs::temp_directory_path() / ("fr-oom-" + std::to_string(::getpid()))) {}
  ~Root() { fs::remove_all(path_); }
  Root& file(const std::string& name, const std::string& text) {
    const fs::path path = path_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    return *this;
  }
  i64 kills() const { return oom_kills(path_.c_str()); }

 private:
  fs::path path_;
};

std::string events(int kills) {
  return "low 0\nhigh 7\nmax 31\noom 5\noom_kill " + std::to_string(kills) + "\noom_group_kill 9\n";
}

std::string control(int kills) {
  return "oom_kill_disable 0\nunder_oom 0\noom_kill " + std::to_string(kills) + "\n";
}

constexpr const char* kCgroup = "proc/self/cgroup";

}  // namespace

TEST_CASE("oom: version 2, a group within groups") {
  Root r;
  r.file(kCgroup, "0::/kubepods.slice/pod1/c2\n")
      .file("sys/fs/cgroup/kubepods.slice/memory.events", events(8))
      .file("sys/fs/cgroup/kubepods.slice/pod1/c2/memory.events", events(3));
  CHECK(r.kills() == 3);
}

TEST_CASE("oom: version 2 in a container: its own group is the root") {
  Root own;
  own.file(kCgroup, "0::/\n").file("sys/fs/cgroup/memory.events", events(2));
  CHECK(own.kills() == 2);
  // no namespace of groups, but their tree mounted at its own
  own.file(kCgroup, "0::/docker/4f2a\n");
  CHECK(own.kills() == 2);
  own.file(kCgroup, "0::/../..\n");  // from outside of the namespace
  CHECK(own.kills() == 2);
}

TEST_CASE("oom: Slurm's group of a task is left for the step's, where peers count too") {
  Root r;
  r.file(kCgroup, "0::/slurm/job_7/step_0/user/task_3\n")
      .file("sys/fs/cgroup/slurm/job_7/step_0/user/memory.events", events(1))
      .file("sys/fs/cgroup/slurm/job_7/step_0/user/task_3/memory.events", events(0));
  CHECK(r.kills() == 1);
}

TEST_CASE("oom: version 1, beside others and beside version 2") {
  Root r;
  r.file(kCgroup,
         "12:cpu,cpuacct:/memory\n7:hugetlb,memory:/job\n3:memory_like:/x\n1:name=systemd:/\n"
         "0::/job\n")
      .file("sys/fs/cgroup/memory/job/memory.oom_control", control(4))
      .file("sys/fs/cgroup/memory/memory.oom_control", control(99));
  CHECK(r.kills() == 4);
  // the other way round, and without a line for memory in version 1
  r.file(kCgroup, "0::/job\n7:memory:/job\n");
  CHECK(r.kills() == 4);
  r.file(kCgroup, "12:cpu,cpuacct:/memory\n0::/job\n")
      .file("sys/fs/cgroup/job/memory.events", events(6));
  CHECK(r.kills() == 6);
}

TEST_CASE("oom: unknown is not none") {
  Root r;
  CHECK(r.kills() == -1);
  r.file(kCgroup, "0::/\n");
  CHECK(r.kills() == -1);  // the machine's root group has no such file
  r.file("sys/fs/cgroup/memory.events", "low 0\nhigh 0\nmax 0\noom 0\n");
  CHECK(r.kills() == -1);  // an old kernel
  r.file(kCgroup, "garbage\n::\n0:\n\n");
  CHECK(r.kills() == -1);
}
