// inspector.cpp - JSON lines of NCCL's Inspector, formats v4.0 to v4.3, by its sources (NCCL 2.30.7
// and later, plugins/profiler/inspector: inspector_json.cc, README.md); not tested on a file of a
// real job.
//
//   {"header": {"id": "0x..", "comm_name": .., "rank": 2, "n_ranks": 8, ..}, "metadata":
//    {"hostname": .., "pid": .., "dump_timestamp_us": ..}, "coll_perf": {"coll": "AllReduce",
//    "coll_sn": 7, "coll_exec_time_us": 61974, ..}}
//
// From v4.3 on, only the preceding line with "dump_stats" has header and metadata. A collective
// ends on all ranks at once: the rank that came last has the shortest time.
#include "input/other_tools/inspector.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>

#include "input/fr/string_ids.hpp"
#include "input/memory.hpp"

namespace frtrace {

namespace {

// A rank is late in an operation from this time on; only ranks that are late repeatedly are
// reported.
constexpr double kLate_s = 0.005, kLateMostly = 0.6;
constexpr int kLateAgain = 5;

using InspectorJson = nlohmann::json;

constexpr const char* kInspector = "NCCL's Inspector";
constexpr std::size_t kLongestLogged = std::size_t{1} << 20, kMostLogged = 4096;
constexpr std::size_t kMostSentences = 16;
constexpr std::int64_t kLargestJob = 1 << 24;

const InspectorJson& member_of(const InspectorJson& o, const char* key) {
  static const InspectorJson kNone;
  const auto it = o.is_object() ? o.find(key) : o.end();
  return it != o.end() ? *it : kNone;
}
std::int64_t whole_of(const InspectorJson& o, const char* key, std::int64_t otherwise = 0) {
  const InspectorJson& v = member_of(o, key);
  return v.is_number_integer() ? v.get<std::int64_t>() : otherwise;
}
std::string words_of(const InspectorJson& o, const char* key) {
  const InspectorJson& v = member_of(o, key);
  return v.is_string() ? v.get<std::string>().substr(0, 64) : "";
}

class InspectorReader {
 public:
  explicit InspectorReader(RankEvidence& e) : e_(e), ids_(e.strings.edit()) {
    e.strings.emplace_back();
    e.strings.edit().reserve(3 * kMostLogged + 8);  // the strings must not move
    e.stacks.emplace_back();
    e.groups.emplace_back();
    e.groups[0].used = true;
  }

  void line(std::string_view text) {
    const InspectorJson json = InspectorJson::parse(text, nullptr, false);
    if (member_of(json, "header").is_object()) {
      header_ = member_of(json, "header");
      about(member_of(json, "metadata"));
    }
    const InspectorJson& coll = member_of(json, "coll_perf");
    const std::int64_t rank = whole_of(header_, "rank", -1), size = whole_of(header_, "n_ranks"),
                       number = whole_of(coll, "coll_sn", -1),
                       us = whole_of(coll, "coll_exec_time_us");
    if (!coll.is_object() || rank < 0 || rank >= size || size > kLargestJob || number < 0 ||
        number >= INT64_MAX >> 2 || us < 0 || us > std::int64_t{1} << 40 ||
        e_.groups.size() > kMostLogged) {
      return;
    }
    if (size > e_.id.world_size) {  // the largest communicator is taken for the job's
      e_.id.world_size = static_cast<int>(size);
      e_.id.rank = static_cast<Rank>(rank);
    }
    Record r;
    r.group = row(words_of(header_, "id"), words_of(header_, "comm_name"), words_of(coll, "coll"),
                  rank, size);
    r.seq = static_cast<std::uint64_t>(number) + 1;
    r.op = e_.groups[r.group].desc;
    r.kind = Kind::kCollective;
    r.state = State::kCompleted;
    r.time = r.started = std::max<Time>(written_, 1);
    r.ended = r.started + us * 1000;
    FileMemory::take(sizeof r);
    e_.records.push_back(r);
    GroupEvidence& g = e_.groups[r.group];
    g.completed = std::max(g.completed, r.seq);
  }

 private:
  void about(const InspectorJson& metadata) {
    e_.id.host = words_of(metadata, "hostname");
    e_.id.pid = static_cast<int>(std::clamp<std::int64_t>(whole_of(metadata, "pid"), 0, INT32_MAX));
    const std::int64_t us = whole_of(metadata, "dump_timestamp_us");
    written_ = us > 0 && us < (Time{1} << 62) / 1000 ? plausible(us * 1000) : 0;
    e_.written = std::max(e_.written, written_);
  }

  std::uint32_t row(const std::string& id, const std::string& name, const std::string& function,
                    std::int64_t rank, std::int64_t size) {
    const auto [it, added] =
        rows_.try_emplace({id, function}, static_cast<std::uint32_t>(e_.groups.size()));
    if (added) {
      GroupEvidence& g = e_.groups.emplace_back();
      g.used = true;
      g.name = ids_(id);
      g.desc = ids_(function);
      g.backend = name == "unknown" ? 0 : ids_(name);
      g.own_rank = static_cast<std::int32_t>(rank);
      g.n_ranks = static_cast<std::int32_t>(size);
    }
    return it->second;
  }

