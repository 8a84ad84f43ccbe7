// trim.hpp - what is kept in memory of a large set.
//
// Up to a budget of records all are kept. Of a larger set, whatever the order of the files:
//  1. of each rank a window: the records from a little before its earliest unfinished operation on,
//     every other unfinished one, the last few of each group. Frontiers are exact without records.
//     Of summaries' ranks what is recent (input/summary/numbers.hpp), less the more ranks there are.
//  2. While the windows are cut, all ranks put the signature of every collective into one table per
//     (group, seq). Where they differ, the files of that group are read again and the neighbourhood
//     of that slot is kept as well: a mismatch that happened long before the hang stays visible.
//  3. The suspected ranks (behind in a group with nothing in flight, or exited) are read again and
//     kept whole, and one other member of each of their groups to compare with: what a rank
//     usually does next needs its history.
// Memory: ranks x (groups + window) + 4 bytes per (group, seq). `Losses::trimmed` counts what was
// left out: those records are not lost; `kept`, `first_kept` and `overwritten` do not count them.
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

  // Before anything else of a file just read, by any thread: true once the set is known to be
  // large. Everything read must then be cut.
  bool count(const std::vector<std::unique_ptr<RankEvidence>>& of_file);
  bool large() const;
  // Takes the signatures and cuts, by any thread.
  void cut(RankEvidence&);

  // After all have been cut: what to read again.
  struct Again {
    std::vector<std::size_t> whole;   // evidence to keep whole
    std::vector<std::size_t> pinned;  // evidence to cut anew, by `cut_again`
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
