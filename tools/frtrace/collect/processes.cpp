#include "collect/processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>

namespace frtrace::collect {

namespace {

constexpr std::size_t kMostOut = std::size_t{1} << 30, kMostErr = 4096;
constexpr int kTick_ms = 250;
constexpr std::chrono::milliseconds kGrace{2000};  // between SIGTERM and SIGKILL

// Reads the bytes available now. At the end of file closes the descriptor and sets it to -1.
void drain(int& fd, std::string& to, std::size_t most, bool keep_last) {
  char bytes[65536];
  while (fd >= 0) {
    const ssize_t n = ::read(fd, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0 && errno == EAGAIN) {
      return;
    }
    if (n <= 0) {
      ::close(fd);
      fd = -1;
      return;
    }
    to.append(bytes, to.size() < most || keep_last ? static_cast<std::size_t>(n) : 0);
    if (keep_last && to.size() > most) {
      to.erase(0, to.size() - most);
    }
  }
}

std::vector<std::string> environment_for(const Command& command) {
  std::vector<std::string> out;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const bool goes = std::any_of(command.env.begin(), command.env.end(), [&](std::string_view e) {
      return e.ends_with('*') ? text.starts_with(e.substr(0, e.size() - 1))
                              : text.starts_with(e.substr(0, e.find('=') + 1));
    });
    if (!goes || text.starts_with("SLURM_CONF=")) {
      out.emplace_back(text);
    }
  }
  std::copy_if(command.env.begin(), command.env.end(), std::back_inserter(out),
               [](const std::string& e) { return !e.ends_with('*'); });
  return out;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  for (const std::string& word : words) {
    out.push_back(const_cast<char*>(word.c_str()));
  }
  out.push_back(nullptr);
  return out;
}

}  // namespace

int spawn(const Command& command, int in, int out, int err, int& pid) {
  posix_spawnattr_t how;
  posix_spawn_file_actions_t files;
  ::posix_spawnattr_init(&how);
  ::posix_spawn_file_actions_init(&files);
  sigset_t none, standard;
  sigemptyset(&none);
  sigemptyset(&standard);
  sigaddset(&standard, SIGPIPE);
  ::posix_spawnattr_setsigmask(&how, &none);
  ::posix_spawnattr_setsigdefault(&how, &standard);
  ::posix_spawnattr_setpgroup(&how, 0);
  ::posix_spawnattr_setflags(
      &how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  if (in >= 0) {
    ::posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
  } else {
    ::posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  ::posix_spawn_file_actions_adddup2(&files, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, err, STDERR_FILENO);
  const std::vector<std::string> environment = environment_for(command);
  const int error = ::posix_spawnp(&pid, command.argv.front().c_str(), &files, &how,
                                   pointers(command.argv).data(), pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&how);
  return error;
}

bool Processes::start(const Command& command, Child& child) {
  child.begun = Clock::now();
  int out[2] = {-1, -1}, err[2] = {-1, -1};
  int error = ::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0 ? errno : 0;
  error = error != 0 ? error : spawn(command, -1, out[1], err[1], child.pid);
  ::close(out[1]);
  ::close(err[1]);
  if (error != 0) {
    ::close(out[0]);
    ::close(err[0]);
    child.end.how = Ended::How::kNotStarted;
    child.end.status = error;
    return false;
  }
  for (const int fd : {out[0], err[0]}) {
    ::fcntl(fd, F_SETFL, O_NONBLOCK);
  }
  child.out = out[0];
  child.err = err[0];
  child.pidfd = static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0));
  return true;
}

// Without pidfds (Linux before 5.3) the tick finds the processes that have ended.
void Processes::wait_for_events(int signals) {
  std::vector<pollfd> fds{{signals, POLLIN, 0}};
  for (const Child& c : running_) {
    for (const int fd : {c.pidfd, c.out, c.err}) {
      if (fd >= 0) {
        fds.push_back({fd, POLLIN, 0});
      }
    }
  }
  ::poll(fds.data(), fds.size(), kTick_ms);
  interrupted_ = interrupted_ || (fds.front().revents & POLLIN) != 0;
}

void Processes::check_deadline(Child& c) {
  const auto now = Clock::now();
  if (!c.told_to_end && (interrupted_ || now - c.begun > deadline_)) {
    c.end.how = interrupted_ ? Ended::How::kInterrupted : Ended::How::kDeadline;
    c.told_to_end = true;
    c.told = now;
    ::kill(-c.pid, SIGTERM);
  } else if (c.told_to_end && now - c.told > kGrace) {
    ::kill(-c.pid, SIGKILL);
  }
}

// True: the process has ended and its output is read.
bool Processes::reap(Child& c) {
  drain(c.out, c.end.out, kMostOut, false);
  drain(c.err, c.end.err, kMostErr, true);
  int status = 0;
  if (::waitpid(c.pid, &status, WNOHANG) != c.pid) {
    check_deadline(c);
    return false;
  }
  // Processes left in its group may hold the pipes open; they are not waited for.
  drain(c.out, c.end.out, kMostOut, false);
  drain(c.err, c.end.err, kMostErr, true);
  for (const int fd : {c.pidfd, c.out, c.err}) {
    if (fd >= 0) {
      ::close(fd);
    }
  }
  if (c.told_to_end) {
    ::kill(-c.pid, SIGKILL);
  } else {
    c.end.how = WIFEXITED(status) ? Ended::How::kExited : Ended::How::kSignalled;
    c.end.status = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
  }
  c.end.seconds = std::chrono::duration<double>(Clock::now() - c.begun).count();
  return true;
}

void Processes::run(const std::vector<Command>& commands,
                    const std::function<void(std::size_t, Ended)>& ended,
                    const std::function<void()>& tick) {
  sigset_t ends, before;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &ends, &before);
  const int signals = ::signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
  std::size_t next = 0;
  while (next < commands.size() || !running_.empty()) {
    for (; next < commands.size() && (interrupted_ || running_.size() < window_); ++next) {
      Child child;
      child.command = next;
      child.end.how = Ended::How::kInterrupted;
      if (!interrupted_ && start(commands[next], child)) {
        running_.push_back(std::move(child));
      } else {
        ended(next, std::move(child.end));
      }
    }
    if (running_.empty()) {
      continue;
    }
    wait_for_events(signals);
    for (std::size_t i = 0; i < running_.size();) {
      if (reap(running_[i])) {
        Child gone = std::move(running_[i]);
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
        ended(gone.command, std::move(gone.end));
      } else {
        ++i;
      }
    }
    tick();
  }
  signalfd_siginfo taken{};
  while (::read(signals, &taken, sizeof taken) > 0) {
  }
  ::close(signals);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace frtrace::collect
