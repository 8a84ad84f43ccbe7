#include "live/ringless.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <string>

#include "model/contains.hpp"
#include "recorder/options.hpp"
#include "sample/process.hpp"
#include "system/here.hpp"
#include "system/proc_file.hpp"

namespace frtrace {

namespace {

namespace fs = std::filesystem;

// The rank as which a process was started; -1: not of this job, or of another user.
Rank started_as(const fs::path& process, const std::string& job) {
  const auto variables = environment_in(whole_file(process / "environ").value_or(""));
  const auto lookup = [&](const char* name) -> const char* {
    const auto it = variables.find(name);
    return it == variables.end() ? nullptr : it->second.c_str();
  };
  const Rank rank = fr::read_identity(lookup).rank;
  return rank >= 0 && fr::read_options(lookup).job == job ? rank : -1;
}

// The process with the lowest pid for each of the ranks: workers of a rank share its environment.
std::map<Rank, int> processes_of(const std::string& job, const std::vector<Rank>& ranks) {
  std::map<Rank, int> out;
  std::error_code ec;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc", ec)) {
    const std::string name = entry.path().filename();
    int pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc{} || end != name.data() + name.size()) {
      continue;
    }
    const Rank rank = started_as(entry.path(), job);
    if (contains(ranks, rank) &&
        whole_file(entry.path() / "comm").value_or("").find("python") != std::string::npos) {
      const auto [at, is_new] = out.try_emplace(rank, pid);
      at->second = is_new ? pid : std::min(at->second, pid);
    }
  }
  return out;
}

}  // namespace

void look_for_ringless(Report& r) {
  const bool is_here = std::ranges::count(r.rank_reports, host_name(), &RankReport::host) != 0;
  if (r.missing_ranks.empty() || r.blamed.empty() || !is_here) {
    return;
  }
  const std::map<Rank, int> processes = processes_of(r.job, r.missing_ranks);
  for (Blamed& b : r.blamed) {
    if (const auto it = processes.find(b.rank); it != processes.end()) {
      const char state = fr::process_state(it->second);
      b.evidence.push_back(fmt::format(
          "process {} of this machine was started as rank {}, {} and has come to no group yet: "
          "py-spy dump --pid {} shows where it is",
          it->second, b.rank,
          state == 'R'                   ? "computes"
          : state == 'D'                 ? "sleeps uninterruptibly"
          : state == 'T' || state == 't' ? "is stopped"
                                         : "sleeps",
          it->second));
    }
  }
}

}  // namespace frtrace
