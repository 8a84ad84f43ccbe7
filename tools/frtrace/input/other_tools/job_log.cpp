// job_log.cpp - lines to ranks. PyTorch's wording since 2.0:
//
//   [rank9]:[E129 16:38:47.714693059 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective
//     operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1,
//     Timeout(ms)=600000) ran for 600002 milliseconds before timing out.
//   ... [PG ID 5 PG GUID 37(TENSOR_MODEL_PARALLEL_GROUP) Rank 1]  failure detected by watchdog at
//     work sequence id: 7 PG status: last enqueued work: 9, last completed work: 6
//   ... [PG 1 Rank 0] Exception (either an error or timeout) detected by watchdog at work: 7, last
//     enqueued NCCL work: 9, last completed NCCL work: 6.
//   ... [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due to a collective timeout
//     from  rank 6 ... Last enqueued NCCL work: 6, last completed NCCL work: 6.
//   [2] finished collective #6, but didn't join collective #7 (count from 1)
//   [0,1] joined but didn't finish collective #7
//
// "[rank9]:" is the rank in the job, "Rank 1]" that within the group; logs before 2.2 have only the
// latter. Operations are counted from 1, -1 is none, and only once NCCL's call has returned.
#include "input/other_tools/job_log.hpp"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <deque>
#include <map>
#include <optional>

#include "input/fr/string_ids.hpp"

namespace frtrace {

namespace {

constexpr std::string_view kTimeoutMark = "Watchdog caught collective operation timeout: WorkNCCL(";
constexpr std::string_view kFailureMark = " detected by watchdog at work";
constexpr std::string_view kSignalMark = "Received a dump signal due to a collective timeout";
constexpr std::string_view kStackMark = "Stack trace of the failed collective:";
constexpr std::string_view kNotJoined = ", but didn't join collective #";
constexpr std::string_view kNotFinished = "] joined but didn't finish collective #";
constexpr std::size_t kMostRanks = 1 << 17, kMostLine = 4096, kMostSaidFrames = 64;

// The number behind `mark`; nullopt: none.
std::optional<std::int64_t> number_after(std::string_view line, std::string_view mark) {
  const std::size_t at = line.find(mark);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  std::int64_t value = 0;
  const char* const begin = line.data() + at + mark.size();
  const auto parsed = std::from_chars(begin, line.data() + line.size(), value);
  return parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::string_view between(std::string_view line, std::string_view from, std::string_view to) {
  const std::size_t at = line.find(from);
  if (at == std::string_view::npos) {
    return {};
  }
  const std::string_view rest = line.substr(at + from.size());
  return rest.substr(0, std::min(rest.find(to), rest.size()));
}

// ALLREDUCE -> all_reduce, the name in user code.
std::string op_name(std::string_view type) {
  static constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"ALLREDUCE", "all_reduce"},
      {"ALLREDUCE_COALESCED", "all_reduce_coalesced"},
      {"ALLGATHER", "all_gather"},
      {"_ALLGATHER_BASE", "all_gather_into_tensor"},
      {"ALLGATHER_COALESCED", "all_gather_coalesced"},
      {"_REDUCE_SCATTER_BASE", "reduce_scatter_tensor"},
      {"ALLTOALL", "all_to_all"},
      {"ALLTOALL_BASE", "all_to_all_single"}};
  for (const auto& [said, name] : kNames) {
    if (type == said) {
      return std::string(name);
    }
  }
  std::string out(type.substr(0, 64));
  for (char& c : out) {
    c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
  }
  return out;
}

struct Timeout {
  std::uint64_t seq = 0;
  std::string op;
  std::uint64_t numel_in = 0, numel_out = 0;
  std::int64_t timeout_ms = 0, ran_ms = 0;
  Time when = 0;  // when it was noticed
  std::vector<std::string> stack;
};

struct GroupSaid {
  std::string desc;
  bool counted = false;
  std::uint64_t enqueued = 0, completed = 0;
  std::map<std::uint64_t, Timeout> timeouts;
};

struct RankState {
  std::map<std::string, GroupSaid> groups;
  std::optional<Timeout> last;  // its group is not yet known
  std::string last_group;
  std::uint64_t last_seq = 0;
  bool in_stack = false;
  Time written = 0;
};

class LogReader {
 public:
  explicit LogReader(Time modified) : last_write_(modified) {
    const std::time_t seconds = static_cast<std::time_t>(modified / kSecond);
    ::gmtime_r(&seconds, &modified_);
  }

