// environment.cpp - variables, versions and rights of the job's processes.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>

#include "doctor/checks.hpp"
#include "format/hash.hpp"
#include "model/rank_data.hpp"
#include "watch/deadlines.hpp"

namespace frtrace::doctor {

namespace {

Finding no_environment(Machine& m) {
  return unknown(
      fmt::format("/proc/{}/environ: the job's user or root", m.processes().front().pid));
}

// Variables that all ranks of a job should share; CUDA_VISIBLE_DEVICES differs by rank.
bool is_common(const std::string& name) {
  constexpr std::string_view kPrefixes[] = {"NCCL_", "TORCH_",   "CUDA_",
                                            "GLOO_", "PYTORCH_", "OMP_NUM_THREADS"};
  return name != "CUDA_VISIBLE_DEVICES" &&
         std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// The directory of torch that a process has loaded, by /proc/PID/maps.
std::string torch_dir(Machine& m, const Process& p) {
  const std::string maps = m.read("/proc/" + p.pid + "/maps");
  const std::size_t at = maps.find("/lib/libtorch_cpu.so");
  if (at == std::string::npos) {
    return "";
  }
  const std::size_t from = maps.rfind(' ', at) + 1;
  return maps.substr(from, at - from);
}

// torch/version.py: "cuda: Optional[str] = '12.8'", "__version__ = '2.13.0'"
std::string python_value(const std::string& text, const std::string& name) {
  for (const std::string& line : lines_of(text)) {
    const std::size_t quote = line.find('\'');
    if (line.starts_with(name) && quote != std::string::npos) {
      return line.substr(quote + 1, line.find('\'', quote + 1) - quote - 1);
    }
  }
  return "";
}

// The script that python runs: its text's hash.
std::string script_of(Machine& m, const Process& p) {
  const std::vector<std::string> arguments = split(m.read("/proc/" + p.pid + "/cmdline"), '\0');
  for (const std::string& a : arguments) {
    if (a.ends_with(".py")) {
      const std::string cwd = a.starts_with('/') ? "" : m.link("/proc/" + p.pid + "/cwd") + "/";
      const std::string text = m.read(m.seen(cwd + a));
      return text.empty() ? ""
                          : fmt::format("{} {:08x}", a.substr(a.rfind('/') + 1),
                                        fr::hash_bytes(text.data(), text.size()) & 0xffffffff);
    }
  }
  return "";
}

std::map<std::string, std::string> versions_of(Machine& m, const Process& p) {
  std::map<std::string, std::string> out;
  const std::string dir = torch_dir(m, p);
  if (!dir.empty()) {
    const std::string text = m.read(m.seen(dir + "/version.py"));
    out["torch"] = python_value(text, "__version__");
    out["cuda"] = python_value(text, "cuda");
  }
  const std::string exe = m.link("/proc/" + p.pid + "/exe");
  const std::string program = exe.substr(exe.rfind('/') + 1);
  out["python"] = program.starts_with("python") ? program : "";
  const std::string maps = m.read("/proc/" + p.pid + "/maps");
  for (const char* library : {"libnccl.so.", "libcudart.so."}) {
    const std::size_t at = maps.find(library);
    if (at != std::string::npos) {
      const std::string path =
          maps.substr(maps.rfind(' ', at) + 1, maps.find('\n', at) - maps.rfind(' ', at) - 1);
      out[std::string(library, 7)] = path;
    }
  }
  out["script"] = script_of(m, p);
  const std::vector<std::string> driver = words_of(m.line("/proc/driver/nvidia/version"));
  const auto number = std::find_if(driver.begin(), driver.end(), [](const std::string& word) {
    return word.find_first_not_of("0123456789.") == std::string::npos &&
           word.find('.') != std::string::npos;
  });
  out["driver"] = number != driver.end() ? *number : "";
  std::erase_if(out, [](const auto& v) { return v.second.empty(); });
  return out;
}

std::string ranks_text(const std::vector<int>& ranks) {
  return ranks_words(std::vector<Rank>(ranks.begin(), ranks.end()));
}

// "NAME is a of ranks 0-6, b of rank 7"; "" where all have the same.
std::string difference(const std::string& name,
                       const std::map<std::string, std::vector<int>>& ranks_of) {
  if (ranks_of.size() < 2) {
    return "";
  }
  std::string out;
  for (const auto& [value, ranks] : ranks_of) {
    out += fmt::format("{}{} of {}", out.empty() ? "" : ", ", value.empty() ? "unset" : value,
                       ranks_text(ranks));
  }
  return name + ": " + out;
}

}  // namespace

Finding check_versions(Machine& m) {
  std::map<std::string, std::map<std::string, std::vector<int>>> all;
  for (const Process& p : m.processes()) {
    for (const auto& [name, version] : versions_of(m, p)) {
      all[name][version].push_back(p.rank);
      m.alike(name, version);
    }
  }
  std::vector<std::string> shown;
  for (const auto& [name, ranks_of] : all) {
    if (const std::string text = difference(name, ranks_of); !text.empty()) {
      return bad(text);
    }
    shown.push_back(name + " " + ranks_of.begin()->first);
  }
  return shown.empty() ? not_here("no torch is loaded")
                       : ok(fmt::format("{}", fmt::join(shown, ", ")));
}

Finding check_environment(Machine& m) {
  if (!m.env_known()) {
    return no_environment(m);
  }
  std::set<std::string> names;
  for (const Process& p : m.processes()) {
    for (const auto& [name, value] : p.env) {
      if (is_common(name)) {
        names.insert(name);
      }
    }
  }
  for (const std::string& name : names) {
    std::map<std::string, std::vector<int>> ranks_of;
    for (const Process& p : m.processes()) {
      if (p.env_known) {
        const auto it = p.env.find(name);
        ranks_of[it != p.env.end() ? it->second : ""].push_back(p.rank);
      }
    }
    m.alike(name, ranks_of.begin()->first);
    if (const std::string text = difference(name, ranks_of); !text.empty()) {
      return warn(text);
    }
  }
  return ok(fmt::format("{} variables, alike on {} rank{}", names.size(), m.processes().size(),
                        m.processes().size() == 1 ? "" : "s"));
}

Finding check_debugging(Machine& m) {
  if (!m.env_known()) {
    return no_environment(m);
  }
  std::vector<std::string> found;
  for (const char* name : {"CUDA_LAUNCH_BLOCKING", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE",
                           "NCCL_IB_DISABLE", "NCCL_ALGO", "NCCL_PROTO"}) {
    if (const std::string value = m.env(name); !value.empty() && value != "0") {
      found.push_back(fmt::format("{}={}", name, value));
    }
  }
  for (const auto& [name, value] :
       {std::pair{"NCCL_DEBUG", "TRACE"}, std::pair{"TORCH_DISTRIBUTED_DEBUG", "DETAIL"}}) {
    if (m.env(name) == value) {
      found.push_back(fmt::format("{}={}", name, value));
    }
  }
  const std::string given = m.env("NCCL_CONF_FILE");
  for (const std::string& file :
       {std::string("/etc/nccl.conf"), m.env("HOME") + "/.nccl.conf", given}) {
    if (!file.empty() && m.exists(m.seen(file))) {
      found.push_back(file);
    }
  }
  return found.empty() ? ok("none") : warn(fmt::format("{}", fmt::join(found, ", ")));
}

namespace {

// Learned deadlines leave time for a dump before torch ends the job, whatever is set.
double latest_dump(const Process& p, bool adapts) {
  const auto timeout_ns = static_cast<std::uint64_t>(p.timeout_s * 1e9);
  return adapts && timeout_ns > 0 ? static_cast<double>(fr::before_timeout(timeout_ns)) / 1e9
                                  : std::numeric_limits<double>::infinity();
}

}  // namespace

Finding check_watchdogs(Machine& m) {
  if (!m.env_known()) {
    return no_environment(m);
  }
  const Process& p = m.processes().front();
  const bool in_job = p.fr_timeout_s > 0;
  const bool adapts = in_job ? p.adapts : m.env("FR_ADAPT") != "0";
  const double set_s = in_job ? p.fr_timeout_s : number_of(m.env("FR_TIMEOUT_S"), 60);
  const double latest_s = latest_dump(p, adapts);
  const double fr_s = std::min(set_s, latest_s);
  if (p.timeout_s > 0 && fr_s >= p.timeout_s) {
    return bad(fmt::format("FR_TIMEOUT_S is {} s and FR_ADAPT 0, torch ends the job after {} s",
                           fr_s, p.timeout_s));
  }
  const std::string handling = m.env("TORCH_NCCL_ASYNC_ERROR_HANDLING");
  if (m.env("TORCH_NCCL_BLOCKING_WAIT") == "1" && !handling.empty() && handling != "0") {
    return warn("TORCH_NCCL_BLOCKING_WAIT=1 and TORCH_NCCL_ASYNC_ERROR_HANDLING=" + handling);
  }
  const double heartbeat = number_of(m.env("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"), 0);
  if (heartbeat > 0 && m.env("TORCH_NCCL_ENABLE_MONITORING") != "0" &&
      (heartbeat <= fr_s || (p.timeout_s > 0 && heartbeat < p.timeout_s))) {
    return warn(fmt::format("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC={}, {}", heartbeat,
                            heartbeat <= fr_s
                                ? fmt::format("fr dumps after {} s", fr_s)
                                : fmt::format("operations may take {} s", p.timeout_s)));
  }
  const std::string when =
      fr_s < set_s ? fmt::format("fr dumps after {} s (FR_TIMEOUT_S is {} s)", fr_s, set_s)
      : !adapts    ? fmt::format("fr dumps after {} s", fr_s)
      : p.timeout_s > 0
          ? fmt::format("fr dumps after {} s, at call sites that took longer later, {} s at most",
                        fr_s, latest_s)
          : fmt::format("fr dumps after {} s, at call sites that took longer later", fr_s);
  return ok(p.timeout_s > 0 ? fmt::format("{}; torch ends the job after {} s", when, p.timeout_s)
                            : when);
}

// Compares the deadlines that the user set with the times that the job's call sites took.
Finding check_deadlines(Machine& m) {
  constexpr double kFloor_s = 60, kFactor = 10;  // learned deadlines if no other member is seen
  constexpr double kEnough_s = 3600, kEnoughVisits = 1000;
  const Process& p = m.processes().front();
  if (p.fr_timeout_s <= 0) {
    return not_here("no job");
  }
  const Learned l = m.learned();
  const std::string longest =
      l.longest_s > 0 ? fmt::format("{} took {}", l.site, duration_text(l.longest_s)) : "";
  if (l.visits == 0 && l.false_dumps + l.false_warnings == 0) {
    return ok(p.adapts ? "nothing is known yet of this job's call sites"
                       : "with FR_ADAPT 0 nothing is learned of call sites");
  }
  const auto shorter = [&](const char* name, double set_s, double alarms, const char* what) {
    const bool took = l.longest_s >= set_s;
    const std::string seen = alarms > 0 ? fmt::format("{} {}{} at what went on{}", alarms, what,
                                                      alarms == 1 ? "" : "s", took ? "; " : "")
                                        : "";
    return warn(fmt::format("{} is {} s{}: {}", name, set_s, p.adapts ? "" : " and FR_ADAPT 0",
                            seen + (took ? longest : "")),
                p.adapts ? "false alarms after each start, until fr has learned what takes long"
                         : "false alarms each time that an operation takes long",
                p.adapts ? fmt::format("unset {}; FR_DEADLINES=file keeps what is learned", name)
                         : fmt::format("FR_ADAPT=1, and {} unset", name));
  };
  if ((l.timeout_is_set || !p.adapts) && (l.longest_s >= p.fr_timeout_s || l.false_dumps > 0)) {
    return shorter("FR_TIMEOUT_S", p.fr_timeout_s, l.false_dumps, "dump");
  }
  if ((l.warn_is_set || !p.adapts) && (l.longest_s >= l.warn_s || l.false_warnings > 0)) {
    return shorter("FR_WARN_S", l.warn_s, l.false_warnings, "warning");
  }
  const double enough_s = std::max(kFloor_s, kFactor * l.longest_s);
  const double dumped_s = std::min(p.fr_timeout_s, latest_dump(p, p.adapts));
  if (l.timeout_is_set && dumped_s >= 2 * enough_s && l.age_s >= kEnough_s &&
      l.visits >= kEnoughVisits) {
    return warn(
        fmt::format("FR_TIMEOUT_S is {} s: in {}, {}", p.fr_timeout_s, duration_text(l.age_s),
                    longest.empty() ? "no operation took a second" : longest + " at most"),
        fmt::format("a hang is dumped {} later than it could be",
                    duration_text(dumped_s - enough_s)),
        "unset FR_TIMEOUT_S: fr dumps later by itself where a call site takes long");
  }
  return ok(longest.empty() ? "nothing took long so far" : longest + " at most");
}

Finding check_plugins(Machine& m) {
  if (!m.env_known()) {
    return no_environment(m);
  }
  const std::string profiler = m.env("NCCL_PROFILER_PLUGIN"), net = m.env("NCCL_NET_PLUGIN");
  if (profiler == "none") {
    return warn("NCCL_PROFILER_PLUGIN=none",
                "fr is not told what NCCL does below its calls: device operations, transfers",
                "unset it, if no other reason is known");
  }
  if (net.empty() || net == "none") {
    return ok(profiler.empty() ? "none is named" : "NCCL_PROFILER_PLUGIN=" + profiler);
  }
  // NCCL takes a path, a file's name, or what stands between libnccl-net- and .so
  const bool there = net.find('/') != std::string::npos
                         ? m.exists(m.seen(net))
                         : m.has_library("libnccl-net-" + net + ".so") || m.has_library(net);
  return there ? ok("NCCL_NET_PLUGIN=" + net)
               : bad("NCCL_NET_PLUGIN=" + net + ", and no such library where the loader looks");
}

Finding check_ptrace(Machine& m) {
  const std::string scope = m.line("/proc/sys/kernel/yama/ptrace_scope");
  const std::string status = m.read("/proc/" + m.processes().front().pid + "/status");
  const std::string own = m.read("/proc/self/status");
  const bool may = (std::strtoull(field_of(own, "CapEff").c_str(), nullptr, 16) >> 19 & 1) != 0;
  const std::string value = fmt::format("ptrace_scope {}, {}CAP_SYS_PTRACE",
                                        scope.empty() ? "0" : scope, may ? "" : "no ");
  return scope == "3" || (scope == "2" && !may)       ? warn(value)
         : field_of(status, "Seccomp") == "2" && !may ? ok(value + ", seccomp filter")
                                                      : ok(value);
}

Finding check_remove_ipc(Machine& m) {
  if (!m.exists("/run/systemd/system") || !m.exists("/run/systemd/users")) {
    return not_here("no systemd-logind");
  }
  const std::string status = m.read("/proc/" + m.processes().front().pid + "/status");
  const std::vector<std::string> ids = words_of(field_of(status, "Uid"));
  if (ids.empty() || number_of(ids[0]) < 1000) {
    return ok("a system user's");
  }
  std::string value;
  std::vector<std::string> files{"/etc/systemd/logind.conf"};
  for (const char* dir : {"/usr/lib/systemd/logind.conf.d/", "/run/systemd/logind.conf.d/",
                          "/etc/systemd/logind.conf.d/"}) {
    for (const std::string& name : m.list(dir)) {
      files.push_back(dir + name);
    }
  }
  for (const std::string& file : files) {
    for (const std::string& line : lines_of(m.read(file))) {
      value = line.starts_with("RemoveIPC=") ? trimmed(line.substr(10)) : value;
    }
  }
  if (value == "no" || value == "false" || value == "0" || value == "off") {
    return ok("RemoveIPC=" + value);
  }
  for (const std::string& line : lines_of(m.read("/etc/passwd"))) {
    const std::vector<std::string> w = split(line, ':');
    if (w.size() > 2 && w[2] == ids[0] && m.exists("/var/lib/systemd/linger/" + w[0])) {
      return ok(w[0] + " lingers");
    }
  }
  return warn(value.empty() ? "RemoveIPC is not set, its default is yes" : "RemoveIPC=" + value);
}

}  // namespace frtrace::doctor
