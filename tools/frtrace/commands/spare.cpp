#include "commands/spare.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "live/mapped_ring.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

namespace {

namespace fs = std::filesystem;

// A run of a job on this machine, as its dumps name it.
struct Run {
  std::string job;
  int attempt = 0;
  std::uint64_t number = 0;
  auto operator<=>(const Run&) const = default;
};
struct Ranks {
  std::set<Rank> there;
  int world = 0;
};

std::map<Run, Ranks> runs_of(const LoadResult& input) {
  std::map<Run, Ranks> out;
  for (const auto& e : input.evidence) {
    if (e->format.empty() && e->id.run != 0 && e->id.rank >= 0 && e->source == Source::kDump) {
      Ranks& ranks = out[{e->id.job, e->id.attempt, e->id.run}];
      ranks.there.insert(e->id.rank);
      ranks.world = std::max(ranks.world, e->id.world_size);
    }
  }
  return out;
}

void add_from(const std::string& directory, const Run& run, Ranks& ranks, LoadResult& input) {
  std::error_code none;
  if (!fs::is_directory(directory, none)) {
    return;
  }
  LoadResult found = load_paths({directory}, fmt::format("{}.a{}.", run.job, run.attempt));
  const std::set<Rank> before = ranks.there;
  std::vector<Rank> added;
  for (auto& e : found.evidence) {
    if (e->id.job == run.job && e->id.attempt == run.attempt && e->id.run == run.number &&
        e->id.rank >= 0 && !before.contains(e->id.rank)) {
      if (ranks.there.insert(e->id.rank).second) {
        added.push_back(e->id.rank);
      }
      input.evidence.push_back(std::move(e));
    }
  }
  std::ranges::sort(added);
  if (!added.empty()) {
    input.spare.emplace_back(run.job, fmt::format("evidence of {} is not among the files given: it "
                                                  "is read from {}",
                                                  ranks_words(added), directory));
  }
}

}  // namespace

void add_spare_evidence(LoadResult& input, const fr::Options& options) {
  const std::string uid = std::to_string(::geteuid());
  for (auto& [run, ranks] : runs_of(input)) {
    for (const std::string& directory : {options.temporary_dir + "/fr-dumps-" + uid + "/" + run.job,
                                         ring_directory(options.shm_dir)}) {
      if (ranks.there.size() < static_cast<std::size_t>(ranks.world)) {
        add_from(directory, run, ranks, input);
      }
    }
  }
}

}  // namespace frtrace
