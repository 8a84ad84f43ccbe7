// live.cpp - `frtrace live JOB`: the running job on a screen, redrawn each second.
// A second thread diagnoses a job that has stopped making progress.
#include "commands/live.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <ctime>
#include <future>
#include <memory>

#include "commands/live_source.hpp"
#include "commands/output.hpp"
#include "input/files.hpp"
#include "live/lock_files.hpp"
#include "live/running_job.hpp"
#include "live/screen.hpp"
#include "model/case.hpp"
#include "recorder/options.hpp"
#include "report/lines.hpp"
#include "report/render.hpp"
#include "system/here.hpp"
#include "words/diagnose.hpp"

namespace frtrace {

namespace {

using Clock = std::chrono::steady_clock;

struct LiveArguments {
  std::string job, shm_dir;
  double every_s = 0;  // 0: not given
  bool once = false;
  Time stuck = 0;
  FanOptions fan;
};

std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  ::localtime_r(&now, &local);
  return fmt::format("{:02}:{:02}:{:02}", local.tm_hour, local.tm_min, local.tm_sec);
}

}  // namespace

Said verdict_of(const std::vector<std::string>& paths, const std::string& job, Time since,
                std::size_t width) {
  const LoadResult input = load_paths(paths, LoadOptions{});
  Selection selection;
  if (!job.empty()) {
    selection.job = job;
  }
  Said out;
  for (const Case& c : make_cases(input.evidence, selection)) {
    const std::vector<Report> reports{diagnose(c)};
    if (const Time t = reports.front().time; t != 0 && t < since) {
      continue;
    }
    TextStyle style;
    style.width = width;
    style.where = job.empty() ? "" : fmt::format("{}", fmt::join(paths, " "));  // soon gone
    style.typed = false;
    style.now = unix_now();
    out.text = render_text(reports, input, style);
    out.status = status_of(reports);
  }
  return out;
}

namespace {

// The whole terminal; the destructor restores it.
class Terminal {
 public:
  Terminal() : keys_(::isatty(STDIN_FILENO) != 0 && ::tcgetattr(STDIN_FILENO, &before_) == 0) {
    enter();
  }
  ~Terminal() { leave(); }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void enter() const {
    if (keys_) {
      termios raw = before_;
      raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
      ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    }
    put("\x1b[?1049h\x1b[?25l");  // the other screen, no cursor
  }
  void leave() const {
    put("\x1b[?25h\x1b[?1049l");
    if (keys_) {
      ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
    }
  }
  bool has_keys() const { return keys_; }
  bool draw(const std::vector<std::string>& lines) const {
    std::string out = "\x1b[H";
    for (std::size_t k = 0; k < lines.size(); ++k) {
      out += lines[k] + "\x1b[K" + (k + 1 < lines.size() ? "\r\n" : "");
    }
    return put(out + "\x1b[J");
  }
  static void size(ScreenStyle& style) {
    winsize w{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 && w.ws_row > 0) {
      style.width = std::max<std::size_t>(w.ws_col, 40);
      style.height = std::max<std::size_t>(w.ws_row, 8);
    }
  }

 private:
  static bool put(const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t n = ::write(STDOUT_FILENO, text.data() + at, text.size() - at);
      if (n <= 0 && errno != EINTR) {
        return false;
      }
      at += n > 0 ? static_cast<std::size_t>(n) : 0;
    }
    return true;
  }
  termios before_{};
  bool keys_;
};

// The job's ranks on this node.
class HereSource : public JobSource {
 public:
  explicit HereSource(const LiveArguments& a) : job_(a.job), running_(a.shm_dir, a.job, a.stuck) {}

  JobNow look() override { return running_.look(unix_now()); }
  JobNow look_once() override {
    look();
    ::usleep(500'000);  // rates take two looks
    return look();
  }
  bool is_over(const JobNow& now) const override { return now.alive == 0; }
  std::string where() const override { return host_name(); }
  std::vector<std::string> troubles() const override { return {}; }
  Said verdict(std::size_t width) override { return verdict_of(running_.rings(), job_, 0, width); }
  // The verdict on rings and dumps.
  Said last_words(std::size_t width) override {
    std::vector<std::string> paths = running_.rings();
    if (!running_.dump_dir().empty() && ::access(running_.dump_dir().c_str(), R_OK) == 0) {
      paths.push_back(running_.dump_dir());
    }
    return paths.empty() ? Said{} : verdict_of(paths, job_, running_.started(), width);
  }

 private:
  std::string job_;
  RunningJob running_;
};

class Live {
 public:
  Live(const LiveArguments& a, JobSource& source) : a_(a), source_(source) {
    style_.node = source.where();
    style_.colour = std::getenv("NO_COLOR") == nullptr;
  }

