// processes.hpp - runs many processes, a bounded number at a time, each in a process group of its
// own that is ended at its deadline; an event loop over pidfds and pipes.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "collect/launch.hpp"

namespace frtrace::collect {

struct Ended {
  enum class How { kExited, kSignalled, kDeadline, kInterrupted, kNotStarted } how = How::kExited;
  int status = 0;  // exit status, signal, or errno
  double seconds = 0;
  std::string out, err;  // err keeps only the last part
};

// Starts the process in its own process group, with no signal blocked. in -1: no standard input.
// Returns 0 or errno.
int spawn(const Command& command, int in, int out, int err, int& pid);

class Processes {
 public:
  using Milliseconds = std::chrono::milliseconds;

  Processes(std::size_t window, Milliseconds deadline) : window_(window), deadline_(deadline) {}

  // Reports each process once, on this thread. `tick` is called a few times a second.
  void run(const std::vector<Command>& commands,
           const std::function<void(std::size_t, Ended)>& ended, const std::function<void()>& tick);
  // SIGINT or SIGTERM came: all were ended.
  bool interrupted() const { return interrupted_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Child {
    std::size_t command = 0;
    int pid = -1, pidfd = -1, out = -1, err = -1;
    Clock::time_point begun, told;
    bool told_to_end = false;
    Ended end;
  };

  bool start(const Command& command, Child& child);
  void wait_for_events(int signals);
  bool reap(Child& child);
  void check_deadline(Child& child);

  std::size_t window_;
  Milliseconds deadline_;
  std::vector<Child> running_;
  bool interrupted_ = false;
};

}  // namespace frtrace::collect
