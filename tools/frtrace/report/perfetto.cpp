// perfetto.cpp - writes the rows of a case as a Perfetto trace.
#include "report/perfetto.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "model/contains.hpp"
#include "model/dtype.hpp"
#include "model/operation.hpp"
#include "report/perfetto_packets.hpp"
#include "report/perfetto_rows.hpp"

namespace frtrace {

namespace {

class Writer {
 public:
  Writer(const TraceRows& rows, const std::vector<Report>& reports, const std::string& left_out)
      : rows_(rows),
        reports_(reports),
        packets_(rows.items.empty() ? 0 : rows.items.front().time),
        sites_(rows.ranks.size()) {
    for (PerfettoPackets::Track track : rows.tracks) {
      if (track.parent == 0 && !left_out.empty()) {
        track.description += "\n" + left_out;
      }
      // tracks are numbered in the order of `rows`
      packets_.track(track);
    }
  }

  // Stops after `most_bytes`.
  std::string write(std::size_t most_bytes) {
    for (const TraceItem& item : rows_.items) {
      if (packets_.size() > most_bytes) {
        break;
      }
      write(item);
    }
    return packets_.take();
  }

 private:
  using Phase = PerfettoPackets::Phase;

  void write(const TraceItem& i) {
    const std::uint32_t track = i.track + 1;
    const auto as = [&](Phase phase, auto&& fill) { packets_.event(i.time, track, phase, fill); };
    switch (i.what) {
      case Drawn::kPartEnd:
      case Drawn::kEnd:
        return packets_.end(i.time, track);
      case Drawn::kBegin:
        return as(Phase::kBegin, [&] { operation(i); });
      case Drawn::kInstant:
        return as(Phase::kInstant, [&] { operation(i); });
      case Drawn::kPart:
        return as(Phase::kBegin, [&] { packets_.name("runs"), packets_.category("device"); });
      case Drawn::kStep:
        return as(Phase::kBegin, [&] {
          packets_.name_once(fmt::format("step {}", record(i).seq));
          packets_.category("step");
        });
      case Drawn::kSpan:
        return as(Phase::kBegin, [&] {
          packets_.name(rows_.evidence(i).text(record(i).op));
          packets_.category("span");
        });
      case Drawn::kOpenSpan:
        return as(Phase::kBegin, [&] {
          const auto& spans = rows_.evidence(i).notes[i.record >> 8].spans;
          packets_.name(spans[i.record & 0xff].first);
          packets_.category("span");
        });
      case Drawn::kNote:
        return as(Phase::kInstant, [&] {
          packets_.name_once(rows_.evidence(i).text(record(i).op));
          packets_.category("note");
        });
      case Drawn::kDump:
        return as(Phase::kInstant, [&] { dump(rows_.evidence(i)); });
      case Drawn::kExit:
        return as(Phase::kInstant, [&] { exit(rows_.evidence(i).exit); });
      case Drawn::kVerdict:
        return as(Phase::kInstant, [&] { verdict(reports_[i.rank]); });
    }
  }

  const Record& record(const TraceItem& i) const { return rows_.evidence(i).records[i.record]; }

  void verdict(const Report& r) {
    packets_.name_once(r.summary);
    packets_.category("verdict");
    packets_.annotate_once("kind", verdict_name(r.kind));
    packets_.annotate_once("confidence", confidence_name(r.confidence));
    packets_.annotate_once("ranks", fold_ranks(r.ranks));
  }
  void dump(const RankEvidence& e) {
    packets_.name(e.source == Source::kDump ? "dump" : "ring read");
    packets_.category("dump");
    packets_.annotate_once("file", e.file);
    if (!e.reason.empty()) {
      packets_.annotate_once("reason", e.reason);
    }
  }
  void exit(const ExitEvidence& x) {
    packets_.name("exit");
    packets_.category("exit");
    packets_.annotate_once("state", fr::word(x.state));
    if (x.signal != 0) {
      packets_.annotate("signal", static_cast<std::uint64_t>(x.signal));
    }
    if (!x.type.empty()) {
      packets_.annotate_once("exception", x.type + ": " + x.message);
    }
  }

  void operation(const TraceItem& i) {
    const TraceRank& rank = rows_.ranks[i.rank];
    const RankEvidence& e = rows_.evidence(i);
    const Record& r = record(i);
    const int g = group_index(rank, r.group);
    if (is_p2p(r)) {
      const Group* group = g < 0 ? nullptr : &rank.c->groups[static_cast<std::size_t>(g)];
      const auto peer = static_cast<std::size_t>(r.peer);
      const bool known = group != nullptr && r.peer >= 0 && peer < group->ranks.size();
      packets_.name(fmt::format("{} {}{}", r.kind == Kind::kSend ? "send to" : "recv from",
                                known ? "" : "member ", known ? group->ranks[peer] : r.peer));
      if (group != nullptr) {
        packets_.annotate("group", group->title());
      }
    } else {
      packets_.name(e.text(r.op));
    }
    packets_.category(fr::word(r.kind));
    if (rank.blamed) {
      packets_.category("blamed");
    }
    packets_.annotate("seq", r.seq);
    const Time arrival = r.time - rank.ahead;
    if (i.what == Drawn::kBegin && r.time != 0 && i.time > arrival) {
      packets_.annotate("queued_us", static_cast<std::uint64_t>(i.time - arrival) / 1000);
    }
    if (const std::uint64_t size = bytes_of_dtype(e.text(r.in_dtype)); size != 0) {
      packets_.annotate("bytes", size * std::min(r.in_numel, UINT64_MAX / size));
    }
    if (r.in_dtype != 0) {
      packets_.annotate("dtype", e.text(r.in_dtype));
    }
    if (const std::uint32_t site = site_of(i.rank, e, r.stack); site != 0) {
      packets_.place(site);
    }
    // The end of an operation already shows that it completed.
    if (r.state != State::kCompleted || i.what == Drawn::kInstant) {
      packets_.annotate("state", std::string_view(fr::word(r.state)));
    }
    if (r.error != 0) {
      packets_.annotate("error", e.text(r.error));
    }
    if (g >= 0) {
      common(i, rank, r, g);
    }
  }