  int once() {
    const JobNow now = source_.look_once();
    if (now.ranks == 0) {
      for (const std::string& line : source_.troubles()) {
        fmt::print(stderr, "{}\n", printable(line));
      }
      return kNothing;
    }
    style_.width = std::clamp<std::size_t>(terminal_width(), 80, 200);
    style_.colour = style_.colour && ::isatty(STDOUT_FILENO) != 0;
    style_.time = time_of_day();
    const Said said = source_.verdict(style_.width);
    for (const std::string& line : screen_lines(now, with_troubles(said.text), style_)) {
      fmt::print("{}\n", line);
    }
    return said.status;
  }

  // Runs until a key, a signal or the end of the job.
  int watch(int signals) {
    {
      const Terminal terminal;
      auto next = Clock::now();
      while (!ended_) {
        if (Clock::now() >= next || redraw_) {
          if (!draw(terminal)) {
            break;
          }
          next = redraw_ ? next : Clock::now() + every();
          redraw_ = false;
        }
        wait(terminal, signals, next);
      }
    }
    return finish();
  }

 private:
  Clock::duration every() const {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(a_.every_s));
  }

  std::string with_troubles(const std::string& verdict) const {
    std::string out;
    for (const std::string& line : source_.troubles()) {
      out += printable(line) + "\n";
    }
    return out + verdict;
  }

  bool draw(const Terminal& terminal) {
    if (!paused_) {
      now_ = source_.look();
      gone_ = source_.is_over(now_) ? gone_ + 1 : 0;
      ended_ = ended_ || gone_ > 2;  // ranks of a restart may be on their way
      diagnose_beside();
    }
    Terminal::size(style_);
    style_.time = paused_ ? "paused " : time_of_day();
    const std::string verdict =
        said_.text.empty()
            ? now_.stuck ? "nothing moves: diagnosing" : "nothing stands still"
            : fmt::format(
                  "so far, {} ago:\n{}",
                  duration_text(std::chrono::duration<double>(Clock::now() - said_at_).count()),
                  said_.text);
    return terminal.draw(screen_lines(now_, with_troubles(verdict), style_));
  }

  // Diagnoses while an operation is stuck or a rank is dead, at most a tenth of the time.
  void diagnose_beside() {
    if (beside_.valid() && beside_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      said_ = beside_.get();
      took_ = Clock::now() - begun_;
      said_at_ = Clock::now();
    }
    const bool wanted = now_.stuck || now_.alive < now_.ranks || asked_;
    if (!wanted && !beside_.valid()) {
      said_ = {};
    }
    if (wanted && !beside_.valid() &&
        (asked_ || said_.text.empty() ||
         Clock::now() - said_at_ >
             std::max<Clock::duration>(std::chrono::seconds(5), took_ * 10))) {
      asked_ = false;
      begun_ = Clock::now();
      beside_ = std::async(std::launch::async,
                           [this, width = style_.width] { return source_.verdict(width); });
    }
  }

