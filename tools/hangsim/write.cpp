// Code shared by both formats, and the truth file.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "case.hpp"

namespace hangsim {

std::vector<Seen> seen(const RankRun& run, Ns at, bool timing, bool with_batches) {
  std::vector<Seen> out;
  std::uint64_t ticket = 0;
  for (const Issued& i : run.issued) {
    if (i.created > at || (i.op->what == What::kBatch && !with_batches)) {
      continue;
    }
    const bool done = i.done != kNever && i.done <= at;
    const bool started = i.started != kNever && i.started <= at;
    out.push_back({&i, ticket++, started && (timing || done), done});
  }
  return out;
}

Ns unix_time(const Evidence& e, int rank, Ns t) {
  return kEpoch + t + e.clock[static_cast<std::size_t>(rank)];
}

void write_file(const std::filesystem::path& path, std::string_view data, Ns modified) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  bool fine = fd >= 0;
  while (fine && !data.empty()) {
    const ssize_t n = ::write(fd, data.data(), data.size());
    fine = n > 0;
    data.remove_prefix(fine ? static_cast<std::size_t>(n) : 0);
  }
  const timespec t{modified / kSecond, modified % kSecond};
  const timespec times[2] = {t, t};
  fine = fine && (modified == 0 || ::futimens(fd, times) == 0);
  if (fd >= 0) {
    ::close(fd);
  }
  if (!fine) {
    throw std::runtime_error(fmt::format("cannot write {}", path.string()));
  }
}

namespace {

using Json = nlohmann::ordered_json;

Json json(const Truth& t) {
  Json out = {{"kind", t.answer.kind},
              {"ranks", t.answer.ranks},
              {"faulty", t.faulty},
              {"decidable", t.decidable}};
  if (!t.lacking.empty()) {
    out["lacking"] = t.lacking;
  }
  if (!t.why.empty()) {
    out["why"] = t.why;
  }
  out["also"] = Json::array();
  for (const Answer& a : t.also) {
    out["also"].push_back({{"kind", a.kind}, {"ranks", a.ranks}});
  }
  return out;
}

Json json(const Evidence& e, bool torch) {
  Json out = {{"ring", e.ring}, {"timing", e.timing},       {"frames", e.frames},
              {"lost", e.lost}, {"truncated", e.truncated}, {"stale", e.stale}};
  if (!torch) {
    out["api"] = e.api;
    out["no_device"] = e.no_device;
    out["lossy"] = e.lossy;
  }
  if (torch) {
    out["version"] = e.version;
    if (!e.versions.empty()) {
      out["versions"] = e.versions;
    }
    out["only_active"] = e.only_active;
    out["json"] = e.json;
    out["copied"] = e.copied;
  }
  return out;
}

}  // namespace

void write_truth(const Case& c, const std::filesystem::path& file) {
  Json root = {{"schema", "hangsim.truth/1"},
               {"name", c.name},
               {"class", c.cls},
               {"seed", c.seed},
               {"job", c.job.kind},
               {"world", c.job.world},
               {"ranks_per_node", c.job.ranks_per_node},
               {"backend", c.job.backend},
               {"half", c.wide ? (c.held_out ? "held_out" : "known") : "old"},
               {"fault", c.fault},
               {"step", c.fault_step},
               {"fr", json(c.fr_truth)}};
  if (!c.renamed.empty()) {
    root["renamed"] = c.renamed;
  }
  if (c.slow) {
    Json first = Json::array();
    for (std::size_t k = 0; k < c.slow->first.size(); ++k) {
      Json of = Json::object();
      for (const auto& [g, seq] : c.slow->first[k]) {
        const Group& group = c.job.groups[static_cast<std::size_t>(g)];
        of[group.name + "/" + group.desc] = seq;
      }
      first.push_back({{"rank", c.slow->ranks[k]}, {"seq", std::move(of)}});
    }
    root["slow"] = {{"cause", c.slow->cause},
                    {"pattern", c.slow->pattern},
                    {"steps", c.job.steps},
                    {"since_step", c.slow->since},
                    {"first", std::move(first)}};
  }
  if (c.below) {
    root["fr"]["links"] = c.fr_truth.links;
  }
  Json evidence = {{"fr", json(c.fr, false)}};
  if (!c.below) {
    root["torch"] = json(c.torch_truth);
    evidence["torch"] = json(c.torch, true);
  }
  root["evidence"] = evidence;
  write_file(file, root.dump(1) + "\n", 0);
}

}  // namespace hangsim
