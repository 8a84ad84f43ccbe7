// A process with fr is asked through the signal that its ring names: it dumps, with all ranks of
// its job. One without fr, or one that does not answer, is looked at by py-spy or PyStack where
// they are installed. The output says which it was.
#include "commands/stacks.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "format/view.hpp"
#include "input/files.hpp"
#include "model/case.hpp"
#include "report/stacks_tree.hpp"

namespace frtrace {

namespace {

constexpr int kShown = 0, kUsage = 2, kNothing = 3;
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
  std::string job, dump_dir;
  int pid = 0, rank = -1, attempt = 0;
  int signal = 0;
  std::uint64_t incident = 0;
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
  p.dump_dir.assign(h.dump_dir, strnlen(h.dump_dir, sizeof h.dump_dir));
  p.pid = h.pid;
  p.rank = h.rank.load();
  p.attempt = h.attempt;
  p.signal = static_cast<int>(h.ask_signal.load());
  p.incident = h.incident.load();
  return true;
}

// A handler is there: without one the signal would end the process.
bool catches(int pid, int signal) {
  const std::string status = read_file(fmt::format("/proc/{}/status", pid));
  const std::size_t at = status.find("\nSigCgt:");
  return signal > 0 && at != std::string::npos &&
         (std::strtoull(status.c_str() + at + 8, nullptr, 16) >> (signal - 1) & 1) != 0;
}

std::string dump_path(const Process& p, std::uint64_t incident) {
  const std::string rank = p.rank >= 0 ? std::to_string(p.rank) : "x";
  return fmt::format("{}/{}.a{}.r{}.{}.fr", p.dump_dir, p.job, p.attempt, rank, incident);
}

// By /proc; ' ' where there is none. The name before it may hold anything.
char state_of(int pid) {
  const std::string stat = read_file(fmt::format("/proc/{}/stat", pid));
  const std::size_t at = stat.rfind(") ");
  return at != std::string::npos && at + 2 < stat.size() ? stat[at + 2] : ' ';
}

bool is_stopped(int pid) {
  const char state = state_of(pid);
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
      std::cout << render_stacks_json(merge_stacks(ranks));
      continue;
    }
    for (const StackInput& in : ranks) {
      std::cout << fmt::format("{} (pid {}): {}; last operation by its ring: {}\n",
                               ranks_words({in.rank}), in.pid,
                               is_stopped(in.pid) ? "stopped (SIGSTOP, SIGTSTP or a debugger)"
                               : state_of(in.pid) == 'D' ? "sleeps uninterruptibly"
                                                         : "did not answer",
                               in.frontier.empty() ? "none" : in.frontier);
    }
  }
  return !cases.empty();
}

// Dumps of these processes, once they have come; those that have not are left out.
std::vector<std::string> ask(const std::vector<Process>& processes, bool all) {
  std::vector<std::string> found(processes.size());
  bool asked = false;
  for (const Process& p : processes) {
    sigval value{};
    value.sival_ptr = reinterpret_cast<void*>(fr::kAskFromOutside);
    // One is enough: its incident is seen by the others of the node.
    if (!asked && !is_stopped(p.pid) && catches(p.pid, p.signal)) {
      asked = ::sigqueue(p.pid, p.signal, value) == 0;
    }
  }
  const auto until = std::chrono::steady_clock::now() + kPatience;
  std::size_t missing = asked ? processes.size() : 0;
  while (missing > 0 && std::chrono::steady_clock::now() < until) {
    for (std::size_t i = 0; i < processes.size(); ++i) {
      Process now;
      if (!found[i].empty() || !read_ring(processes[i].ring, now) ||
          now.incident <= processes[i].incident) {
        continue;
      }
      const std::string path = dump_path(now, now.incident);
      if (::access(path.c_str(), R_OK) == 0) {
        found[i] = path;
        --missing;
      }
    }
    if (!all && missing < processes.size()) {
      break;
    }
    std::this_thread::sleep_for(kPause);
  }
  std::erase_if(found, [](const std::string& s) { return s.empty(); });
  return found;
}