  void line(std::string_view text) {
    if (const auto rank = rank_of(text)) {
      last_ = *rank;
    }
    if (text.find(kTimeoutMark) != std::string_view::npos) {
      timeout(text);
    } else if (text.find(kFailureMark) != std::string_view::npos ||
               text.find(kSignalMark) != std::string_view::npos) {
      counters(text);
    } else if (text.find(kStackMark) != std::string_view::npos) {
      with_rank(text, [](RankState& r) { r.in_stack = true; });
    } else if (text.find(kNotJoined) != std::string_view::npos) {
      desync(text, "]", kNotJoined, 1);
    } else if (text.find(kNotFinished) != std::string_view::npos) {
      desync(text, "]", kNotFinished, 0);
    } else {
      frame(text);
    }
  }

  std::vector<std::unique_ptr<RankEvidence>> evidence();

 private:
  // "[rank9]:" or, in older logs, "[Rank 9]".
  static std::optional<Rank> rank_of(std::string_view text) {
    auto rank = number_after(text, "[rank");
    if (!rank) {
      rank = number_after(text, "[Rank ");
    }
    if (!rank) {
      const std::string_view place = between(text, "[PG ", "]");
      rank = number_after(place, "Rank ");
    }
    return rank && *rank >= 0 && *rank < static_cast<std::int64_t>(kMostRanks)
               ? std::optional(static_cast<Rank>(*rank))
               : std::nullopt;
  }

  template <class Fn>
  void with_rank(std::string_view text, Fn fn) {
    if (const auto rank = rank_of(text)) {
      fn(ranks_[*rank]);
    }
  }

  // "E321 02:07:08.408271257": month, day, time as glog writes them; the year is the file's. 0:
  // none.
  Time time_of(std::string_view text) const {
    for (const char level : {'E', 'I', 'W', 'F'}) {
      const char mark[] = {'[', level, '\0'};
      const std::size_t at = text.find(mark);
      if (at == std::string_view::npos || text.size() < at + 16) {
        continue;
      }
      const std::string_view rest = text.substr(at + 2);
      const std::size_t blank = rest.find(' ');
      int month_day = 0;
      if (blank == std::string_view::npos || blank < 3 || blank > 4 ||
          std::from_chars(rest.data(), rest.data() + blank, month_day).ptr != rest.data() + blank ||
          rest.size() < blank + 9) {
        continue;
      }
      std::tm t{};
      t.tm_year = modified_.tm_year;
      t.tm_mon = month_day / 100 - 1;
      t.tm_mday = month_day % 100;
      t.tm_year -= t.tm_mon > modified_.tm_mon ? 1 : 0;
      const char* const clock = rest.data() + blank + 1;
      std::from_chars(clock, clock + 2, t.tm_hour);
      std::from_chars(clock + 3, clock + 5, t.tm_min);
      std::from_chars(clock + 6, clock + 8, t.tm_sec);
      return plausible(static_cast<Time>(::timegm(&t)) * kSecond);
    }
    return 0;
  }

  void timeout(std::string_view text) {
    with_rank(text, [&](RankState& r) {
      settle(r, "");
      Timeout t;
      t.seq = static_cast<std::uint64_t>(
          std::max<std::int64_t>(0, number_after(text, "SeqNum=").value_or(0)));
      t.op = op_name(between(text, "OpType=", ","));
      t.numel_in = static_cast<std::uint64_t>(number_after(text, "NumelIn=").value_or(0));
      t.numel_out = static_cast<std::uint64_t>(number_after(text, "NumelOut=").value_or(0));
      t.timeout_ms = number_after(text, "Timeout(ms)=").value_or(0);
      t.ran_ms = number_after(text, "ran for ").value_or(0);
      t.when = time_of(text);
      guessed_ = guessed_ || t.when == 0;
      t.when = t.when != 0 ? t.when : last_write_;
      r.written = std::max(r.written, t.when);
      r.last = std::move(t);
      r.in_stack = false;
    });
  }

