// limits.cpp - memory, processors, processes and files that the job may have.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "doctor/checks.hpp"

namespace frtrace::doctor {

namespace {

constexpr double kMiB = 1 << 20, kUnlimited = 1e15;

// The lowest soft limit in /proc/PID/limits of the job's processes; -1: not known.
double soft_limit(Machine& m, const std::string& name) {
  double lowest = -1;
  for (const Process& p : m.processes()) {
    for (const std::string& line : lines_of(m.read("/proc/" + p.pid + "/limits"))) {
      if (line.starts_with(name)) {
        const std::vector<std::string> w = words_of(line.substr(name.size()));
        const double value = w.empty()             ? -1
                             : w[0] == "unlimited" ? kUnlimited
                                                   : number_of(w[0], -1);
        lowest = lowest < 0 ? value : std::min(lowest, value);
      }
    }
  }
  return lowest;
}

struct Group {
  std::string dir;
  bool v2 = false;
};

// The control groups of the job that a controller limits, innermost first.
std::vector<Group> groups_of(Machine& m, const std::string& controller) {
  std::string path, base = "/sys/fs/cgroup";
  bool v2 = false;
  for (const std::string& line :
       lines_of(m.read("/proc/" + m.processes().front().pid + "/cgroup"))) {
    const std::vector<std::string> w = split(line, ':');
    if (w.size() < 3) {
      continue;
    }
    const std::vector<std::string> names = split(w[1], ',');
    if (std::find(names.begin(), names.end(), controller) != names.end()) {
      path = w[2];
      v2 = false;
      base = "/sys/fs/cgroup/" + controller;
      break;
    }
    if (w[1].empty()) {
      path = w[2];
      v2 = true;
    }
  }
  std::vector<Group> out;
  while (!path.empty() && path != "/") {
    if (m.exists(base + path)) {
      out.push_back({base + path, v2});
    }
    path.resize(path.rfind('/'));
  }
  out.push_back({base, v2});
  return out;
}

double limit_in(const std::string& text) {
  const double n = text.empty() || text == "max" ? kUnlimited : number_of(text, kUnlimited);
  return n >= kUnlimited ? kUnlimited : n;
}

// CPUs of a list like "0-3,8".
std::set<int> cpus_in(const std::string& list) {
  std::set<int> out;
  for (const std::string& part : split(list, ',')) {
    const int first = static_cast<int>(number_of(part));
    const std::size_t dash = part.find('-');
    const int last =
        dash == std::string::npos ? first : static_cast<int>(number_of(part.substr(dash + 1)));
    for (int i = first; i <= std::min(last, first + 4096); ++i) {
      out.insert(i);
    }
  }
  return out;
}

}  // namespace

Finding check_shm(Machine& m) {
  const auto s = m.space(m.seen("/dev/shm"));
  if (!s) {
    return bad("/dev/shm is not mounted or does not answer");
  }
  const double need = (m.is_job() ? 64 : 64 + 32 * m.ranks_here()) * kMiB;
  const std::string value = fmt::format("{} free of {}", bytes_text(s->free), bytes_text(s->total));
  return s->total <= 64 * kMiB ? bad(value + ", a container's default")
         : s->free < need      ? bad(fmt::format("{}; {} rank{} here", value, m.ranks_here(),
                                            m.ranks_here() == 1 ? "" : "s"))
                               : ok(value);
}

Finding check_memlock(Machine& m) {
  if (!has_fabric(m)) {
    return not_here("no InfiniBand device");
  }
  const double limit = soft_limit(m, "Max locked memory");
  return limit < 0             ? unknown("/proc/PID/limits of the job: its user or root")
         : limit >= kUnlimited ? ok("unlimited")
                               : bad(bytes_text(limit));
}

Finding check_open_files(Machine& m) {
  const double limit = soft_limit(m, "Max open files");
  if (limit < 0) {
    return unknown("/proc/PID/limits of the job: its user or root");
  }
  std::size_t most = 0;
  for (const Process& p : m.processes()) {
    most = std::max(most, m.list("/proc/" + p.pid + "/fd").size());
  }
  const std::string value =
      limit >= kUnlimited ? "unlimited" : fmt::format("{:.0f}, {} in use", limit, most);
  const bool large = m.ranks_here() > 64 || m.world() > 512;
  return static_cast<double>(most) > 0.8 * limit ? bad(value)
         : large && limit < 65536 ? bad(fmt::format("{}; {} ranks", value, m.world()))
         : limit < 1024           ? warn(value)
                                  : ok(value);
}

Finding check_memory(Machine& m) {
  std::string tightest = "no limit";
  double least = 2;
  double kills = 0;
  bool innermost = true;
  for (const Group& g : groups_of(m, "memory")) {
    const double limit =
        limit_in(m.line(g.dir + (g.v2 ? "/memory.max" : "/memory.limit_in_bytes")));
    const bool limits = limit < kUnlimited;
    // of groups above, only of one that is the job's: it has a limit
    if (limits || innermost) {
      const std::string events = m.read(g.dir + (g.v2 ? "/memory.events" : "/memory.oom_control"));
      kills = std::max(kills, number_of(field_of(events, "oom_kill")));
    }
    innermost = false;
    if (!limits) {
      continue;
    }
    const double used =
        number_of(m.line(g.dir + (g.v2 ? "/memory.current" : "/memory.usage_in_bytes")));
    const std::string stat = m.read(g.dir + "/memory.stat");
    // file pages that can be dropped are no shortage
    const double cache = number_of(field_of(stat, g.v2 ? "inactive_file" : "total_inactive_file"));
    const double left = (limit - used + cache) / limit;
    if (left < least) {
      least = left;
      tightest =
          fmt::format("{} of {} left", bytes_text(std::max(left, 0.0) * limit), bytes_text(limit));
    }
  }
  const std::string info = m.read("/proc/meminfo");
  const double total = number_of(field_of(info, "MemTotal"));
  const double available = number_of(field_of(info, "MemAvailable"));
  if (kills > 0) {
    return bad(
        fmt::format("the kernel's OOM killer has ended {} process{} of the job's control "
                    "group; {}",
                    kills, kills == 1 ? "" : "es", tightest));
  }
  if (least < 0.1) {
    return bad(tightest);
  }
  const std::string host = bytes_text(available * 1024) + " available on the machine";
  return total > 0 && available < 0.05 * total ? bad(host) : ok(tightest + ", " + host);
}

Finding check_processors(Machine& m) {
  std::set<int> all;
  std::set<std::string> lists;
  for (const Process& p : m.processes()) {
    const std::string list = field_of(m.read("/proc/" + p.pid + "/status"), "Cpus_allowed_list");
    all.merge(cpus_in(list));
    lists.insert(list);
  }
  if (all.empty()) {
    return unknown("/proc/PID/status of the job");
  }
  const int ranks = m.is_job() ? static_cast<int>(m.processes().size()) : 1;
  const std::string value = fmt::format("{} CPU{} for {} rank{}", all.size(),
                                        all.size() == 1 ? "" : "s", ranks, ranks == 1 ? "" : "s");
  if (ranks > 1 && all.size() == 1) {
    return bad(value);
  }
  for (const Group& g : groups_of(m, "cpu")) {
    const std::vector<std::string> max = words_of(m.line(g.dir + "/cpu.max"));
    const double quota = g.v2 ? limit_in(max.empty() ? "" : max[0])
                              : number_of(m.line(g.dir + "/cpu.cfs_quota_us"), -1);
    const double period = g.v2 ? number_of(max.size() > 1 ? max[1] : "", 1)
                               : number_of(m.line(g.dir + "/cpu.cfs_period_us"), 1);
    const double throttled = number_of(field_of(m.read(g.dir + "/cpu.stat"), "nr_throttled"));
    if (quota > 0 && quota < kUnlimited && throttled > 0) {
      return warn(
          fmt::format("quota of {:.1f} CPUs, {} times throttled", quota / period, throttled));
    }
  }
  return static_cast<int>(all.size()) < 2 * ranks ? warn(value) : ok(value);
}

Finding check_swap(Machine& m) {
  double swapped = 0;
  for (const Process& p : m.processes()) {
    swapped += number_of(field_of(m.read("/proc/" + p.pid + "/status"), "VmSwap")) * 1024;
  }
  if (swapped > 16 * kMiB) {
    return warn(bytes_text(swapped) + " of the job are swapped out");
  }
  const std::string reclaim = m.line("/proc/sys/vm/zone_reclaim_mode");
  return reclaim != "0" && !reclaim.empty() ? warn("zone_reclaim_mode is " + reclaim)
                                            : ok("nothing swapped out");
}

Finding check_pids(Machine& m) {
  std::string value;
  for (const Group& g : groups_of(m, "pids")) {
    const double limit = limit_in(m.line(g.dir + "/pids.max"));
    const double now = number_of(m.line(g.dir + "/pids.current"));
    if (limit < kUnlimited) {
      value = fmt::format("{:.0f} of {:.0f} in the control group", now, limit);
      if (now > 0.8 * limit) {
        return bad(value);
      }
    }
  }
  // "0.40 0.35 0.30 2/1234 5678": tasks that run / all
  const std::vector<std::string> load = words_of(m.read("/proc/loadavg"));
  const double tasks = load.size() > 3 ? number_of(load[3].substr(load[3].find('/') + 1)) : 0;
  for (const char* name : {"threads-max", "pid_max"}) {
    const double most = number_of(m.line(std::string("/proc/sys/kernel/") + name));
    if (most > 0 && tasks > 0.8 * most) {
      return bad(fmt::format("{:.0f} threads on the machine, {} is {:.0f}", tasks, name, most));
    }
  }
  return ok(
      fmt::format("{:.0f} threads on the machine{}{}", tasks, value.empty() ? "" : ", ", value));
}

Finding check_core_dumps(Machine& m) {
  const double limit = soft_limit(m, "Max core file size");
  const std::string pattern = m.line("/proc/sys/kernel/core_pattern");
  double resident = 0;
  for (const Process& p : m.processes()) {
    resident = std::max(resident,
                        1024 * number_of(field_of(m.read("/proc/" + p.pid + "/status"), "VmRSS")));
  }
  const double core = std::min(resident, limit);
  if (limit <= 0 && !pattern.starts_with('|')) {
    return ok("off");
  }
  const std::string value = fmt::format("a core of {} goes to {}", bytes_text(core), pattern);
  if (!pattern.starts_with('|')) {
    const std::string dir = pattern.starts_with('/')
                                ? pattern.substr(0, pattern.rfind('/') + 1)
                                : m.link("/proc/" + m.processes().front().pid + "/cwd");
    const auto s = m.space(m.seen(dir));
    if (s && s->free < core * m.ranks_here()) {
      return bad(fmt::format("{} in {}, which has {} free", value, dir, bytes_text(s->free)));
    }
  }
  // a program behind a pipe is given all of it, whatever the limit
  return (pattern.starts_with('|') ? resident : core) > 32768 * kMiB ? warn(value) : ok(value);
}

}  // namespace frtrace::doctor
