// ras.cpp - reads an answer of NCCL's RAS service, JSON or text.
#include "input/fr/ras.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace frtrace {

namespace {

using Json = nlohmann::json;

constexpr std::size_t kLines = 12;
constexpr std::int64_t kInProgress = 7;

// Tolerant access: a value of the wrong type reads as absent.
const Json& at(const Json& o, const char* key) {
  static const Json kNone;
  const auto it = o.is_object() ? o.find(key) : o.end();
  return it != o.end() ? *it : kNone;
}
std::int64_t number(const Json& o, const char* key) {
  const Json& v = at(o, key);
  return v.is_number_integer() ? v.get<std::int64_t>() : v.is_boolean() && v.get<bool>() ? 1 : 0;
}
std::string text(const Json& o, const char* key) {
  const Json& v = at(o, key);
  return v.is_string() ? v.get<std::string>() : "";
}

using Parties = std::map<std::string, std::vector<Rank>>;

// "ranks 0,1,3: 45; rank 2: 44", the largest set of ranks first.
std::string parties_text(const Parties& parties) {
  std::vector<const Parties::value_type*> order;
  for (const auto& party : parties) {
    order.push_back(&party);
  }
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return a->second.size() > b->second.size();
  });
  std::string out;
  for (const auto* party : order) {
    out +=
        fmt::format("{}{}: {}", out.empty() ? "" : "; ", ranks_words(party->second), party->first);
  }
  return out;
}

std::string state_of(const Json& rank) {
  const Json& status = at(rank, "status");
  if (number(status, "abort_flag") != 0) {
    return "ABORT";
  }
  if (number(status, "finalize_called") != 0 || number(status, "destroy_flag") != 0) {
    return "FINALIZE";
  }
  return number(status, "init_state") != 0 ? "INIT" : "RUNNING";
}

void comm_lines(const Json& comm, std::vector<std::string>& out) {
  std::string name = text(comm, "hash");
  name = "communicator " + (name.starts_with("0x") ? name.substr(2) : name);
  Parties states;
  Parties missing;
  std::map<std::string, Parties> errors;
  std::map<std::string, Parties> counts;
  for (const Json& rank : at(comm, "ranks")) {
    const Rank who = static_cast<Rank>(number(rank, "rank"));
    states[state_of(rank)].push_back(who);
    const Json& status = at(rank, "status");
    for (const char* kind : {"init_state", "async_error"}) {
      const std::int64_t code = number(status, kind);
      if (code != 0 && code != kInProgress) {
        errors[kind == std::string_view("init_state") ? "initialisation" : "asynchronous"]
              [fmt::format("error {}", code)]
                  .push_back(who);
      }
    }
    const Json& launched = at(rank, "collective_counts");
    for (auto it = launched.begin(); launched.is_object() && it != launched.end(); ++it) {
      if (it->is_number_integer()) {
        counts[it.key()][std::to_string(it->get<std::int64_t>())].push_back(who);
      }
    }
  }
  for (const Json& rank : at(comm, "missing_ranks")) {
    const Json& status = at(rank, "status");
    missing[number(status, "considered_dead") != 0 ? "taken for dead"
            : number(status, "unresponsive") != 0  ? "no answer"
                                                   : "not a member any more"]
        .push_back(static_cast<Rank>(number(rank, "rank")));
  }
  if (!missing.empty()) {
    out.push_back(name + ": " + parties_text(missing));
  }
  for (const auto& [kind, parties] : errors) {
    out.push_back(fmt::format("{}: {} {}", name, kind, parties_text(parties)));
  }
  if (states.size() > 1 || states.contains("INIT")) {
    out.push_back(fmt::format("{}: state: {}", name, parties_text(states)));
  }
  for (const auto& [func, parties] : counts) {
    if (parties.size() > 1) {
      out.push_back(
          fmt::format("{}: {} operations launched: {}", name, func, parties_text(parties)));
    }
  }
}

// The paragraphs below "Errors" and "Warnings": a heading, then its subject.
std::vector<std::string> report_lines(std::string_view answer) {
  std::vector<std::string> out;
  std::string heading;
  bool within = false;
  while (!answer.empty()) {
    std::string_view line = answer.substr(0, answer.find('\n'));
    answer.remove_prefix(std::min(answer.size(), line.size() + 1));
    const bool indented = line.starts_with("  ");
    while (!line.empty() && (line.front() == ' ' || line.front() == '\t')) {
      line.remove_prefix(1);
    }
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) {
      line.remove_suffix(1);
    }
    if (line.empty() || line.find_first_not_of('=') == std::string_view::npos) {
      continue;
    }
    if (!indented) {
      within = within || line == "Errors" || line == "Warnings";
      heading = line == "Errors" || line == "Warnings" ? "" : std::string(line);
    } else if (within && !heading.empty()) {
      out.push_back(fmt::format("{}: {}", heading, line));
    }
  }
  return out;
}

}  // namespace

std::vector<std::string> ras_lines(const RasEvidence& ras) {
  std::vector<std::string> out;
  if (ras.format == "json") {
    const Json root = Json::parse(ras.answer, nullptr, false);
    for (const Json& comm : at(root, "communicators")) {
      comm_lines(comm, out);
    }
    if (const std::int64_t n = number(at(root, "ras"), "timeouts_count"); n > 0) {
      out.push_back(fmt::format("{} timeouts while it gathered this", n));
    }
    if (root.is_discarded()) {
      out.push_back("the answer is not whole and was not read");
    }
  } else {
    out = report_lines(ras.answer);
  }
  if (out.size() > kLines) {
    const std::size_t more = out.size() - kLines + 1;
    out.resize(kLines - 1);
    out.push_back(fmt::format("and {} more lines", more));
  }
  return out;
}

std::vector<std::unique_ptr<RankEvidence>> load_ras(std::span<const unsigned char> bytes) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 20, kMostRanks = 1 << 17;
  std::vector<std::unique_ptr<RankEvidence>> out;
  const std::string_view answer(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (bytes.size() > kMostBytes || answer.find("\"communicators\"") == std::string_view::npos) {
    return out;
  }
  const Json json = Json::parse(answer, nullptr, false);
  const Json* largest = nullptr;
  for (const Json& comm : at(json, "communicators")) {
    if (largest == nullptr || number(comm, "size") > number(*largest, "size")) {
      largest = &comm;
    }
  }
  if (largest == nullptr) {
    return out;
  }
  const std::int64_t size = number(*largest, "size");
  for (const Json& rank : at(*largest, "ranks")) {
    const std::int64_t number_of_rank = number(rank, "rank");
    if (number_of_rank < 0 || number_of_rank >= size ||
        size > static_cast<std::int64_t>(kMostRanks) || out.size() == kMostRanks) {
      continue;
    }
    auto e = std::make_unique<RankEvidence>();
    e->strings.emplace_back();
    e->stacks.emplace_back();
    e->groups.emplace_back();
    e->groups[0].used = true;
    e->id.rank = static_cast<Rank>(number_of_rank);
    e->id.world_size = static_cast<int>(size);
    e->id.host = text(rank, "host").substr(0, 256);
    e->id.pid = static_cast<int>(number(rank, "pid"));
    e->id.recorder = "NCCL's RAS";
    e->holes.only_stacks = true;
    if (out.empty()) {
      e->ras.asked = true;
      e->ras.format = "json";
      e->ras.answer = answer;
    }
    out.push_back(std::move(e));
  }
  return out;
}

}  // namespace frtrace
