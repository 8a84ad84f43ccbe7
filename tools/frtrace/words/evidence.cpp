// The evidence that was read, its losses, and the confidence of the verdict.
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "input/fr/ras.hpp"
#include "model/contains.hpp"
#include "model/operation.hpp"
#include "words/diagnose.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

GroupReport group_report(const Case& c, const Group& g) {
  GroupReport out{g.name, g.desc, g.backend, g.instance, g.ranks};
  out.enqueued_min = out.completed_min = UINT64_MAX;
  for (std::size_t m = 0; m < g.ranks.size(); ++m) {
    if (const GroupEvidence* e = c.member(g, m)) {
      out.generation = std::max(out.generation, e->generation);
      out.enqueued_min = std::min(out.enqueued_min, e->enqueued);
      out.completed_min = std::min(out.completed_min, e->completed);
      out.enqueued_max = std::max(out.enqueued_max, e->enqueued);
      out.completed_max = std::max(out.completed_max, e->completed);
      out.overwritten += e->overwritten;
      out.dropped += e->dropped;
    }
  }
  out.enqueued_min = std::min(out.enqueued_min, out.enqueued_max);  // 0 without members
  out.completed_min = std::min(out.completed_min, out.completed_max);
  return out;
}

RankReport rank_report(const Facts& f, int i) {
  const Names names(f);
  const RankEvidence& e = f.ev(i);
  const bool silent = !f.exit(i).ended() && e.salvage == Salvage::kUnresponsive;
  RankReport out;
  out.rank = e.id.rank;
  out.host = e.id.host;
  out.file = e.file;
  out.source = e.source == Source::kDump   ? (e.salvaged ? "salvaged dump" : "dump")
               : e.source == Source::kRing ? "ring"
                                           : "live ring";
  out.reason = e.reason;
  // If all processes were killed after a hang, the diagnosis treats them as hung; the report says
  // that they are gone.
  out.state = silent                                 ? "does not respond"
              : !f.exit(i).ended() && e.process_gone ? "is gone"
                                                     : names.exit(f.exit(i));
  out.pid = e.id.pid;
  out.from_ring = e.source != Source::kDump;
  out.runs_now = e.source == Source::kLiveRing;
  out.incident = e.incident;
  if (const Record* last = f.last_operation(i)) {
    out.last_op = names.record(i, *last);
    out.site = user_site(e, last->stack);
  }
  const auto note = std::ranges::max_element(e.notes, {}, &ThreadNotes::note_time);
  out.note = note == e.notes.end() ? "" : note->note;
  return out;
}

