#include "collect/fanout.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

#include "report/lines.hpp"

namespace frtrace::collect {

namespace {

constexpr std::chrono::seconds kSlowTick{10};
constexpr std::chrono::milliseconds kGraceOfLauncher{5000};  // beyond the node's own limit

std::string whole_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string last_line(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
    text.remove_suffix(1);
  }
  return std::string(text.substr(text.rfind('\n') + 1).substr(0, 300));
}

// The texts of this node's lines among lines "node: text".
std::string lines_of(std::string_view all, std::string_view node, bool joined) {
  std::string out;
  for (std::size_t from = 0; from < all.size();) {
    const std::size_t to = std::min(all.find('\n', from), all.size());
    const std::string_view line = all.substr(from, to - from);
    if (line.size() > node.size() + 1 && line.starts_with(node) && line[node.size()] == ':') {
      out += line.substr(std::min(line.size(), node.size() + 2));
      out += joined ? "" : "\n";
    }
    from = to + 1;
  }
  return out;
}

}  // namespace

Progress::Progress(std::string what, std::size_t nodes)
    : what_(std::move(what)),
      nodes_(nodes),
      terminal_(::isatty(STDERR_FILENO) != 0),
      begun_(std::chrono::steady_clock::now()),
      shown_(begun_) {}

double Progress::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
}

void Progress::erase() {
  if (drawn_) {
    std::fputs("\r\033[K", stderr);
    drawn_ = false;
  }
}

void Progress::tick(std::size_t answered, std::size_t failed) {
  if (what_.empty()) {
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ && now - shown_ < kSlowTick) {
    return;
  }
  shown_ = now;
  erase();
  fmt::print(stderr, "{}: {} of {} nodes{}, {:.0f} s{}", what_, answered, nodes_,
             failed != 0 ? fmt::format(", {} did not answer", failed) : "", seconds(),
             terminal_ ? "" : "\n");
  drawn_ = terminal_;
  std::fflush(stderr);
}

void Progress::note(const std::string& line) {
  if (what_.empty()) {
    return;
  }
  erase();
  fmt::print(stderr, "{}\n", printable(line));
}

bool Fanout::run(const std::string& what) {
  Progress progress(what, launch_.nodes.size());
  progress_ = &progress;
  Processes processes(window_of(launch_.launcher),
                      std::chrono::seconds(launch_.timeout_s) + kGraceOfLauncher);
  const std::vector<Command> commands = plan(launch_);
  processes.run(
      commands, [&](std::size_t i, Ended end) { ended(commands[i], std::move(end)); },
      [&] { progress.tick(answered_, failed_); });
  progress.note(fmt::format("{}: {} of {} nodes answered, {:.1f} s", what, answered_,
                            launch_.nodes.size(), progress.seconds()));
  progress_ = nullptr;
  return !processes.interrupted();
}

void Fanout::ended(const Command& command, Ended end) {
  if (command.answer == Command::Answer::kStdout) {
    for (const std::size_t node : command.nodes) {
      judge_node(node, end.out, end.err, end);
    }
  } else if (command.answer == Command::Answer::kLines) {
    read_lines(command, end);
  } else {
    read_files(command, end);
  }
}

void Fanout::read_lines(const Command& command, const Ended& end) {
  for (const std::size_t node : command.nodes) {
    const std::string& name = launch_.nodes[node];
    const std::string host = name.substr(name.find('@') + 1);
    judge_node(node, from_base64(lines_of(end.out, host, true)), lines_of(end.err, host, false),
               end);
  }
}

void Fanout::read_files(const Command& command, const Ended& end) {
  for (const std::size_t node : command.nodes) {
    const std::string path = launch_.files + "/" + launch_.nodes[node];
    const std::string err = whole_file(path + ".err");
    judge_node(node, whole_file(path + ".out"), err.empty() ? end.err : err, end);
    ::unlink((path + ".out").c_str());
    ::unlink((path + ".err").c_str());
  }
}

std::string Fanout::why(const Ended& end, const std::string& err, bool empty) const {
  const std::string line = last_line(err);
  switch (end.how) {
    case Ended::How::kNotStarted:
      return fmt::format("{} could not be started: {}", launcher_name(launch_.launcher),
                         std::strerror(end.status));
    case Ended::How::kDeadline:
      return fmt::format("no answer within {} s", launch_.timeout_s) +
             (line.empty() ? "" : ": " + line);
    case Ended::How::kInterrupted:
      return "interrupted";
    case Ended::How::kSignalled:
    case Ended::How::kExited:
      break;
  }
  return !line.empty() ? line
         : end.status != 0
             ? fmt::format("{} {} {}", launcher_name(launch_.launcher),
                           end.how == Ended::How::kExited ? "exited with" : "was ended by signal",
                           end.status)
         : empty ? "nothing came"
                 : "what came is not whole";
}

// A whole package counts, even if the launcher failed after it.
void Fanout::judge_node(std::size_t node, const std::string& bytes, const std::string& err,
                        const Ended& end) {
  NodeRow row;
  row.node = launch_.nodes[node];
  row.seconds = end.seconds;
  Package package;
  row.answered = unpack(bytes, package);
  if (row.answered) {
    ++answered_;
    row.exit = package.status;
    row.ranks = package.ranks;
    row.host = package.host;
    row.boot_id = package.boot_id;
    row.said = package.said;
  } else {
    ++failed_;
    row.exit =
        end.how == Ended::How::kExited && launch_.launcher != Launcher::kSrun ? end.status : -1;
    row.why = why(end, err, bytes.empty());
    progress_->note(fmt::format("{}: {}", row.node, row.why));
  }
  tell_(row, std::move(package));
}

}  // namespace frtrace::collect
