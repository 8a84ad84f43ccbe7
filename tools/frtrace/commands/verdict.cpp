// verdict.cpp - runs in one process per node. It waits until the dumps of the incident are there. A
// claim file in the shared directory elects one of the nodes; that node reads, judges, writes
// <job>.verdict.txt and .json, and prints the verdict on stderr. An error ends only this process.
#include "commands/verdict.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "commands/arguments.hpp"
#include "commands/output.hpp"
#include "doctor/bearing.hpp"
#include "format/file_name.hpp"
#include "live/lock_files.hpp"
#include "live/ringless.hpp"
#include "recorder/options.hpp"
#include "report/lines.hpp"
#include "report/render.hpp"
#include "words/diagnose.hpp"

namespace frtrace {

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr unsigned kLife_s = 180;                        // after that SIGALRM ends this process
constexpr milliseconds kQuiet{3000};                     // without a new dump: salvage takes 2 s
constexpr milliseconds kLongest{30'000};                 // for dumps that come one by one
constexpr milliseconds kEnds{1000}, kEndsLongest{4000};  // the same for records of process ends
constexpr milliseconds kSoon{50}, kLater{250};           // between two looks at the directory
constexpr milliseconds kAhead{1000};                     // head start of the node of rank 0
constexpr milliseconds kApart{250};                      // between the other nodes
constexpr std::chrono::seconds kStale{120};  // a claim this old belongs to a dead process
constexpr std::size_t kLogColumns = 120;

struct Question {
  std::vector<std::string> dirs;
  std::string job, host;
  int attempt = 0;
  std::uint64_t incident = 0;
  int world_size = 0, node_size = 0, rank = 0;
  std::vector<int> here;  // ranks of this node
  bool quiet = false;

  std::string prefix() const { return fmt::format("{}.a{}.", job, attempt); }
  // The last line of the text; libfr matches the text to the incident by it.
  std::string mark() const { return fmt::format("attempt {}, incident {}\n", attempt, incident); }
};

// Ranks that have dumped the incident, and the time of the first dump, by the file system's clock.
struct Dumped {
  std::set<int> ranks;
  std::size_t files = 0;
  fs::file_time_type first = fs::file_time_type::max();
};

Dumped look(const Question& q) {
  Dumped out;
  for (const std::string& dir : q.dirs) {
    std::error_code ec;
    for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
      fr::NameParts parts;
      if (fr::parse_name(it->path().filename().c_str(), parts) && q.job == parts.job &&
          parts.attempt == q.attempt && parts.number == q.incident) {
        ++out.files;
        std::error_code gone;
        out.ranks.insert(parts.rank);
        const auto at = it->last_write_time(gone);
        out.first = gone ? out.first : std::min(out.first, at);
      }
    }
  }
  return out;
}

// Waits for dumps of all ranks, or until no more dumps come.
Dumped await_dumps(const Question& q) {
  const auto begin = Clock::now();
  auto last = begin;
  Dumped seen = look(q);
  while (q.world_size == 0 || seen.ranks.size() < static_cast<std::size_t>(q.world_size)) {
    const auto now = Clock::now();
    if (now - last > kQuiet || now - begin > kLongest) {
      break;
    }
    std::this_thread::sleep_for(now - begin < kAhead ? kSoon : kLater);
    Dumped more = look(q);
    last = more.ranks.size() > seen.ranks.size() ? Clock::now() : last;
    seen = std::move(more);
  }
  return seen;
}

fs::path beside(const Question& q, const char* ending) {
  for (const std::string& dir : q.dirs) {
    std::error_code ec;
    if (fs::is_directory(dir, ec)) {
      return fs::path(dir) / (q.job + ending);
    }
  }
  return {};
}

// Waits for more files: if processes end, records of how they ended follow the first dumps.
void await_quiet(const Question& q) {
  const auto begin = Clock::now();
  auto last = begin;
  std::size_t seen = look(q).files;
  while (Clock::now() - last < kEnds && Clock::now() - begin < kEndsLongest) {
    std::this_thread::sleep_for(kSoon);
    const std::size_t files = look(q).files;
    last = files != seen ? Clock::now() : last;
    seen = files;
  }
}

// The verdict written last.
struct Last {
  std::string summary, time;
  int attempt = -1;
  std::uint64_t incident = 0;
  fs::file_time_type written = fs::file_time_type::min();