// Placeholders: "{who}", the ranks that the assumption is about; "{first}" and "{last}" of them;
// "{time}", its duration.
std::string text_of(const Assumption& a) {
  using enum Assume;
  static constexpr std::pair<Assume, const char*> kTexts[] = {
      {kRankWithoutEvidence, ""},
      {kEndedSeenByPeers, "only the ranks of its node saw how that rank ended"},
      {kOneEvent, "several processes ended at about the same time"},
      {kAllGone, "all processes are gone and none left an exit status"},
      {kKilledLater, "processes were killed after the hang"},
      {kSignalOrder, "only the order of the signals shows who ended first"},
      {kOtherMayBeFirst, "rank {first} may have stopped the job before rank {last} was ended"},
      {kShortHang, "the wait had lasted only {time} when the evidence was written"},
      {kEarlierIterations, "the order of earlier iterations is taken to be right"},
      {kPeersOrder, "the order of most ranks is taken to be right"},
      {kNoEarlierIterations, "no rank's earlier iterations show which order is right"},
      {kTieByPrecedent, "neither side has more ranks; earlier iterations are taken to be right"},
      {kTie, "neither side has more ranks, and the evidence does not show which is right"},
      {kFewAreWrong, "the minority is taken to be wrong"},
      {kRecordsNotKept, "not all members' records of that operation are kept"},
      {kNotCome, "{who} had not come to it"},
      {kCompleted, "the operation completed"},
      {kHostIsFree, "that operation is assumed not to block the host of {who}"},
      {kStuckThere, "the stack of {who} is assumed to show what it waits for"},
      {kOneStoppedOthers, "several devices are stalled, and one may have stopped the others"},
      {kNetworkToo, "the network also holds data back"},
      {kNetworkThreadUnseen, "why a network thread makes no progress is not observable"},
      {kChainOpen, "not all waits of the devices could be followed"},
      {kDeviceRowsLost, "some device operations or transfers of {who} were not recorded"},
      {kLowerLayer, "what devices and network do is not recorded"},
      {kRootUnknown, "the files do not record roots, and another root on one rank looks the same"},
      {kErrorsAtOnce, "the clocks do not show whose error came first"},
      {kNeedNotMeet, "the call need not wait for all ranks"},
      {kLostOnly, "{who} may have been alive, and only the file lost"},
      {kRingsOnly, "measured over the records that are kept"},
      {kClocksAgree, "the files have no end times: the ranks' clocks are taken to agree"},
      {kBesideAnEnd, "the exit of another process may have caused it"},
      {kGroupsUnknown, "operations of unknown groups were not counted"},
      {kMayMakeCommunicator,
       "{who} issued nothing; before a first send or receive NCCL makes a communicator of the two, "
       "and waits there unrecorded"},
      {kEarlyFile,
       "the file of {who} was written soon after the others began to wait for it; that it issued "
       "nothing later is taken from how long they waited"},
      {kOldFile, "the file of {who} is {time} older than those of the others"},
      {kPolls, "{who} sleeps again and again: another rank may have to end that loop"},
      {kStacksUnseen,
       "without stacks of {who}: a wait outside of operations, by polling, looks the same"},
      {kOwesWrite, "the others' calls of the store are taken to be right"},
      {kTimesGuessed,
       "the files lost their times in a copy: that the ranks have waited long is assumed"},
  };
  static_assert(std::size(kTexts) == static_cast<std::size_t>(kTimesGuessed) + 1);
  const bool ranks = !a.ranks.empty();
  return fmt::format(fmt::runtime(kTexts[static_cast<std::size_t>(a.what)].second),
                     fmt::arg("who", given(ranks, ranks_words(a.ranks))),
                     fmt::arg("first", ranks ? a.ranks.front() : -1),
                     fmt::arg("last", ranks ? a.ranks.back() : -1),
                     fmt::arg("time", duration_text(a.seconds)));
}

// The reasons for a confidence below certain, none twice.
struct Doubts {
  Report& r;
  std::vector<std::string> all;
  void add_hole(const std::string& text, bool matters, Confidence to = Confidence::kLikely) {
    say(r, "hole", text);
    if (matters) {
      add(to, text);
    }
  }
  void add(const Assumption& a) { add(confidence_of(a), text_of(a)); }
  void add(Confidence to, const std::string& text) {
    r.confidence = std::max(r.confidence, to);
    if (!text.empty() && !contains(all, text)) {
      all.push_back(text);
    }
  }
};

// Ranks with evidence for which `is` holds.
template <typename Is>
std::vector<Rank> ranks_with(const Facts& f, Is is) {
  return f.ranks(ranks_that(f, [&](int i) { return is(f.ev(i)); }));
}

