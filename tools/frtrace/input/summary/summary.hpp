// summary.hpp - a summary file: `frtrace reduce` makes one of a node's rings and dumps, and frtrace
// reads it like those. Merging puts the ranks of summaries together and neither drops nor decides
// anything: the result has the same bytes in any order.
//
// A skippable zstd frame ("fr.summary" and a version), then a zstd frame around one msgpack map:
//   format, version  "fr.summary", 5
//   strings          [text]
//   frames           numbers: file, function (strings), line of each
//   thread_frames    numbers: python, function, file (strings), line, offset of each
//   lists            numbers: length and words of each
//   classes          [[members, sizes, words, gaps, deltas]]: ranks with equal sizes (numbers.hpp);
//                    all words of the first one; for each, the places where it differs from the
//                    first, and the differences
// "numbers" are bytes: zigzag and base 128, the low seven bits first.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace::reduce {

inline constexpr char kEnding[] = ".frsum";

using All = std::vector<std::unique_ptr<RankEvidence>>;

// Sorts the evidence, and drops duplicates.
std::string encode(All& all);

bool is_summary(std::span<const unsigned char> begin);
// Memory is bounded, whatever the file claims. On failure returns an empty list, and `why` is a
// short reason. all_records: as in Reader::read.
All decode(std::span<const unsigned char> bytes, bool all_records, std::string& why);

}  // namespace frtrace::reduce