  // Reads the counters of a group; a timeout just before belongs to that group.
  void counters(std::string_view text) {
    with_rank(text, [&](RankState& r) {
      std::string_view place = between(text, "[PG ", "]");
      std::string name(between(place, "GUID ", " Rank"));
      std::string desc;
      if (const std::size_t open = name.find('('); open != std::string::npos) {
        desc = name.substr(open + 1, name.rfind(')') - open - 1);
        name.resize(open);
      }
      name = name.empty() ? std::string(place.substr(0, place.find(' '))) : name;
      GroupSaid& g = r.groups[name.substr(0, 64)];
      g.desc = desc.empty() ? g.desc : desc.substr(0, 128);
      auto enqueued = number_after(text, "ast enqueued NCCL work: ");
      auto completed = number_after(text, "ast completed NCCL work: ");
      enqueued = enqueued ? enqueued : number_after(text, "ast enqueued work: ");
      completed = completed ? completed : number_after(text, "ast completed work: ");
      if (enqueued && completed) {
        g.counted = true;
        g.enqueued = std::max<std::uint64_t>(
            g.enqueued, static_cast<std::uint64_t>(std::max<std::int64_t>(0, *enqueued)));
        g.completed = std::max<std::uint64_t>(
            g.completed, static_cast<std::uint64_t>(std::max<std::int64_t>(0, *completed)));
      }
      r.written = std::max(r.written, time_of(text));
      r.last_group = name.substr(0, 64);
      auto seq = number_after(text, "at work sequence id: ");
      seq = seq ? seq : number_after(text, "at work: ");
      if (seq && r.last && static_cast<std::int64_t>(r.last->seq) == *seq) {
        settle(r, r.last_group);
      }
      r.in_stack = false;
    });
  }

  // A timeout without a group belongs to the default group.
  static void settle(RankState& r, const std::string& group) {
    if (r.last) {
      GroupSaid& g = r.groups[group.empty() ? "0" : group];
      g.enqueued = std::max(g.enqueued, r.last->seq);
      g.completed =
          g.counted || r.last->seq == 0 ? g.completed : std::max(g.completed, r.last->seq - 1);
      r.last_group = group.empty() ? "0" : group;
      r.last_seq = r.last->seq;
      g.timeouts.emplace(r.last->seq, std::move(*r.last));
      r.last.reset();
    }
  }

  // "#1 all_reduce from /x/train.py:57"
  void frame(std::string_view text) {
    const auto found = ranks_.find(last_);
    if (found == ranks_.end() || !found->second.in_stack) {
      return;
    }
    RankState& r = found->second;
    const std::size_t mark = text.find('#');
    if (mark == std::string_view::npos || text.find(" from ") == std::string_view::npos) {
      r.in_stack = text.empty();
      return;
    }
    const auto group = r.groups.find(r.last_group);
    std::vector<std::string>* stack = r.last ? &r.last->stack : nullptr;
    if (stack == nullptr && group != r.groups.end()) {
      const auto t = group->second.timeouts.find(r.last_seq);
      stack = t != group->second.timeouts.end() ? &t->second.stack : nullptr;
    }
    if (stack != nullptr && stack->size() < kMostSaidFrames) {
      stack->emplace_back(text.substr(mark));
    }
  }

  // "[0,3] finished collective #6, but didn't join collective #7": always about the default group.
  void desync(std::string_view text, std::string_view close, std::string_view mark,
              std::uint64_t before) {
    const auto seq = number_after(text, mark);
    const std::size_t end = text.find(close);
    const std::size_t open = text.rfind('[', end);
    if (!seq || *seq < 1 || end == std::string_view::npos || open == std::string_view::npos) {
      return;
    }
    std::string_view list = text.substr(open + 1, end - open - 1);
    while (!list.empty()) {
      Rank rank = -1;
      const std::string_view one = list.substr(0, list.find(','));
      std::from_chars(one.data() + one.find_first_not_of(" "), one.data() + one.size(), rank);
      list.remove_prefix(std::min(list.size(), one.size() + 1));
      if (rank < 0 || rank >= static_cast<Rank>(kMostRanks)) {
        continue;
      }
      GroupSaid& g = ranks_[rank].groups["0"];
      g.enqueued = std::max(g.enqueued, static_cast<std::uint64_t>(*seq) - before);
      g.completed = std::max(g.completed, static_cast<std::uint64_t>(*seq) - 1);
      g.counted = true;
    }
  }

  std::map<Rank, RankState> ranks_;
  Rank last_ = -1;
  const Time last_write_;  // of the file: the time for lines without one
  bool guessed_ = false;   // such a line was read
  std::tm modified_{};
};

// One rank's part of the log.
class RankBuilder {
 public:
  RankBuilder(RankEvidence& e, int world) : e_(e), ids_(e.strings.edit()), world_(world) {
    e_.strings.emplace_back();
    e_.stacks.emplace_back();
    e_.groups.emplace_back();
    e_.groups[0].used = true;
  }

