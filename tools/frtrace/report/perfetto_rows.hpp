// perfetto_rows.hpp - the items of a case to draw, with time and track.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "facts/slots.hpp"
#include "model/case.hpp"
#include "report/perfetto.hpp"
#include "report/perfetto_packets.hpp"
#include "words/report.hpp"

namespace frtrace {

// Items of equal time are written in this order: an end frees its track, a part lies within its
// whole.
enum class Drawn : std::uint8_t {
  kPartEnd,
  kEnd,
  kBegin,
  kPart,     // of an operation: its time on the device, or since its start was observed
  kInstant,  // an operation without a recorded end
  kStep,
  kSpan,
  kOpenSpan,  // `record` is a thread's number << 8 and the span's depth
  kNote,
  kDump,
  kExit,
  kVerdict,
};

struct TraceItem {
  Time time = 0;
  std::uint32_t track = 0;   // in TraceRows::tracks
  std::uint32_t rank = 0;    // in TraceRows::ranks; for kVerdict: the case
  std::uint32_t record = 0;  // index in the rank's evidence
  Drawn what = Drawn::kBegin;
};

struct TraceRank {
  const Case* c = nullptr;
  std::size_t case_index = 0;
  int evidence = -1;
  Time ahead = 0;  // how far its clock is ahead of the case's first rank
  bool blamed = false;
  std::uint32_t track = 0;
  std::unordered_map<std::uint32_t, std::uint32_t> lag_tracks;  // by row of the group
};

// The collectives of one group by number: data that the records of its members share.
struct TraceGroup {
  std::uint64_t first = 0;             // the lowest number in any member's records
  std::uint64_t correlation = 0;       // of `first`; the next ones follow
  std::vector<Time> earliest;          // the earliest arrival, by number
  std::vector<std::uint32_t> members;  // how many members have a record of it
  std::unordered_map<std::uint64_t, std::uint64_t> flows;  // of the verdict's operations, by number
};

// A send and its receive.
struct TracePair {
  std::uint64_t number = 0;  // for correlate()
  bool sent = false, received = false;
};

struct TraceRows {
  std::vector<PerfettoPackets::Track> tracks;  // `parent`: index + 1 in here
  std::vector<TraceRank> ranks;
  std::vector<TraceItem> items;                 // by time
  std::vector<std::vector<TraceGroup>> groups;  // of each case
  std::unordered_map<std::uint64_t, TracePair> pairs;
  std::uint64_t without_time = 0;  // operations that have no time

  const RankEvidence& evidence(const TraceItem& i) const {
    const TraceRank& r = ranks[i.rank];
    return r.c->evidence_of(r.evidence);
  }
};

std::uint64_t pair_key(const TraceRank&, int group, const Record&);
// The index in the case of the group in that row; -1: none.
int group_index(const TraceRank&, std::uint32_t row);
// When a record's operation ran on the device; {0, 0}: unknown.
std::pair<Time, Time> on_device(const RankEvidence&, const Record&);

// `most_records`: per rank, around the verdict's moment; 0: all. Operations in flight are kept.
TraceRows make_trace_rows(const std::vector<Case>&, const std::vector<Report>&,
                          const PerfettoOptions&, std::size_t most_records);

}  // namespace frtrace