  RankEvidence& e_;
  StringIds ids_;
  std::map<std::pair<std::string, std::string>, std::uint32_t> rows_;
  InspectorJson header_;
  Time written_ = 0;
};

// The collectives of one communicator and function, from all files.
struct Logged {
  std::string what;  // "AllReduce of communicator 0x7f (DP)"
  std::int32_t n_ranks = 0;
  std::map<std::int32_t, const RankEvidence*> files;                    // by rank within it
  std::map<std::uint64_t, std::map<std::int32_t, std::int64_t>> times;  // ns, by number
};

std::vector<Rank> world_ranks(const Logged& all, const std::vector<std::int32_t>& members) {
  std::vector<Rank> out;
  for (const std::int32_t m : members) {
    out.push_back(all.files.at(m)->id.rank);
  }
  std::sort(out.begin(), out.end());
  return out;
}

// "by ranks 0,1,3 up to #45, by rank 2 up to #44"; "": all equal.
std::string who_is_behind(const Logged& all) {
  std::map<std::uint64_t, std::vector<std::int32_t>, std::greater<>> last;
  for (const auto& [member, e] : all.files) {
    std::uint64_t most = 0;
    for (const auto& [number, times] : all.times) {
      most = times.contains(member) ? number : most;
    }
    last[most].push_back(member);
  }
  std::string out;
  for (const auto& [number, members] : last) {
    out += fmt::format("{}by {} up to #{}", out.empty() ? "" : ", ",
                       ranks_words(world_ranks(all, members)), number - 1);
  }
  return last.size() < 2 ? "" : out;
}

// A rank that came last most of the time, by more than hosts usually differ; "": none.
std::string last_comer(const Logged& all) {
  std::map<std::int32_t, std::vector<double>> late;
  std::size_t of = 0;
  for (const auto& [number, times] : all.times) {
    if (times.size() < 2 || times.size() != static_cast<std::size_t>(all.n_ranks)) {
      continue;
    }
    ++of;
    const auto first =
        std::min_element(times.begin(), times.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    std::vector<std::int64_t> others;
    for (const auto& [member, ns] : times) {
      if (member != first->first) {
        others.push_back(ns);
      }
    }
    const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
    std::nth_element(others.begin(), middle, others.end());
    if (const double s = static_cast<double>(*middle - first->second) * 1e-9; s > kLate_s) {
      late[first->first].push_back(s);
    }
  }
  for (auto& [member, by] : late) {
    if (of >= static_cast<std::size_t>(kLateAgain) &&
        static_cast<double>(by.size()) >= kLateMostly * static_cast<double>(of)) {
      const auto middle = by.begin() + static_cast<std::ptrdiff_t>(by.size() / 2);
      std::nth_element(by.begin(), middle, by.end());
      return fmt::format("rank {} came last to {} of {}, by {} at the median",
                         all.files.at(member)->id.rank, by.size(), of, duration_text(*middle));
    }
  }
  return "";
}

std::vector<std::string> sentences(const std::map<std::string, Logged>& logged) {
  std::vector<std::string> out;
  for (const auto& [key, all] : logged) {
    if (const std::string text = who_is_behind(all); !text.empty()) {
      out.push_back(fmt::format("{}: {}: completed {}; it does not log what is in flight",
                                kInspector, all.what, text));
    }
    if (const std::string text = last_comer(all); !text.empty()) {
      out.push_back(fmt::format("{}: {}: {}; it may have waited for another one elsewhere before",
                                kInspector, all.what, text));
    }
  }
  if (out.size() > kMostSentences) {
    out.resize(kMostSentences);
  }
  return out;
}

}  // namespace

bool is_inspector(std::span<const unsigned char> text) {
  constexpr std::size_t kBegin = std::size_t{64} << 10;
  const std::string_view begin(reinterpret_cast<const char*>(text.data()),
                               std::min(text.size(), kBegin));
  return begin.find("\"inspector_output_format_version\"") != std::string_view::npos;
}

std::unique_ptr<RankEvidence> load_inspector(std::span<const unsigned char> bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  auto e = std::make_unique<RankEvidence>();
  InspectorReader reader(*e);
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.starts_with('{') && line.size() <= kLongestLogged) {
      reader.line(line);
    }
  }
  if (e->records.empty()) {
    return nullptr;
  }
  e->id.recorder = kInspector;
  e->holes.only_stacks = true;
  return e;
}

void settle_inspector(std::vector<std::unique_ptr<RankEvidence>>& all) {
  std::map<std::string, Logged> logged;
  RankEvidence *first = nullptr, *other = nullptr;
  for (const auto& e : all) {
    if (e->id.recorder != kInspector) {
      other = other == nullptr && !e->holes.only_stacks ? e.get() : other;
      continue;
    }
    first = first == nullptr ? e.get() : first;
    for (const Record& r : e->records) {
      const GroupEvidence& g = e->groups[r.group];
      const std::string id(e->text(g.name)), name(e->text(g.backend));
      Logged& to = logged[fmt::format("{} {}", id, e->text(g.desc))];
      if (to.what.empty()) {
        to.what = fmt::format("{} of communicator {}{}", e->text(g.desc), id,
                              name.empty() ? "" : " (" + name + ")");
      }
      to.n_ranks = std::max(to.n_ranks, g.n_ranks);
      if (to.files.try_emplace(g.own_rank, e.get()).first->second == e.get()) {
        to.times[r.seq][g.own_rank] = r.ended - r.started;
      }
    }
  }
  if (first == nullptr) {
    return;
  }
  (other == nullptr ? first : other)->witness = sentences(logged);
  for (const auto& e : all) {
    if (e->id.recorder == kInspector) {
      e->records.clear();
      e->groups.resize(1);
    }
  }
}

}  // namespace frtrace
