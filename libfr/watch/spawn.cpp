// spawn.cpp - clone() and execve() by hand. posix_spawn() would make the program a child of the
// host, so the host's handler of SIGCHLD and wait() would see it; fork() would copy the page tables
// of a process with a device's memory in them and run the handlers of pthread_atfork().
#include "watch/spawn.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace fr {
namespace {

constexpr std::size_t kStackBytes = 16 * 1024;

using SignalSet = std::uint64_t;  // as the kernel has it
constexpr SignalSet kAllSignals = ~SignalSet{0}, kNoSignals = 0;

struct Program {
  const char* path;
  const char* const* arguments;
  const char* const* environment;
  char* stack;  // 2 * kStackBytes
  bool failed;
};

// Calls of the kernel alone in what follows: a sanitizer's versions of these functions keep books in
// the memory that is shared.
template <class... Argument>
long kernel(long number, Argument... arguments) noexcept {
  return syscall(number, arguments...);
}

void close_from(unsigned first) noexcept {
#ifdef SYS_close_range
  if (kernel(SYS_close_range, first, ~0u, 0) == 0) {
    return;
  }
#endif
  constexpr rlim_t kMost = 65536;  // descriptors beyond are left open
  rlimit files{};
  kernel(SYS_prlimit64, 0, RLIMIT_NOFILE, nullptr, &files);
  const rlim_t end = files.rlim_cur < kMost ? files.rlim_cur : kMost;
  for (rlim_t fd = first; fd < end; ++fd) {
    kernel(SYS_close, static_cast<int>(fd));
  }
}

void limit(int resource, rlim_t most) noexcept {
  rlimit now{};
  if (kernel(SYS_prlimit64, 0, resource, nullptr, &now) == 0) {
    now.rlim_cur = now.rlim_max < most ? now.rlim_max : most;
    kernel(SYS_prlimit64, 0, resource, &now, nullptr);
  }
}

void block(const SignalSet& which, SignalSet* before) noexcept {
  kernel(SYS_rt_sigprocmask, SIG_SETMASK, &which, before, sizeof which);
}

// Runs in the memory of the process that spawns, while the spawning thread waits; descriptors,
// limits and session are its own. Signals are blocked until its table has no handlers of the host.
__attribute__((no_sanitize("address,thread,undefined"))) int become(void* argument) {
  auto& program = *static_cast<Program*>(argument);
  kernel(SYS_setsid);
  const long null = kernel(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY, 0);
  if (null > 0) {
    kernel(SYS_dup3, static_cast<int>(null), STDIN_FILENO, 0);
  }
  kernel(SYS_dup3, STDERR_FILENO, STDOUT_FILENO, 0);
  close_from(STDERR_FILENO + 1);
  kernel(SYS_setpriority, PRIO_PROCESS, 0, kSpawnedNice);
  limit(RLIMIT_AS, kSpawnedMemory_bytes);
  limit(RLIMIT_CPU, kSpawnedCpu_s);
  limit(RLIMIT_CORE, 0);
  for (int signal = 1; signal < NSIG; ++signal) {
    constexpr std::uint64_t kDefault[4] = {};  // the kernel's sigaction: SIG_DFL, no flags
    kernel(SYS_rt_sigaction, signal, kDefault, nullptr, sizeof(SignalSet));
  }
  block(kNoSignals, nullptr);
  kernel(SYS_execve, program.path, program.arguments, program.environment);
  program.failed = true;
  kernel(SYS_exit_group, 127);
  return 127;
}

// Ends as soon as the program runs, which so has no parent here. execve() sets the signal for the
// parent back to SIGCHLD: a program that ends at once would run the host's handler here, were signals
// not blocked.
__attribute__((no_sanitize("address,thread,undefined"))) int stand_between(void* argument) {
  auto& program = *static_cast<Program*>(argument);
  if (clone(become, program.stack + 2 * kStackBytes, CLONE_VM | CLONE_VFORK, argument) < 0) {
    program.failed = true;
  }
  kernel(SYS_exit_group, 0);
  return 0;
}

}  // namespace

bool spawn(const char* path, const char* const* arguments,
           const char* const* environment) noexcept {
  alignas(16) char stack[2 * kStackBytes];
  Program program{path, arguments, environment, stack, false};
  SignalSet before = 0;
  block(kAllSignals, &before);
  const int between = clone(stand_between, stack + kStackBytes, CLONE_VM | CLONE_VFORK, &program);
  block(before, nullptr);
  if (between < 0) {
    return false;
  }
  while (waitpid(between, nullptr, __WCLONE) < 0 && errno == EINTR) {
  }
  return !program.failed;
}

}  // namespace fr
