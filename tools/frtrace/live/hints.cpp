// hints.cpp - known hang patterns in thread stacks, locks and descriptors of a rank.
#include "live/hints.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "live/bounded.hpp"

namespace frtrace {

namespace {

namespace fs = std::filesystem;

bool has(std::string_view s, std::string_view part) {
  return s.find(part) != std::string_view::npos;
}

// Functions are named without their class before Python 3.11.
struct Look {
  const RankEvidence& e;
  const ThreadStack& t;

  const ThreadFrame& frame(std::size_t i) const { return e.threads.frames[t.stack[i]]; }
  // Position of a Python frame of that function and file, among the innermost; -1 none.
  int python(std::string_view function, std::string_view file, int within = 8) const {
    int seen = 0;
    for (std::size_t i = 0; i < t.stack.size() && seen < within; ++i) {
      const ThreadFrame& f = frame(i);
      if (f.python) {
        ++seen;
        if (f.function.ends_with(function) && f.file.ends_with(file)) {
          return static_cast<int>(i);
        }
      }
    }
    return -1;
  }
  bool native(std::string_view function) const {
    for (std::size_t i = 0; i < t.stack.size(); ++i) {
      const ThreadFrame& f = frame(i);
      if (!f.python && has(f.function, function)) {
        return true;
      }
    }
    return false;
  }
  std::string variable(int position, std::string_view name) const {
    for (const FrameVariables& v : t.variables) {
      for (const auto& [key, value] : v.values) {
        if (static_cast<int>(v.frame) == position && key == name) {
          const bool quoted = value.size() >= 2 && value.front() == '\'' && value.back() == '\'';
          return quoted ? value.substr(1, value.size() - 2) : value;
        }
      }
    }
    return {};
  }
};

// Who has the file open, by /proc: links are read there and not followed, for what they lead to may
// lie on a file system that hangs.
std::string holders_of(const std::string& real) {
  if (real.empty()) {
    return {};
  }
  std::string who;
  bool hidden = false;
  std::error_code error;
  for (const fs::directory_entry& process : fs::directory_iterator("/proc", error)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::error_code denied;
    for (fs::directory_iterator fd(process.path() / "fd", denied), end; !denied && fd != end;
         fd.increment(denied)) {
      std::error_code gone;
      if (fs::read_symlink(fd->path(), gone) == real) {
        std::string name;
        std::getline(std::ifstream(process.path() / "comm"), name);
        who += fmt::format("{}process {} ({})", who.empty() ? "" : ", ", pid, name);
        break;
      }
    }
    hidden = hidden || denied == std::errc::permission_denied;
  }
  if (!who.empty()) {
    return "open in " + who;
  }
  return hidden ? "no process of this user has it open" : "no process has it open";
}

struct LockFile {
  bool answered = false;
  Time made = 0;  // 0: there is none
  std::string real_path;
};

// Once per path: hints are asked for again and again.
const LockFile& look_at(const std::string& path) {
  static std::map<std::string, LockFile> seen;
  const auto [it, fresh] = seen.try_emplace(path);
  LockFile& file = it->second;
  if (!fresh || given_up_on(path)) {
    return file;
  }
  file.answered = in_child(
      [&path](const Say& say) {
        struct stat st{};
        char real[PATH_MAX];
        if (::stat(path.c_str(), &st) == 0) {
          say(fmt::format("{} {}",
                          static_cast<Time>(st.st_mtim.tv_sec) * 1'000'000'000 + st.st_mtim.tv_nsec,
                          ::realpath(path.c_str(), real) != nullptr ? real : ""));
        }
      },
      [&file](std::string_view said) {
        file.made = std::strtoll(std::string(said).c_str(), nullptr, 10);
        file.real_path = said.substr(said.find(' ') + 1);
      });
  if (!file.answered) {
    give_up_on(path);
  }
  return file;
}

std::string stale_lock(const Look& l) {
  const int at = l.python("wait", "file_baton.py");
  if (at < 0) {
    return {};
  }
  const std::string path = l.variable(at, "self.lock_file_path");
  if (path.empty()) {
    return "waits for a lock file to go; one that a killed process left stays for ever";
  }
  std::string out = fmt::format("waits for the lock file {} to go", path);
  char host[256] = "";
  ::gethostname(host, sizeof host - 1);
  if (l.e.id.host != host) {
    return out + ": if nobody is building, remove it";
  }
  const LockFile& file = look_at(path);
  if (!file.answered) {
    return out + "; its file system does not answer";
  }
  if (file.made == 0) {
    return out + "; it is gone by now";
  }
  const Time made = file.made;
  const Time now = static_cast<Time>(::time(nullptr)) * 1'000'000'000;
  out += fmt::format("; it still exists, made {} ago",
                     duration_text(static_cast<double>(now - made) / 1e9));
  const std::string holders = holders_of(file.real_path);
  // Whoever made it before this run began is not of this run; torch keeps it open while it builds.
  const bool before = l.e.id.start != 0 && made < l.e.id.start;
  out += before ? ", before this process began" : "";
  out += holders.empty() ? "" : ", " + holders;
  out += before && holders.compare(0, 3, "no ") == 0 ? ": stale" : "";
  return out;
}

std::string store_wait(const Look& l) {
  const bool store = l.native("TCPStore") || l.native("TCPClient") || l.native("PrefixStore") ||
                     l.python("_store_based_barrier", "distributed_c10d.py", 32) >= 0 ||
                     l.python("rendezvous", "rendezvous.py", 32) >= 0 ||
                     l.python("next_rendezvous", "dynamic_rendezvous.py", 32) >= 0;
  if (!store) {
    return {};
  }
  return "waits for the store that the ranks meet at" +
         (has(l.t.syscall_on, "socket") ? " (" + l.t.syscall_on + ")" : std::string()) +
         ": another rank has not come there, or rank 0 is gone";
}

bool is_worker(const ChildProcess& c) {
  return has(c.name, "pt_data_worker");
}

std::string state_text(const ChildProcess& c) {
  if (c.state == "Z") {
    return WIFSIGNALED(c.wait_status)
               ? fmt::format("was killed by signal {}", WTERMSIG(c.wait_status))
           : c.wait_status >= 0
               ? fmt::format("has exited with status {}", WEXITSTATUS(c.wait_status))
               : "has ended";
  }
  std::string out = "is " + c.activity;
  out += c.syscall.empty() ? "" : " in " + c.syscall;
  out += c.syscall_on.empty() || c.syscall == "futex" ? "" : " of " + c.syscall_on;
  return out + (c.syscall.empty() && !c.wchan.empty() ? " (" + c.wchan + ")" : "");
}

std::string loader_worker(const Look& l) {
  if (l.python("_try_get_data", "dataloader.py", 16) < 0 &&
      l.python("_get_data", "dataloader.py", 16) < 0) {
    return {};
  }
  const ThreadsEvidence& t = l.e.threads;
  std::string out = "waits for a batch of its DataLoader";
  if (!t.children_known) {
    return out + ": a worker is slow, stuck or gone";
  }
  // torch names its workers since 2.6; before, any child may be one.
  const bool named = std::any_of(t.children.begin(), t.children.end(), is_worker);
  std::size_t shown = 0;
  for (const ChildProcess& c : t.children) {
    constexpr std::size_t kShown = 4;
    if (named && !is_worker(c)) {
      continue;
    }
    if (shown == kShown) {
      return out + ", and so on";
    }
    out += fmt::format("{} {} {} ({}) {}", shown++ == 0 ? ":" : ",", named ? "worker" : "child",
                       c.pid, c.name, state_text(c));
  }
  return shown != 0 ? out : out + ": it has no child process, its workers are gone";
}

std::string child(const Look& l) {
  constexpr std::string_view kBefore = "process ";
  if (l.t.syscall != "wait4" || l.t.syscall_on.compare(0, kBefore.size(), kBefore) != 0) {
    return {};
  }
  const int pid = std::atoi(l.t.syscall_on.c_str() + kBefore.size());
  for (const ChildProcess& c : l.e.threads.children) {
    if (c.pid == pid) {
      return fmt::format("waits for its child process {} ({}), which {}", c.pid, c.name,
                         state_text(c));
    }
  }
  return {};
}

std::string fifo(const Look& l) {
  const bool opening = (l.t.syscall == "openat" || l.t.syscall == "open") &&
                       (has(l.t.wchan, "partner") || has(l.t.wchan, "fifo"));
  return opening ? fmt::format("opens the FIFO {}, which nobody has opened at its other end",
                               l.t.syscall_on)
                 : std::string();
}

std::string uninterruptible(const Look& l) {
  if (l.t.activity != "uninterruptible") {
    return {};
  }
  return fmt::format("cannot be interrupted or killed while the kernel waits in {}{}{}",
                     l.t.wchan.empty() ? "an unnamed function" : l.t.wchan,
                     l.t.syscall_on.empty() ? "" : " for ", l.t.syscall_on) +
         ": a file system or a driver does not answer";
}

std::string import_lock(const Look& l) {
  for (std::size_t i = 0; i < l.t.stack.size(); ++i) {
    const ThreadFrame& f = l.frame(i);
    if (f.python && has(f.file, "importlib._bootstrap") && f.function.ends_with("acquire")) {
      return "waits for the import lock of a module that another thread is importing";
    }
  }
  return {};
}

// A process that multiprocessing has forked runs on the stack that its parent had then.
std::string fork_cuda(const Look& l) {
  constexpr int kAll = 1 << 20;
  return l.python("_lazy_init", "torch/cuda/__init__.py", 16) >= 0 &&
                 l.python("_launch", "multiprocessing/popen_fork.py", kAll) >= 0
             ? "starts CUDA in a forked process, which CUDA does not support: use the start method "
               "\"spawn\""
             : "";
}

std::string gil(const Look& l) {
  if (l.t.gil != "waits") {
    return {};
  }
  const ThreadStack* holder = gil_holder(l.e.threads);
  if (holder == nullptr) {
    return "waits for the GIL; no thread that answered holds it";
  }
  const std::string where = where_text(l.e.threads, *holder, l.e.id.cwd);
  return fmt::format("waits for the GIL, which thread {} holds{}{}", holder->tid,
                     where.empty() ? "" : " in ", where);
}

// Locks are semaphores of the system's, since 3.14 below a lot that threads park on.
bool in_python_lock(const Look& l) {
  return (l.t.syscall == "futex" || l.t.activity == "interrupted") &&
         (l.native("PyThread_acquire_lock_timed") || l.native("_PySemaphore_Wait"));
}

std::string python_locks(const Look& l) {
  if (!in_python_lock(l)) {
    return {};
  }
  std::string others;
  for (const ThreadStack& t : l.e.threads.threads) {
    const Look other{l.e, t};
    if (&t != &l.t && in_python_lock(other)) {
      others += fmt::format("{}thread {} in {}", others.empty() ? "" : "; ", t.tid,
                            where_text(l.e.threads, t, l.e.id.cwd));
    }
  }
  return others.empty() ? "waits for a lock of Python's"
                        : "waits for a lock of Python's; so does " + others;
}

std::string stopped(const Look& l) {
  return l.t.activity == "stopped" ? "is stopped (SIGSTOP, SIGTSTP or a debugger)" : "";
}

constexpr struct {
  const char* id;
  std::string (*find)(const Look&);
} kHints[] = {{"stale_lock", stale_lock},
              {"store_wait", store_wait},
              {"loader_worker", loader_worker},
              {"child", child},
              {"fifo", fifo},
              {"uninterruptible", uninterruptible},
              {"import_lock", import_lock},
              {"fork_cuda", fork_cuda},
              {"gil", gil},
              {"python_locks", python_locks},
              {"stopped", stopped}};

}  // namespace

std::vector<Hint> hints_of(const RankEvidence& e) {
  std::vector<Hint> out;
  const ThreadStack* t = main_thread(e.threads, e.id.pid);
  if (t == nullptr) {
    return out;
  }
  for (const auto& hint : kHints) {
    std::string text = hint.find({e, *t});
    if (!text.empty()) {
      out.push_back({hint.id, std::move(text)});
    }
  }
  return out;
}

const ThreadStack* told_thread(const RankEvidence& e) {
  if (e.exit.kind == "crash") {
    constexpr std::string_view kBefore = "; thread ";
    if (const std::size_t at = e.exit.message.find(kBefore); at != std::string::npos) {
      const int tid = std::atoi(e.exit.message.c_str() + at + kBefore.size());
      if (const ThreadStack* t = thread_of(e.threads, tid); t != nullptr) {
        return t;
      }
    }
  }
  return main_thread(e.threads, e.id.pid);
}

Site now_at(const RankEvidence& e) {
  const ThreadStack* t = told_thread(e);
  const ThreadFrame* f = t != nullptr ? user_frame(e.threads, *t) : nullptr;
  return f == nullptr ? Site{} : Site{below_cwd(e, f->file), f->line, f->function};
}

namespace {

// An object may have dozens of attributes: what finds no room is in the dump.
std::string variables_text(const FrameVariables& v) {
  constexpr std::size_t kWidth = 360;  // of local variables, and again of attributes
  std::size_t used[2] = {};
  std::size_t more = 0;
  std::string out;
  for (const auto& [name, value] : v.values) {
    std::size_t& width = used[name.starts_with("self.") ? 1 : 0];
    const std::size_t bytes = name.size() + value.size() + 5;
    if (width != 0 && width + bytes > kWidth) {
      ++more;
      continue;
    }
    width += bytes;
    out += (out.empty() ? "" : ", ") + name + " = " + value;
  }
  return more != 0 ? out + fmt::format(", and {} more", more) : out;
}

}  // namespace

std::vector<std::string> where_lines(const RankEvidence& e) {
  std::vector<std::string> out;
  const ThreadStack* t = told_thread(e);
  if (t == nullptr) {
    return out;
  }
  const std::string where = where_text(e.threads, *t, e.id.cwd);
  const std::string doing = doing_text(e.threads, *t);
  const std::vector<Hint> hints = hints_of(e);
  const bool stopped = !hints.empty() && hints.back().id == "stopped";
  out.push_back(!where.empty() ? "is in " + where : stopped ? hints.back().text : "is " + doing);
  for (const FrameVariables& v : t->variables) {
    const std::string line = variables_text(v);
    if (!line.empty() && v.frame < t->stack.size()) {
      out.push_back("in " + e.threads.frames[t->stack[v.frame]].function + "(): " + line);
    }
  }
  if (!where.empty()) {
    out.push_back(doing);
  }
  for (const Hint& hint : hints) {
    if (hint.text != out.front()) {
      out.push_back(hint.text);
    }
  }
  if (const std::string holes = thread_holes(e); !holes.empty()) {
    out.push_back(holes);
  }
  return out;
}

std::string thread_holes(const RankEvidence& e) {
  for (const auto& [layer, text] : e.layers) {
    if (layer == "threads") {
      return text;
    }
  }
  return {};
}

std::vector<std::string> crash_lines(const RankEvidence& e) {
  // "address 0x8: nothing is mapped there; thread 7 (python) in f (a.so+0x1) < g (train.py:3)"
  const std::string& message = e.exit.message;
  const std::size_t semicolon = message.find("; thread ");
  const std::size_t in = message.find(") in ");
  std::string first = fmt::format("got {}, {}", e.exit.type, message.substr(0, semicolon));
  const ThreadStack* t = told_thread(e);
  if (t != nullptr && t->tid != e.id.pid) {
    first += fmt::format(", in thread {} ({})", t->tid, t->name);
  }
  std::vector<std::string> out{std::move(first)};
  std::string stack;
  constexpr std::size_t kShown = 8;
  for (std::size_t i = 0, shown = 0; t != nullptr && i < t->stack.size() && shown < kShown; ++i) {
    if (const ThreadFrame& f = e.threads.frames[t->stack[i]]; !is_plumbing(f)) {
      stack += (shown++ == 0 ? "" : " < ") + frame_text(f, e.id.cwd);
    }
  }
  if (stack.empty() && in != std::string::npos) {
    stack = message.substr(in + 5);
  }
  if (!stack.empty()) {
    out.push_back("stack: " + stack);
  }
  for (std::string& line : where_lines(e)) {
    out.push_back(std::move(line));
  }
  return out;
}

}  // namespace frtrace
