#include "report/perfetto_rows.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "facts/device/devices.hpp"
#include "model/contains.hpp"
#include "model/hash.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

constexpr Time kForever = std::numeric_limits<Time>::max();

bool is_in_flight(State s) {
  return s == State::kEnqueued || s == State::kStarted || s == State::kWaiting || s == State::kIdle;
}
bool is_operation(const Record& r) {
  return communicates(r) || r.kind == Kind::kLifecycle;
}

// How far each rank's clock is ahead of the first rank's; 0 where that is not known well enough.
std::vector<Time> clocks_ahead(const Case& c, const std::vector<Slots>& slots) {
  constexpr std::size_t kTries = 4;
  std::vector<Time> out(c.ranks.size(), 0);
  std::map<std::pair<std::string, std::string>, Time> of_host;
  std::vector<int> known;  // one rank of each host
  for (const int i : c.indices()) {
    const Identity& id = c.evidence_of(i).id;
    if (id.host.empty() && id.boot_id.empty()) {
      continue;
    }
    const auto [host, is_new] = of_host.try_emplace({id.host, id.boot_id}, 0);
    if (is_new) {
      for (std::size_t k = 0; k < std::min(known.size(), kTries); ++k) {
        const Offset o = clock_offset(c, slots, known[k], i);
        if (o.error != kUnmeasured) {
          const bool is_clear = std::abs(o.ns) > o.error;
          host->second = out[static_cast<std::size_t>(known[k])] + (is_clear ? o.ns : 0);
          break;
        }
      }
      known.push_back(i);
    }
    out[static_cast<std::size_t>(i)] = host->second;
  }
  return out;
}

std::string rank_title(const RankEvidence& e, const Case& c, bool many_jobs) {
  std::string out = fmt::format("rank {}", e.id.rank);
  if (!e.id.host.empty()) {
    out += fmt::format(" ({})", e.id.host);
  }
  return many_jobs && !c.job.empty() ? out + " of " + c.job : out;
}

std::string rank_description(const RankEvidence& e, const Report& report, Time ahead) {
  std::string out =
      fmt::format("host {}, pid {}", e.id.host.empty() ? "?" : printable(e.id.host), e.id.pid);
  for (const Blamed& b : report.blamed) {
    if (b.rank == e.id.rank) {
      out += "\nblamed: " + printable(report.summary);
      for (const std::string& line : b.evidence) {
        out += "\n" + printable(line);
      }
    }
  }
  for (const Waiting& w : report.waiting) {
    if (contains(w.ranks, e.id.rank)) {
      out += fmt::format("\nwaits in {} #{} of {}, at {}", w.op, w.seq, w.title, site_text(w.site));
    }
  }
  if (ahead != 0) {
    out += fmt::format("\nits clock is {} ahead of rank 0's host; times here are corrected",
                       (ahead < 0 ? "-" : "") + duration_text(std::abs(ahead) * 1e-9));
  }
  return out;
}

// ---- data that the records of all ranks share

class Common {
 public:
  Common(const Case& c, const std::vector<Slots>& slots, const std::vector<Time>& ahead,
         std::uint64_t& next)
      : c_(c), slots_(slots) {
    for (std::size_t g = 0; g < c.groups.size(); ++g) {
      out_.push_back(of(g, ahead));
      out_.back().correlation = next;
      next += out_.back().earliest.size();
    }
  }
  void add_flows(const Report& report, std::uint64_t& next) {
    for (const Blamed& b : report.blamed) {
      add_flow(b.group, b.desc, b.op, b.seq, b.rank, next);
    }
    for (const Waiting& w : report.waiting) {
      for (const Rank r : w.ranks) {
        if (add_flow(w.group, w.desc, w.op, w.seq, r, next)) {
          break;
        }
      }
    }
  }
  std::vector<TraceGroup> take() { return std::move(out_); }

