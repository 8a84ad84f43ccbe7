// summary.hpp - a summary file: what `frtrace reduce` makes of a node's rings and dumps, and reads
// like those. Summaries merge by putting their ranks together; nothing is left out or decided then, so
// the order does not matter and the bytes are the same.
//
// A skippable zstd frame ("fr.summary" and a version), then a zstd frame around one msgpack map:
//   format, version  "fr.summary", 5
//   strings          [text]
//   frames           numbers: file, function (strings), line of each
//   thread_frames    numbers: python, function, file (strings), line, offset of each
//   lists            numbers: length and words of each
//   classes          [[members, sizes, words, gaps, deltas]]: ranks whose evidence has the same sizes
//                    (words.hpp); of the first all words, of all, the places where they differ from
//                    it, and by how much
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

// Sorts them, and drops those that are there twice.
std::string encode(All& all);

bool is_summary(std::span<const unsigned char> begin);
// Bounded whatever the file claims. Empty: `why` says in a few words what is wrong.
// all_records: as Reader::read has it.
All decode(std::span<const unsigned char> bytes, bool all_records, std::string& why);

}  // namespace frtrace::reduce
