// files.hpp - files to evidence. What cannot be read is named with a reason, and never ends the run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/nodes.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

enum class Format { kFrDump, kSummary, kRing, kControl, kPickle, kJson, kUnrecognised };

struct Unreadable {
  std::string file;
  std::string why;
};

struct LoadResult {
  std::vector<std::unique_ptr<RankEvidence>> evidence;
  std::vector<Unreadable> unreadable;
  bool found_nothing = true;                               // no path given held a file at all
  std::vector<std::string> absent;                         // paths that do not exist
  std::vector<std::pair<std::string, std::string>> spare;  // job, and a line on what else was read
  std::vector<NodeRow> nodes;  // that `frtrace collect` asked, by its nodes.json
};

// Told by content: the first bytes are enough.
Format format_of(std::span<const unsigned char> bytes);

// A dump (`*.fr`). On failure nullptr, and `why` says in a few words what is wrong.
std::unique_ptr<RankEvidence> load_fr(std::span<const unsigned char> bytes, std::string& why);

// A region as its process maps it, or maybe left behind; or a raw `*.ring` copy in a dump
// directory. `now` is the time of reading. Of this machine and boot, its process is looked up.
enum class RingKind { kRegion, kCopy };
std::unique_ptr<RankEvidence> load_ring(std::span<const unsigned char> bytes, Time now,
                                        RingKind kind, std::string& why);

// Of a file that was cut: `kept` and `first_kept` of each group become its newest records without a
// gap up to what its counters say it issued.
void count_kept(RankEvidence&);

struct LoadOptions {
  std::string prefix;        // only files whose name begins so
  unsigned threads = 0;      // 0: as many as there are processors
  bool all_records = false;  // keep them, however many
  bool settle = true;  // say what follows from one file for others: of all files of a job only
  std::uint64_t budget_records = std::uint64_t{2} << 20;  // beyond: windows, see load_window.hpp
  std::size_t memory_bytes = std::size_t{1} << 30;        // over all files together; see memory.hpp
  // Told now and then how many files of how many have been read, by the calling thread.
  std::function<void(std::size_t done, std::size_t of)> progress;
};

// Every readable file among the paths; directories: their files, and files up to two levels below.
// The outcome does not depend on the number of threads, but for which of many files are left out
// when all of them together need more memory than they may.
LoadResult load_paths(const std::vector<std::string>& paths, const LoadOptions& options);
LoadResult load_paths(const std::vector<std::string>& paths, std::string_view prefix);

}  // namespace frtrace