 private:
  TraceGroup of(std::size_t g, const std::vector<Time>& ahead) const {
    constexpr std::uint64_t kMostSlots = std::uint64_t{1} << 22;  // a damaged file may claim more
    TraceGroup out;
    std::uint64_t first = UINT64_MAX, last = 0;
    each(g, [&](const Record& r, int) {
      first = std::min(first, r.seq), last = std::max(last, r.seq);
    });
    if (first > last || last - first >= kMostSlots) {
      return out;
    }
    out.first = first;
    out.earliest.assign(last - first + 1, kForever);
    out.members.assign(last - first + 1, 0);
    each(g, [&](const Record& r, int evidence) {
      if (r.time != 0) {
        Time& earliest = out.earliest[r.seq - first];
        earliest = std::min(earliest, r.time - ahead[static_cast<std::size_t>(evidence)]);
        ++out.members[r.seq - first];
      }
    });
    return out;
  }
  template <class F>
  void each(std::size_t g, F&& f) const {
    const Group& group = c_.groups[g];
    for (std::size_t m = 0; m < group.ranks.size(); ++m) {
      if (group.evidence[m] >= 0) {
        const RankEvidence& e = c_.evidence_of(group.evidence[m]);
        for (const std::uint32_t r : slots_[g].records[m]) {
          f(e.records[r], group.evidence[m]);
        }
      }
    }
  }
  bool add_flow(const std::string& name, const std::string& desc, const std::string& op,
                std::uint64_t seq, Rank rank, std::uint64_t& next) {
    for (std::size_t g = 0; g < c_.groups.size(); ++g) {
      const Group& group = c_.groups[g];
      const auto m = group.position.find(rank);
      if (group.name == name && group.desc == desc && m != group.position.end() && op != "send" &&
          op != "recv" && seq >= out_[g].first && seq - out_[g].first < out_[g].earliest.size()) {
        next += out_[g].flows.try_emplace(seq, next).second ? 1 : 0;
        return true;
      }
    }
    return false;
  }

  const Case& c_;
  const std::vector<Slots>& slots_;
  std::vector<TraceGroup> out_;
};

// ---- one rank's rows

// Tracks for operations that overlap: each takes the first free track. A host may run hundreds of
// operations ahead of its device, too many tracks to read: if none is free, the operation is drawn
// from its start on the device, or from the time a track becomes free.
class Lanes {
 public:
  struct Place {
    std::size_t lane = 0;
    Time begin = 0;
  };
  Place take(Time begin, Time start, Time end) {
    for (std::size_t i = 0; i < busy_until_.size(); ++i) {
      if (busy_until_[i] <= begin) {
        return take(i, begin, end);
      }
    }
    if (busy_until_.size() >= kMost) {
      const auto first = std::min_element(busy_until_.begin(), busy_until_.end());
      const Time from = std::max(*first, std::min(start, end - 1));
      if (from < end) {
        return take(static_cast<std::size_t>(first - busy_until_.begin()), from, end);
      }
    }
    busy_until_.push_back(end);
    return {busy_until_.size() - 1, begin};
  }
  // Operations that have not ended share a track, nested in each other.
  Place take_open(Time begin) {
    if (in_open_ == 0 || in_open_ == kDeepest) {
      open_ = take(begin, begin, kForever).lane;
      in_open_ = 0;
    }
    ++in_open_;
    return {open_, begin};
  }

 private:
  Place take(std::size_t lane, Time begin, Time end) {
    busy_until_[lane] = end;
    return {lane, begin};
  }

  static constexpr std::size_t kMost = 4;
  static constexpr std::size_t kDeepest = 100;  // the viewer draws at most 512 nested slices
  std::vector<Time> busy_until_;
  std::size_t open_ = 0, in_open_ = 0;
};

class RankRows {
 public:
  RankRows(TraceRows& rows, std::uint32_t rank, const PerfettoOptions& options)
      : rows_(rows),
        rank_(rank),
        of_(rows.ranks[rank]),
        e_(of_.c->evidence_of(of_.evidence)),
        options_(options) {}