  // Annotates the link to the same operation of other ranks.
  void common(const TraceItem& i, const TraceRank& rank, const Record& r, int g) {
    if (is_p2p(r)) {
      const auto pair = rows_.pairs.find(pair_key(rank, g, r));
      if (pair != rows_.pairs.end()) {
        packets_.correlate(pair->second.number);
        if (pair->second.sent && pair->second.received) {
          packets_.flow(kPairFlows + pair->second.number);
        }
      }
      return;
    }
    const TraceGroup& group = rows_.groups[rank.case_index][static_cast<std::size_t>(g)];
    if (r.kind != Kind::kCollective || r.seq < group.first ||
        r.seq - group.first >= group.earliest.size()) {
      return;
    }
    const std::uint64_t slot = r.seq - group.first;
    packets_.correlate(group.correlation + slot);
    if (const auto flow = group.flows.find(r.seq); flow != group.flows.end()) {
      packets_.flow(flow->second);
    }
    const auto lag = rank.lag_tracks.find(r.group);
    if (i.what == Drawn::kBegin && r.time != 0 && group.members[slot] > 1 &&
        lag != rank.lag_tracks.end()) {
      const auto value =
          static_cast<std::uint64_t>(r.time - rank.ahead - group.earliest[slot]) / 1000;
      // a counter keeps its value until it changes
      if (const auto last = lags_.try_emplace(lag->second, value + 1).first;
          last->second != value) {
        last->second = value;
        packets_.count(lag->second + 1, value);
      }
    }
  }

  // The number of the call site's text; 0: not captured. Looked up once for each stack of a rank.
  std::uint32_t site_of(std::uint32_t rank, const RankEvidence& e, std::uint32_t stack) {
    std::vector<std::uint32_t>& known = sites_[rank];
    constexpr std::uint32_t kNew = UINT32_MAX;
    if (known.empty()) {
      known.assign(e.stacks.size(), kNew);
    }
    if (stack == 0 || stack >= known.size()) {
      return 0;
    }
    if (known[stack] == kNew) {
      const Site site = user_site(e, stack);
      known[stack] = site.file.empty() ? 0 : packets_.place_id(site);
    }
    return known[stack];
  }

  static constexpr std::uint64_t kPairFlows = std::uint64_t{1} << 32;  // above those of slots

  const TraceRows& rows_;
  const std::vector<Report>& reports_;
  PerfettoPackets packets_;
  std::vector<std::vector<std::uint32_t>> sites_;          // of each rank, by stack
  std::unordered_map<std::uint32_t, std::uint64_t> lags_;  // last value of each track
};

std::size_t shown_ranks(const std::vector<Case>& cases, const PerfettoOptions& options) {
  std::size_t n = 0;
  for (const Case& c : cases) {
    n += static_cast<std::size_t>(
        std::count_if(c.ranks.begin(), c.ranks.end(), [&](const RankEvidence* e) {
          return options.ranks.empty() || contains(options.ranks, e->id.rank);
        }));
  }
  return n;
}

std::string left_out_words(const std::vector<Case>& cases, const PerfettoOptions& options,
                           std::size_t most_records, std::uint64_t without_time) {
  std::string out;
  const auto add = [&](const std::string& words) { out += (out.empty() ? "" : "; ") + words; };
  if (most_records != 0) {
    add(
        fmt::format("of each rank only the {} records around the verdict are in the trace: all "
                    "take more than {} MB; --ranks and --groups show fewer in full",
                    most_records, options.most_bytes / 1'000'000));
  }
  std::uint64_t trimmed = 0;
  for (const Case& c : cases) {
    for (const RankEvidence* e : c.ranks) {
      trimmed += e->losses.trimmed;
    }
  }
  if (trimmed != 0) {
    add(fmt::format("{} records away from the fault were not loaded: --all-records loads them",
                    trimmed));
  }
  if (without_time != 0) {
    add(fmt::format("{} operations without a time are left out", without_time));
  }
  return out;
}

}  // namespace

PerfettoTrace render_perfetto(const std::vector<Case>& cases, const std::vector<Report>& reports,
                              const PerfettoOptions& options) {
  constexpr std::size_t kLeastBytes = 50;  // a record takes at least so many
  const std::size_t ranks = std::max<std::size_t>(shown_ranks(cases, options), 1);
  std::size_t total = 0, longest = 0;
  for (const Case& c : cases) {
    for (const RankEvidence* e : c.ranks) {
      if (options.ranks.empty() || contains(options.ranks, e->id.rank)) {
        total += e->records.size();
        longest = std::max(longest, e->records.size());
      }
    }
  }
  // Records that certainly exceed the limit are not laid out.
  std::size_t most = total > options.most_bytes / kLeastBytes
                         ? std::max<std::size_t>(options.most_bytes / kLeastBytes / ranks, 1)
                         : 0;
  while (true) {
    const TraceRows rows = make_trace_rows(cases, reports, options, most);
    PerfettoTrace out;
    out.left_out = left_out_words(cases, options, most, rows.without_time);
    out.data = Writer(rows, reports, out.left_out).write(options.most_bytes);
    if (out.data.size() <= options.most_bytes || most == 1) {
      return out;
    }
    most = std::max<std::size_t>((most == 0 ? longest : most) * 3 / 4, 1);
  }
}

}  // namespace frtrace