// Adds the gaps of the file formats, and whether the verdict rests on them.
void add_gaps(const Facts& f, bool fault, Doubts& doubts) {
  static constexpr struct {
    bool Holes::* set;
    bool matters;
    const char* text;
  } kGaps[] = {
      {&Holes::truncated, true, "are cut off in the middle: what comes after is unknown"},
      {&Holes::only_active, false, "hold only what was in flight when they were written"},
      {&Holes::no_stacks, false, "hold no call sites"},
      {&Holes::no_status, false, "hold no counters: how far a rank came is taken from its records"},
      {&Holes::no_p2p, true, "do not record sends and receives, though there were some"},
      {&Holes::no_members, true,
       "do not list the members of groups: members are the ranks whose records name a group"},
      {&Holes::frontier_inferred, true,
       "do not list that group: they are taken to have issued nothing in it"},
      {&Holes::failure_inferred, true,
       "do not distinguish failed operations from completed ones: those that cannot have completed "
       "are taken as failed"},
      {&Holes::run_by_clock, true,
       "are newer by their clocks than files of other ranks, which are taken for an earlier run's"},
      {&Holes::from_log, true,
       "are a log: a rank that its watchdog says nothing of may be inside the operation"},
      {&Holes::only_stacks, true,
       "hold stacks only, no operations: the place is taken for the reason"},
      {&Holes::calls_only, false,
       "hold only what Python called, as there was no torch adapter: what C++ issues by itself "
       "(DDP, functional collectives) is not in them"},
      {&Holes::only_times, true,
       "are traces of torch.profiler: they hold times, and nothing about a hang"},
      {&Holes::no_completions, true,
       "do not show which operations completed: the backend does not report completions to "
       "PyTorch's recorder"},
      {&Holes::written_guessed, false,
       "do not record when they were written: durations are guesses"},
  };
  const auto tell = [&](const std::vector<Rank>& who, const char* what, bool matters) {
    const bool all = who.size() == f.c.ranks.size();
    if (!who.empty()) {
      doubts.add_hole((all ? "the files " : "files of " + ranks_words(who) + ' ') + what, matters);
    }
  };
  // PyTorch records no sends and receives of gloo, and often nothing shows whether there were any.
  const auto is_gloo = [](const RankEvidence& e) {
    return !e.format.empty() && e.holes.no_members && !e.holes.no_p2p &&
           std::ranges::any_of(e.groups, [&](auto& g) { return e.text(g.backend) == "gloo"; });
  };
  const bool ok = doubts.r.kind == Verdict::kOk;
  tell(ranks_with(f, is_gloo),
       ok ? "hold no sends and receives of gloo, and do not distinguish its failed operations from "
            "completed ones"
          : "hold no sends and receives of gloo: a rank that seems idle may wait in one",
       fault || ok);
  for (const auto& gap : kGaps) {
    tell(ranks_with(f, [&](const auto& e) { return e.holes.*gap.set; }), gap.text,
         (fault || gap.set == &Holes::no_p2p || gap.set == &Holes::no_completions) && gap.matters);
  }
  const std::vector<Rank> partial = ranks_with(f, [](auto& e) { return e.holes.unrecorded != 0; });
  std::uint64_t unrecorded = 0;
  for (const RankEvidence* e : f.c.ranks) {
    unrecorded += e->holes.unrecorded;
  }
  tell(partial,
       fmt::format("lack {} that their groups counted: another backend of the group ran {}, or a "
                   "CUDA graph captured {}",
                   counted(unrecorded, "operation"), one_or(unrecorded, "it", "them"),
                   one_or(unrecorded, "it", "them"))
           .c_str(),
       ok);
}

// A file without counters and without operations says nothing about its rank: neither that it is
// well nor that it issued nothing.
void add_empty(const Facts& f, bool fault, Doubts& doubts) {
  const std::vector<Rank> who = ranks_with(f, [](const RankEvidence& e) {
    return e.holes.no_status && !e.holes.only_active &&
           std::ranges::none_of(e.records, communicates);
  });
  if (who.empty()) {
    return;
  }
  const bool all = who.size() == f.c.ranks.size();
  const bool blamed = std::ranges::any_of(who, [&](Rank x) { return contains(doubts.r.ranks, x); });
  doubts.add_hole(
      all ? "the files hold no operation"
          : fmt::format("the {} of {} no operation", one_or(who.size(), "file", "files"),
                        ranks_do(who, "holds", "hold")),
      !fault || blamed, all ? Confidence::kPossible : Confidence::kLikely);
}

// The answer of NCCL's own service, shown beside the verdict, which it never decides. Every process
// answers for the whole job.
void add_ras(const Facts& f, Report& r) {
  const RasEvidence* asked = nullptr;
  for (const RankEvidence* e : f.c.ranks) {
    const bool better = asked == nullptr || (asked->answer.empty() && !e->ras.answer.empty());
    asked = e->ras.asked && better ? &e->ras : asked;
  }
  if (asked == nullptr) {
    return;
  }
  if (asked->answer.empty()) {
    say(r, "ras", "NCCL's RAS at {} did not answer: {}", asked->address, asked->error);
    return;
  }
  for (const std::string& line : ras_lines(*asked)) {
    say(r, "ras", "NCCL's RAS: " + line);
  }
  if (asked->cut) {
    say(r, "ras", "NCCL's RAS: the answer was cut" + led(": ", asked->error));
  }
}

