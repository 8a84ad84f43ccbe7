// write_fr.cpp - the fr dumps of a simulated job: the ranks that leave one, its time and its
// writer.
#include <fmt/format.h>

#include "rank_dump.hpp"

namespace hangsim {

namespace {

// A living rank of the same node writes the dump of a dead or stopped rank.
void salvage(const Case& c, int rank, How& h) {
  h.present = false;
  for (int r = 0; r < c.job.world && !h.present; ++r) {
    const RankRun& other = c.run_of(r);
    if (r != rank && (!other.ended || other.ended_at > h.at) && c.job.node(r) == c.job.node(rank)) {
      h.present = true;
      h.salvaged_by = r;
      h.trigger = "salvage";
      h.reason = "process does not answer";
    }
  }
}

How how(const Case& c, int rank) {
  const RankRun& run = c.run_of(rank);
  How h;
  h.at = c.fr.at[static_cast<std::size_t>(rank)];
  h.trigger = c.run.finished ? "manual" : "peer";
  h.reason = c.run.finished ? "asked for" : "another rank saw no progress";
  if (run.hung_in != nullptr && run.hung_in->stopped) {
    salvage(c, rank, h);
    return h;
  }
  if (!run.ended || run.ended_at > h.at) {
    return h;
  }
  switch (run.how) {
    case ExitHow::kClean:
      h.present = false;
      break;
    case ExitHow::kException:
      h.at = run.ended_at;
      h.trigger = "exception";
      h.reason = run.error;
      break;
    case ExitHow::kKilled:
      if (run.terminated) {
        h.at = run.ended_at;
        h.trigger = "signal";
        h.reason = "SIGTERM";
        break;
      }
      salvage(c, rank, h);
      break;
  }
  return h;
}

}  // namespace

bool leaves_fr_dump(const Case& c, int rank) {
  return how(c, rank).present && !holds(c.fr.lost, rank);
}

void write_fr(const Case& c, const DeviceView& view, const std::filesystem::path& dir, int first,
              int last) {
  std::filesystem::create_directories(dir);
  for (int r = first; r < last; ++r) {
    const How h = how(c, r);
    if (!leaves_fr_dump(c, r)) {
      continue;
    }
    std::string data = RankDump(c, view, r, h).write();
    if (holds(c.fr.truncated, r)) {
      data.resize(data.size() * 3 / 5);
    }
    write_file(dir / fmt::format("{}.a{}.r{}.1.fr", c.name, c.attempt, r), data,
               unix_time(c.fr, r, h.at));
  }
}

}  // namespace hangsim
