// machine.hpp - the inputs of `frtrace doctor`: files of /proc, /sys, /etc and /dev, answers of the
// system that are no file, and the processes of the job. Tests put all of it below a directory.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace frtrace::doctor {

using Environment = std::map<std::string, std::string>;

// A rank of the job on this machine; without a job the doctor's own process.
struct Process {
  std::string pid = "self";                                    // as below /proc
  int rank = -1, local_rank = -1, local_world = 0, world = 0;  // 0, -1: not known
  std::string job, dump_dir;
  double timeout_s = 0;     // the shortest of its operations; 0: not known
  double fr_timeout_s = 0;  // FR_TIMEOUT_S in force
  bool adapts = true;       // FR_ADAPT
  Environment env;          // as it was started
  bool env_known = false;
};

// Deadlines by the rings of the job's ranks on this machine; the maximum over the ranks.
struct Learned {
  bool timeout_is_set = false, warn_is_set = false;  // not by default
  double warn_s = 0;                                 // FR_WARN_S in force
  double age_s = 0;                                  // of the job
  double visits = 0;     // seconds in which operations ended, summed over call sites
  double longest_s = 0;  // longest stall of a call site that then went on
  std::string site;      // of longest_s
  double false_warnings = 0, false_dumps = 0;
};

struct KernelLine {
  double age_s = 0;
  std::string text;
};

struct Space {
  double total = 0, free = 0, inodes = 0, inodes_free = 0;
};

struct Where {
  std::string root;     // "": this machine. Else files lie below it, answers in ROOT/answers/NAME
  std::string job;      // "": no job
  std::string shm_dir;  // of its rings
};

// Jobs with living ranks here, by their rings.
std::vector<std::string> jobs_here(const std::string& shm_dir);

class Machine {
 public:
  using Ask = std::function<std::optional<std::string>()>;

  explicit Machine(Where where);

  // At most 1 MiB; nullopt: not there, or not for this user.
  std::optional<std::string> try_read(std::string_view path) const;
  std::string read(std::string_view path) const { return try_read(path).value_or(""); }
  std::string line(std::string_view path) const;  // its first line
  bool exists(std::string_view path) const;
  std::vector<std::string> list(std::string_view path) const;  // names, sorted
  std::string link(std::string_view path) const;

  // An answer of the system that is no file; asked once per name.
  std::optional<std::string> ask(const std::string& name, const Ask& live);
  // stdout and stderr of a program that exited with 0; nullopt: not installed, or it failed.
  std::optional<std::string> command(const std::string& name, const std::vector<std::string>& argv);
  // The first line of output of a program that failed.
  std::string failure(const std::string& name) const;
  // A program that was abandoned; it may still hang.
  bool hangs(const std::string& name) const { return hanging_.contains(name); }
  std::optional<Space> space(const std::string& path);
  // nullopt: not for this user.
  const std::optional<std::vector<KernelLine>>& kernel_log();
  double uptime_s() const;

  // At least one.
  const std::vector<Process>& processes();
  Learned learned();
  bool is_job() { return !processes().front().job.empty(); }
  // More than one node takes part; nullopt: not known.
  std::optional<bool> spans_nodes();
  int ranks_here();
  int world();
  // A variable of the job's first process with a readable environment; "": unset.
  std::string env(const std::string& name);
  bool env_known();
  // The path by which this process reaches a path of the job, which may run in a container.
  std::string seen(const std::string& path);
  bool is_live() const { return where_.root.empty(); }
  bool same_network();  // as the job's
  bool is_virtual() const;
  // A library of that name in a directory where the loader would look for the job.
  bool has_library(const std::string& prefix);

  // Records a value of the running check that should be the same on all nodes.
  void alike(const std::string& name, const std::string& value) { values_[name] = value; }
  std::map<std::string, std::string> take_values() { return std::exchange(values_, {}); }

 private:
  std::string path_of(std::string_view path) const { return where_.root + std::string(path); }
  void find_processes();
  std::vector<KernelLine> from_kmsg(const std::string& text) const;

  Where where_;
  std::vector<Process> processes_;
  std::map<std::string, std::optional<std::string>> answers_;
  std::set<std::string> hanging_;
  std::map<std::string, std::string> failed_;
  bool log_read_ = false;
  std::optional<std::vector<KernelLine>> log_;
  std::map<std::string, std::string> values_;
};

// Words and lines of text.
std::vector<std::string> words_of(std::string_view text);
std::vector<std::string> lines_of(std::string_view text);
std::vector<std::string> split(std::string_view text, char at);
std::string trimmed(std::string_view text);
double number_of(std::string_view text, double otherwise = 0);
// "Name:   value" in text of lines; "" not there.
std::string field_of(std::string_view text, std::string_view name);
std::string bytes_text(double bytes);

}  // namespace frtrace::doctor
