// Looks at the lock files that blamed ranks of this machine wait for.
#include "live/lock_files.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "system/bounded.hpp"
#include "system/here.hpp"

namespace frtrace {

namespace {

// The processes that have the file open, by /proc. Its links are read but not followed: their
// targets may lie on a file system that hangs.
std::string holders_of(const std::string& real) {
  if (real.empty()) {
    return {};
  }
  std::string who;
  bool hidden = false;
  std::error_code error;
  for (const std::filesystem::directory_entry& process :
       std::filesystem::directory_iterator("/proc", error)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::error_code denied;
    for (std::filesystem::directory_iterator fd(process.path() / "fd", denied), end;
         !denied && fd != end; fd.increment(denied)) {
      std::error_code gone;
      if (std::filesystem::read_symlink(fd->path(), gone) == real) {
        std::string name;
        std::getline(std::ifstream(process.path() / "comm"), name);
        who += fmt::format("{}process {} ({})", who.empty() ? "" : ", ", pid, name);
        break;
      }
    }
    hidden = hidden || denied == std::errc::permission_denied;
  }
  if (!who.empty()) {
    return "open in " + who;
  }
  return hidden ? "no process of this user has it open" : "no process has it open";
}

struct LockFile {
  bool answered = false;
  Time made = 0;  // 0: there is none
  std::string real_path;
};

// Once per path: hints are asked for again and again.
const LockFile& look_at(const std::string& path) {
  static std::map<std::string, LockFile> seen;
  const auto [it, fresh] = seen.try_emplace(path);
  LockFile& file = it->second;
  if (!fresh || given_up_on(path)) {
    return file;
  }
  file.answered = in_child(
      [&path](const Say& say) {
        struct stat st{};
        char real[PATH_MAX];
        if (::stat(path.c_str(), &st) == 0) {
          say(fmt::format("{} {}",
                          static_cast<Time>(st.st_mtim.tv_sec) * kSecond + st.st_mtim.tv_nsec,
                          ::realpath(path.c_str(), real) != nullptr ? real : ""));
        }
      },
      [&file](std::string_view said) {
        file.made = std::strtoll(std::string(said).c_str(), nullptr, 10);
        file.real_path = said.substr(said.find(' ') + 1);
      });
  if (!file.answered) {
    give_up_on(path);
  }
  return file;
}

// "it still exists, made 3 h ago, before this process began, no process has it open: stale"
std::string state_of(const std::string& path, Time process_start) {
  const LockFile& file = look_at(path);
  if (!file.answered) {
    return "its file system does not answer";
  }
  if (file.made == 0) {
    return "it is gone by now";
  }
  const Time now = unix_now();
  std::string out = fmt::format("it still exists, made {} ago",
                                duration_text(static_cast<double>(now - file.made) / 1e9));
  const std::string holders = holders_of(file.real_path);
  // A lock made before this run is not of this run; torch keeps its lock open while it builds.
  const bool before = process_start != 0 && file.made < process_start;
  out += before ? ", before this process began" : "";
  out += holders.empty() ? "" : ", " + holders;
  return out + (before && holders.compare(0, 3, "no ") == 0 ? ": stale" : "");
}

void add_state(const LockWait& lock, std::vector<std::string>& lines) {
  if (lock.path.empty() || lock.host != host_name()) {
    return;
  }
  for (std::string& line : lines) {
    const std::size_t end = line.find(lock.path + " to go");
    if (end != std::string::npos) {
      line = fmt::format("{} to go; {}", line.substr(0, end + lock.path.size()),
                         state_of(lock.path, lock.process_start));
    }
  }
}

}  // namespace

void look_at_lock_files(Report& r) {
  for (Blamed& b : r.blamed) {
    add_state(b.lock, b.evidence);
  }
}

void look_at_lock_files(StackTree& tree) {
  for (StackClass& c : tree.classes) {
    add_state(c.lock, c.where);
  }
}

}  // namespace frtrace