std::string output_of(const std::string& command) {
  std::string out;
  if (FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "r")) {
    std::array<char, 65536> buffer;
    std::size_t n = 0;
    while ((n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0) {
      out.append(buffer.data(), n);
    }
    if (::pclose(pipe) != 0) {
      out.clear();
    }
  }
  return out;
}

// py-spy's JSON: a list of threads with frames, innermost first.
bool read_py_spy(const std::string& text, ThreadsEvidence& out, int pid) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_array()) {
    return false;
  }
  out.present = true;
  for (const auto& t : json) {
    ThreadStack& stack = out.threads.emplace_back();
    stack.tid = t.value("os_thread_id", t.contains("os_thread_id") ? 0 : pid);
    stack.name = t.contains("thread_name") && t["thread_name"].is_string()
                     ? t["thread_name"].get<std::string>()
                     : "";
    stack.activity = t.value("active", false) ? "running" : "asleep";
    stack.gil = t.value("owns_gil", false) ? "holds" : "";
    for (const auto& f : t.value("frames", nlohmann::json::array())) {
      stack.stack.push_back(static_cast<std::uint32_t>(out.frames.size()));
      ThreadFrame& frame = out.frames.emplace_back();
      frame.python = f.value("line", 0) != 0;
      frame.function = f.value("name", "");
      frame.file = f.value("filename", "");
      frame.line = f.value("line", 0u);
    }
  }
  return !out.threads.empty();
}

int by_others(int pid, const std::vector<Process>& processes, bool json) {
  const std::string spy = output_of(fmt::format("py-spy dump --json --pid {}", pid));
  ThreadsEvidence threads;
  if (read_py_spy(spy, threads, pid)) {
    std::cerr << "process " << pid << ": by py-spy\n";
    const StackTree tree = merge_stacks({{-1, pid, "", &threads, "", nullptr}});
    std::cout << (json ? render_stacks_json(tree) : render_stacks_text(tree));
    return kShown;
  }
  const std::string pystack = output_of(fmt::format("pystack remote --native {}", pid));
  if (!pystack.empty()) {
    std::cerr << "process " << pid << ": by PyStack\n";
    std::cout << pystack;
    return kShown;
  }
  std::cerr << "frtrace: process " << pid << (is_stopped(pid) ? " is stopped" : " does not answer")
            << ", and neither py-spy nor PyStack could look at it\n";
  return by_ring(processes, json) ? kShown : kNothing;
}

}  // namespace

int stacks_command(int argc, char** argv) {
  CLI::App app{
      "Shows where the threads of a running process, or of all ranks of a job, are now.\n"
      "A process with fr is asked for a dump (and so are the other ranks of its job);\n"
      "otherwise py-spy or PyStack are used where they are installed."};
  std::string target;
  bool json = false;
  const char* shm = std::getenv("FR_SHM_DIR");
  std::string shm_dir = shm != nullptr && *shm != '\0' ? shm : "/dev/shm";
  app.add_option("target", target, "process id or name of a job")->required();
  app.add_option("--shm-dir", shm_dir, "where the rings are; default: $FR_SHM_DIR, else /dev/shm");
  app.add_flag("--json", json, "as JSON (schema frtrace.stacks/1)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    app.exit(e);
    return kUsage;
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
  if (processes.empty() && !is_pid) {
    std::cerr << "frtrace: no running process of a job " << target << " has a ring in " << dir
              << "\n";
    return kNothing;
  }
  const std::vector<std::string> dumps = ask(processes, !is_pid);
  if (dumps.empty()) {
    return is_pid ? by_others(pid, processes, json) : by_ring(processes, json) ? kShown : kNothing;
  }
  const LoadResult input = load_paths(dumps, "");
  const std::vector<Case> cases = make_cases(input.evidence, {});
  std::cerr << (is_pid ? fmt::format("process {}", pid) : fmt::format("job {}", target))
            << ": asked, " << dumps.size() << " of " << processes.size()
            << " answered: " << dumps.front() << (dumps.size() > 1 ? " ..." : "") << "\n";
  for (const Case& c : cases) {
    const StackTree tree = merge_stacks(stack_inputs(c, {}));
    std::cout << (json ? render_stacks_json(tree) : render_stacks_text(tree));
  }
  return cases.empty() ? kNothing : kShown;
}

}  // namespace frtrace
