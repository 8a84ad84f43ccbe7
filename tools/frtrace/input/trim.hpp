// trim.hpp - chooses the records of a large set that stay in memory.
//
// Up to a budget of records all are kept. For a larger set, in any order of files:
//  1. For each rank a window: the records from just before its earliest unfinished operation on,
//     every other unfinished one, the last few of each group. Frontiers are exact without records.
//     For ranks of summaries, recent records (input/summary/numbers.hpp), fewer with more ranks.
//  2. While the windows are cut, all ranks put the signature of every collective into one table per
//     (group, seq). Where signatures differ, the files of that group are read again and the
//     neighbourhood of that slot is kept, too: a mismatch long before the hang stays visible.
//  3. The suspected ranks (behind in a group with nothing in flight, or exited) are read again and
//     kept whole, with one other member of each of their groups for comparison: finding the usual
//     next operation of a rank needs its history.
// Memory: ranks x (groups + window) + 4 bytes per (group, seq). `Losses::trimmed` counts the
// records left out: they are not lost; `kept`, `first_kept` and `overwritten` do not count them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

class Windows {
 public:
  Windows(std::uint64_t budget_records, std::size_t files);

  // Call first for a file just read, on any thread. True once the set is known to be large: then
  // everything read must be cut.
  bool count(const std::vector<std::unique_ptr<RankEvidence>>& of_file);
  bool large() const;
  // Takes the signatures and cuts the records, on any thread.
  void cut(RankEvidence&);

  // Call after all have been cut: the evidence to read again.
  struct Again {
    std::vector<std::size_t> whole;   // evidence to keep whole
    std::vector<std::size_t> pinned;  // evidence to cut again, by `cut_again`
  };
  Again look_again(const std::vector<std::unique_ptr<RankEvidence>>&);
  void cut_again(RankEvidence&) const;

 private:
  // Signatures of one group's collectives, by seq from `first` on; 0: none seen.
  struct Slots {
    std::uint64_t first = 0;
    std::vector<std::uint32_t> signatures;
    std::set<std::uint64_t> differ;
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_map<std::uint64_t, Slots> groups;
  };

  void take_signatures(const RankEvidence&);
  void keep_window(RankEvidence&, const std::vector<std::vector<std::uint64_t>>& pins) const;
  std::vector<std::vector<std::uint64_t>> pins_of(const RankEvidence&) const;

  static constexpr std::size_t kShards = 64;
  std::uint64_t budget_;
  std::size_t files_, window_;
  std::atomic<std::uint64_t> records_{0};
  std::vector<Shard> shards_{kShards};
  std::unordered_map<std::uint64_t, std::vector<std::uint64_t>> pins_;  // group -> seqs
};

}  // namespace frtrace
