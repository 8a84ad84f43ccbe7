// proc_task.cpp - what /proc says of a thread: state, system call and what that call is about.
#include "sample/proc_task.hpp"

#include <arpa/inet.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <iterator>

#include "format/syscalls.hpp"
#include "format/text.hpp"
#include "sample/memory_read.hpp"
#include "sample/small_file.hpp"

namespace fr {
namespace {

std::size_t read_file(i32 pid, i32 tid, const char* name, char* to, std::size_t size) noexcept {
  char path[96];
  format(path, sizeof path, "/proc/%d/task/%d/%s", pid, tid, name);
  return read_small_file(path, to, size);
}

u64 number(const char*& at, u64 base) noexcept {
  u64 value = 0;
  for (;; ++at) {
    const char c = *at;
    const u64 digit = c >= '0' && c <= '9'   ? static_cast<u64>(c - '0')
                      : c >= 'a' && c <= 'f' ? static_cast<u64>(c - 'a' + 10)
                                             : 99;
    if (digit >= base) {
      return value;
    }
    value = value * base + digit;
  }
}

u64 field(const char* text, const char* key, u64 base) noexcept {
  const char* at = std::strstr(text, key);
  if (at == nullptr) {
    return 0;
  }
  at += std::strlen(key);
  while (*at == ' ' || *at == '\t') {
    ++at;
  }
  return number(at, base);
}

struct Counters {
  u64 cpu_ns, runqueue_ns, voluntary, involuntary;
};

bool read_counters(i32 pid, Task& t, Counters& c) noexcept {
  char text[4096];
  if (read_file(pid, t.tid, "status", text, sizeof text) == 0) {
    return false;
  }
  const char* state = std::strstr(text, "\nState:\t");
  t.state = state != nullptr ? state[8] : '?';
  t.signals_blocked = field(text, "\nSigBlk:", 16);
  c.voluntary = field(text, "\nvoluntary_ctxt_switches:", 10);
  c.involuntary = field(text, "\nnonvoluntary_ctxt_switches:", 10);
  const char* at = text;
  if (read_file(pid, t.tid, "schedstat", text, sizeof text) != 0) {
    c.cpu_ns = number(at, 10);
    at += *at == ' ' ? 1 : 0;
    c.runqueue_ns = number(at, 10);
  } else if (read_file(pid, t.tid, "stat", text, sizeof text) != 0) {
    // a kernel without schedstat: user and system time in clock ticks, fields 14 and 15
    at = std::strrchr(text, ')');
    for (int skip = 0; at != nullptr && skip < 12; ++skip) {
      at = std::strchr(at + 1, ' ');
    }
    if (at != nullptr) {
      ++at;
      const u64 user = number(at, 10);
      at += *at == ' ' ? 1 : 0;
      const auto ticks = static_cast<u64>(sysconf(_SC_CLK_TCK));
      c.cpu_ns = (user + number(at, 10)) * (1'000'000'000ull / (ticks != 0 ? ticks : 100));
    }
  }
  return true;
}

void socket_ends(int fd, char* out, std::size_t size) noexcept {
  sockaddr_storage ends[2] = {};
  socklen_t bytes = sizeof ends[0];
  const bool local = getsockname(fd, reinterpret_cast<sockaddr*>(&ends[0]), &bytes) == 0;
  bytes = sizeof ends[1];
  const bool remote = getpeername(fd, reinterpret_cast<sockaddr*>(&ends[1]), &bytes) == 0;
  if (!local) {
    return;
  }
  char text[2][64] = {"?", "?"};
  for (int i = 0; i < 2; ++i) {
    char host[INET6_ADDRSTRLEN] = "";
    if (ends[i].ss_family == AF_INET) {
      const auto& a = reinterpret_cast<const sockaddr_in&>(ends[i]);
      inet_ntop(AF_INET, &a.sin_addr, host, sizeof host);
      format(text[i], sizeof text[i], "%s:%u", host, static_cast<unsigned>(ntohs(a.sin_port)));
    } else if (ends[i].ss_family == AF_INET6) {
      const auto& a = reinterpret_cast<const sockaddr_in6&>(ends[i]);
      inet_ntop(AF_INET6, &a.sin6_addr, host, sizeof host);
      format(text[i], sizeof text[i], "[%s]:%u", host, static_cast<unsigned>(ntohs(a.sin6_port)));
    } else if (ends[i].ss_family == AF_UNIX) {
      format(text[i], sizeof text[i], "unix");
    }
  }
  format(out, size, remote ? "socket %s -> %s" : "socket %s", text[0], text[1]);
}

void descriptor(i32 pid, u64 fd, char* out, std::size_t size) noexcept {
  char path[64];
  char link[160];
  format(path, sizeof path, "/proc/%d/fd/%d", pid, static_cast<int>(fd));
  const ssize_t n = readlink(path, link, sizeof link - 1);
  if (n <= 0) {
    format(out, size, "descriptor %d", static_cast<int>(fd));
    return;
  }
  link[n] = '\0';
  format(out, size, "%s", link);
  if (std::strncmp(link, "socket:", 7) == 0 && pid == getpid()) {
    socket_ends(static_cast<int>(fd), out, size);
  }
}

// The time that a sleeping thread of this process has left; where the call does not tell when it ends,
// the time that the thread asked for. 0 ns: unknown.
u64 sleep_ns(const Task& t, SyscallArgument what) noexcept {
  using enum SyscallArgument;
  const bool absolute = what == kClockSleep && (t.args[1] & TIMER_ABSTIME) != 0;
  const u64 at = t.args[what == kSleep ? 0 : what == kClockSleep ? 2 : 4];
  timespec asked{}, now{};
  if (at == 0 || !peek(at, &asked, sizeof asked) || asked.tv_sec < 0 ||
      (absolute && clock_gettime(static_cast<clockid_t>(t.args[0]), &now) != 0)) {
    return 0;
  }
  const i64 ns = (asked.tv_sec - now.tv_sec) * 1'000'000'000 + asked.tv_nsec - now.tv_nsec;
  return ns > 0 ? static_cast<u64>(ns) : 1;
}

void describe_sleep(const Task& t, SyscallArgument what, char* out, std::size_t size) noexcept {
  constexpr u64 kMs_ns = 1'000'000, kSeconds_ms = 10'000;
  const u64 ns = sleep_ns(t, what);
  const u64 ms = ns / kMs_ns;
  if (ns != 0 && ms < kSeconds_ms) {
    format(out, size, "%l ms", ms);
  } else if (ns != 0) {
    format(out, size, "%l s", ms / 1000);
  }
}

void fill_target(i32 pid, Task& t) noexcept {
  t.target[0] = '\0';
  using enum SyscallArgument;
  const SyscallArgument what = syscall_argument(t.syscall);
  const bool own = pid == getpid();
  pollfd first{};
  switch (what) {
    case kDescriptor:
      descriptor(pid, t.args[0], t.target, sizeof t.target);
      break;
    case kPathFirst:
    case kPathSecond:
      if (own) {
        peek_text(t.args[what == kPathFirst ? 0 : 1], t.target, sizeof t.target);
      }
      break;
    case kFutex:
      format(t.target, sizeof t.target, "0x%x", t.args[0]);
      break;
    case kPollSet:
      if (own && t.args[1] > 0 && peek(t.args[0], &first, sizeof first)) {
        char name[140];
        descriptor(pid, static_cast<u64>(first.fd), name, sizeof name);
        if (t.args[1] > 1) {
          format(t.target, sizeof t.target, "%s and %l more", name, t.args[1] - 1);
        } else {
          format(t.target, sizeof t.target, "%s", name);
        }
      }
      break;
    case kProcess:
      format(t.target, sizeof t.target, "process %d", static_cast<int>(t.args[0]));
      break;
    case kSleep:
    case kClockSleep:
    case kSelect:
      if (own) {
        describe_sleep(t, what, t.target, sizeof t.target);
      }
      break;
    case kNothing:
      break;
  }
}

void read_syscall(i32 pid, Task& t) noexcept {
  char text[256];
  t.syscall = kSyscallUnknown;
  t.sp = t.pc = 0;
  if (read_file(pid, t.tid, "syscall", text, sizeof text) == 0) {
    return;
  }
  if (text[0] == 'r') {
    t.syscall = kOnProcessor;
    return;
  }
  const char* at = text;
  if (*at == '-') {
    t.syscall = kNoSyscall;
    at = std::strchr(at, ' ');
  } else {
    t.syscall = static_cast<i64>(number(at, 10));
  }
  const auto next = [&at]() -> u64 {
    at = at != nullptr ? std::strstr(at, "0x") : nullptr;
    if (at == nullptr) {
      return 0;
    }
    at += 2;
    return number(at, 16);
  };
  if (t.syscall >= 0) {
    for (u64& arg : t.args) {
      arg = next();
    }
  }
  t.sp = next();
  t.pc = next();
}

// CPU time of all threads, and of children that it has waited for: fields 14 to 17.
u64 cpu_ticks_of(i32 pid) noexcept {
  char path[48];
  char text[1024];
  format(path, sizeof path, "/proc/%d/stat", pid);
  read_small_file(path, text, sizeof text);
  const char* at = std::strrchr(text, ')');  // the name before it may hold anything
  for (int field = 2; at != nullptr && field < 14; ++field) {
    at = std::strchr(at + 1, ' ');
  }
  u64 sum = 0;
  for (int field = 14; at != nullptr && *at == ' ' && field <= 17; ++field) {
    sum += number(++at, 10);
  }
  return sum;
}

struct Descendants {
  u64 ticks;
  int generations;  // still to be looked at
};

void add_descendant(i32 pid, void* context) noexcept {
  auto& d = *static_cast<Descendants*>(context);
  d.ticks += cpu_ticks_of(pid);
  if (d.generations > 0) {
    --d.generations;
    each_child(pid, pid, add_descendant, context);
    ++d.generations;
  }
}

}  // namespace

bool sample_first(i32 pid, Task& t) noexcept {
  const i32 tid = t.tid;
  t = {};
  t.tid = tid;
  t.syscall = kSyscallUnknown;
  Counters c{};
  if (!read_counters(pid, t, c)) {
    return false;
  }
  char name[32];
  const std::size_t n = read_file(pid, tid, "comm", name, sizeof name);
  if (n > 0) {
    name[n - 1] = '\0';  // the line's end
    format(t.name, sizeof t.name, "%s", name);
  }
  t.cpu_ns = c.cpu_ns;
  t.runqueue_ns = c.runqueue_ns;
  t.voluntary_switches = c.voluntary;
  t.involuntary_switches = c.involuntary;
  return true;
}

bool sample_again(i32 pid, Task& t, u64 first_look_ns, u64 now_ns) noexcept {
  Counters c{};
  if (!read_counters(pid, t, c)) {
    t.state = 'X';
    t.cpu_ns = t.runqueue_ns = t.voluntary_switches = t.involuntary_switches = 0;
    return false;
  }
  const auto growth = [](u64 now, u64 before) { return now > before ? now - before : 0; };
  t.cpu_ns = growth(c.cpu_ns, t.cpu_ns);
  t.runqueue_ns = growth(c.runqueue_ns, t.runqueue_ns);
  t.voluntary_switches = growth(c.voluntary, t.voluntary_switches);
  t.involuntary_switches = growth(c.involuntary, t.involuntary_switches);
  t.looked_ns = now_ns - first_look_ns;
  if (read_file(pid, t.tid, "wchan", t.wchan, sizeof t.wchan) != 0 &&
      std::strcmp(t.wchan, "0") == 0) {
    t.wchan[0] = '\0';
  }
  read_syscall(pid, t);
  fill_target(pid, t);
  return true;
}

void each_child(i32 pid, i32 tid, void (*fn)(i32 child, void* context), void* context) noexcept {
  char text[2048];  // a list that was cut ends in half a number: that one is left out
  const std::size_t n = read_file(pid, tid, "children", text, sizeof text);
  i32 child = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (text[i] >= '0' && text[i] <= '9') {
      child = child * 10 + (text[i] - '0');
    } else if (child != 0) {
      fn(child, context);
      child = 0;
    }
  }
}

ProcessWork process_work(i32 pid) noexcept {
  Descendants all{0, 3};
  add_descendant(pid, &all);
  char text[1024] = "";
  read_file(pid, pid, "stat", text, sizeof text);
  const char* at = std::strrchr(text, ')');
  const auto per_second = static_cast<u64>(sysconf(_SC_CLK_TCK));
  const char state = at != nullptr && at[1] == ' ' ? at[2] : '?';
  return {all.ticks * (1'000'000'000ull / (per_second != 0 ? per_second : 100)), state == 'D',
          state == 'R'};
}

i32 wait_status(i32 pid) noexcept {
  char text[1024];
  if (read_file(pid, pid, "stat", text, sizeof text) == 0) {
    return -1;
  }
  const char* at = std::strrchr(text, ')');  // the name before it may hold anything
  for (int field = 2; at != nullptr && field < 52; ++field) {
    at = std::strchr(at + 1, ' ');
  }
  i32 status = -1;
  for (at = at != nullptr ? at + 1 : ""; *at >= '0' && *at <= '9'; ++at) {
    status = (status < 0 ? 0 : status * 10) + (*at - '0');
  }
  return status;
}

}  // namespace fr