  void add(std::size_t from, std::size_t to) {
    std::vector<std::uint32_t> order;
    for (std::uint32_t i = 0; i < e_.records.size(); ++i) {
      if ((i >= from && i < to) ||
          (is_operation(e_.records[i]) && is_in_flight(e_.records[i].state))) {
        order.push_back(i);
      }
    }
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return e_.records[a].time < e_.records[b].time;
    });
    for (const std::uint32_t i : order) {
      const Record& r = e_.records[i];
      if (is_operation(r)) {
        add_operation(r, i);
      } else if (options_.groups.empty() && r.time != 0) {
        add_crumb(r, i);
      }
    }
    add_open_spans();
    if (e_.written != 0) {
      put(e_.written, of_.track, 0, Drawn::kDump);
    }
    if (e_.exit.present && e_.exit.time != 0) {
      put(e_.exit.time, of_.track, 0, Drawn::kExit);
    }
  }

 private:
  Time corrected(Time t) const { return t - of_.ahead; }
  void put(Time time, std::uint32_t track, std::uint32_t record, Drawn what) {
    rows_.items.push_back({corrected(time), track, rank_, record, what});
  }
  std::uint32_t new_track(std::string name, std::uint32_t place, bool counter = false) {
    rows_.tracks.push_back(
        {.name = std::move(name), .parent = of_.track + 1, .place = place, .is_lag = counter});
    return static_cast<std::uint32_t>(rows_.tracks.size() - 1);
  }

  bool is_wanted(int group) const {
    if (options_.groups.empty()) {
      return true;
    }
    const Group* g = group < 0 ? nullptr : &of_.c->groups[static_cast<std::size_t>(group)];
    return g != nullptr &&
           (contains(options_.groups, g->name) || contains(options_.groups, g->desc));
  }

  // Sends and receives of all groups have rows of their own.
  static constexpr std::uint32_t kTransfers = UINT32_MAX;
  std::uint32_t track_of(std::uint32_t row, std::size_t lane) {
    std::vector<std::uint32_t>& tracks = tracks_[row];
    while (tracks.size() <= lane) {
      std::string name = "process";
      if (row == kTransfers) {
        name = "sends and receives";
      } else if (const int g = group_index(of_, row); g >= 0) {
        name = of_.c->groups[static_cast<std::size_t>(g)].title();
      } else if (row != 0 && row < e_.groups.size()) {
        name = e_.text(e_.groups[row].name);
      }
      if (!tracks.empty()) {
        name += fmt::format(" ({})", tracks.size() + 1);
      }
      tracks.push_back(new_track(std::move(name), row == kTransfers ? 1'000'000 : 2 * row + 10));
    }
    return tracks[lane];
  }

  void add_operation(const Record& r, std::uint32_t i) {
    const int g = group_index(of_, r.group);
    if (!is_wanted(g)) {
      return;
    }
    const Time begin = r.time != 0 ? r.time : r.started;
    if (begin == 0) {
      ++rows_.without_time;
      return;
    }
    const std::uint32_t row = is_p2p(r) ? kTransfers : r.group;
    const bool in_flight = is_in_flight(r.state);
    if (!in_flight && r.ended == 0) {
      put(begin, track_of(row, 0), i, Drawn::kInstant);
      return;
    }
    const Time end = in_flight ? kForever : std::max(r.ended, begin + 1);
    const auto [start, stop] = on_device(e_, r);
    const Lanes::Place place =
        in_flight ? lanes_[row].take_open(begin) : lanes_[row].take(begin, start, end);
    const std::uint32_t track = track_of(row, place.lane);
    put(place.begin, track, i, Drawn::kBegin);
    if (start > place.begin && start < end) {
      put(start, track, i, Drawn::kPart);
      if (!in_flight) {
        put(std::clamp(stop, start + 1, end), track, i, Drawn::kPartEnd);
      }
    }
    if (!in_flight) {
      put(end, track, i, Drawn::kEnd);
    }
    if (r.kind == Kind::kCollective && g >= 0 && !of_.lag_tracks.contains(r.group)) {
      const std::string title = of_.c->groups[static_cast<std::size_t>(g)].title();
      of_.lag_tracks[r.group] = new_track("arrival lag, " + title, 2 * r.group + 11, true);
    }
    if (is_p2p(r) && g >= 0) {
      TracePair& pair = rows_.pairs[pair_key(of_, g, r)];
      (r.kind == Kind::kSend ? pair.sent : pair.received) = true;
    }
  }

  void add_crumb(const Record& r, std::uint32_t i) {
    if (r.kind == Kind::kStep && r.time > last_step_) {
      step_track_ = step_track_ != 0 ? step_track_ : new_track("steps", 0);
      if (last_step_ != 0) {
        put(r.time, step_track_, i, Drawn::kEnd);
      }
      last_step_ = r.time;
      put(r.time, step_track_, i, Drawn::kStep);
    } else if (r.kind == Kind::kSpan) {
      std::vector<Time>& open = open_spans_[r.tid];
      if (r.seq != 0) {
        open.push_back(r.time);
        put(r.time, span_track(r.tid), i, Drawn::kSpan);
      } else if (!open.empty()) {
        put(std::max(r.time, open.back() + 1), span_track(r.tid), i, Drawn::kEnd);
        open.pop_back();
      }
    } else if (r.kind == Kind::kNote) {
      put(r.time, span_track(r.tid), i, Drawn::kNote);
    }
  }
  std::uint32_t span_track(std::uint32_t tid) {
    const auto it = span_tracks_.find(tid);
    return it != span_tracks_.end()
               ? it->second
               : span_tracks_[tid] = new_track(fmt::format("spans, thread {}", tid), 1);
  }
  // Adds open spans, including those with overwritten records.
  void add_open_spans() {
    for (std::uint32_t t = 0; t < e_.notes.size() && options_.groups.empty(); ++t) {
      const ThreadNotes& thread = e_.notes[t];
      const std::vector<Time>& open = open_spans_[thread.tid];
      for (std::uint32_t depth = 0; depth < thread.spans.size() && depth < 256; ++depth) {
        const Time since = thread.spans[depth].second;
        if (since != 0 && !contains(open, since)) {
          put(since, span_track(thread.tid), t << 8 | depth, Drawn::kOpenSpan);
        }
      }
    }
  }

  TraceRows& rows_;
  std::uint32_t rank_;
  TraceRank& of_;
  const RankEvidence& e_;
  const PerfettoOptions& options_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> tracks_;  // by row of the group
  std::map<std::uint32_t, Lanes> lanes_;
  std::map<std::uint32_t, std::vector<Time>> open_spans_;  // by thread
  std::map<std::uint32_t, std::uint32_t> span_tracks_;
  std::uint32_t step_track_ = 0;
  Time last_step_ = 0;
};

