// hints.cpp - known patterns of hangs in the stacks, system calls and variables of a rank.
#include "model/hints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <span>

#include "format/call_site.hpp"
#include "model/contains.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// A thread's stack. Before Python 3.11 names of functions lack the class.
struct Look {
  const RankEvidence& e;
  const ThreadStack& t;

  const ThreadFrame& frame(std::size_t i) const { return e.threads.frames[t.stack[i]]; }
  // Position of a Python frame of that function and file, among the innermost; -1: none.
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

std::string lock_file_of(const Look& l) {
  const int at = l.python("wait", "file_baton.py");
  return at < 0 ? "" : l.variable(at, "self.lock_file_path");
}

std::string stale_lock(const Look& l) {
  if (l.python("wait", "file_baton.py") < 0) {
    return {};
  }
  const std::string path = lock_file_of(l);
  if (path.empty()) {
    return "waits for a lock file to go; one that a killed process left stays for ever";
  }
  return fmt::format("waits for the lock file {} to go: if nobody is building, remove it", path);
}

std::string file_lock(const Look& l) {
  return file_lock_text(l.e);
}

bool connects(const Look& l) {
  return l.native("TCPClient::connect") || l.native("SocketConnectOp");
}

std::string store_address(const Look& l) {
  const int store = l.python("_create_c10d_store", "distributed/rendezvous.py", 32);
  const std::string host = store < 0 ? "" : l.variable(store, "hostname");
  return host.empty() ? "" : host + ":" + l.variable(store, "port");
}

std::string store_connection(const Look& l) {
  const std::string address = store_address(l);
  const char* how =
      l.native("getaddrinfo") ? "its name is being looked up"
      : l.t.activity == fr::Activity::kAsleep && has(l.t.syscall, "nanosleep")
          ? "its last try failed: nobody listens there, no route, or a name without an address"
          : "no answer yet: the host is down, or a firewall drops what is sent";
  return fmt::format("connects to the ranks' store{}{} ({})", address.empty() ? "" : " at ",
                     address, how);
}

std::string store_wait(const Look& l) {
  if (connects(l)) {
    return store_connection(l);
  }
  const bool store = l.native("TCPStore") || l.native("TCPClient") || l.native("PrefixStore") ||
                     l.python("_store_based_barrier", "distributed_c10d.py", 32) >= 0 ||
                     l.python("rendezvous", "rendezvous.py", 32) >= 0 ||
                     l.python("next_rendezvous", "dynamic_rendezvous.py", 32) >= 0;
  if (!store) {
    return {};
  }
  return "waits in the ranks' store for a key that another rank sets";
}

bool is_worker(const ChildProcess& c) {
  return has(c.name, "pt_data_worker");
}

// The worker has run no user code since its loop began; frames below are its parent's from the
// fork.
bool waits_for_work(const ThreadsEvidence& t, const ChildProcess& c) {
  const auto frame = [&](std::uint32_t i) -> const ThreadFrame& { return t.frames[i]; };
  const auto loop = std::ranges::find(c.stack, "_worker_loop", [&](std::uint32_t i) {
    return std::string_view(frame(i).function);
  });
  return loop != c.stack.end() && std::all_of(c.stack.begin(), loop, [&](std::uint32_t i) {
           return fr::is_library_file(frame(i).file);
         });
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
  // torch names its workers since 2.6; before that, any child may be one.
  const bool named = std::any_of(t.children.begin(), t.children.end(), is_worker);
  std::vector<const ChildProcess*> workers;
  for (const ChildProcess& c : t.children) {
    if (!named || is_worker(c)) {
      workers.push_back(&c);
    }
  }
  std::ranges::stable_partition(workers,
                                [&](const ChildProcess* c) { return !waits_for_work(t, *c); });
  std::size_t shown = 0;
  for (const ChildProcess* c : workers) {
    constexpr std::size_t kShown = 4;
    if (shown == kShown) {
      return out + ", and so on";
    }
    out += shown++ == 0 ? ": " : ", ";
    out +=
        named ? fmt::format("worker {} ", c->pid) : fmt::format("child {} ({}) ", c->pid, c->name);
    out += waits_for_work(t, *c) ? "waits for work" : child_text(t, *c, l.e.id.cwd);
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
                         child_text(l.e.threads, c, l.e.id.cwd));
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
  if (l.t.activity != fr::Activity::kUninterruptible) {
    return {};
  }
  return fmt::format("{} while the kernel waits in {}{}{}",
                     has(l.t.wchan, "killable") ? "only SIGKILL ends it"
                                                : "cannot be interrupted or killed",
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

// A process forked by multiprocessing keeps its parent's stack below its own frames.
std::string fork_cuda(const Look& l) {
  constexpr int kAll = 1 << 20;
  return l.python("_lazy_init", "torch/cuda/__init__.py", 16) >= 0 &&
                 l.python("_launch", "multiprocessing/popen_fork.py", kAll) >= 0
             ? "starts CUDA in a forked process, which CUDA does not support: use the start method "
               "\"spawn\""
             : "";
}

std::string gil(const Look& l) {
  if (l.t.gil != fr::Gil::kWaits) {
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

// Python locks are semaphores of the system; since 3.14 threads park in _PySemaphore_Wait.
bool in_python_lock(const Look& l) {
  return (l.t.syscall == "futex" || l.t.activity == fr::Activity::kInterrupted) &&
         (l.native("PyThread_acquire_lock_timed") || l.native("_PySemaphore_Wait"));
}

// The wait, by the call of the standard library that takes the lock; "" if user code takes the lock
// itself.
std::string waits_in_library(const Look& l) {
  static constexpr struct {
    const char *function, *file, *text;
  } kCalls[] = {
      {"get", "/queue.py", "in Queue.get() for an item"},
      {"put", "/queue.py", "in Queue.put() for room"},
      {"join", "/queue.py", "in Queue.join() for the tasks to be done"},
      {"result", "/concurrent/futures/_base.py", "in Future.result()"},
      {"exception", "/concurrent/futures/_base.py", "in Future.exception()"},
      {"join", "/threading.py", "in Thread.join() for a thread to end"},
      {"Event.wait", "/threading.py", "in Event.wait()"},
      {"Barrier.wait", "/threading.py", "in Barrier.wait()"},
      {"Condition.wait", "/threading.py", "in Condition.wait()"},
      {"acquire", "/threading.py", "in acquire() of a semaphore or a lock"},
  };
  for (const auto& call : kCalls) {
    if (l.python(call.function, call.file) >= 0) {
      return call.text;
    }
  }
  return {};
}

// The holder is not recorded: threads that are in user code are listed as candidates.
std::string python_locks(const Look& l) {
  if (!in_python_lock(l)) {
    return {};
  }
  std::string waiting, others;
  for (const ThreadStack& t : l.e.threads.threads) {
    const Look other{l.e, t};
    const bool waits = in_python_lock(other);
    if (&t != &l.t && (waits || user_frame(l.e.threads, t) != nullptr)) {
      std::string& to = waits ? waiting : others;
      to += fmt::format("{}thread {} {}in {}", to.empty() ? "" : "; ", t.tid, waits ? "" : "is ",
                        where_text(l.e.threads, t, l.e.id.cwd));
    }
  }
  const std::string call = waits_in_library(l);
  return "waits " + (call.empty() ? "for a Python lock" : call) +
         (waiting.empty() ? "" : "; so does " + waiting) + (others.empty() ? "" : "; " + others);
}

std::string stopped(const Look& l) {
  return l.t.activity != fr::Activity::kStopped ? ""
         : l.t.state == "t"
             ? "is stopped by a debugger (state t)"
             : "is stopped (SIGSTOP or SIGTSTP, state T), so its Python line is not known; "
               "kill -CONT lets it go on";
}

FileLockWait file_lock_of(const Look& l) {
  FileLockWait out;
  const bool flock = l.t.syscall == "flock", record = l.t.syscall.starts_with("fcntl");
  // Python's filelock polls with non-blocking flock(); the second path is that of version 4.3.
  const int polls =
      std::max(l.python("", "filelock/_api.py", 1), l.python("", "filelock/_core/_acquire.py", 1));
  if (polls >= 0) {
    out.file = l.variable(polls, "lock_filename");
  } else if (flock || record) {
    for (const FileLock& lock : l.e.threads.locks) {
      const bool same = lock.waits && (lock.kind == "FLOCK") == flock &&
                        (lock.file.empty() || lock.file == l.t.syscall_on);
      if (same && out.holder < 0) {
        out.holder = lock.holder;
        out.holder_name = lock.holder_name;
      }
    }
    // A call of fcntl() without a lock does not sleep. A call that waits may be missing from the
    // kernel's list for a moment, as the sampling signal wakes it.
    out.file =
        flock || out.holder >= 0 || l.t.activity == fr::Activity::kAsleep ? l.t.syscall_on : "";
  }
  return out;
}

constexpr struct {
  HintKind kind;
  std::string (*find)(const Look&);
} kHints[] = {{HintKind::kLockFile, stale_lock},
              {HintKind::kFileLock, file_lock},
              {HintKind::kStore, store_wait},
              {HintKind::kLoaderWorker, loader_worker},
              {HintKind::kChild, child},
              {HintKind::kFifo, fifo},
              {HintKind::kUninterruptible, uninterruptible},
              {HintKind::kImportLock, import_lock},
              {HintKind::kForkedCuda, fork_cuda},
              {HintKind::kGil, gil},
              {HintKind::kPythonLock, python_locks},
              {HintKind::kStopped, stopped}};

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
      out.push_back({hint.kind, std::move(text)});
    }
  }
  return out;
}

bool has_thread_at_lock(const RankEvidence& e) {
  return std::ranges::any_of(e.threads.threads, [&](const ThreadStack& t) {
    const auto python = std::ranges::find_if(
        t.stack, [&](std::uint32_t frame) { return e.threads.frames[frame].python; });
    return python != t.stack.end() && !fr::is_library_file(e.threads.frames[*python].file) &&
           in_python_lock({e, t});
  });
}

namespace {

// The frame is in torch (other than its data loaders) or in a library that it waits in for ranks
// and devices.
bool is_torch(const ThreadFrame& f) {
  const std::string_view file(f.file);
  if (f.python) {
    return has(file, "/torch/") && !has(file, "/torch/utils/data/");
  }
  const std::string_view name = file.substr(file.rfind('/') + 1);
  constexpr std::string_view kLibraries[] = {"libtorch", "libc10", "libcuda", "libnccl", "libgloo"};
  return std::ranges::any_of(kLibraries, [&](std::string_view l) { return name.starts_with(l); });
}

// The frames from the innermost to the user's; empty: the stack is not known that far.
std::span<const std::uint32_t> inside_program(const ThreadsEvidence& all, const ThreadStack& t) {
  const ThreadFrame* user = user_frame(all, t);
  const bool native =
      std::ranges::any_of(t.stack, [&](std::uint32_t frame) { return !all.frames[frame].python; });
  for (std::size_t k = 0; native && k < t.stack.size(); ++k) {
    if (&all.frames[t.stack[k]] == user) {
      return std::span(t.stack).first(k + 1);
    }
  }
  return {};
}

bool is_within_torch(const ThreadsEvidence& all, const ThreadStack& t) {
  return std::ranges::any_of(inside_program(all, t),
                             [&](std::uint32_t frame) { return is_torch(all.frames[frame]); });
}

}  // namespace

bool is_in_torch(const RankEvidence& e) {
  const ThreadStack* t = main_thread(e.threads, e.id.pid);
  return t != nullptr && is_within_torch(e.threads, *t);
}

bool is_in_program(const RankEvidence& e) {
  const ThreadStack* t = main_thread(e.threads, e.id.pid);
  if (t == nullptr || inside_program(e.threads, *t).empty() || is_within_torch(e.threads, *t) ||
      !file_lock_wait(e).file.empty() || !lock_wait(e).path.empty()) {
    return false;
  }
  // A torch thread may hold the lock, or fill the queue, that the main thread waits for.
  return t->syscall != "futex" ||
         std::ranges::none_of(e.threads.threads, [&](const ThreadStack& o) {
           return o.tid != t->tid && is_within_torch(e.threads, o);
         });
}

LockWait lock_wait(const RankEvidence& e) {
  const ThreadStack* t = main_thread(e.threads, e.id.pid);
  return {t == nullptr ? std::string() : lock_file_of({e, *t}), e.id.host, e.id.start};
}

FileLockWait file_lock_wait(const RankEvidence& e) {
  const ThreadStack* t = main_thread(e.threads, e.id.pid);
  return t == nullptr ? FileLockWait{} : file_lock_of({e, *t});
}

std::string file_lock_text(const RankEvidence& e, Rank holder) {
  const FileLockWait wait = file_lock_wait(e);
  if (wait.file.empty()) {
    return {};
  }
  std::string out = fmt::format("waits for the lock of {}", short_file(wait.file, e.id.cwd));
  if (holder >= 0) {
    return out + fmt::format(", which rank {} holds", holder);
  }
  if (wait.holder > 0) {
    out += fmt::format(", which process {}{} holds", wait.holder,
                       wait.holder_name.empty() ? "" : " (" + wait.holder_name + ")");
  }
  return out;
}

Rendezvous rendezvous_of(const RankEvidence& e) {
  Rendezvous out;
  const ThreadStack* t = main_thread(e.threads, e.id.pid);
  if (t == nullptr || t->stack.empty()) {
    return out;
  }
  const Look look{e, *t};
  out.known = true;
  out.within = look.python("_rendezvous_handler", "distributed/rendezvous.py", 32) >= 0;
  out.address = store_address(look);
  return out;
}

bool serves_store(const RankEvidence& e) {
  return std::ranges::any_of(e.threads.threads, [&](const ThreadStack& t) {
    return t.name.starts_with("pt_tcpstore") ||
           std::ranges::any_of(t.stack, [&](std::uint32_t frame) {
             return frame < e.threads.frames.size() &&
                    e.threads.frames[frame].function.find("StoreDaemon") != std::string::npos;
           });
  });
}

bool connects_to_store(const RankEvidence& e) {
  const ThreadStack* t = main_thread(e.threads, e.id.pid);
  return t != nullptr && connects({e, *t});
}

const ThreadStack* program_thread(const RankEvidence& e) {
  if (script_is_over(e.threads, e.id.pid)) {
    for (const ThreadStack& t : e.threads.threads) {
      const auto issued = [&](const Record& r) {
        return communicates(r) && static_cast<int>(r.tid) == t.tid;
      };
      if (t.tid != e.id.pid && user_frame(e.threads, t) != nullptr &&
          std::ranges::any_of(e.records, issued)) {
        return &t;
      }
    }
  }
  return main_thread(e.threads, e.id.pid);
}

const ThreadStack* told_thread(const RankEvidence& e) {
  if (e.exit.kind == ExitBy::kCrash) {
    constexpr std::string_view kBefore = "; thread ";
    if (const std::size_t at = e.exit.message.find(kBefore); at != std::string::npos) {
      const int tid = std::atoi(e.exit.message.c_str() + at + kBefore.size());
      if (const ThreadStack* t = thread_of(e.threads, tid); t != nullptr) {
        return t;
      }
    }
  }
  return program_thread(e);
}

Site now_at(const RankEvidence& e) {
  const ThreadStack* t = told_thread(e);
  const ThreadFrame* f = t != nullptr ? user_frame(e.threads, *t) : nullptr;
  return f == nullptr ? Site{}
                      : Site{std::string(short_file(f->file, e.id.cwd)), f->line, f->function};
}

Site stopped_at(const RankEvidence& e) {
  const bool raised = e.exit.kind == ExitBy::kException && e.exit.stack != 0;
  return raised ? user_site(e, e.exit.stack) : now_at(e);
}

}  // namespace frtrace
