// live_nodes.cpp - a job of many nodes for `frtrace live`: runs `frtrace reduce --lines` on each
// node. That command ends with its stdin, so that it does not outlive this process. The verdict is
// made from the nodes' summaries, as in `frtrace collect`.
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "collect/package.hpp"
#include "collect/processes.hpp"
#include "commands/live_source.hpp"
#include "live/job_lines.hpp"
#include "report/lines.hpp"
#include "system/here.hpp"

namespace frtrace {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using collect::Launch;
using collect::Launcher;

constexpr std::chrono::seconds kNews{10};  // a node gives a sign every 5 s
constexpr std::chrono::seconds kEnd{2};    // from the end of stdin to signals

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) == 0) {
      read = ends[0];
      write = ends[1];
    }
  }
};

void close_one(int& fd) {
  if (fd >= 0) {
    ::close(fd);
    fd = -1;
  }
}

// One process of the launcher, which says lines of one node or of all.
class Stream {
 public:
  explicit Stream(const collect::Command& command) : nodes(command.nodes) {
    Pipe in, out, err;
    in_ = in.write, out_ = out.read, err_ = err.read;
    const int error = collect::spawn(command, in.read, out.write, err.write, pid_);
    for (int fd : {in.read, out.write, err.write}) {
      close_one(fd);
    }
    if (error != 0) {
      pid_ = -1;
      why_ = command.argv.front() + ": " + std::strerror(error);
    }
    for (const int fd : {out_, err_}) {
      ::fcntl(fd, F_SETFL, O_NONBLOCK);
    }
  }
  ~Stream() {
    for (int* fd : {&in_, &out_, &err_}) {
      close_one(*fd);
    }
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const std::vector<std::size_t> nodes;

  template <class Line>
  void drain(Line&& line) {
    read_all(out_, text_);
    read_all(err_, said_);
    said_.erase(0, said_.size() - std::min<std::size_t>(said_.size(), 4096));
    std::size_t begin = 0;
    for (std::size_t end; (end = text_.find('\n', begin)) != std::string::npos; begin = end + 1) {
      line(std::string_view(text_).substr(begin, end - begin));
    }
    text_.erase(0, begin);
    reap();
  }
  bool is_over() const { return pid_ < 0; }
  int status() const { return status_; }
  // Why the launcher ended, from its last output.
  std::string why() const {
    const std::string said = said_.substr(0, said_.find('\n'));
    return !why_.empty() ? why_ : !said.empty() ? said : fmt::format("ended with {}", status_);
  }
  void close_stdin() { close_one(in_); }
  void signal(int number) const {
    if (pid_ > 0) {
      ::kill(-pid_, number);
    }
  }
  void reap() {
    int status = 0;
    if (pid_ > 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) {
      status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      pid_ = -1;
    }
  }

 private:
  static void read_all(int fd, std::string& to) {
    char bytes[65536];
    for (ssize_t n; fd >= 0 && (n = ::read(fd, bytes, sizeof bytes)) > 0;) {
      to.append(bytes, static_cast<std::size_t>(n));
    }
  }
  int pid_ = -1, in_ = -1, out_ = -1, err_ = -1, status_ = 0;
  std::string text_, said_, why_;
};

class NodesSource : public JobSource {
 public:
  NodesSource(const FanOptions& o, std::string job, double every_s, Time stuck, Launch launch,
              const std::vector<NodeRow>& absent)
      : o_(o), job_(std::move(job)), lines_(stuck), ask_(launch) {
    for (const NodeRow& row : absent) {
      troubles_of_absent_.push_back(row.node + ": " + row.why);
    }
    set_command(o_, job_, "summary", {}, ask_);
    launch.lasts = true;
    launch.command = {ask_.command.front(), "reduce", "--lines", fmt::format("--every={}", every_s),
                      "--shm-dir=" + o_.shm_dir};
    std::copy_if(ask_.command.begin(), ask_.command.end(), std::back_inserter(launch.command),
                 [](const std::string& word) { return word.starts_with("--job="); });
    for (const std::string& name : launch.nodes) {
      nodes_.push_back({name, Clock::now(), false});
    }
    for (const collect::Command& command : collect::plan(launch)) {
      streams_.push_back(std::make_unique<Stream>(command));
    }
  }

  // The nodes' ends see theirs of stdin; a launcher that does not end by that is ended.
  ~NodesSource() override {
    for (const auto& s : streams_) {
      s->close_stdin();
    }
    const auto begun = Clock::now();
    for (int signal : {0, SIGTERM, SIGKILL}) {
      for (const auto& s : streams_) {
        if (signal != 0 && !s->is_over()) {
          s->signal(signal);
        }
      }
      while (!all_ended() && Clock::now() - begun < kEnd * (signal == 0 ? 1 : 2)) {
        ::poll(nullptr, 0, 10);
        for (const auto& s : streams_) {
          s->drain([](std::string_view) {});
        }
      }
    }
  }