// Nodes that were told of the incident and did not answer: shown beside the verdict, never a reason
// for it, because a network that loses messages looks the same.
void add_silent(const Facts& f, Report& r) {
  std::set<std::string> said;
  for (const RankEvidence* e : f.c.ranks) {
    for (const NodesEvidence::Silent& n : e->nodes.unanswered) {
      SilentNode node{n.host, {}, n.n_ranks, false};
      // Limits that a damaged file may exceed.
      const bool is_known = n.stride != 0 && n.stride <= 0xffff && n.first_rank >= 0 &&
                            n.first_rank <= 1 << 24 && n.n_ranks <= 4096;
      for (std::uint32_t k = 0; is_known && k < n.n_ranks; ++k) {
        node.ranks.push_back(n.first_rank + static_cast<Rank>(k * n.stride));
      }
      if (!said.insert(n.host + fold_ranks(node.ranks)).second) {
        continue;
      }
      node.has_files = std::ranges::any_of(f.c.ranks, [&](const RankEvidence* other) {
        return node.ranks.empty() ? other->id.host == node.host
                                  : contains(node.ranks, other->id.rank);
      });
      say(r, "silent", "node {} ({}) did not answer within {}{}", node.host,
          node.ranks.empty() ? fmt::format("{} ranks", node.n_ranks) : ranks_words(node.ranks),
          duration_text(static_cast<double>(e->nodes.took_ns) / 1e9),
          node.has_files ? ", and left files all the same"
                         : " and left no files: stopped, dead or cut off");
      r.silent_nodes.push_back(std::move(node));
    }
  }
}

void add_lost_records(const Facts& f, Report& r) {
  std::uint64_t groups_lost = 0;
  for (const RankEvidence* e : f.c.ranks) {
    groups_lost += e->losses.no_group;
    if (e->losses.cut != 0) {
      say(r, "lost",
          "{} of rank {} {} behind the end of its file, which was cut off; its counters are exact",
          counted(e->losses.cut, "record"), e->id.rank, one_or(e->losses.cut, "lies", "lie"));
    }
  }
  if (groups_lost != 0) {
    say(r, "lost", "{} operations of groups that had no room in the ring are not attributed",
        groups_lost);
  }
  // Counts only groups in which ranks wait.
  const auto add = [&](std::uint64_t GroupReport::* lost, const char* text) {
    std::uint64_t records = 0, groups = 0;
    std::string of;
    for (std::size_t g = 0; g < r.groups.size(); ++g) {
      if (r.groups[g].*lost != 0 &&
          std::ranges::find(r.waiting, r.groups[g].name, &Waiting::group) != r.waiting.end()) {
        records += r.groups[g].*lost;
        of = ++groups == 1 ? f.c.groups[g].title() + " are" : fmt::format("{} groups are", groups);
      }
    }
    if (groups != 0) {
      say(r, "lost", fmt::format(fmt::runtime(text), records, of));
    }
  };
  add(&GroupReport::overwritten, "{} older records of {} overwritten; the counters are exact");
  add(&GroupReport::dropped, "{} records of {} not kept for lack of room; the counters are exact");
}

// "n3, n7 and 12 others did not answer (n3: Connection refused)"
std::string silent_words(const std::vector<NodeRow>& silent) {
  constexpr std::size_t kMostNamed = 8;
  const std::size_t n = silent.size(), named = std::min(n, kMostNamed);
  const auto names = each(silent, &NodeRow::node);
  const NodeRow& first = silent.front();
  return fmt::format(
             "{} {}{} did not answer", one_or(n, "node", "nodes"),
             fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(named), ", "),
             given(n > named, fmt::format(" and {} others", n - named))) +
         given(!first.why.empty(),
               fmt::format(" ({}{})", given(n > 1, first.node + ": "), first.why));
}

// Rings left over when the job was started again show a run that is over.
void add_earlier_run(const Facts& f, Report& r) {
  const std::vector<Rank> found =
      ranks_with(f, [](const RankEvidence& e) { return e.salvage == Salvage::kLeftOver; });
  if (!found.empty()) {
    say(r, "earlier",
        "this is an earlier run, which is over: the {} of {} found when the job was started again",
        one_or(found.size(), "ring", "rings"), ranks_do(found, "was", "were"));
  }
}

}  // namespace