// The range of records of a rank that are drawn: around `moment`, three quarters of them before it.
std::pair<std::size_t, std::size_t> window(const RankEvidence& e, Time moment, std::size_t most) {
  const std::size_t n = e.records.size();
  if (most == 0 || n <= most) {
    return {0, n};
  }
  const auto at = std::partition_point(e.records.begin(), e.records.end(), [&](const Record& r) {
    return moment == 0 || r.time < moment;
  });
  const auto place = static_cast<std::size_t>(at - e.records.begin());
  const std::size_t to = std::min(n, std::max(place + most / 4, most));
  return {to - std::min(to, most), to};
}

void add_case(TraceRows& rows, const Case& c, const Report& report, const PerfettoOptions& options,
              bool many_jobs, std::size_t most_records, std::uint64_t& next_number,
              std::uint64_t& next_flow) {
  const std::vector<Slots> slots = make_slots(c);
  const std::vector<Time> ahead = clocks_ahead(c, slots);
  Common common(c, slots, ahead, next_number);
  common.add_flows(report, next_flow);
  const std::size_t case_index = rows.groups.size();
  rows.groups.push_back(common.take());
  rows.tracks.push_back(
      {.name = fmt::format("verdict{}", many_jobs && !c.job.empty() ? " on " + c.job : ""),
       .description = printable(report.summary)});
  const auto verdict_track = static_cast<std::uint32_t>(rows.tracks.size() - 1);
  if (report.time != 0) {
    rows.items.push_back(
        {report.time, verdict_track, static_cast<std::uint32_t>(case_index), 0, Drawn::kVerdict});
  }
  // Blamed ranks come first.
  for (const bool blamed : {true, false}) {
    for (const int i : c.indices()) {
      const RankEvidence& e = c.evidence_of(i);
      if (contains(report.ranks, e.id.rank) != blamed ||
          (!options.ranks.empty() && !contains(options.ranks, e.id.rank))) {
        continue;
      }
      TraceRank rank;
      rank.c = &c;
      rank.case_index = case_index;
      rank.evidence = i;
      rank.ahead = ahead[static_cast<std::size_t>(i)];
      rank.blamed = blamed;
      rank.track = static_cast<std::uint32_t>(rows.tracks.size());
      rows.tracks.push_back({.name = rank_title(e, c, many_jobs),
                             .description = rank_description(e, report, rank.ahead),
                             .place = static_cast<std::uint32_t>(rows.ranks.size() + 1)});
      rows.ranks.push_back(std::move(rank));
      const auto [from, to] = window(e, report.time, most_records);
      RankRows(rows, static_cast<std::uint32_t>(rows.ranks.size() - 1), options).add(from, to);
    }
  }
}

}  // namespace