  void wait(const Terminal& terminal, int signals, Clock::time_point next) {
    pollfd fds[] = {{signals, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(next - Clock::now());
    const int ms = static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 60'000));
    if (ended_ || ::poll(fds, terminal.has_keys() ? 2 : 1, ms) <= 0) {
      return;
    }
    signalfd_siginfo signal{};
    if ((fds[0].revents & POLLIN) != 0 && ::read(signals, &signal, sizeof signal) > 0) {
      const int number = static_cast<int>(signal.ssi_signo);
      redraw_ = true;
      if (number == SIGTSTP) {
        terminal.leave();
        ::kill(::getpid(), SIGSTOP);
        terminal.enter();
      } else if (number != SIGWINCH) {
        ended_ = stopped_ = true;
      }
    }
    if ((fds[1].revents & (POLLIN | POLLHUP)) != 0) {
      read_keys();
    }
  }

  void read_keys() {
    char keys[64];
    const ssize_t n = ::read(STDIN_FILENO, keys, sizeof keys);
    if (n <= 0) {
      ended_ = stopped_ = true;  // the terminal is gone
      return;
    }
    const std::string_view text(keys, static_cast<std::size_t>(n));
    redraw_ = true;
    for (std::size_t k = 0; k < text.size(); ++k) {
      const std::string_view rest = text.substr(k);
      if (text[k] == 'q') {
        ended_ = stopped_ = true;
      } else if (text[k] == ' ') {
        paused_ = !paused_;
      } else if (text[k] == 'v') {
        asked_ = true;
        diagnose_beside();
      } else if (text[k] == 'j' || rest.starts_with("\x1b[B")) {
        style_.scrolled += style_.scrolled + 1 < now_.groups.size() ? 1 : 0;
      } else if (text[k] == 'k' || rest.starts_with("\x1b[A")) {
        style_.scrolled -= style_.scrolled != 0 ? 1 : 0;
      }
      k += text[k] == '\x1b' ? 2 : 0;
    }
  }

  // Prints the last verdict on the normal screen; for a job that has ended, dumps are read, too.
  int finish() {
    if (beside_.valid()) {
      if (stopped_ && beside_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
        source_.stop();
      }
      const Said last = beside_.get();
      said_ = last.text.empty() && stopped_ ? said_ : last;
    }
    if (!stopped_) {
      said_ = source_.last_words(style_.width);
      fmt::print("job {} has ended\n", printable(a_.job));
    }
    fmt::print("{}", said_.text);
    return said_.status;
  }

  LiveArguments a_;
  JobSource& source_;
  ScreenStyle style_;
  JobNow now_;
  int gone_ = 0;  // looks since a rank lived
  bool ended_ = false, stopped_ = false, paused_ = false, redraw_ = false, asked_ = false;
  Said said_;
  Clock::time_point said_at_{}, begun_{};
  Clock::duration took_{};
  std::future<Said> beside_;
};

// The only job of this node, where none is named.
bool choose_job(LiveArguments& a) {
  const auto jobs = jobs_here(a.shm_dir, unix_now());
  std::string names;
  std::size_t running = 0;
  for (const auto& [name, alive] : jobs) {
    if (a.job.empty() ? alive != 0 : name == a.job) {
      ++running;
    }
    names += alive != 0 ? (names.empty() ? "" : ", ") + name : "";
  }
  if (running == 1) {
    for (const auto& [name, alive] : jobs) {
      a.job = a.job.empty() && alive != 0 ? name : a.job;
    }
    return true;
  }
  fmt::print(
      stderr, "frtrace: {}; running here: {}\n",
      a.job.empty() ? "which job?" : fmt::format("no job {} has a ring here", printable(a.job)),
      names.empty() ? "none" : printable(names));
  return false;
}

}  // namespace

int live_command(int argc, char** argv) {
  CLI::App app{
      "Shows a running job: how far each group is, which ranks are behind, and the verdict so far\n"
      "where something stands still. Reads the ranks' rings, and costs them nothing. Of this "
      "node;\n"
      "of all of the job's nodes with --launcher (auto: as collect chooses it) or --hosts.\n"
      "Keys: q quits, space pauses, v asks for a verdict now, j and k scroll the groups.",
      "frtrace live"};
  LiveArguments a;
  const fr::Options o = fr::read_options();
  a.fan.timeout_s = 10;
  a.stuck = static_cast<Time>(o.warn_ns);
  app.add_option("job", a.job, "its name; default: the only one");
  app.add_flag("-1,--once", a.once, "prints once, and exits with the verdict's status");
  app.add_option("--every", a.every_s, "draws anew every so many seconds; default: 1; over nodes 2")
      ->check(CLI::Range(0.1, 3600.0));
  add_fan_options(app, a.fan);
  if (const auto status = parse(app, argc, argv)) {
    return *status;
  }
  a.shm_dir = a.fan.shm_dir;
  a.every_s = a.every_s != 0 ? a.every_s : a.fan.given() ? 2 : 1;
  std::unique_ptr<JobSource> source;
  if (a.fan.given()) {
    source = source_of_nodes(a.fan, a.job, a.every_s, a.stuck);
    if (source == nullptr) {
      return kUsage;
    }
  } else if (!choose_job(a)) {
    return kNothing;
  } else {
    source = std::make_unique<HereSource>(a);
  }
  Live live(a, *source);
  if (a.once || ::isatty(STDOUT_FILENO) == 0) {
    return live.once();
  }
  sigset_t ends;
  ::sigemptyset(&ends);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGWINCH, SIGTSTP}) {
    ::sigaddset(&ends, number);
  }
  ::sigprocmask(SIG_BLOCK, &ends, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  const int signals = ::signalfd(-1, &ends, SFD_CLOEXEC);
  return signals < 0 ? static_cast<int>(kNothing) : live.watch(signals);
}

}  // namespace frtrace
