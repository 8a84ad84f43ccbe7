// storage.cpp - where dumps go, and file systems that do not answer.
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "doctor/checks.hpp"
#include "recorder/options.hpp"
#include "system/bounded.hpp"

namespace frtrace::doctor {

namespace {

struct Mount {
  std::string path, type, source;
};

// "36 35 98:0 /root /mnt rw,... - ext4 /dev/sda rw"
std::vector<Mount> mounts_of(Machine& m) {
  std::vector<Mount> out;
  for (const std::string& line :
       lines_of(m.read("/proc/" + m.processes().front().pid + "/mountinfo"))) {
    const std::vector<std::string> w = words_of(line);
    const auto dash = std::find(w.begin(), w.end(), "-");
    if (w.size() > 4 && w.end() - dash > 2) {
      out.push_back({w[4], *(dash + 1), *(dash + 2)});
    }
  }
  return out;
}

bool is_remote(const std::string& type) {
  static const std::set<std::string> kTypes{"nfs",  "nfs4", "cifs", "smb3",   "lustre", "gpfs",
                                            "ceph", "9p",   "afs",  "beegfs", "wekafs"};
  return kTypes.contains(type) || type.starts_with("fuse.");
}

const Mount* mount_below(const std::vector<Mount>& all, const std::string& path) {
  const Mount* best = nullptr;
  for (const Mount& m : all) {
    const bool above =
        path.starts_with(m.path) &&
        (m.path.ends_with('/') || path.size() == m.path.size() || path[m.path.size()] == '/');
    if (above && (best == nullptr || m.path.size() >= best->path.size())) {
      best = &m;
    }
  }
  return best;
}

std::string dump_dir_of(Machine& m) {
  const std::string& given = m.processes().front().dump_dir;
  if (!given.empty()) {
    return given;
  }
  return fr::read_options([&](const char* name) -> const char* {
           const auto& env = m.processes().front().env;
           const auto it = env.find(name);
           return it != env.end() ? it->second.c_str() : nullptr;
         })
      .dump_dir;
}

// "writable", "not writable" of a directory or of the nearest above it that exists.
std::optional<std::string> writable(const std::string& path) {
  std::optional<std::string> out;
  in_child(
      [&](const Say& say) {
        std::string at = path;
        while (at.size() > 1 && ::access(at.c_str(), F_OK) != 0) {
          at.resize(std::max<std::size_t>(at.rfind('/'), 1));
        }
        say((::access(at.c_str(), W_OK) == 0 ? "writable " : "not writable ") + at);
      },
      [&](std::string_view said) { out = said; });
  return out;
}

}  // namespace

Finding check_dump_dir(Machine& m) {
  const std::string dir = dump_dir_of(m);
  const std::vector<Mount> all = mounts_of(m);
  const Mount* mount = mount_below(all, dir);
  if (mount != nullptr) {
    // a directory of each node's own is on a disk of its own; a shared one on one file system
    m.alike("file system", is_remote(mount->type) ? mount->source : mount->type);
  }
  const std::string answer =
      m.ask("writable:" + dir, [&] { return writable(m.seen(dir)); }).value_or("");
  const std::string at = answer.substr(std::min(answer.rfind(' ') + 1, answer.size()));
  if (answer.empty()) {
    return bad(dir + ": its file system does not answer");
  }
  if (answer.starts_with("not")) {
    return bad(at + " is not writable");
  }
  const auto s = m.space(at);
  if (!s) {
    return unknown("statvfs of " + at);
  }
  const std::string value = fmt::format("{} free in {}", bytes_text(s->free), dir);
  return s->free < 1 << 28 || (s->inodes > 0 && s->inodes_free == 0) ? bad(value)
         : s->free < 1 << 30 || s->free < 0.05 * s->total            ? warn(value)
         : s->inodes > 0 && s->inodes_free < 0.01 * s->inodes
             ? warn(fmt::format("{:.0f} inodes free in {}", s->inodes_free, dir))
             : ok(value);
}

Finding check_mounts(Machine& m) {
  constexpr std::size_t kMostHung = 2;
  std::vector<std::string> hung;
  std::size_t n = 0;
  for (const Mount& mount : mounts_of(m)) {
    if (!is_remote(mount.type) || hung.size() == kMostHung) {
      continue;
    }
    ++n;
    const auto answer = m.ask("mount:" + mount.path, [&]() -> std::optional<std::string> {
      const bool ended = in_child(
          [&](const Say&) {
            struct statvfs s{};
            ::statvfs(m.seen(mount.path).c_str(), &s);
          },
          [](std::string_view) {});
      return ended ? std::optional<std::string>("answers") : std::nullopt;
    });
    if (!answer) {
      hung.push_back(fmt::format("{} ({} from {})", mount.path, mount.type, mount.source));
    }
  }
  return !hung.empty() ? bad(hung.front() + (hung.size() > 1 ? " and others" : "") +
                             " does not answer within 3 s")
         : n == 0      ? not_here("no network file system")
                       : ok(fmt::format("{} answer", n));
}

Finding check_stuck_threads(Machine& m) {
  const auto sleepers = [&] {
    std::set<std::string> out;
    for (const Process& p : m.processes()) {
      for (const std::string& tid : m.list("/proc/" + p.pid + "/task")) {
        const std::string dir = "/proc/" + p.pid + "/task/" + tid;
        const std::string stat = m.read(dir + "/stat");
        const std::size_t name = stat.rfind(") ");
        if (name != std::string::npos && stat.substr(name + 2).starts_with('D')) {
          const std::string where = m.line(dir + "/wchan");
          out.insert(fmt::format("process {} thread {}{}", p.pid, tid,
                                 where.empty() || where == "0" ? "" : " in " + where));
        }
      }
    }
    return out;
  };
  std::set<std::string> first = sleepers();
  if (!first.empty() && m.is_live()) {
    ::usleep(300'000);  // a healthy read from a disk is done by then
    std::set<std::string> again = sleepers();
    std::erase_if(first, [&](const std::string& who) { return !again.contains(who); });
  }
  return first.empty() ? ok("none") : bad(fmt::format("{}: {}", first.size(), *first.begin()));
}

}  // namespace frtrace::doctor
