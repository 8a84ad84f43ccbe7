// What was read, what of it is lost, and how sure the verdict is.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "input/ras.hpp"
#include "model/contains.hpp"
#include "model/operation.hpp"
#include "words/words.hpp"

namespace frtrace {

void add_inventory(const Facts& f, Report& r) {
  const Names names(f);
  r.job = f.c.job;
  r.attempt = f.c.attempt;
  r.incident = f.c.incident;
  r.read = static_cast<int>(f.c.ranks.size());
  r.expected = f.c.expected;
  r.missing_ranks = f.c.missing;
  for (const Group& g : f.c.groups) {
    GroupReport out;
    out.name = g.name;
    out.desc = g.desc;
    out.backend = g.backend;
    out.instance = g.instance;
    out.ranks = g.ranks;
    bool first = true;
    for (std::size_t m = 0; m < g.ranks.size(); ++m) {
      const GroupEvidence* e = f.c.member(g, m);
      if (e == nullptr) {
        continue;
      }
      out.enqueued_min = first ? e->enqueued : std::min(out.enqueued_min, e->enqueued);
      out.completed_min = first ? e->completed : std::min(out.completed_min, e->completed);
      out.enqueued_max = std::max(out.enqueued_max, e->enqueued);
      out.completed_max = std::max(out.completed_max, e->completed);
      out.overwritten += e->overwritten;
      out.dropped += e->dropped;
      first = false;
    }
    r.groups.push_back(std::move(out));
  }
  r.rank_reports.reserve(f.c.ranks.size());
  for (int i = 0; i < static_cast<int>(f.c.ranks.size()); ++i) {
    const RankEvidence& e = f.ev(i);
    RankReport out;
    out.rank = e.id.rank;
    out.host = e.id.host;
    out.pid = e.id.pid;
    out.file = e.file;
    out.incident = e.incident;
    out.reason = e.reason;
    out.source = e.source == Source::kDump   ? (e.salvaged ? "salvaged dump" : "dump")
                 : e.source == Source::kRing ? "ring"
                                             : "live ring";
    out.from_ring = e.source != Source::kDump;
    out.runs_now = e.source == Source::kLiveRing;
    out.state = f.exit(i).ended()                     ? names.exit(f.exit(i))
                : e.salvage == Salvage::kUnresponsive ? "does not respond"
                                                      : "runs";
    if (const Record* last = f.last_operation(i)) {
      out.last_op = names.record(i, *last);
      out.site = user_site(e, last->stack);
    }
    if (!e.notes.empty()) {
      out.note = std::max_element(e.notes.begin(), e.notes.end(),
                                  [](const ThreadNotes& a, const ThreadNotes& b) {
                                    return a.note_time < b.note_time;
                                  })
                     ->note;
    }
    r.rank_reports.push_back(std::move(out));
  }
  for (const std::string& note : f.c.notes) {
    say(r, "input", note);
  }
}

namespace {

struct AssumeRow {
  Assume what;
  const char* text;
};

// {who}: the ranks that the assumption is about; {first}, {last} of them; {time}: its duration.
constexpr AssumeRow kAssumptions[] = {
    {Assume::kRankWithoutEvidence, "no evidence of {who}"},
    {Assume::kEndedSeenByPeers, "the rank that ended left no evidence of its own"},
    {Assume::kOneEvent, "several processes ended at about the same time"},
    {Assume::kAllGone, "all processes are gone and none left an exit status"},
    {Assume::kKilledLater, "all processes were killed after the hang"},
    {Assume::kSignalOrder, "only the order of the signals shows who ended first"},
    {Assume::kOtherMayBeFirst,
     "rank {first} may be what stopped them, before rank {last} was ended"},
    {Assume::kShortHang, "the wait had lasted only {time} when the evidence was written"},
    {Assume::kEarlierIterations, "decided by the order of earlier iterations"},
    {Assume::kPeersOrder, "decided by the order of most ranks"},
    {Assume::kNoEarlierIterations, "no rank's earlier iterations show which order is right"},
    {Assume::kTieByPrecedent, "as many ranks on either side; decided by earlier iterations"},
    {Assume::kTie, "as many ranks on either side, and the evidence does not show which is right"},
    {Assume::kFewAreWrong, "the few are taken to be wrong, not the many"},
    {Assume::kRecordsNotKept, "not all members' records of that operation are kept"},
    {Assume::kCompleted, "the operation completed"},
    {Assume::kHostIsFree, "the host of {who} is assumed not to block in that operation"},
    {Assume::kOneStoppedOthers, "several devices are stalled, and one may have stopped the others"},
    {Assume::kNetworkToo, "the network also holds data back"},
    {Assume::kNetworkThreadUnseen, "why a network thread makes no progress is not observable"},
    {Assume::kChainOpen, "not all waits of the devices could be followed"},
    {Assume::kDeviceRowsLost, "some device operations or transfers of {who} were not recorded"},
    {Assume::kLowerLayer, "the layer below is not observable"},
    {Assume::kErrorsAtOnce, "the clocks do not show whose error came first"},
    {Assume::kNeedNotMeet, "the call need not wait for all ranks"},
    {Assume::kLostOnly, "perhaps only the file is lost and the process of {who} was alive"},
    {Assume::kRingsOnly, "measured over the records that the rings still hold"},
    {Assume::kClocksAgree, "the files have no end times: the ranks' clocks are taken to agree"},
    {Assume::kBesideAnEnd, "it may follow from the end of another process"},
    {Assume::kGroupsUnknown, "operations of unknown groups were not counted"},
    {Assume::kTimesGuessed,
     "the files were copied without their times, so that the ranks have waited long is assumed"},
};
static_assert(std::size(kAssumptions) == static_cast<std::size_t>(Assume::kTimesGuessed) + 1);

std::string text_of(const Assumption& a) {
  const AssumeRow& row = kAssumptions[static_cast<std::size_t>(a.what)];
  const bool ranks = !a.ranks.empty();
  return fmt::format(
      fmt::runtime(row.text), fmt::arg("who", ranks ? ranks_words(a.ranks) : std::string()),
      fmt::arg("first", ranks ? a.ranks.front() : -1),
      fmt::arg("last", ranks ? a.ranks.back() : -1), fmt::arg("time", duration_text(a.seconds)));
}

// The reasons for a confidence below certain, none twice.
class Doubts {
 public:
  explicit Doubts(Report& r) : r_(r) {}
  void add(const Assumption& a) { add(confidence_of(a), text_of(a)); }
  void add(Confidence to, const std::string& text) {
    r_.confidence = std::max(r_.confidence, to);
    if (std::find(all_.begin(), all_.end(), text) == all_.end()) {
      all_.push_back(text);
    }
  }
  const std::vector<std::string>& all() const { return all_; }