int group_index(const TraceRank& rank, std::uint32_t row) {
  const std::vector<int>& of = rank.c->group_of[static_cast<std::size_t>(rank.evidence)];
  return row != 0 && row < of.size() ? of[row] : -1;
}

std::uint64_t pair_key(const TraceRank& rank, int group, const Record& r) {
  const RankEvidence& e = rank.c->evidence_of(rank.evidence);
  const Group& g = rank.c->groups[static_cast<std::size_t>(group)];
  const auto own = g.position.find(e.id.rank);
  const int self = own != g.position.end() ? own->second : -1;
  const bool sends = r.kind == Kind::kSend;
  std::uint64_t h = mix(rank.case_index, static_cast<std::uint64_t>(group));
  h = mix(h, static_cast<std::uint64_t>(sends ? self : r.peer));
  h = mix(h, static_cast<std::uint64_t>(sends ? r.peer : self));
  // Numbers that count from a window match no other rank's: the key is unique to this rank.
  return e.holes.relative_p2p ? mix(mix(h, r.ticket), static_cast<std::uint64_t>(e.id.rank))
                              : mix(h, r.seq);
}

std::pair<Time, Time> on_device(const RankEvidence& e, const Record& r) {
  const auto& spans = e.device.spans;
  const auto at =
      std::lower_bound(spans.begin(), spans.end(), r.ticket,
                       [](const DeviceSpan& s, std::uint64_t ticket) { return s.ticket < ticket; });
  if (at != spans.end() && at->ticket == r.ticket) {
    return {at->start, at->end};
  }
  return {r.started, r.ended};
}

TraceRows make_trace_rows(const std::vector<Case>& cases, const std::vector<Report>& reports,
                          const PerfettoOptions& options, std::size_t most_records) {
  TraceRows rows;
  std::uint64_t next_number = 1, next_flow = 1;
  std::size_t n_ranks = 0;
  for (const Case& c : cases) {
    n_ranks += c.ranks.size();
  }
  rows.ranks.reserve(n_ranks);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    add_case(rows, cases[i], reports[i], options, cases.size() > 1, most_records, next_number,
             next_flow);
  }
  for (auto& [key, pair] : rows.pairs) {
    pair.number = next_number++;
  }
  std::stable_sort(rows.items.begin(), rows.items.end(),
                   [](const TraceItem& a, const TraceItem& b) {
                     return std::tie(a.time, a.what) < std::tie(b.time, b.what);
                   });
  return rows;
}

}  // namespace frtrace
