// files.hpp - files to evidence. An unreadable file is reported with a reason, and never ends the
// run.
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
  bool found_nothing = true;                               // no given path had any file
  std::vector<std::string> absent;                         // paths that do not exist
  std::vector<std::pair<std::string, std::string>> spare;  // job, and a line on other input
  std::vector<NodeRow> nodes;  // the nodes that `frtrace collect` asked, by its nodes.json
};

// Detects the format by content: the first bytes are enough.
Format format_of(std::span<const unsigned char> bytes);

// Reads a dump (`*.fr`). On failure returns nullptr, and `why` is a short reason.
std::unique_ptr<RankEvidence> load_fr(std::span<const unsigned char> bytes, std::string& why);

// Reads a region that a process maps or has left behind, or a raw `*.ring` copy in a dump
// directory. `now` is the time of reading. If it is from this machine and boot, its process is
// looked up.
enum class RingKind { kRegion, kCopy };
std::unique_ptr<RankEvidence> load_ring(std::span<const unsigned char> bytes, Time now,
                                        RingKind kind, std::string& why);

// For a file that was cut: sets `kept` and `first_kept` of each group to its newest records without
// a gap up to the number that its counters have as issued.
void count_kept(RankEvidence&);

struct LoadOptions {
  std::string prefix;        // only files with this prefix in their names
  unsigned threads = 0;      // 0: one per processor
  bool all_records = false;  // keep all records, however many
  bool settle = true;        // draw conclusions from one file for others: needs all files of a job
  std::uint64_t budget_records = std::uint64_t{2} << 20;  // beyond: windows, see trim.hpp
  std::size_t memory_bytes = std::size_t{1} << 30;        // over all files together; see memory.hpp
  // Called now and then by the calling thread with the number of files read so far.
  std::function<void(std::size_t done, std::size_t of)> progress;
};

// Reads every readable file among the paths; for directories, files up to two levels below. The
// result does not depend on the number of threads, except for the choice of files left out if all
// together need more memory than allowed.
LoadResult load_paths(const std::vector<std::string>& paths, const LoadOptions& options);
LoadResult load_paths(const std::vector<std::string>& paths, std::string_view prefix);

}  // namespace frtrace
