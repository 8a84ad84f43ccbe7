// metrics.cpp - `frtrace metrics`: reads the rings of this node at intervals and writes their
// metrics to a file for node_exporter, answers Prometheus, or both. It touches no rank.
#include "commands/metrics.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "commands/arguments.hpp"
#include "commands/output.hpp"
#include "input/files.hpp"
#include "metrics/node.hpp"
#include "model/case.hpp"
#include "recorder/options.hpp"
#include "report/lines.hpp"
#include "system/here.hpp"
#include "words/diagnose.hpp"

namespace frtrace {

namespace {

struct MetricsArguments {
  std::string output, listen, shm_dir;
  double every_s = 0;
};

std::string verdict_on(const std::vector<std::string>& rings) {
  LoadOptions one_thread;
  one_thread.threads = 1;
  const LoadResult input = load_paths(rings, one_thread);
  for (const Case& c : make_cases(input.evidence, {})) {
    return verdict_name(diagnose(c).kind);
  }
  return "undecided";
}

bool save(const std::string& path, const std::string& text) {
  const auto error = write_whole(path, text);
  if (error) {
    fmt::print(stderr, "frtrace: cannot write {}: {}\n", printable(path), *error);
  }
  return !error;
}

// A socket that listens on HOST:PORT; -1: said why.
int listen_on(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon == std::string::npos ? 0 : colon);
  const std::string port = colon == std::string::npos ? address : address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;  // without a host: this machine only
  addrinfo* found = nullptr;
  if (const int e =
          ::getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &found)) {
    fmt::print(stderr, "frtrace: --listen {}: {}\n", printable(address), ::gai_strerror(e));
    return -1;
  }
  const int fd = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  const bool ok =
      fd >= 0 && ::bind(fd, found->ai_addr, found->ai_addrlen) == 0 && ::listen(fd, 16) == 0;
  const int error = errno;
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  char name[64] = {}, number[16] = {};
  if (ok && ::getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0 &&
      ::getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, name, sizeof name, number,
                    sizeof number, NI_NUMERICHOST | NI_NUMERICSERV) == 0) {
    fmt::print(stderr, "frtrace: metrics at http://{}:{}/metrics\n", name, number);
  }
  ::freeaddrinfo(found);
  if (!ok) {
    fmt::print(stderr, "frtrace: --listen {}: {}\n", printable(address), std::strerror(error));
    if (fd >= 0) {
      ::close(fd);
    }
    return -1;
  }
  return fd;
}

// One request, which has a second to come and to take the answer.
void answer(int listening, NodeMetrics& node) {
  const int fd = ::accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) {
    return;
  }
  const timeval second{1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
  std::string request;
  char part[2048];
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (request.find("\r\n\r\n") == std::string::npos && request.size() < 16384 &&
         std::chrono::steady_clock::now() < until) {
    const ssize_t n = ::recv(fd, part, sizeof part, 0);
    if (n <= 0) {
      break;
    }
    request.append(part, static_cast<std::size_t>(n));
  }
  const bool known = request.starts_with("GET /metrics") || request.starts_with("GET / ");
  const std::string body = known ? node.look(unix_now()) : "try /metrics\n";
  const std::string reply = fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
      "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
      known ? "200 OK" : "404 Not Found", body.size(), body);
  for (std::size_t sent = 0; sent < reply.size();) {
    const ssize_t n = ::send(fd, reply.data() + sent, reply.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) {
      break;
    }
    sent += static_cast<std::size_t>(n);
  }
  ::close(fd);
}

// Until SIGTERM or SIGINT.
int serve(const MetricsArguments& a, NodeMetrics& node, int listening, int signals) {
  using Steady = std::chrono::steady_clock;
  const auto every = std::chrono::duration_cast<Steady::duration>(
      std::chrono::duration<double>(a.every_s > 0 ? a.every_s : 15));
  auto next = Steady::now();
  bool was_written = false;
  while (true) {
    if (Steady::now() >= next) {
      // without a file, too: what a ring overwrites between two scrapes would go uncounted
      const std::string text = node.look(unix_now());
      const bool written = a.output.empty() || save(a.output, text);
      if (!written && !was_written) {
        return kNothing;
      }
      was_written = true;
      next = std::max(next + every, Steady::now());
    }
    pollfd fds[] = {{signals, POLLIN, 0}, {listening, POLLIN, 0}};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Steady::now());
    const int wait_ms = static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 1, 60'000));
    if (::poll(fds, listening >= 0 ? 2 : 1, wait_ms) <= 0) {
      continue;
    }
    if ((fds[0].revents & POLLIN) != 0) {
      break;
    }
    if ((fds[1].revents & POLLIN) != 0) {
      answer(listening, node);
    }
  }
  // A file left behind would keep reporting the old state.
  if (!a.output.empty()) {
    ::unlink(a.output.c_str());
  }
  return kNoFault;
}

}  // namespace

int metrics_command(int argc, char** argv) {
  CLI::App app{
      "Says in Prometheus' text format what this node's jobs do: reads their rings, and costs "
      "them\n"
      "nothing. Without -o and --listen once to stdout.",
      "frtrace metrics"};
  MetricsArguments a;
  const fr::Options o = fr::read_options();
  a.shm_dir = o.shm_dir;
  app.add_option("-o", a.output,
                 "write there, e.g. a *.prom file of node_exporter's textfile directory; with "
                 "--every it is removed at the end");
  app.add_option("--every", a.every_s, "write anew every so many seconds, until SIGTERM or SIGINT")
      ->check(CLI::Range(0.1, 86400.0));
  app.add_option(
      "--listen", a.listen,
      "answer Prometheus at HOST:PORT, e.g. 127.0.0.1:9836; without HOST this machine's");
  add_shm_dir(app, a.shm_dir);
  if (const auto status = parse(app, argc, argv)) {
    return *status;
  }
  NodeMetrics node(a.shm_dir, host_name(), static_cast<Time>(o.warn_ns), verdict_on);
  if (a.listen.empty() && a.every_s == 0) {
    const std::string text = node.look(unix_now());
    if (!a.output.empty()) {
      return save(a.output, text) ? kNoFault : kNothing;
    }
    std::fwrite(text.data(), 1, text.size(), stdout);
    return kNoFault;
  }
  if (a.output.empty() && a.listen.empty()) {
    fmt::print(stderr, "frtrace: --every needs -o FILE or --listen\n");
    return kUsage;
  }
  sigset_t ends;
  ::sigemptyset(&ends);
  ::sigaddset(&ends, SIGTERM);
  ::sigaddset(&ends, SIGINT);
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  const int signals = ::signalfd(-1, &ends, SFD_CLOEXEC);
  const int listening = a.listen.empty() ? -1 : listen_on(a.listen);
  if (signals < 0 || (!a.listen.empty() && listening < 0)) {
    return kNothing;
  }
  return serve(a, node, listening, signals);
}

}  // namespace frtrace