  JobNow look() override {
    for (const auto& s : streams_) {
      s->drain([&](std::string_view line) { take(*s, line); });
    }
    JobNow now = lines_.look(unix_now());
    now.job = job_;
    return now;
  }
  JobNow look_once() override {
    const auto begun = Clock::now();
    const auto said = [&](const Node& n) { return n.said; };
    JobNow now = look();
    while (!std::all_of(nodes_.begin(), nodes_.end(), said) && !all_ended() &&
           Clock::now() - begun < std::chrono::seconds(o_.timeout_s)) {
      ::poll(nullptr, 0, 20);
      now = look();
    }
    return now;
  }
  bool is_over(const JobNow&) const override { return all_ended(); }
  std::string where() const override {
    return nodes_.size() == 1 ? nodes_.front().name : fmt::format("{} nodes", nodes_.size());
  }
  std::vector<std::string> troubles() const override {
    std::vector<std::string> out = troubles_of_absent_;
    for (const auto& s : streams_) {
      for (const std::size_t i : s->nodes) {
        const Node& n = nodes_[i];
        const auto since = Clock::now() - n.heard;
        if (s->is_over() && !n.has_ended) {
          out.push_back(n.name + ": no more news: " + s->why());
        } else if (!n.has_ended && since > kNews) {
          out.push_back(
              fmt::format("{}: no news for {}", n.name,
                          duration_text(static_cast<double>(
                              std::chrono::duration_cast<std::chrono::seconds>(since).count()))));
        }
      }
    }
    return out;
  }

  Said verdict(std::size_t width) override {
    const Scratch scratch;
    Launch launch = ask_;
    launch.files = scratch.path();
    collect::Fanout fanout(launch, [&](const NodeRow& row, const collect::Package& package) {
      for (const auto& [name, content] : package.files) {
        std::ofstream(scratch.path() + "/" + collect::file_name(row.node + "-" + name),
                      std::ios::binary)
            << content;
      }
    });
    fanout.run("");
    return verdict_of({scratch.path()}, "", 0, width);
  }
  Said last_words(std::size_t width) override { return verdict(width); }
  void stop() override { ::kill(::getpid(), SIGINT); }  // Fanout's

 private:
  struct Node {
    std::string name;
    Clock::time_point heard;
    bool said = false, has_ended = false;
  };

  bool all_ended() const {
    return std::all_of(streams_.begin(), streams_.end(),
                       [](const auto& s) { return s->is_over(); });
  }

  // srun says the number of the task before each line, and one process says those of all nodes.
  void take(const Stream& s, std::string_view line) {
    line.remove_prefix(std::min(line.find('{'), line.size()));
    std::size_t at = s.nodes.front();
    if (s.nodes.size() > 1) {
      constexpr std::string_view kNode = "\"node\":\"";
      const std::size_t begin =
          std::min(line.find(kNode), line.size() - kNode.size()) + kNode.size();
      std::string_view name = line.substr(begin, line.find('"', begin) - begin);
      name = name.substr(0, name.rfind('-'));
      const auto of = std::find_if(s.nodes.begin(), s.nodes.end(), [&](std::size_t i) {
        const std::string& known = nodes_[i].name;
        return known == name || name.substr(0, name.find('.')) == known ||
               known.substr(0, known.find('.')) == name;
      });
      if (of == s.nodes.end()) {
        return;
      }
      at = *of;
    }
    Node& n = nodes_[at];
    if (lines_.add(n.name, line)) {
      n.said = true;
      n.heard = Clock::now();
      n.has_ended = line.find("\"end\":true") != std::string_view::npos;
    }
  }

  FanOptions o_;
  std::string job_;
  JobLines lines_;
  Launch ask_;
  std::vector<std::string> troubles_of_absent_;
  std::vector<Node> nodes_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace

std::unique_ptr<JobSource> source_of_nodes(const FanOptions& o, const std::string& job,
                                           double every_s, Time stuck) {
  Launch launch;
  std::vector<NodeRow> absent;
  std::string why;
  if (const auto wrong = find_nodes(o, job, launch, absent)) {
    why = *wrong;
  } else if (collect::wants_lines(launch.launcher)) {
    why = fmt::format("live takes srun, ssh, kubectl or local: {} hands no stdin on",
                      collect::launcher_name(launch.launcher));
  }
  if (!why.empty()) {
    fmt::print(stderr, "frtrace: {}\n", printable(why));
    return nullptr;
  }
  return std::make_unique<NodesSource>(o, job, every_s, stuck, std::move(launch), absent);
}

}  // namespace frtrace
