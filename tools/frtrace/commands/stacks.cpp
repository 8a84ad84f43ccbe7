// stacks.cpp - `frtrace stacks`: where all threads of a running process, or of a job, are now.
//
// A process with fr gets the signal that its ring names and writes where its threads are to a file
// beside its ring, which is read and removed. For one that does not answer, its ring is shown. For a
// process without fr, the command of another tool is printed, not run.
#include "commands/stacks.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <thread>

#include "commands/arguments.hpp"
#include "format/file_name.hpp"
#include "format/view.hpp"
#include "input/files.hpp"
#include "live/lock_files.hpp"
#include "model/case.hpp"
#include "recorder/options.hpp"
#include "report/lines.hpp"
#include "report/stacks_tree.hpp"
#include "sample/process.hpp"

namespace frtrace {

namespace {

constexpr auto kPatience = std::chrono::seconds(5);
constexpr auto kPause = std::chrono::milliseconds(20);

std::vector<std::string> entries(const std::string& dir) {
  std::vector<std::string> out;
  if (DIR* d = ::opendir(dir.c_str())) {
    while (const dirent* e = ::readdir(d)) {
      out.emplace_back(e->d_name);
    }
    ::closedir(d);
  }
  return out;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Process {
  std::string ring;
  std::string job;
  int pid = 0;
  int signal = 0;
};

bool read_ring(const std::string& path, Process& p) {
  const std::string bytes = read_file(path);
  // copied to where its atomics are aligned
  std::vector<std::uint64_t> aligned((bytes.size() + 7 + 64) / 8);
  auto* base = reinterpret_cast<unsigned char*>(
      (reinterpret_cast<std::uintptr_t>(aligned.data()) + 63) & ~std::uintptr_t{63});
  std::copy(bytes.begin(), bytes.end(), base);
  const fr::View view = fr::View::of(base, bytes.size());
  if (!view.ok()) {
    return false;
  }
  const fr::Header& h = view.header();
  p.ring = path;
  p.job.assign(h.job, strnlen(h.job, sizeof h.job));
  p.pid = h.pid;
  p.signal = static_cast<int>(h.ask_signal.load());
  return true;
}

// A handler is there: without one the signal would end the process.
bool catches(int pid, int signal) {
  const std::string status = read_file(fmt::format("/proc/{}/status", pid));
  const std::size_t at = status.find("\nSigCgt:");
  return signal > 0 && at != std::string::npos &&
         (std::strtoull(status.c_str() + at + 8, nullptr, 16) >> (signal - 1) & 1) != 0;
}

bool is_stopped(int pid) {
  const char state = fr::process_state(pid);
  return state == 'T' || state == 't';
}

// What there is of a process that cannot answer: its ring, which needs nobody.
bool by_ring(const std::vector<Process>& processes, bool json) {
  std::vector<std::string> rings;
  for (const Process& p : processes) {
    rings.push_back(p.ring);
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
      std::cout << fmt::format("{} (pid {}): {}; last operation by its ring: {}\n",
                               ranks_words({in.rank}), in.pid,
                               is_stopped(in.pid) ? "stopped (SIGSTOP, SIGTSTP or a debugger)"
                               : fr::process_state(in.pid) == 'D' ? "sleeps uninterruptibly"
                                                                  : "did not answer",
                               in.frontier.empty() ? "none" : printable(in.frontier));
    }
  }
  return !cases.empty();
}

// The answers of these processes, once they have come; those that have not are left out.
std::vector<std::string> request_stacks(const std::vector<Process>& processes) {
  std::vector<std::string> waited;
  for (const Process& p : processes) {
    sigval value{};
    value.sival_ptr = reinterpret_cast<void*>(fr::kStacksRequest);
    const std::string path = p.ring + fr::kStacksEnding;
    ::unlink(path.c_str());  // of somebody who stopped waiting
    if (!is_stopped(p.pid) && catches(p.pid, p.signal) && ::sigqueue(p.pid, p.signal, value) == 0) {
      waited.push_back(path);
    }
  }
  const auto until = std::chrono::steady_clock::now() + kPatience;
  std::vector<std::string> found;
  while (!waited.empty() && std::chrono::steady_clock::now() < until) {
    std::erase_if(waited, [&](const std::string& path) {
      const bool there = ::access(path.c_str(), R_OK) == 0;
      if (there) {
        found.push_back(path);
      }
      return there;
    });
    std::this_thread::sleep_for(kPause);
  }
  return found;
}

// What to run for a process that cannot be sampled through fr. frtrace does not run it itself: it
// may need root, and stops the process while it looks.
std::string other_tools(int pid) {
  return fmt::format("py-spy dump --native --pid {}", pid);
}

}  // namespace

int stacks_command(int argc, char** argv) {
  CLI::App app{
      "Shows where the threads of a running process, or of all ranks of a job, are now.\n"
      "A process with fr answers a signal, and no incident is left behind; for a process"
      " without\nfr, the py-spy command to run instead is printed."};
  std::string target;
  bool json = false;
  std::string shm_dir = fr::read_options().shm_dir;
  app.add_option("target", target, "process id or name of a job")->required();
  app.add_option("--shm-dir", shm_dir, "where the rings are; default: $FR_SHM_DIR, else /dev/shm");
  app.add_flag("--json", json, "as JSON (schema frtrace.stacks/1)");
  if (const auto status = parse(app, argc, argv)) {
    return *status;
  }
  const bool is_pid = target.find_first_not_of("0123456789") == std::string::npos;
  const int pid = is_pid ? std::atoi(target.c_str()) : 0;
  if (is_pid && ::kill(pid, 0) != 0) {
    std::cerr << "frtrace: there is no process " << pid << "\n";
    return kNothing;
  }
  const std::string dir = fmt::format("{}/fr-{}", shm_dir, ::geteuid());
  std::vector<Process> processes;
  for (const std::string& name : entries(dir)) {
    Process p;
    if (name.size() > 5 && name.substr(name.size() - 5) == ".ring" &&
        read_ring(dir + "/" + name, p) && (is_pid ? p.pid == pid : p.job == target) &&
        ::kill(p.pid, 0) == 0) {
      processes.push_back(p);
    }
  }
  if (processes.empty()) {
    std::cerr << (is_pid ? fmt::format("frtrace: process {} has no ring in {}: it runs without fr. "
                                       "Its stacks: {}\n",
                                       pid, printable(dir), other_tools(pid))
                         : fmt::format("frtrace: no running process of a job {} has a ring in {}\n",
                                       printable(target), printable(dir)));
    return kNothing;
  }
  const std::vector<std::string> answers = request_stacks(processes);
  if (answers.empty()) {
    if (is_pid) {
      std::cerr << "frtrace: process " << pid
                << (is_stopped(pid) ? " is stopped" : " does not answer")
                << "; its stacks: " << other_tools(pid) << "\n";
    }
    return by_ring(processes, json) ? kNoFault : kNothing;
  }
  const LoadResult input = load_paths(answers, "");
  for (const std::string& path : answers) {
    ::unlink(path.c_str());
  }
  const std::vector<Case> cases = make_cases(input.evidence, {});
  std::cerr << (is_pid ? fmt::format("process {}", pid) : fmt::format("job {}", printable(target)))
            << ": " << answers.size() << " of " << processes.size() << " answered\n";
  for (const Case& c : cases) {
    StackTree tree = merge_stacks(stack_inputs(c, {}));
    look_at_lock_files(tree);
    std::cout << (json ? render_stacks_json(tree) : render_stacks_text(tree));
  }
  return cases.empty() ? kNothing : kNoFault;
}

}  // namespace frtrace
