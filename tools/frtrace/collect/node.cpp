#include "collect/node.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "format/file_name.hpp"
#include "input/files.hpp"
#include "input/summary/shorten.hpp"
#include "input/summary/summary.hpp"
#include "live/ask_stacks.hpp"
#include "live/incident.hpp"
#include "live/rings.hpp"
#include "model/operation.hpp"
#include "system/exit_status.hpp"
#include "system/here.hpp"

namespace frtrace::collect {

namespace {

namespace fs = std::filesystem;

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Dumps of the ranks that have rings here: the directory may also hold dumps of other nodes.
std::set<std::string> dumps_of(const std::vector<FoundRing>& rings) {
  std::set<std::string> out;
  std::set<std::string> dirs;
  for (const FoundRing& r : rings) {
    dirs.insert(r.dump_dir);
  }
  for (const std::string& dir : dirs) {
    std::error_code ec;
    for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
      fr::NameParts parts;
      if (fr::parse_name(it->path().filename().c_str(), parts) &&
          std::any_of(rings.begin(), rings.end(), [&](const FoundRing& r) {
            return r.dump_dir == dir && r.job == parts.job && r.attempt == parts.attempt &&
                   r.rank == parts.rank;
          })) {
        out.insert(it->path().string());
      }
    }
  }
  return out;
}

void add_file(Package& p, const std::string& path, const std::string& name = "") {
  std::string bytes = content(path);
  if (!bytes.empty()) {
    p.files.emplace_back(name.empty() ? fs::path(path).filename().string() : name,
                         std::move(bytes));
  }
}

void add_evidence(const NodeQuestion& q, std::vector<FoundRing> rings, Package& p) {
  if (!q.ranks.empty()) {
    std::erase_if(rings, [&](const FoundRing& r) {
      return std::find(q.ranks.begin(), q.ranks.end(), r.rank) == q.ranks.end();
    });
  }
  for (const FoundRing& r : rings) {
    // Only this node can tell whether the process lives: the ring of a dead one gets another name.
    const std::string stem = fs::path(r.name).stem().string();
    add_file(p, r.path, stem + (r.runs ? ".ring" : ".dead.ring"));
  }
  for (const std::string& path : dumps_of(rings)) {
    add_file(p, path);
  }
  p.said = fmt::format("{} rings", rings.size());
}

// The summary that `frtrace reduce` makes. It is made here, because only this node can tell whether
// a process lives.
void add_summary(const std::vector<FoundRing>& rings, Package& p) {
  std::vector<std::string> paths;
  for (const FoundRing& r : rings) {
    paths.push_back(r.path);
  }
  const std::set<std::string> dumps = dumps_of(rings);
  paths.insert(paths.end(), dumps.begin(), dumps.end());
  LoadOptions options;
  options.threads = 2;
  options.all_records = true;
  options.settle = false;  // the collector settles, over all nodes
  LoadResult input = load_paths(paths, options);
  for (const auto& e : input.evidence) {
    reduce::shorten(*e);
  }
  if (!input.evidence.empty()) {
    p.files.emplace_back(p.host + reduce::kEnding, reduce::encode(input.evidence));
  }
  p.said = fmt::format("{} rings", rings.size());
  if (!input.unreadable.empty()) {
    p.said +=
        fmt::format("; {} of {} files not read, {}: {}", input.unreadable.size(), paths.size(),
                    input.unreadable.front().file, input.unreadable.front().why);
  }
}

void add_dump(const NodeQuestion& q, const std::vector<FoundRing>& rings, Package& p) {
  const auto limit = std::chrono::seconds(std::max(1, std::min(q.limit_s - 2, 15)));
  std::vector<std::string> said;
  bool silent = false;
  for (const RaisedIncident& r : raise_incidents(rings, limit)) {
    std::string text = fmt::format("incident {} of job {}", r.incident, r.job);
    text += r.dumped.empty() ? "" : fmt::format(": {} dumped", ranks_words(r.dumped));
    text += r.silent.empty() ? "" : fmt::format("; {} did not", ranks_words(r.silent));
    silent = silent || !r.silent.empty();
    said.push_back(std::move(text));
  }
  p.status = said.empty() ? kNothing : silent ? kNotDecided : kNoFault;
  p.said = said.empty() ? "no rank of the job runs here" : fmt::format("{}", fmt::join(said, "; "));
}

// Evidence or summary of all ranks, or of q.ranks; q.dump_first raises an incident first.
void add_evidence_or_summary(const NodeQuestion& q, const std::vector<FoundRing>& rings,
                             Package& p) {
  if (q.dump_first) {
    add_dump(q, rings, p);
  }
  const std::string said = p.said.empty() ? "" : "; " + p.said;
  if (q.what == "summary") {
    add_summary(rings, p);
  } else {
    add_evidence(q, rings, p);
  }
  p.said += said;
  p.status = kNoFault;
}

void add_stacks(const std::vector<FoundRing>& rings, Package& p) {
  for (const std::string& path : ask_stacks(rings)) {
    add_file(p, path);
    ::unlink(path.c_str());
  }
  p.status = p.files.empty() ? kNothing : kNoFault;
  p.said = fmt::format("{} of {} answered", p.files.size(), rings.size());
}

}  // namespace

Package answer(const NodeQuestion& q) {
  Package p;
  p.host = host_name();
  std::ifstream("/proc/sys/kernel/random/boot_id") >> p.boot_id;
  const std::vector<RingPlace> places = ring_places(q.shm_dir);
  const std::vector<FoundRing> rings = rings_of(places, q.job);
  for (const FoundRing& r : rings) {
    p.ranks.push_back(r.rank);
  }
  if (rings.empty()) {
    const std::vector<std::string> jobs = jobs_in(places);
    p.status = kNothing;
    p.said = jobs.empty() ? "no rings here"
                          : fmt::format("no ring of that job; of {}", fmt::join(jobs, ", "));
  } else if (q.what == "dump") {
    add_dump(q, rings, p);
  } else if (q.what == "stacks") {
    add_stacks(rings, p);
  } else {
    add_evidence_or_summary(q, rings, p);
  }
  return p;
}

}  // namespace frtrace::collect
