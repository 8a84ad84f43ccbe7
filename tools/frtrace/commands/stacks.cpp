// stacks.cpp - `frtrace stacks`: where all threads of a running process, or of a job, are now.
//
// A process with fr gets the signal that its ring names and writes where its threads are to a file
// beside its ring, which is read and removed. For one that does not answer, its ring is shown. For
// a process without fr, the command of another tool is printed, not run.
#include "commands/stacks.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "commands/arguments.hpp"
#include "commands/fan.hpp"
#include "input/files.hpp"
#include "live/ask_stacks.hpp"
#include "live/lock_files.hpp"
#include "live/mapped_ring.hpp"
#include "model/case.hpp"
#include "report/lines.hpp"
#include "report/stacks_tree.hpp"
#include "sample/process.hpp"

namespace frtrace {

namespace {

// Shows the rings of processes that do not answer: reading a ring needs no help from its process.
bool by_ring(const std::vector<FoundRing>& processes, bool json) {
  std::vector<std::string> rings;
  for (const FoundRing& p : processes) {
    rings.push_back(p.path);
  }
  const LoadResult input = load_paths(rings, "");
  const std::vector<Case> cases = make_cases(input.evidence, {});
  for (const Case& c : cases) {
    const std::vector<StackInput> ranks = stack_inputs(c, {});
    if (json) {
      StackTree tree = merge_stacks(ranks);
      look_at_lock_files(tree);
      std::cout << render_stacks_json(tree);
      continue;
    }
    for (const StackInput& in : ranks) {
      std::cout << fmt::format(
          "{} (pid {}): {}; last operation by its ring: {}\n", ranks_words({in.rank}), in.pid,
          is_stopped_process(in.pid)         ? "stopped (SIGSTOP, SIGTSTP or a debugger)"
          : fr::process_state(in.pid) == 'D' ? "sleeps uninterruptibly"
                                             : "did not answer",
          in.frontier.empty() ? "none" : printable(in.frontier));
    }
  }
  return !cases.empty();
}

// The command for a process that cannot be sampled through fr. frtrace does not run it: it may need
// root, and it stops the process while it looks.
std::string other_tools(int pid) {
  return fmt::format("py-spy dump --native --pid {}", pid);
}

// Reads the answers, and removes them.
int show(const std::vector<std::string>& answers, bool json) {
  const LoadResult input = load_paths(answers, "");
  for (const std::string& path : answers) {
    ::unlink(path.c_str());
  }
  const std::vector<Case> cases = make_cases(input.evidence, {});
  for (const Case& c : cases) {
    StackTree tree = merge_stacks(stack_inputs(c, {}));
    look_at_lock_files(tree);
    std::cout << (json ? render_stacks_json(tree) : render_stacks_text(tree));
  }
  return cases.empty() ? kNothing : kNoFault;
}

// Stacks of a job on this node, or of one process.
int stacks_here(const std::string& target, const std::string& shm_dir, bool json) {
  const bool is_pid = target.find_first_not_of("0123456789") == std::string::npos;
  const int pid = is_pid ? std::atoi(target.c_str()) : 0;
  if (is_pid && ::kill(pid, 0) != 0) {
    std::cerr << "frtrace: there is no process " << pid << "\n";
    return kNothing;
  }
  std::vector<FoundRing> processes = rings_of(ring_places(shm_dir), is_pid ? "" : target);
  std::erase_if(processes, [&](const FoundRing& r) {
    return !r.same_pids || !r.runs || (is_pid && r.pid != pid);
  });
  if (processes.empty()) {
    const std::string dir = ring_directory(shm_dir);
    std::cerr << (is_pid ? fmt::format(
                               "frtrace: process {} has no ring in {}: it has come to no group "
                               "yet, or runs without fr. Its stacks: {}\n",
                               pid, printable(dir), other_tools(pid))
                         : fmt::format("frtrace: no running process of a job {} has a ring in {}\n",
                                       printable(target), printable(dir)));
    return kNothing;
  }
  const std::vector<std::string> answers = ask_stacks(processes);
  if (answers.empty()) {
    if (is_pid) {
      std::cerr << "frtrace: process " << pid
                << (is_stopped_process(pid) ? " is stopped" : " does not answer")
                << "; its stacks: " << other_tools(pid) << "\n";
    }
    return by_ring(processes, json) ? kNoFault : kNothing;
  }
  std::cerr << (is_pid ? fmt::format("process {}", pid) : fmt::format("job {}", printable(target)))
            << ": " << answers.size() << " of " << processes.size() << " answered\n";
  return show(answers, json);
}

// Stacks of a job on all of its nodes.
int stacks_everywhere(const FanOptions& o, const std::string& job, bool json) {
  const Scratch scratch;
  std::vector<std::string> answers;
  std::vector<NodeRow> rows;
  const auto wrong = ask_nodes(
      o, job, "stacks", scratch, rows, [&](const NodeRow& row, const collect::Package& package) {
        for (const auto& [name, content] : package.files) {
          answers.push_back(fmt::format("{}/{}.{}", scratch.path(), answers.size(), name));
          std::ofstream(answers.back(), std::ios::binary) << content;
        }
        if (row.answered) {
          std::cerr << printable(row.node + ": " + row.said) << "\n";
        }
      });
  if (wrong) {
    std::cerr << "frtrace: " << printable(*wrong) << "\n";
    return kUsage;
  }
  return show(answers, json);
}

}  // namespace

int stacks_command(int argc, char** argv) {
  CLI::App app{
      "Shows where the threads of a running process, or of all ranks of a job, are now.\n"
      "A process with fr answers a signal, and no incident is left behind; for a process"
      " without\nfr, the py-spy command to run instead is printed. With --launcher or --hosts: of"
      " a job on\nall of its nodes.",
      "frtrace stacks"};
  std::string target;
  bool json = false;
  FanOptions o;
  app.add_option("target", target, "process id or name of a job")->required();
  app.add_flag("--json", json, "as JSON (schema frtrace.stacks/1)");
  add_fan_options(app, o);
  if (const auto status = parse(app, argc, argv)) {
    return *status;
  }
  return o.given() ? stacks_everywhere(o, target, json) : stacks_here(target, o.shm_dir, json);
}

}  // namespace frtrace