void add_inventory(const Facts& f, Report& r) {
  r.job = f.c.job;
  r.attempt = f.c.attempt;
  r.incident = f.c.incident;
  r.read = static_cast<int>(f.c.ranks.size());
  r.expected = f.c.expected;
  r.missing_ranks = f.c.missing;
  r.groups = each(f.c.groups, [&](const Group& g) { return group_report(f.c, g); });
  for (int i = 0; i < r.read; ++i) {
    r.rank_reports.push_back(rank_report(f, i));
  }
  for (const std::string& note : f.c.notes) {
    say(r, "input", note);
  }
  add_earlier_run(f, r);
}

void add_losses(const Facts& f, const Judgement& j, Report& r) {
  const bool open = r.kind == Verdict::kUndecided, fault = !open && r.kind != Verdict::kOk;
  Doubts doubts{r, {}};
  for (const Cause& c : j.causes) {
    for (const Assumption& a : c.assumes) {
      doubts.add(a);
    }
  }
  if ((f.scene == Scene::kAllKilled || f.scene == Scene::kHangThenKills) && fault) {
    doubts.add({Assume::kKilledLater, {}});
  }
  if (!j.unexplained.empty() && fault) {
    doubts.add(Confidence::kLikely,
               fmt::format("why {} is not explained", wait_verb(f.ranks(j.unexplained))));
  }
  // A process that does not exit depends on no other rank.
  const bool alone = j.main().rule == Rule::kNoExit;
  if (!open && !alone && !f.c.missing.empty()) {
    doubts.add({Assume::kRankWithoutEvidence, f.c.missing});
  }
  if ((r.kind == Verdict::kMissing || r.kind == Verdict::kDevice) &&
      std::ranges::any_of(f.c.ranks, [](auto* e) { return e->holes.written_guessed; })) {
    doubts.add({Assume::kTimesGuessed, {}});
  }
  if (std::ranges::any_of(j.main().guilty, [&](const Guilty& g) {
        return g.evidence >= 0 && f.ev(g.evidence).losses.no_group != 0;
      })) {
    doubts.add({Assume::kGroupsUnknown, {}});
  }
  if (r.kind != Verdict::kOk) {
    add_ras(f, r);
    for (const RankEvidence* e : f.c.ranks) {
      for (const std::string& line : e->witness) {
        say(r, "witness", line);
      }
    }
  }
  add_silent(f, r);
  add_lost_records(f, r);
  add_gaps(f, fault, doubts);
  add_empty(f, fault, doubts);
  std::vector<Rank> lacking, ended;
  for (std::size_t i = 0; i < f.c.missing.size(); ++i) {
    (f.missing_exits[i].clean() ? ended : lacking).push_back(f.c.missing[i]);
  }
  std::string reasons = fmt::format("evidence of {} of {} ranks read", r.read, r.expected) +
                        given(!lacking.empty(), ", none of " + ranks_words(lacking)) +
                        given(!ended.empty(), "; " + ranks_words(ended) + " ended with status 0");
  if (open) {
    r.confidence = Confidence::kPossible;
  } else if (r.confidence == Confidence::kCertain) {
    reasons += "; nothing that the verdict needs is lost";
  } else {
    reasons += led("; ", fmt::format("{}", fmt::join(doubts.all, "; ")));
  }
  say(r, "confidence", std::move(reasons));
}

void weigh_silent_nodes(Report& r, const std::vector<NodeRow>& nodes) {
  std::vector<NodeRow> silent = nodes;
  std::erase_if(silent, [](const NodeRow& row) { return row.answered; });
  if (silent.empty() || r.missing_ranks.empty()) {
    return;
  }
  const bool blamed =
      std::ranges::any_of(r.ranks, [&](Rank rank) { return contains(r.missing_ranks, rank); });
  r.confidence = blamed ? Confidence::kPossible : r.confidence;
  say(r, "node", silent_words(silent) + given(blamed, ": what its ranks do is not known"));
}

}  // namespace frtrace