  void add(const std::string& name, const GroupSaid& g) {
    const auto row = static_cast<std::uint32_t>(e_.groups.size());
    GroupEvidence& to = e_.groups.emplace_back();
    to.used = true;
    to.name = keep(name);
    to.desc = keep(g.desc.empty() && name == "0" ? "default_pg" : g.desc);
    to.backend = keep("nccl");
    if (name == "0") {  // the default group has every rank up to the highest one named
      to.n_ranks = world_;
      to.own_rank = e_.id.rank;
      to.ranks = {{0, static_cast<std::uint32_t>(world_), 1}};
    }
    to.enqueued = g.enqueued;
    to.completed = to.ended = std::min(g.completed, g.enqueued);
    to.started = to.completed;
    for (const auto& [seq, t] : g.timeouts) {
      Record r;
      r.ticket = e_.records.size();
      r.kind = Kind::kCollective;
      r.state = State::kEnqueued;
      r.group = row;
      r.seq = seq;
      r.op = keep(t.op);
      r.in_numel = t.numel_in;
      r.out_numel = t.numel_out;
      r.timeout_ms =
          static_cast<std::uint32_t>(std::clamp<std::int64_t>(t.timeout_ms, 0, INT32_MAX));
      r.time = t.when != 0 ? plausible(t.when - t.ran_ms * 1'000'000) : 0;
      r.stack = stack(t.stack);
      e_.records.push_back(r);
      to.kept = to.kept == 0 ? 1 : to.kept + 1;
      to.first_kept = to.first_kept == 0 ? seq : to.first_kept;
      to.last_kept = seq;
    }
  }

 private:
  Id keep(std::string_view text) {
    texts_.emplace_back(text);
    return ids_(texts_.back());
  }

  // "#1 all_reduce from /x/train.py:57", innermost first.
  std::uint32_t stack(const std::vector<std::string>& lines) {
    if (lines.empty()) {
      return 0;
    }
    std::vector<std::uint32_t> frames;
    for (const std::string& text : lines) {
      const std::size_t from = text.find(" from "), colon = text.rfind(':');
      const std::size_t name = text.find(' ');
      if (colon == std::string::npos || colon < from || name >= from + 1) {
        continue;
      }
      Frame f;
      f.func = keep(std::string_view(text).substr(name + 1, from - name - 1));
      f.file = keep(std::string_view(text).substr(from + 6, colon - from - 6));
      std::from_chars(text.data() + colon + 1, text.data() + text.size(), f.line);
      frames.push_back(static_cast<std::uint32_t>(e_.frames.size()));
      e_.frames.push_back(f);
    }
    e_.stacks.emplace_back(frames.begin(), frames.end());
    return static_cast<std::uint32_t>(e_.stacks.size() - 1);
  }

  RankEvidence& e_;
  StringIds ids_;
  std::deque<std::string> texts_;
  int world_;
};

std::vector<std::unique_ptr<RankEvidence>> LogReader::evidence() {
  std::vector<std::unique_ptr<RankEvidence>> out;
  int world = 0;
  Time written = 0;
  for (auto& [rank, state] : ranks_) {
    settle(state, "");
    world = std::max(world, rank + 1);
    written = std::max(written, state.written);
  }
  for (const auto& [rank, state] : ranks_) {
    if (state.groups.empty()) {
      continue;
    }
    auto e = std::make_unique<RankEvidence>();
    e->id.rank = rank;
    e->id.world_size = world;
    e->id.recorder = "a job's log";
    e->written = written;
    e->trigger = Trigger::kTimeout;
    e->reason = "PyTorch's NCCL watchdog";
    e->holes.from_log = true;
    e->holes.written_guessed = guessed_;
    RankBuilder builder(*e, world);
    for (const auto& [name, group] : state.groups) {
      builder.add(name, group);
    }
    out.push_back(std::move(e));
  }
  return out;
}

template <class Fn>
void each_line(std::span<const unsigned char> bytes, Fn fn) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    fn(text.substr(0, std::min(end, kMostLine)));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
}

}  // namespace

bool is_job_log(std::span<const unsigned char> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const std::string_view mark :
       {kTimeoutMark, kFailureMark, kSignalMark, kNotJoined, kNotFinished}) {
    if (text.find(mark) != std::string_view::npos) {
      return true;
    }
  }
  return false;
}

std::vector<std::unique_ptr<RankEvidence>> load_job_log(std::span<const unsigned char> text,
                                                        Time modified) {
  LogReader reader(modified);
  each_line(text, [&](std::string_view line) { reader.line(line); });
  return reader.evidence();
}

}  // namespace frtrace