  // An earlier run of the job may have left one with the same numbers.
  bool is_of(const Question& q, fs::file_time_type first_dump) const {
    return attempt == q.attempt && incident >= q.incident && written >= first_dump;
  }
};

std::string text_of(const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

Last read_last(const Question& q) {
  const fs::path path = beside(q, ".verdict.json");
  std::ifstream file(path);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  Last last;
  if (!json.is_object() || !json.contains("verdict") || !json["verdict"].is_object()) {
    return last;
  }
  std::error_code ec;
  last.written = fs::last_write_time(path, ec);
  last.summary = text_of(json["verdict"], "summary");
  last.time = text_of(json["verdict"], "time").substr(0, 19);  // without fractions
  const nlohmann::json attempt = json.value("attempt", nlohmann::json());
  const nlohmann::json incident = json.value("incident", nlohmann::json());
  last.attempt = attempt.is_number_integer() ? attempt.get<int>() : -1;
  last.incident = incident.is_number_unsigned() ? incident.get<std::uint64_t>() : 0;
  return last;
}

// The claim file: the process that creates it writes the verdict for all nodes.
class Claim {
 public:
  explicit Claim(fs::path path) : path_(std::move(path)) {}
  ~Claim() {
    if (held_) {
      ::unlink(path_.c_str());
    }
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  bool take() {
    const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0) {
      ::close(fd);
      held_ = true;
    } else if (errno != EEXIST) {
      throw std::system_error(errno, std::generic_category(), path_.string());
    }
    return held_;
  }
  // Removes the claim of a process that died before it wrote the verdict.
  void drop_stale() const {
    struct stat st{};
    if (::stat(path_.c_str(), &st) == 0 &&
        std::chrono::system_clock::from_time_t(st.st_mtime) + kStale <
            std::chrono::system_clock::now()) {
      ::unlink(path_.c_str());
    }
  }

 private:
  fs::path path_;
  bool held_ = false;
};

// False: another node has written the verdict.
bool wait_for_turn(const Question& q, const Dumped& seen, Claim& claim) {
  const int node = q.node_size > 0 ? q.rank / q.node_size : 0;
  if (node > 0) {
    std::this_thread::sleep_for(kAhead + kApart * std::min(node - 1, 40));
  }
  for (;;) {
    if (read_last(q).is_of(q, seen.first)) {
      return false;
    }
    if (claim.take()) {
      return !read_last(q).is_of(q, seen.first);
    }
    claim.drop_stale();
    std::this_thread::sleep_for(kLater);
  }
}

void replace(const fs::path& path, const std::string& text) {
  if (const auto error = write_whole(path, text)) {
    throw std::runtime_error(fmt::format("cannot write {}: {}", path.string(), *error));
  }
}

// One write: lines of several processes do not mix.
void say(const Question& q, const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    out += fmt::format("[fr {}:{}] {}\n", printable(q.host), q.rank, text.substr(at, end - at));
    at = end + 1;
  }
  for (std::string_view rest = out; !rest.empty();) {
    const ssize_t n = ::write(STDERR_FILENO, rest.data(), rest.size());
    if (n <= 0) {
      return;
    }
    rest.remove_prefix(static_cast<std::size_t>(n));
  }
}

// Whether nodes do not share the directory: the view of one node would blame all the others.
// Several launchers on one machine are one node.
bool sees_own_node_only(const Question& q, const std::set<int>& seen) {
  const bool several = static_cast<int>(q.here.size()) < q.world_size &&
                       (q.node_size <= 0 || q.node_size < q.world_size);
  return several && std::all_of(seen.begin(), seen.end(), [&](int rank) {
           return std::find(q.here.begin(), q.here.end(), rank) != q.here.end();
         });
}

bool is_of_an_end(Trigger t) {
  return t != Trigger::kTimeout && t != Trigger::kPeer && t != Trigger::kManual &&
         t != Trigger::kPipe;
}

LoadResult read(const Question& q, const std::string& prefix) {
  LoadOptions options;
  options.prefix = prefix;
  options.threads = 2;
  LoadResult input = load_paths(q.dirs, options);
  // A rank that ends replaces the copy of its ring by its dump.
  std::erase_if(input.unreadable, [](const Unreadable& u) {
    std::error_code ec;
    return !fs::exists(u.file, ec);
  });
  input.absent.clear();
  return input;
}

int answer(const Question& q) {
  const Dumped seen = await_dumps(q);
  if (seen.ranks.empty()) {
    return kNothing;
  }
  if (sees_own_node_only(q, seen.ranks)) {
    if (!q.quiet) {
      say(q, fmt::format("{} has dumps of this node's ranks only. Where the nodes do not share "
                         "FR_DUMP_DIR, gather the\nfiles of all of them; then: frtrace DIR",
                         printable(q.dirs.front())));
    }
    return kNotDecided;
  }
  Claim claim(beside(q, ".verdict.claim.tmp"));
  if (!wait_for_turn(q, seen, claim)) {
    return kNoFault;
  }
  LoadResult input = read(q, q.prefix());
  if (std::any_of(input.evidence.begin(), input.evidence.end(),
                  [](const auto& e) { return is_of_an_end(e->trigger); })) {
    await_quiet(q);
    input = read(q, q.prefix());
  }
  const std::vector<Case> cases = make_cases(input.evidence, {q.job, q.attempt, q.incident});
  if (cases.empty()) {
    return kNothing;
  }
  std::vector<Report> reports{diagnose(cases.front())};
  const std::set<int> before_it = q.attempt > 0 ? std::set<int>{0, q.attempt - 1} : std::set<int>();
  for (const int attempt : before_it) {
    const LoadResult before = read(q, fmt::format("{}.a{}.", q.job, attempt));
    add_attempt_before(before.evidence, attempt, reports.front());
  }
  look_at_lock_files(reports.front());
  look_for_ringless(reports.front());
  look_at_machine(reports.front(), {"", "", fr::read_options().shm_dir}, true);
  const Report& r = reports.front();
  TextStyle style;
  style.where = beside(q, "").parent_path().string();
  style.typed = false;
  style.width = kLogColumns - fmt::format("[fr {}:{}] ", q.host, q.rank).size();
  const std::string text = render_text(reports, input, style);
  const Last before = read_last(q);
  replace(beside(q, ".verdict.txt"), text + q.mark());
  replace(beside(q, ".verdict.json"), render_json(reports, input));
  const Last now = read_last(q);  // the same hang dumps again and again
  const bool said = before.summary == now.summary && before.time == now.time;
  if (r.kind != Verdict::kOk && !q.quiet && !said) {
    say(q, text);
  }
  return status_of(reports);
}

// Unblocks the signals, which the parent thread blocks, and becomes the first victim of the OOM
// killer.
void settle_in() {
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::alarm(kLife_s);
  ::umask(077);
  std::ofstream("/proc/self/oom_score_adj") << "1000";
}

}  // namespace

int verdict_command(int argc, char** argv) {
  CLI::App app{
      "What the recorder starts after an incident (FR_VERDICT=1): waits for the dumps, writes\n"
      "<job>.verdict.txt and .json beside them, and says the verdict on stderr."};
  Question q;
  app.add_option("dir", q.dirs, "where the dumps are, or else are")->required();
  app.add_option("--job", q.job)->required();
  app.add_option("--attempt", q.attempt)->required();
  app.add_option("--incident", q.incident)->required();
  app.add_option("--world-size", q.world_size, "ranks of the job; 0: not known");
  app.add_option("--node-size", q.node_size, "ranks of a node; 0: not known");
  app.add_option("--rank", q.rank, "for which it speaks");
  app.add_option("--here", q.here, "ranks of this node")->delimiter(',');
  app.add_option("--host", q.host);
  app.add_flag("--quiet", q.quiet, "nothing on stderr");
  if (const auto status = parse(app, argc, argv)) {
    return *status;
  }
  settle_in();
  return answer(q);
}

}  // namespace frtrace
