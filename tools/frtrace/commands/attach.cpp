// attach.cpp - `frtrace attach`: evaluates expressions in the frames of a running rank, over a
// socket beside its ring (python/fr/attach.py). While the rank's GIL is held, variables are read by
// address (live/by_address.hpp). With --pdb this is the terminal of the debugger of
// fr.breakpoint().
#include "commands/attach.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands/arguments.hpp"
#include "live/by_address.hpp"
#include "live/rings.hpp"
#include "recorder/options.hpp"
#include "report/lines.hpp"

namespace frtrace {

namespace {

using Json = nlohmann::json;

constexpr int kHello_ms =
    3000;  // a thread that wants the GIL has it within some 10 ms, if it gets it
constexpr int kAnswer_ms = 20000;            // the rank itself gives up after 8 s
constexpr std::size_t kMostBytes = 1 << 20;  // of an answer

struct Wanted {
  std::string job, shm_dir, expression;
  int rank = -1;
  Look look;
  bool exec = false, pdb = false;
};

class Connection {
 public:
  Connection() = default;
  ~Connection() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // 0, or errno.
  int open(const FoundRing& ring) {
    const std::string dir = ring.path.substr(0, ring.path.rfind('/'));
    const int folder = ::open(dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    fmt::format_to_n(to.sun_path, sizeof to.sun_path - 1, "/proc/self/fd/{}/{}.{}.attach", folder,
                     ring.pid_namespace, ring.pid);
    fd_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int error =
        folder < 0 || ::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0 ? errno : 0;
    if (folder >= 0) {
      ::close(folder);
    }
    return error;
  }
  int fd() const { return fd_; }
  const std::string& unread() const { return unread_; }

  bool send(std::string_view data) const {
    while (!data.empty()) {
      const ssize_t n = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
      pollfd room{fd_, POLLOUT, 0};
      if (n < 0 && (errno != EAGAIN || ::poll(&room, 1, kAnswer_ms) <= 0)) {
        return false;
      }
      data.remove_prefix(n > 0 ? static_cast<std::size_t>(n) : 0);
    }
    return true;
  }

  // The next line; nullopt: none came within the time limit, or the rank is gone.
  std::optional<Json> read(int limit_ms) {
    for (;;) {
      if (const std::size_t end = unread_.find('\n'); end != std::string::npos) {
        Json line = Json::parse(unread_.substr(0, end), nullptr, false);
        unread_.erase(0, end + 1);
        return line.is_object() ? std::optional(std::move(line)) : std::nullopt;
      }
      pollfd some{fd_, POLLIN, 0};
      char bytes[4096];
      const ssize_t n =
          ::poll(&some, 1, limit_ms) > 0 ? ::recv(fd_, bytes, sizeof bytes, 0) : ssize_t{0};
      if (n <= 0 || unread_.size() > kMostBytes) {
        return std::nullopt;
      }
      unread_.append(bytes, static_cast<std::size_t>(n));
    }
  }

 private:
  int fd_ = -1;
  std::string unread_;
};

void print_lines(std::ostream& to, std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    to << printable(text.substr(0, end)) << "\n";
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// False if the rank has no answer; reported on stderr.
bool ask(Connection& rank, const Wanted& w, std::string_view what, const std::string& text) {
  Json request{{"do", what}, {"text", text}, {"exec", w.exec}, {"thread", w.look.thread}};
  if (w.look.frame >= 0) {
    request["frame"] = w.look.frame;
  }
  const auto replace = Json::error_handler_t::replace;  // what was typed may be no UTF-8
  const auto answer = rank.send(request.dump(-1, ' ', false, replace) + "\n")
                          ? rank.read(kAnswer_ms)
                          : std::nullopt;
  if (!answer) {
    std::cerr << "frtrace: rank " << w.rank << " gave no answer\n";
    return false;
  }
  if (answer->contains("error")) {
    print_lines(std::cerr, answer->value("error", ""));
    return false;
  }
  print_lines(std::cout, answer->value("text", ""));
  std::cout.flush();
  return true;
}

// Runs a command of the prompt; true if the line is one.
bool choose(Wanted& w, const std::string& line) {
  if (line.starts_with("frame ")) {
    w.look.frame = std::atoi(line.c_str() + 6);
  } else if (line.starts_with("thread ")) {
    w.look.thread = line.substr(7);
    w.look.frame = -1;
  } else {
    return false;
  }
  return true;
}

// rank: nullptr if the GIL is held.
int prompt(Connection* rank, const FoundRing& ring, Wanted& w) {
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  if (terminal) {
    std::cerr << "rank " << w.rank << ": bt, threads, thread NAME, frame N, q, or an expression\n";
  }
  for (std::string line;;) {
    if (terminal) {
      std::cerr << "(rank " << w.rank << ") " << std::flush;
    }
    if (!std::getline(std::cin, line) || line == "q") {
      return kNoFault;
    }
    const bool moved = choose(w, line);
    if (line.empty()) {
      continue;
    }
    const bool frames = moved || line == "bt";
    if (rank == nullptr) {
      look_by_address(ring, w.look, frames ? "" : line, frames);
    } else {
      ask(*rank, w, frames ? "bt" : line == "threads" ? "threads" : "eval", line);
    }
  }
}

// Replaces control characters: the output of a program must not control the terminal.
void write_plain(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    c = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f ? '?' : c;
  }
  std::cout << out << std::flush;
}

// Runs until the debugger is left, or stdin ends.
int debug(Connection& rank, const Wanted& w) {
  if (!ask(rank, w, "pdb", "")) {
    return kNothing;
  }
  write_plain(rank.unread());
  pollfd fds[2] = {{STDIN_FILENO, POLLIN, 0}, {rank.fd(), POLLIN, 0}};
  char bytes[4096];
  for (;;) {
    if (::poll(fds, 2, -1) < 0 && errno != EINTR) {
      return kNothing;
    }
    if (fds[1].revents != 0) {
      const ssize_t n = ::recv(rank.fd(), bytes, sizeof bytes, 0);
      if (n <= 0) {
        std::cerr << "rank " << w.rank << " goes on\n";
        return kNoFault;
      }
      write_plain({bytes, static_cast<std::size_t>(n)});
    }
    if (fds[0].revents != 0) {
      const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (n <= 0) {
        ::shutdown(rank.fd(), SHUT_WR);  // as `c`
        fds[0].fd = -1;
      } else if (!rank.send({bytes, static_cast<std::size_t>(n)})) {
        return kNothing;
      }
    }
  }
}

// The rank's running process of the last attempt. Another job of that name may run on this node:
// its rings count only where --shm-dir has none.
std::optional<FoundRing> find_rank(const Wanted& w) {
  std::optional<FoundRing> found;
  const auto order = [&](const FoundRing& r) {
    return std::pair(r.root.empty() && r.path.starts_with(w.shm_dir + "/"), r.attempt);
  };
  for (const FoundRing& r : rings_of(ring_places(w.shm_dir), w.job)) {
    if (r.runs && r.rank == w.rank && (!found || order(r) >= order(*found))) {
      found = r;
    }
  }
  return found;
}

int attach(Wanted& w) {
  const auto ring = find_rank(w);
  if (!ring) {
    std::cerr << "frtrace: no rank " << w.rank << " of a job " << printable(w.job)
              << " runs on this node\n";
    return kNothing;
  }
  Connection rank;
  const int error = rank.open(*ring);
  if (error != 0 && error != EAGAIN) {
    std::cerr << fmt::format(
        "frtrace: rank {} (pid {}) {}\n", w.rank, ring->pid,
        error == ENOENT || error == ECONNREFUSED
            ? fmt::format("does not let anybody look in: start the job with FR_ATTACH=1{}",
                          w.pdb ? ", or let it come to fr.breakpoint()" : "")
            : fmt::format("cannot be reached: {}", std::strerror(error)));
    return kNothing;
  }
  const auto hello = error == 0 ? rank.read(kHello_ms) : std::nullopt;  // EAGAIN: many ask, in vain
  if (hello && hello->contains("error")) {
    print_lines(std::cerr, "frtrace: rank " + std::to_string(w.rank) +
                               " refuses: " + hello->value("error", ""));
    return kNothing;
  }
  if (w.pdb) {
    if (!hello) {
      std::cerr << "frtrace: rank " << w.rank << " does not answer\n";
    }
    return hello ? debug(rank, w) : static_cast<int>(kNothing);
  }
  if (w.expression.empty()) {
    return prompt(hello ? &rank : nullptr, *ring, w);
  }
  const bool answered =
      hello ? ask(rank, w, "eval", w.expression) : look_by_address(*ring, w.look, w.expression);
  return answered ? kNoFault : kFault;
}

}  // namespace

int attach_command(int argc, char** argv) {
  CLI::App app{
      "Evaluates expressions in the frames of a rank of this node that runs or hangs, and was\n"
      "started with FR_ATTACH=1. Without -e: a prompt. Only for the rank's own user; devices are\n"
      "never touched. While the GIL is held, plain variables are read by address.",
      "frtrace attach"};
  Wanted w;
  w.shm_dir = fr::read_options().shm_dir;
  app.add_option("job", w.job, "name of the job")->required();
  app.add_option("--rank", w.rank, "the rank")->required();
  app.add_option("-e,--eval", w.expression, "one expression; its value is printed");
  app.add_flag("--exec", w.exec, "with -e or at the prompt: statements, too");
  app.add_option("--thread", w.look.thread, "name or number of a thread (default: the main one)");
  app.add_option("--frame", w.look.frame,
                 "0 is the innermost (default: the innermost of user code)");
  app.add_flag("--pdb", w.pdb, "the debugger of a rank that stands in fr.breakpoint()");
  add_shm_dir(app, w.shm_dir);
  if (const auto status = parse(app, argc, argv)) {
    return *status;
  }
  return attach(w);
}

}  // namespace frtrace
