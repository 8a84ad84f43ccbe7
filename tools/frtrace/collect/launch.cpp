#include "collect/launch.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

namespace frtrace::collect {

namespace {

constexpr std::array<std::pair<Launcher, const char*>, 6> kNames{{{Launcher::kLocal, "local"},
                                                                  {Launcher::kSrun, "srun"},
                                                                  {Launcher::kSsh, "ssh"},
                                                                  {Launcher::kPdsh, "pdsh"},
                                                                  {Launcher::kClush, "clush"},
                                                                  {Launcher::kKubectl, "kubectl"}}};
constexpr int kConnect_s = 10;
constexpr std::size_t kWindow = 64, kPods = 50;  // kubectl goes through one API server

using Words = std::vector<std::string>;

void append(Words& to, const Words& more) {
  to.insert(to.end(), more.begin(), more.end());
}

// The words quoted, so that a remote shell reads them back unchanged.
std::string shell_line(const Words& words) {
  std::string out;
  for (const std::string& word : words) {
    out += (out.empty() ? "" : " ") + collect::quoted(word);
  }
  return out;
}

std::vector<std::size_t> all_of(const Launch& l) {
  std::vector<std::size_t> out(l.nodes.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = i;
  }
  return out;
}

// A step beside the training step, which holds all CPUs, memory and GPUs of the job. Variables of
// another allocation would win over these options; SLURM_CONF says which Slurm.
Command srun(const Launch& l) {
  Command c;
  c.argv = {"srun",
            "--jobid=" + l.slurm_job,
            "--overlap",
            fmt::format("--nodes={}", l.nodes.size()),
            fmt::format("--ntasks={}", l.nodes.size()),
            "--ntasks-per-node=1",
            fmt::format("--nodelist={}", fmt::join(l.nodes, ",")),
            "--gres=none",
            "--mem=0",
            "--cpu-bind=none",
            "--mpi=none",
            "--kill-on-bad-exit=0",
            "--no-kill",
            "--quiet"};
  append(c.argv, l.lasts ? Words{"--label"}  // whole lines
                         : Words{"-o", l.files + "/%N.out", "-e", l.files + "/%N.err"});
  append(c.argv, l.extra);
  append(c.argv, l.command);
  c.env = {"SLURM_*", "SRUN_*"};
  c.nodes = all_of(l);
  c.answer = Command::Answer::kFiles;
  return c;
}

Command ssh(const Launch& l, std::size_t node) {
  Command c;
  c.argv = {"ssh", "-T", "-o", "BatchMode=yes", "-o", fmt::format("ConnectTimeout={}", kConnect_s)};
  append(c.argv, l.extra);
  append(c.argv, {"--", l.nodes[node], shell_line(l.command)});
  c.nodes = {node};
  return c;
}

// pdsh and clush take the same options; those that only one of them needs precede the command line.
Command by_ssh(const char* tool, const Launch& l, const std::vector<std::string>& own,
               const std::string& line) {
  Command c;
  c.argv = {tool,
            "-R",
            "ssh",
            "-w",
            fmt::format("{}", fmt::join(l.nodes, ",")),
            "-f",
            fmt::format("{}", kWindow),
            "-t",
            fmt::format("{}", kConnect_s),
            "-u",
            fmt::format("{}", l.timeout_s),
            "-S"};
  append(c.argv, own);
  append(c.argv, l.extra);
  c.argv.push_back(line);
  c.nodes = all_of(l);
  c.answer = Command::Answer::kLines;
  return c;
}

Command pdsh(const Launch& l) {
  std::string line;
  for (const char letter : shell_line(l.command)) {
    line += letter == '%' ? "%%" : std::string(1, letter);  // pdsh puts %h, %u, %n in
  }
  Command c = by_ssh("pdsh", l, {}, line);
  c.env = {"PDSH_RCMD_TYPE=ssh"};
  return c;
}

Command clush(const Launch& l) {
  return by_ssh("clush", l, {"--nostdin", "--color=never"}, shell_line(l.command));
}

Command kubectl(const Launch& l, std::size_t node) {
  Command c;
  c.argv = {"kubectl"};
  append(c.argv, l.extra);
  append(c.argv, l.lasts ? Words{"exec", "-i"} : Words{"exec"});
  if (!l.name_space.empty()) {
    append(c.argv, {"-n", l.name_space});
  }
  c.argv.push_back(l.nodes[node]);
  if (node < l.containers.size() && !l.containers[node].empty()) {
    append(c.argv, {"-c", l.containers[node]});
  }
  c.argv.push_back("--");
  append(c.argv, l.command);
  c.nodes = {node};
  return c;
}

}  // namespace

const char* launcher_name(Launcher launcher) {
  return kNames[static_cast<std::size_t>(launcher)].second;
}

std::optional<Launcher> launcher_of(std::string_view name) {
  for (const auto& [launcher, known] : kNames) {
    if (name == known) {
      return launcher;
    }
  }
  return std::nullopt;
}

Launcher default_launcher(const Surroundings& s) {
  const bool is_number = !s.job.empty() && s.job.find_first_not_of("0123456789") == s.job.npos;
  return s.hosts                             ? Launcher::kSsh
         : s.pods                            ? Launcher::kKubectl
         : !s.slurm_job.empty() || is_number ? Launcher::kSrun
         : s.kubernetes                      ? Launcher::kKubectl
                                             : Launcher::kLocal;
}

std::size_t window_of(Launcher launcher) {
  return launcher == Launcher::kKubectl ? kPods : kWindow;
}

bool wants_lines(Launcher launcher) {
  return launcher == Launcher::kPdsh || launcher == Launcher::kClush;
}

bool is_node_name(std::string_view name) {
  return !name.empty() && name.front() != '-' && name.size() < 256 &&
         std::all_of(
             name.begin(), name.end(),
             [](unsigned char c) {
               return std::isalnum(c) != 0 || std::string_view("._-:@").find(
                                                  static_cast<char>(c)) != std::string_view::npos;
             });
}

std::string quoted(std::string_view word) {
  std::string out = "'";
  for (const char c : word) {
    out += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return out + "'";
}

std::vector<Command> plan(const Launch& l) {
  std::vector<Command> out;
  if (l.nodes.empty()) {
    return out;
  }
  switch (l.launcher) {
    case Launcher::kSrun:
      out.push_back(srun(l));
      break;
    case Launcher::kPdsh:
      out.push_back(pdsh(l));
      break;
    case Launcher::kClush:
      out.push_back(clush(l));
      break;
    case Launcher::kLocal:
      out.push_back({l.command, {}, all_of(l), Command::Answer::kStdout});
      break;
    case Launcher::kSsh:
    case Launcher::kKubectl:
      for (std::size_t i = 0; i < l.nodes.size(); ++i) {
        out.push_back(l.launcher == Launcher::kSsh ? ssh(l, i) : kubectl(l, i));
      }
      break;
  }
  return out;
}

}  // namespace frtrace::collect
