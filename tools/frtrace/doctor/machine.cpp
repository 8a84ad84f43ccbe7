#include "doctor/machine.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "format/schema.hpp"
#include "format/ticks.hpp"
#include "metrics/node.hpp"
#include "recorder/options.hpp"
#include "sample/process.hpp"
#include "system/bounded.hpp"
#include "system/proc_file.hpp"

namespace frtrace::doctor {

namespace {

constexpr std::chrono::milliseconds kCommand{10'000};

// The shortest timeout of the last operations.
double timeout_of(const fr::View& view) {
  double shortest = 0;
  const std::uint32_t slots = view.n_slots();
  const std::uint64_t head = view.header().head.load();
  fr::RecordCopy record;
  for (std::uint64_t i = 1; slots > 0 && i <= std::min<std::uint64_t>(head, 64); ++i) {
    const auto slot = static_cast<std::uint32_t>((head - i) % slots);
    if (view.read(slot, record) == fr::Slot::kWhole && record.payload.timeout_ms > 0) {
      const double s = record.payload.timeout_ms / 1e3;
      shortest = shortest == 0 ? s : std::min(shortest, s);
    }
  }
  return shortest;
}

// An entry "NAME=value\tsource\n" in a ring's table of options.
struct OptionEntry {
  std::string value, source;
};
OptionEntry option_in(std::string_view table, std::string_view name) {
  for (const std::string& line : lines_of(table)) {
    if (line.starts_with(name) && line.size() > name.size() && line[name.size()] == '=') {
      const size_t tab = line.find('\t');
      return {line.substr(name.size() + 1, tab - name.size() - 1),
              tab == std::string::npos ? "" : line.substr(tab + 1)};
    }
  }
  return {};
}

bool is_set(std::string_view table, std::string_view name) {
  const OptionEntry entry = option_in(table, name);
  return !entry.source.empty() && entry.source != "default";
}

// Visits the living ranks of the job, or of all jobs, in this pid namespace.
template <class Take>
void for_each_rank(const std::string& shm_dir, const std::string& job, Take take) {
  for_each_ring(ring_directory(shm_dir), [&](const std::string&, const auto& ring) {
    const fr::Header& h = ring->view().header();
    if ((job.empty() || fixed(h.job, sizeof h.job) == job) &&
        h.pid_namespace == fr::pid_namespace() && fr::is_alive(h.pid, h.proc_start)) {
      take(ring->view(), h);
    }
  });
}

// Living ranks of the job, or of all jobs, in this pid namespace: pid, rank, local rank, ranks
// here, ranks of all, job, directory of the dumps, timeout, FR_TIMEOUT_S, FR_ADAPT, by tabs.
std::string ranks_by_rings(const std::string& shm_dir, const std::string& job) {
  std::string out;
  for_each_rank(shm_dir, job, [&](const fr::View& view, const fr::Header& h) {
    out += fmt::format("{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\n", h.pid, h.rank.load(),
                       h.local_rank.load(), h.local_world_size, h.world_size.load(),
                       fixed(h.job, sizeof h.job), fixed(h.dump_dir, sizeof h.dump_dir),
                       timeout_of(view), option_in(view.options(), "FR_TIMEOUT_S").value,
                       option_in(view.options(), "FR_ADAPT").value);
  });
  return out;
}

// The same ranks' deadlines and false alarms, "NAME: value" by line.
std::string learned_by_rings(const std::string& shm_dir, const std::string& job) {
  Learned all;
  const double now_s = static_cast<double>(fr::unix_now_ns()) / 1e9;
  for_each_rank(shm_dir, job, [&](const fr::View& view, const fr::Header& h) {
    all.timeout_is_set |= is_set(view.options(), "FR_TIMEOUT_S");
    all.warn_is_set |= is_set(view.options(), "FR_WARN_S");
    all.warn_s = number_of(option_in(view.options(), "FR_WARN_S").value);
    all.age_s = std::max(all.age_s, now_s - static_cast<double>(h.start_unix_ns) / 1e9);
    all.false_warnings = std::max<double>(all.false_warnings, h.false_warnings.load());
    all.false_dumps = std::max<double>(all.false_dumps, h.false_dumps.load());
    double visits = 0;
    for (std::uint32_t i = 0; i < view.n_sites(); ++i) {
      const fr::SiteRow* site = view.site(i);
      if (site == nullptr) {
        continue;
      }
      visits += static_cast<double>(site->visits.load());
      const double longest_s =
          static_cast<double>(std::max(fr::schema::longest_ms(site->absent),
                                       fr::schema::longest_ms(site->together))) /
          1e3;
      if (longest_s > all.longest_s) {
        all.longest_s = longest_s;
        all.site = fixed(site->text, sizeof site->text);
      }
    }
    all.visits = std::max(all.visits, visits);
  });
  return fmt::format(
      "timeout_is_set: {:d}\nwarn_is_set: {:d}\nwarn_s: {}\nage_s: {:.0f}\nvisits: {:.0f}\n"
      "longest_s: {}\nsite: {}\nfalse_warnings: {}\nfalse_dumps: {}\n",
      all.timeout_is_set, all.warn_is_set, all.warn_s, all.age_s, all.visits, all.longest_s,
      all.site, all.false_warnings, all.false_dumps);
}

}  // namespace

std::vector<std::string> jobs_here(const std::string& shm_dir) {
  std::set<std::string> jobs;
  for (const std::string& line : lines_of(ranks_by_rings(shm_dir, ""))) {
    const std::vector<std::string> w = split(line, '\t');
    jobs.insert(w.size() > 5 ? w[5] : "");
  }
  return {jobs.begin(), jobs.end()};
}

Machine::Machine(Where where) : where_(std::move(where)) {}

std::optional<std::string> Machine::try_read(std::string_view path) const {
  return whole_file(path_of(path), false);
}

std::string Machine::line(std::string_view path) const {
  const std::string text = read(path);
  return trimmed(text.substr(0, text.find('\n')));
}

bool Machine::exists(std::string_view path) const {
  struct stat st{};
  return ::lstat(path_of(path).c_str(), &st) == 0;
}

std::vector<std::string> Machine::list(std::string_view path) const {
  std::vector<std::string> out;
  DIR* d = ::opendir(path_of(path).c_str());
  while (const dirent* e = d != nullptr ? ::readdir(d) : nullptr) {
    if (e->d_name[0] != '.') {
      out.emplace_back(e->d_name);
    }
  }
  if (d != nullptr) {
    ::closedir(d);
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string Machine::link(std::string_view path) const {
  char to[4096];
  const ssize_t n = ::readlink(path_of(path).c_str(), to, sizeof to);
  return n > 0 ? std::string(to, static_cast<std::size_t>(n)) : "";
}

std::optional<std::string> Machine::ask(const std::string& name, const Ask& live) {
  const auto [it, fresh] = answers_.try_emplace(name);
  if (fresh) {
    std::string file = name;
    std::replace(file.begin(), file.end(), '/', '_');
    it->second = where_.root.empty() ? live() : whole_file(where_.root + "/answers/" + file, false);
  }
  return it->second;
}

std::optional<std::string> Machine::command(const std::string& name,
                                            const std::vector<std::string>& argv) {
  return ask(name, [&]() -> std::optional<std::string> {
    for (const std::string& other : hanging_) {
      if (other.substr(0, other.find(' ')) == name.substr(0, name.find(' '))) {
        hanging_.insert(name);  // the same program
        return std::nullopt;
      }
    }
    Output out = output_of(argv, kCommand);
    if (!out.ended) {
      hanging_.insert(name);
    }
    if (out.ended && out.status != 0) {
      failed_[name] = trimmed(out.text.substr(0, out.text.find('\n')));
    }
    return out.ended && out.status == 0 ? std::optional(std::move(out.text)) : std::nullopt;
  });
}

std::string Machine::failure(const std::string& name) const {
  const auto it = failed_.find(name);
  return it != failed_.end() ? it->second : line("/answers/failed " + name);
}

std::optional<Space> Machine::space(const std::string& path) {
  const auto answer = ask("statvfs:" + path, [&]() -> std::optional<std::string> {
    std::optional<std::string> got;
    in_child(
        [&](const Say& say) {
          struct statvfs s{};
          if (::statvfs(path.c_str(), &s) == 0) {
            const double block = static_cast<double>(s.f_frsize);
            say(fmt::format("{} {} {} {}", static_cast<double>(s.f_blocks) * block,
                            static_cast<double>(s.f_bavail) * block, s.f_files, s.f_favail));
          }
        },
        [&](std::string_view said) { got = said; });
    return got;
  });
  const std::vector<std::string> words = words_of(answer.value_or(""));
  if (words.size() != 4) {
    return std::nullopt;
  }
  return Space{number_of(words[0]), number_of(words[1]), number_of(words[2]), number_of(words[3])};
}

double Machine::uptime_s() const {
  return number_of(read("/proc/uptime"));
}

// "6,1234,5678901,-;text"
std::vector<KernelLine> Machine::from_kmsg(const std::string& text) const {
  std::vector<KernelLine> out;
  const double now = uptime_s();
  for (const std::string& line : lines_of(text)) {
    const std::vector<std::string> head = split(line.substr(0, line.find(';')), ',');
    if (head.size() >= 3 && line.find(';') != std::string::npos) {
      out.push_back({now - number_of(head[2]) * 1e-6, line.substr(line.find(';') + 1)});
    }
  }
  return out;
}

const std::optional<std::vector<KernelLine>>& Machine::kernel_log() {
  if (std::exchange(log_read_, true)) {
    return log_;
  }
  if (const auto kmsg = whole_file(where_.root + "/dev/kmsg", true)) {
    log_ = from_kmsg(*kmsg);
    return log_;
  }
  const auto journal = command("journalctl", {"journalctl", "-k", "-b", "-q", "--no-pager", "-o",
                                              "short-unix", "-n", "50000"});
  if (journal && !journal->empty()) {
    const double now =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    log_.emplace();
    for (const std::string& line : lines_of(*journal)) {
      const std::size_t text = line.find("kernel: ");
      if (text != std::string::npos) {
        log_->push_back({now - number_of(line), line.substr(text + 8)});
      }
    }
  }
  return log_;
}

void Machine::find_processes() {
  const auto ranks = where_.job.empty() ? std::nullopt : ask("ranks", [&] {
    return std::optional(ranks_by_rings(where_.shm_dir, where_.job));
  });
  for (const std::string& line : lines_of(ranks.value_or(""))) {
    const std::vector<std::string> w = split(line, '\t');
    if (w.size() == 10) {
      processes_.push_back({w[0],
                            std::atoi(w[1].c_str()),
                            std::atoi(w[2].c_str()),
                            std::atoi(w[3].c_str()),
                            std::atoi(w[4].c_str()),
                            w[5],
                            w[6],
                            number_of(w[7]),
                            number_of(w[8]),
                            w[9] != "0",
                            {},
                            false});
    }
  }
  std::sort(processes_.begin(), processes_.end(),
            [](const Process& a, const Process& b) { return a.rank < b.rank; });
  if (processes_.empty()) {
    processes_.emplace_back();
  }
  for (Process& p : processes_) {
    const auto environ = try_read("/proc/" + p.pid + "/environ");
    p.env_known = environ.has_value();
    p.env = environment_in(environ.value_or(""));
    const fr::EnvIdentity id = fr::read_identity([&](const char* name) -> const char* {
      const auto it = p.env.find(name);
      return it != p.env.end() ? it->second.c_str() : nullptr;
    });
    p.rank = p.rank >= 0 ? p.rank : id.rank;
    p.world = p.world > 0 ? p.world : id.world_size;
    p.local_world = p.local_world > 0 ? p.local_world : id.local_world_size;
  }
}

const std::vector<Process>& Machine::processes() {
  if (processes_.empty()) {
    find_processes();
  }
  return processes_;
}

Learned Machine::learned() {
  const auto answer = where_.job.empty() ? std::nullopt : ask("learned", [&] {
    return std::optional(learned_by_rings(where_.shm_dir, where_.job));
  });
  const std::string text = answer.value_or("");
  const auto number = [&](std::string_view name) { return number_of(field_of(text, name)); };
  return {number("timeout_is_set") != 0,
          number("warn_is_set") != 0,
          number("warn_s"),
          number("age_s"),
          number("visits"),
          number("longest_s"),
          field_of(text, "site"),
          number("false_warnings"),
          number("false_dumps")};
}

int Machine::world() {
  return processes().front().world;
}

int Machine::ranks_here() {
  const int n = processes().front().local_world;
  return std::max({n, is_job() ? static_cast<int>(processes().size()) : 0, 1});
}

std::optional<bool> Machine::spans_nodes() {
  const Process& p = processes().front();
  if (p.world > 0 && p.local_world > 0) {
    return p.world > p.local_world;
  }
  if (p.world == 1) {
    return false;
  }
  return std::nullopt;
}

std::string Machine::env(const std::string& name) {
  for (const Process& p : processes()) {
    if (p.env_known) {
      const auto it = p.env.find(name);
      return it != p.env.end() ? it->second : "";
    }
  }
  return "";
}

bool Machine::env_known() {
  return std::any_of(processes().begin(), processes().end(),
                     [](const Process& p) { return p.env_known; });
}

std::string Machine::seen(const std::string& path) {
  const std::string inside = "/proc/" + processes().front().pid + "/root" + path;
  return is_job() && exists(inside) ? inside : path;
}

bool Machine::same_network() {
  const std::string own = link("/proc/self/ns/net");
  const std::string its = link("/proc/" + processes().front().pid + "/ns/net");
  return own.empty() || its.empty() || own == its;
}

bool Machine::is_virtual() const {
  return read("/proc/cpuinfo").find(" hypervisor") != std::string::npos;
}

bool Machine::has_library(const std::string& prefix) {
  std::vector<std::string> dirs = split(env("LD_LIBRARY_PATH"), ':');
  for (const char* dir :
       {"/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu", "/usr/local/nvidia/lib64", "/usr/local/cuda/lib64"}) {
    dirs.emplace_back(dir);
  }
  return std::any_of(dirs.begin(), dirs.end(), [&](const std::string& dir) {
    const std::vector<std::string> names = list(seen(dir));
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return name.starts_with(prefix); });
  });
}

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(at), text.size());
    out.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::vector<std::string> lines_of(std::string_view text) {
  return split(text, '\n');
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> out;
  constexpr std::string_view kSpace = " \t\r\n";
  for (std::size_t at = 0; (at = text.find_first_not_of(kSpace, at)) != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    out.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return out;
}

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t from = text.find_first_not_of(kSpace);
  return from == std::string_view::npos
             ? ""
             : std::string(text.substr(from, text.find_last_not_of(kSpace) - from + 1));
}

double number_of(std::string_view text, double otherwise) {
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  return end == copy.c_str() ? otherwise : value;
}

std::string field_of(std::string_view text, std::string_view name) {
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with(name) && line.size() > name.size() &&
        (line[name.size()] == ':' || line[name.size()] == ' ' || line[name.size()] == '\t')) {
      return trimmed(line.substr(name.size() + 1));
    }
  }
  return "";
}

std::string bytes_text(double bytes) {
  for (const char* unit : {"B", "KiB", "MiB", "GiB"}) {
    if (bytes < 1024 || *unit == 'G') {
      return fmt::format("{:.{}f} {}", bytes, *unit == 'G' && bytes < 100 ? 1 : 0, unit);
    }
    bytes /= 1024;
  }
  return "";
}

}  // namespace frtrace::doctor
