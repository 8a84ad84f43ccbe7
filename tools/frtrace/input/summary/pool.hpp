// pool.hpp - one table of texts, frames, stacks and shapes for many ranks: those of the summaries
// of 12,500 nodes, or of 16,384 dumps, are nearly the same. It has only entries that evidence
// refers to. Frames of threads stay separate where their modules are known: they are named rank by
// rank.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace::reduce {

class Pool {
 public:
  // May be called by any thread. Until `hand_out`, texts and stacks of the evidence cannot be read.
  // Returns the approximate number of bytes by which the table has grown.
  std::size_t take(const std::vector<RankEvidence*>&);
  // Gives the table to all evidence taken.
  void hand_out();

 private:
  class Mover;

  std::mutex mutex_;
  std::size_t bytes_ = 0;
  std::vector<RankEvidence*> taken_;
  std::vector<std::string> strings_{""};
  std::vector<Frame> frames_{{}};
  std::vector<ThreadFrame> thread_frames_;
  Stacks stacks_{{}};
  std::vector<std::uint32_t> shape_words_;
  std::unordered_map<std::string, std::uint32_t> string_ids_{{"", 0}};
  std::map<std::array<std::uint32_t, 3>, std::uint32_t> frame_ids_{{{}, 0}};
  std::unordered_map<std::string, std::uint64_t> thread_texts_;
  std::map<std::array<std::uint64_t, 5>, std::uint32_t> thread_frame_ids_;
  std::map<std::vector<std::uint32_t>, std::uint32_t> stack_ids_, shape_begins_;
};

}  // namespace frtrace::reduce
