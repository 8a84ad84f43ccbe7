#include "live/rings.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <tuple>

#include "live/mapped_ring.hpp"
#include "recorder/job_name.hpp"
#include "sample/process.hpp"
#include "system/here.hpp"
#include "system/proc_file.hpp"

namespace frtrace {

namespace {

constexpr Time kSign = 10 * kSecond;  // a watchdog's last sign, of one that runs

void each_name(const std::string& dir, const std::function<void(const std::string&)>& tell) {
  if (DIR* d = ::opendir(dir.c_str())) {
    while (const dirent* e = ::readdir(d)) {
      tell(e->d_name);
    }
    ::closedir(d);
  }
}

std::string link_of(const std::string& path) {
  char to[256] = {};
  return ::readlink(path.c_str(), to, sizeof to - 1) > 0 ? to : "";
}

// The directories fr-<uid> in it that are ours; to root all are.
void add_places(const std::string& root, const std::string& shm_dir,
                std::set<std::pair<dev_t, ino_t>>& seen, std::vector<RingPlace>& out) {
  const std::string within = root + shm_dir;
  each_name(within, [&](const std::string& name) {
    struct stat st{};
    const std::string path = within + "/" + name;
    if (name.starts_with("fr-") && ::lstat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode) &&
        (st.st_uid == ::geteuid() || ::geteuid() == 0) &&
        seen.insert({st.st_dev, st.st_ino}).second) {
      out.push_back({path, root});
    }
  });
}

bool is_of_job(const fr::Header& h, const std::string& job, bool same_pids) {
  return job.empty() || fixed(h.job, sizeof h.job) == fr::job_in_files(job) ||
         (same_pids && variable_of(h.pid, "SLURM_JOB_ID") == job);
}

FoundRing describe_ring(const fr::Header& h, const RingPlace& place, const std::string& name) {
  FoundRing r;
  r.path = place.path + "/" + name;
  r.name = name;
  r.root = place.root;
  r.job = fixed(h.job, sizeof h.job);
  r.host = fixed(h.host, sizeof h.host);
  r.attempt = h.attempt;
  r.rank = h.rank.load();
  r.pid = h.pid;
  r.signal = static_cast<int>(h.ask_signal.load());
  r.pid_namespace = h.pid_namespace;
  r.same_pids = h.pid_namespace == fr::pid_namespace();
  r.runs = lives(h, unix_now(), kSign);
  const std::string dir = fixed(h.dump_dir, sizeof h.dump_dir);
  r.dump_dir = r.root + (dir.starts_with('/') ? dir : fixed(h.cwd, sizeof h.cwd) + "/" + dir);
  return r;
}

void each_ring(
    const std::vector<RingPlace>& places,
    const std::function<void(const fr::Header&, const RingPlace&, const std::string&)>& tell) {
  for (const RingPlace& place : places) {
    for_each_ring(place.path, [&](const std::string& name, const auto& ring) {
      tell(ring->view().header(), place, name);
    });
  }
}

}  // namespace

std::string variable_of(int pid, const std::string& name) {
  const auto all = environment_in(whole_file(fmt::format("/proc/{}/environ", pid)).value_or(""));
  const auto it = all.find(name);
  return it == all.end() ? "" : it->second;
}

std::vector<RingPlace> ring_places(const std::string& shm_dir) {
  std::vector<RingPlace> out;
  std::set<std::pair<dev_t, ino_t>> seen;
  add_places("", shm_dir, seen, out);
  const std::string own = link_of("/proc/self/ns/mnt");
  std::set<std::pair<std::string, std::string>> looked{{own, shm_dir}};
  each_name("/proc", [&](const std::string& entry) {
    if (entry.find_first_not_of("0123456789") != std::string::npos) {
      return;
    }
    const std::string mounts = link_of("/proc/" + entry + "/ns/mnt");
    if (mounts.empty()) {
      return;  // gone, or another user's
    }
    const std::string given = variable_of(std::atoi(entry.c_str()), "FR_SHM_DIR");
    const std::string& dir = given.empty() ? shm_dir : given;
    if (looked.insert({mounts, dir}).second) {
      add_places(mounts == own ? "" : "/proc/" + entry + "/root", dir, seen, out);
    }
  });
  return out;
}

std::vector<FoundRing> rings_of(const std::vector<RingPlace>& places, const std::string& job) {
  std::vector<FoundRing> out;
  const std::uint64_t own = fr::pid_namespace();
  each_ring(places, [&](const fr::Header& h, const RingPlace& place, const std::string& name) {
    if (is_of_job(h, job, h.pid_namespace == own)) {
      out.push_back(describe_ring(h, place, name));
    }
  });
  std::sort(out.begin(), out.end(), [](const FoundRing& a, const FoundRing& b) {
    return std::tie(a.rank, a.path) < std::tie(b.rank, b.path);
  });
  return out;
}

std::vector<std::string> jobs_in(const std::vector<RingPlace>& places) {
  std::set<std::string> out;
  each_ring(places, [&](const fr::Header& h, const RingPlace&, const std::string&) {
    out.insert(fixed(h.job, sizeof h.job));
  });
  return {out.begin(), out.end()};
}

}  // namespace frtrace
