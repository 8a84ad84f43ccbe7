// exit_signals.cpp - the signals that end a process. Handlers use async-signal-safe calls
// only and hand on to whatever was there before, so that the process dies as it would have.
#include "stop/exit_signals.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "format/codes.hpp"
#include "format/system_names.hpp"
#include "format/text.hpp"
#include "format/ticks.hpp"
#include "recorder/recorder.hpp"
#include "sample/process.hpp"
#include "sample/thread_sampler.hpp"
#include "watch/control_page.hpp"
#include "watch/watchdog.hpp"

namespace fr {
namespace {

constexpr int kEnding[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};

// Those that a script may use for something else than its end are its own where it handles them.
bool may_be_no_end(int signal) noexcept {
  return signal == SIGHUP || signal == SIGQUIT;
}
// Handlers before ours; indexed by signal. Static: read by handlers, also in forked children.
struct sigaction g_before[NSIG];
struct sigaction g_first_before[NSIG];  // before ours was installed for the first time
std::atomic<bool> g_installed[NSIG];
// Handlers that hand on to ours, which hands on to them: the second round goes to the first one.
thread_local int t_depth __attribute__((tls_model("initial-exec"))) = 0;
constexpr u64 kDump_ns = 5'000'000'000ull;
constexpr u64 kDumpAlive_ns = 1'000'000'000ull;  // where the script has a handler of its own
constexpr u64 kCopy_ns = 3'000'000'000ull;       // for copies of the rings
constexpr u64 kCopyAlive_ns = 500'000'000ull;
constexpr u64 kElected_ns = 2'000'000'000ull;  // electing the rank that starts frtrace
constexpr u64 kWord_ns = 8'000'000'000ull;     // torchrun's error file, with the verdict
std::atomic<bool> g_evidence_left{false};      // the handler of a fatal signal has begun
std::atomic<bool> g_handled_noted{false};      // the same for a signal that the program handles
std::atomic<i32> g_leaving{0};                 // thread in the handler; 0 none, or done
std::atomic<int> g_deferred{0};                // signal that came meanwhile on that thread
std::atomic<bool> g_ring_copied{false};        // and it worked

// Will the process die of it? Not where the script has a handler of its own.
bool is_fatal(int signal) noexcept {
  return (g_before[signal].sa_flags & SA_SIGINFO) == 0 && g_before[signal].sa_handler == SIG_DFL;
}

// "sent by process 4242 (slurmstepd)"; "" where the kernel sent it, as for Ctrl-C.
void describe_sender(i32 pid, char* to, std::size_t size) noexcept {
  to[0] = '\0';
  if (pid <= 0) {
    return;
  }
  char name[32];
  process_name(pid, name, sizeof name);
  format(to, size, name[0] != '\0' ? "sent by process %d (%s)" : "sent by process %d", pid, name);
}

// First what cannot fail but for the disk: copies of the rings. Then, with what is left of the time,
// a dump: where every thread is.
void leave_evidence(Recorder& r, int signal, const siginfo_t* info, const void* context) noexcept {
  Header& h = r.region.header();
  const bool fatal = is_fatal(signal);
  i32 handled_before = 0;
  if (h.exit.signal.compare_exchange_strong(handled_before, signal) || fatal) {
    h.exit.signal.store(signal);
    h.exit.sender_pid.store(info != nullptr && info->si_code <= 0 ? info->si_pid : 0);
    if (h.exit.time_unix_ns.load() == 0 || handled_before != 0) {
      h.exit.time_unix_ns.store(unix_now_ns());
    }
    if (h.exit.state.load() < kSignalled) {
      h.exit.state.store(kSignalled, std::memory_order_release);
    }
    u32 free = 0;
    if (fatal && h.exit.claimed.compare_exchange_strong(free, 1)) {
      format(h.exit.kind, sizeof h.exit.kind, "%s", word(dump::ExitBy::kSignal));
      format(h.exit.type, sizeof h.exit.type, "SIG%s", signal_name(signal));
      describe_sender(h.exit.sender_pid.load(), h.exit.message, sizeof h.exit.message);
      h.exit.ready.store(1, std::memory_order_release);
    }
  }
  char reason[64];
  format(reason, sizeof reason, "signal %d", signal);
  const u64 incident = r.control->open_incident(h.incident.load(), h.rank.load(), reason, true);
  h.incident.store(incident);
  PeerRow* row = r.control->own();
  const bool dumped_before = row != nullptr && incident != 0 && row->dumped.load() == incident;
  g_ring_copied.store(
      r.watchdog->copier().copy(incident, dumped_before, fatal ? kCopy_ns : kCopyAlive_ns));
  if (row != nullptr) {
    row->exit_signal.store(signal);
    row->exit_unix_ns.store(unix_now_ns());
    if (g_ring_copied.load()) {
      row->dumped.store(incident);
    }
  }
  // Launchers give a process 30 s between SIGTERM and SIGKILL, often less; one that goes on has
  // other things to do.
  const Interrupted here(context);
  const bool dumped = r.watchdog->request_dump(reason, Trigger::kEndSignal,
                                               fatal ? kDump_ns : kDumpAlive_ns, nullptr, 0);
  if (dumped && g_ring_copied.exchange(true)) {
    r.watchdog->copier().remove_own_copy();
  }
  if (dumped && fatal) {
    r.watchdog->verdict().await_start(kElected_ns);
    r.watchdog->verdict().leave_word(kWord_ns);
  }
}

i32 own_tid() noexcept {
  return static_cast<i32>(syscall(SYS_gettid));
}

// Evidence is left once of signals that the program handles, and once of those that end it.
bool evidence_is_due(int signal) noexcept {
  if (is_fatal(signal)) {
    return !g_evidence_left.exchange(true);
  }
  return !may_be_no_end(signal) && !g_evidence_left.load() && !g_handled_noted.exchange(true);
}

// A second signal must not end the process while the first one's evidence is being written. False
// on the thread that writes it: it goes on with that, and then the first signal ends the process, or
// the second, deferred one.
bool await_first(int signal) noexcept {
  const u64 deadline = monotonic_ns() + kCopy_ns + kDump_ns + kElected_ns + kWord_ns;
  while (g_leaving.load() != 0 && monotonic_ns() < deadline) {
    if (g_leaving.load() == own_tid()) {
      g_deferred.store(signal);
      return false;
    }
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
  return true;
}

void on_signal(int signal, siginfo_t* info, void* context) noexcept {
  const int kept_errno = errno;
  Recorder* r = recorder();
  const bool ours = r != nullptr && r->pid == getpid();
  if (ours && r->options.signal == signal) {
    r->watchdog->note_signal(signal);
  } else if (ours && !r->ended.load() && evidence_is_due(signal)) {
    g_leaving.store(own_tid());
    if (is_fatal(signal)) {
      g_hot.store(nullptr, std::memory_order_release);  // no thread writes while the ring is copied
    }
    leave_evidence(*r, signal, info, context);
    g_leaving.store(0);
    if (const int second = g_deferred.exchange(0); second != 0 && !is_fatal(signal)) {
      raise(second);
    }
  } else if (ours && is_fatal(signal) && !await_first(signal)) {
    errno = kept_errno;
    return;
  }
  const struct sigaction& before = t_depth++ == 0 ? g_before[signal] : g_first_before[signal];
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction != nullptr) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler == SIG_DFL && (r == nullptr || r->options.signal != signal)) {
    // Dies as without us: default action, delivered again when this handler returns.
    struct sigaction standard{};
    standard.sa_handler = SIG_DFL;
    sigaction(signal, &standard, nullptr);
    if (r != nullptr && r->pid == getpid()) {
      if (PeerRow* row = r->control->own()) {
        row->state.store(kPeerExited);
      }
      if (!r->region.name.empty() && g_ring_copied.load()) {
        char path[PATH_MAX];
        format(path, sizeof path, "%s/%s", r->region.dir.c_str(), r->region.name.c_str());
        unlink(path);  // its copy is safe on disk
      }
    }
    raise(signal);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  }
  --t_depth;
  errno = kept_errno;
}

void install(int signal) noexcept {
  struct sigaction now;
  if (sigaction(signal, nullptr, &now) != 0 ||
      ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_signal) ||
      ((now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_IGN)) {
    return;  // ours already, or the process ignores it (nohup)
  }
  g_before[signal] = now;
  if (!g_installed[signal].load()) {
    g_first_before[signal] = now;
  }
  struct sigaction ours{};
  ours.sa_sigaction = on_signal;
  // not on the alternate stack: those that others set up are too small for paths
  ours.sa_flags = SA_SIGINFO | (now.sa_flags & SA_RESTART);
  ours.sa_mask = now.sa_mask;
  if (sigaction(signal, &ours, nullptr) == 0) {
    g_installed[signal].store(true);
  }
}

}  // namespace

void install_end_handlers(Recorder& r) noexcept {
  g_evidence_left.store(false);
  g_handled_noted.store(false);
  g_leaving.store(0);
  g_ring_copied.store(false);
  for (const int signal : kEnding) {
    install(signal);
  }
  if (r.options.signal != 0) {
    install(r.options.signal);
  }
}

// A handler set after ours (signal.signal in the script) hides ours. It becomes the one that
// ours calls; one that calls ours in turn stops at evidence_is_due(), and SIG_DFL is not reached.
void check_end_handlers() noexcept {
  for (const int signal : kEnding) {
    if (!g_evidence_left.load() && g_installed[signal].load()) {
      install(signal);
    }
  }
}

}  // namespace fr