 private:
  Report& r_;
  std::vector<std::string> all_;
};

// What the formats do not record, and whether the verdict rests on it.
void add_gaps(const Facts& f, bool fault, Doubts& doubts, Report& r) {
  struct Gap {
    bool Holes::* set;
    const char* text;
    bool matters;
  };
  static constexpr Gap kGaps[] = {
      {&Holes::truncated, "cut off in the middle: what comes after is unknown", true},
      {&Holes::only_active, "hold only what was in flight when they were written", false},
      {&Holes::no_stacks, "hold no call sites", false},
      {&Holes::no_status, "hold no counters: frontiers are those of the records", false},
      {&Holes::no_members,
       "do not list the members of groups: members are the ranks whose records name a group", true},
      {&Holes::no_p2p, "do not record sends and receives, though there were some", true},
      {&Holes::frontier_inferred, "do not name a group: what the others wait for was not issued",
       true},
      {&Holes::failure_inferred,
       "do not tell failed operations from completed ones: those that cannot have completed are "
       "taken as failed",
       true},
      {&Holes::run_by_clock,
       "are newer by their clocks than files of other ranks, which are taken for an earlier run's",
       true},
      {&Holes::from_log,
       "are a log: a rank that its watchdog says nothing of may be inside the operation", true},
      {&Holes::only_stacks, "hold stacks only, no operations: the place is taken for the reason",
       true},
      {&Holes::calls_only,
       "hold what Python called, for want of the torch adapter: what C++ issues by itself (DDP, "
       "functional collectives) is not in them",
       false},
      {&Holes::only_times, "are traces of torch.profiler: they tell times, and nothing of a hang",
       true},
      {&Holes::written_guessed, "do not record when they were written: durations are guesses",
       false},
  };
  for (const Gap& gap : kGaps) {
    std::vector<Rank> who;
    for (const RankEvidence* e : f.c.ranks) {
      if (e->holes.*gap.set) {
        who.push_back(e->id.rank);
      }
    }
    if (who.empty()) {
      continue;
    }
    const std::string text = fmt::format(
        "{} {}", who.size() == f.c.ranks.size() ? "the files" : "files of " + ranks_words(who),
        gap.text);
    say(r, "hole", text);
    if (fault && gap.matters) {
      doubts.add(Confidence::kLikely, text);
    }
  }
}

// A file without counters that holds no operation either says nothing of its rank: not that it is
// well, and not that it issued nothing.
void add_empty(const Facts& f, bool fault, Doubts& doubts, Report& r) {
  std::vector<Rank> who;
  bool counts = false;
  for (const RankEvidence* e : f.c.ranks) {
    if (e->holes.no_status && !e->holes.only_active &&
        std::none_of(e->records.begin(), e->records.end(), communicates)) {
      who.push_back(e->id.rank);
      counts = counts || !fault || contains(r.ranks, who.back());
    }
  }
  if (!who.empty()) {
    const std::string text =
        fmt::format("{} no operation", who.size() == f.c.ranks.size() ? "the files hold"
                                       : who.size() == 1
                                           ? fmt::format("the file of {} holds", ranks_words(who))
                                           : fmt::format("the files of {} hold", ranks_words(who)));
    say(r, "hole", text);
    if (counts) {
      doubts.add(who.size() == f.c.ranks.size() ? Confidence::kPossible : Confidence::kLikely,
                 text);
    }
  }
}

void add_witness(const Facts& f, Report& r) {
  for (const RankEvidence* e : f.c.ranks) {
    for (const std::string& line : e->witness) {
      say(r, "witness", line);
    }
  }
}

// What NCCL's own service says: shown beside the verdict, and never decides it.
void add_ras(const Facts& f, Report& r) {
  const RasEvidence* silent = nullptr;
  for (const RankEvidence* e : f.c.ranks) {
    const RasEvidence& ras = e->ras;
    if (ras.asked && ras.answer.empty()) {
      silent = silent != nullptr ? silent : &ras;
    } else if (ras.asked) {
      for (const std::string& line : ras_lines(ras)) {
        say(r, "ras", "NCCL's RAS: " + line);
      }
      if (ras.cut) {
        say(r, "ras",
            "NCCL's RAS: the answer was cut" +
                (ras.error.empty() ? std::string() : ": " + ras.error));
      }
      return;  // every process answers for the whole job
    }
  }
  if (silent != nullptr) {
    say(r, "ras",
        fmt::format("NCCL's RAS at {} did not answer: {}", silent->address, silent->error));
  }
}

// Nodes that were told of the incident and did not answer: seen beside the verdict, and never a
// ground for it. A network that loses messages does the same.
void add_silent(const Facts& f, Report& r) {
  std::map<std::string, double> waited_s;
  for (const RankEvidence* e : f.c.ranks) {
    for (const NodesEvidence::Silent& n : e->nodes.unanswered) {
      SilentNode node{n.host, {}, n.n_ranks, false};
      // No damaged file makes more of them.
      constexpr std::uint32_t kMostRanks = 4096, kLongestStride = 0xffff;
      constexpr Rank kLastRank = 1 << 24;
      const bool is_known = n.stride != 0 && n.stride <= kLongestStride && n.first_rank >= 0 &&
                            n.first_rank <= kLastRank && n.n_ranks <= kMostRanks;
      for (std::uint32_t k = 0; is_known && k < n.n_ranks; ++k) {
        node.ranks.push_back(n.first_rank + static_cast<Rank>(k * n.stride));
      }
      const std::string key = n.host + fold_ranks(node.ranks);
      if (waited_s.try_emplace(key, static_cast<double>(e->nodes.took_ns) / 1e9).second) {
        node.has_files = std::any_of(f.c.ranks.begin(), f.c.ranks.end(), [&](const auto* other) {
          return node.ranks.empty() ? other->id.host == node.host
                                    : contains(node.ranks, other->id.rank);
        });
        const std::string who =
            node.ranks.empty() ? fmt::format("{} ranks", node.n_ranks) : ranks_words(node.ranks);
        say(r, "silent",
            fmt::format("node {} ({}) did not answer within {}{}", node.host, who,
                        duration_text(waited_s[key]),
                        node.has_files ? ", and left files all the same"
                                       : " and left no files: stopped, dead or cut off"));
        r.silent_nodes.push_back(std::move(node));
      }
    }
  }
}

void add_lost_records(const Facts& f, Report& r) {
  std::uint64_t groups_lost = 0;
  for (const RankEvidence* e : f.c.ranks) {
    groups_lost += e->losses.no_group;
    if (e->losses.cut != 0) {
      say(r, "lost",
          fmt::format("{} record{} of rank {} lie{} behind the end of its file, which was cut off; "
                      "its counters are exact",
                      e->losses.cut, e->losses.cut == 1 ? "" : "s", e->id.rank,
                      e->losses.cut == 1 ? "s" : ""));
    }
  }
  if (groups_lost != 0) {
    say(r, "lost",
        fmt::format("{} operations of groups that had no room in the ring are not attributed",
                    groups_lost));
  }
  std::set<std::string> waited;
  for (const Waiting& w : r.waiting) {
    waited.insert(w.group);
  }
  std::uint64_t overwritten = 0, dropped = 0;
  std::vector<std::size_t> old, full;
  for (std::size_t g = 0; g < r.groups.size(); ++g) {
    if (waited.contains(r.groups[g].name)) {
      overwritten += r.groups[g].overwritten;
      dropped += r.groups[g].dropped;
      if (r.groups[g].overwritten != 0) {
        old.push_back(g);
      }
      if (r.groups[g].dropped != 0) {
        full.push_back(g);
      }
    }
  }
  const auto of = [&](const std::vector<std::size_t>& groups) {
    return groups.size() == 1 ? f.c.groups[groups.front()].title() + " are"
                              : fmt::format("{} groups are", groups.size());
  };
  if (!old.empty()) {
    say(r, "lost",
        fmt::format("{} older records of {} overwritten; the counters are exact", overwritten,
                    of(old)));
  }
  if (!full.empty()) {
    say(r, "lost",
        fmt::format("{} records of {} not kept for lack of room; the counters are exact", dropped,
                    of(full)));
  }
}

}  // namespace

void add_losses(const Facts& f, const Judgement& j, Report& r) {
  const bool fault = r.kind != Verdict::kOk && r.kind != Verdict::kUndecided;
  Doubts doubts(r);
  for (const Cause& c : j.causes) {
    for (const Assumption& a : c.assumes) {
      doubts.add(a);
    }
  }
  if (f.scene == Scene::kAllKilled && fault) {
    doubts.add({Assume::kKilledLater, {}});
  }
  if (!j.unexplained.empty() && fault) {
    doubts.add(Confidence::kLikely,
               fmt::format("why {} is not explained", wait_verb(f.ranks(j.unexplained))));
  }
  if (fault || r.kind == Verdict::kOk) {
    if (!f.c.missing.empty()) {
      doubts.add({Assume::kRankWithoutEvidence, f.c.missing});
    }
  }
  const bool by_time = r.kind == Verdict::kMissing || r.kind == Verdict::kDevice;
  if (by_time && std::any_of(f.c.ranks.begin(), f.c.ranks.end(),
                             [](const auto* e) { return e->holes.written_guessed; })) {
    doubts.add({Assume::kTimesGuessed, {}});
  }
  for (const Guilty& g : j.main().guilty) {
    if (g.evidence >= 0 && f.ev(g.evidence).losses.no_group != 0) {
      doubts.add({Assume::kGroupsUnknown, {}});
    }
  }
  if (r.kind != Verdict::kOk) {
    add_ras(f, r);
    add_witness(f, r);
  }
  add_silent(f, r);
  add_lost_records(f, r);
  add_gaps(f, fault, doubts, r);
  add_empty(f, fault, doubts, r);
  std::string reasons = fmt::format("evidence of {} of {} ranks read", r.read, r.expected);
  if (!fault && r.kind != Verdict::kOk && !f.c.missing.empty()) {
    reasons += ", none of " + ranks_words(f.c.missing);
  }
  if (fault || r.kind == Verdict::kOk) {
    reasons += doubts.all().empty() ? ", and it is complete where it matters" : "";
    for (const std::string& doubt : doubts.all()) {
      reasons += "; " + doubt;
    }
  } else {
    r.confidence = Confidence::kPossible;
  }
  say(r, "confidence", std::move(reasons));
}

}  // namespace frtrace
