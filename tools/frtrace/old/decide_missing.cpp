#include "old/diagnosis.hpp"

namespace frtrace {

bool Diagnosis::leaving(int i) const {
  if (ends_[at(i)].ended) {
    return ends_[at(i)].clean;
  }
  for (auto it = ev(i).records.rbegin(); it != ev(i).records.rend(); ++it) {
    if (it->kind == Kind::kCollective || it->kind == Kind::kSend || it->kind == Kind::kRecv) {
      return false;
    }
    if (it->kind == Kind::kLifecycle && canonical_op(ev(i).text(it->op)) == "destroyprocessgroup") {
      return true;
    }
  }
  return false;
}

bool Diagnosis::extra_operation(const Meeting& m, const std::vector<int>& absent, bool ended_too) {
  if (m.kind != Kind::kCollective || absent.size() < 2 || m.waits.size() >= absent.size()) {
    return false;
  }
  const bool all_leaving =
      std::all_of(absent.begin(), absent.end(), [&](int i) { return leaving(i); });
  bool novel = !ended_too;
  for (const Wait& w : m.waits) {
    const std::vector<Step>& steps = history_.of(w.evidence);
    const std::size_t pos = step_of(steps, w.record);
    constexpr std::size_t kEnough = 3;
    if (pos >= steps.size() || pos < kEnough) {
      novel = false;
      break;
    }
    const std::uint64_t key = steps[pos].key;
    for (std::size_t j = 0; j < pos && novel; ++j) {
      novel = steps[j].key != key;
    }
    // Only a rank that repeats itself can do something new.
    novel = novel && usual_next(steps, pos).has_value();
    for (std::size_t i = 0; i < absent.size() && novel && i < 8; ++i) {
      for (const Step& s : history_.of(absent[i])) {
        novel = novel && s.key != key;
      }
    }
  }
  return all_leaving || novel;
}

bool Diagnosis::left_early_or_missing() {
  std::vector<int> sinks = graph_.sinks;
  if (sinks.empty()) {
    return false;
  }
  // Who is only waiting for anybody's message is no sink for sure.
  std::set<int> blamed(sinks.begin(), sinks.end());
  const int k = main_meeting(blamed);
  if (k < 0) {
    return false;
  }
  const Meeting& m = graph_.meetings[at(k)];
  if (m.absent.size() == sinks.size() && m.unknown.empty() && extra_operation(m, sinks, false)) {
    return blame_extra(m, k, sinks);
  }
  const bool all_left =
      std::all_of(sinks.begin(), sinks.end(), [&](int i) { return ends_[at(i)].clean; });
  // One that waits alone for most others: either is out of line, and nothing tells which.
  const std::size_t members = group(m.group).ranks.size();
  if (m.kind == Kind::kCollective && m.waits.size() * 2 < sinks.size() && sinks.size() > 2 &&
      sinks.size() * 2 > members && !all_left) {
    const bool due = std::any_of(m.waits.begin(), m.waits.end(), [&](const Wait& w) {
      const std::vector<Step>& steps = history_.of(w.evidence);
      const std::size_t pos = step_of(steps, w.record);
      const auto usual = pos < steps.size() ? usual_next(steps, pos) : std::nullopt;
      return usual && steps[*usual].key == steps[pos].key;
    });
    std::set<int> few(sinks.begin(), sinks.end());
    for (const Wait& w : m.waits) {
      few.insert(w.evidence);
    }
    if (!due && blame_anomalies(few, true)) {
      return true;
    }
    if (!due) {
      r_.kind = Verdict::kUndecided;
      r_.summary = fmt::format(
          "{} {} in {}, {} never came to it: the few may be out of line, or the many stopped",
          ranks_words(waiting_ranks(m)), m.waits.size() == 1 ? "waits" : "wait", meeting_text(m),
          ranks_words(ranks(sinks)));
      add_all_waiting(k, {});
      return true;
    }
  }
  // Where sends and receives are never recorded, many that did not come rather wait than stopped;
  // and so may one of a job with several kinds of groups for a rank that left no file.
  constexpr std::size_t kMany = 3, kKinds = 3;
  const bool deaf = std::any_of(sinks.begin(), sinks.end(), [&](int i) {
    return !ev(i).format.empty() && group(m.group).backend == "gloo" && ev(i).lanes.empty();
  });
  std::set<std::string> kinds;
  for (const Group& g : c_.groups) {
    kinds.insert(g.desc);
  }
  const bool lost = !c_.missing.empty();
  if (((p2p_unseen() && (sinks.size() > 1 || lost)) ||
       (deaf && (sinks.size() + c_.missing.size() >= kMany || (lost && kinds.size() >= kKinds)))) &&
      !all_left) {
    // They may wait for one another, or for the missing, in what is not recorded.
    r_.kind = Verdict::kUndecided;
    r_.summary = fmt::format(
        "{} never came to {} and elsewhere; some of them may wait for the others in sends and "
        "receives, which these files do not record",
        ranks_words(ranks(sinks)), meeting_text(m));
    add_all_waiting(k, {});
    return true;
  }
  r_.kind = all_left ? Verdict::kExited : Verdict::kMissing;
  for (const int i : sinks) {
    const Meeting* own = nullptr;
    int own_index = -1;
    for (std::size_t j = 0; j < graph_.meetings.size(); ++j) {
      const Meeting& candidate = graph_.meetings[j];
      if (std::find(candidate.absent.begin(), candidate.absent.end(), i) !=
              candidate.absent.end() &&
          (own == nullptr || static_cast<int>(j) == k ||
           (own_index != k && candidate.waits.size() > own->waits.size()))) {
        own = &candidate;
        own_index = static_cast<int>(j);
      }
    }
    if (own == nullptr) {
      continue;
    }
    Blamed& b = blame(i, ends_[at(i)].clean                    ? "left_early"
                         : ev(i).salvage_why == "unresponsive" ? "unresponsive"
                                                               : "never_issued");
    fill_slot(b, *own);
    if (const auto words = usual_words(i, own->group)) {
      b.evidence.push_back(*words);
    }
    add_fork(b, i, own->group, *own);
    if (const auto shift = shifted(i, own->group)) {
      b.evidence.push_back(*shift);
    }
    const Group& g = group(own->group);
    const auto position = g.position.find(rank(i));
    if (position != g.position.end() && g.row[at(position->second)] < 0) {
      b.evidence.push_back(fmt::format("does not know the group {}: never created it", g.title()));
    }
  }
  std::sort(r_.ranks.begin(), r_.ranks.end());
  const std::vector<Rank> who = waiting_ranks(m);
  if (all_left) {
    r_.summary = fmt::format("{} exited without issuing {}; {}", ranks_words(r_.ranks),
                             meeting_text(m), wait_words(who));
  } else {
    r_.summary = fmt::format("{} never issued {}; {}", ranks_words(r_.ranks), meeting_text(m),
                             wait_words(who));
  }
  if (m.absent.size() < sinks.size()) {
    r_.summary += ", and others elsewhere";
  }
  explain_waits(blamed);
  add_all_waiting(k, blamed);
  if (!m.unknown.empty()) {
    lower(Confidence::kLikely, fmt::format("no evidence of {}", ranks_words(m.unknown)));
  }
  if (m.seconds() < 10 &&
      !std::any_of(m.waits.begin(), m.waits.end(), [](const Wait& w) { return w.failed; })) {
    // Whoever dumped on a timeout made the others follow.
    const bool timed_out = std::any_of(c_.ranks.begin(), c_.ranks.end(), [](const RankEvidence* e) {
      return e->trigger == "timeout";
    });
    if (!timed_out) {
      lower(Confidence::kLikely, fmt::format("it lasted only {} when the evidence was taken",
                                             duration_text(m.seconds())));
    }
  }
  return true;
}

bool Diagnosis::blame_extra(const Meeting& m, int k, const std::vector<int>& absent) {
  r_.kind = Verdict::kMismatch;
  std::set<int> blamed;
  Site site;
  int first = -1;
  for (const Wait& w : m.waits) {
    if (!blamed.insert(w.evidence).second) {
      continue;
    }
    first = first < 0 ? w.evidence : first;
    Blamed& b = blame(w.evidence, "extra_operation");
    fill_slot(b, m);
    if (w.record != SIZE_MAX) {
      const Record& record = ev(w.evidence).records[w.record];
      b.site = user_site(ev(w.evidence), record.stack);
      b.stack = stack_lines(w.evidence, record.stack);
      site = b.site;
    }
    b.evidence.push_back(fmt::format("has waited there for {}", duration_text(m.seconds())));
  }
  std::sort(r_.ranks.begin(), r_.ranks.end());
  const bool left = std::all_of(absent.begin(), absent.end(), [&](int i) { return leaving(i); });
  r_.summary =
      fmt::format("{} issued {}{}, which no other rank issued; {} {}", ranks_words(r_.ranks),
                  meeting_text(m), site_text(site).empty() ? "" : " at " + site_text(site),
                  ranks_words(ranks(absent)), left ? "finished without it" : "never came to it");
  say("why", fmt::format("{} is the only one in it, {} {}", ranks_words(r_.ranks),
                         ranks_words(ranks(absent)),
                         left ? "have finished or are leaving"
                              : "wait for nothing, and no rank issued it from there before"));
  lower(Confidence::kLikely, "the few are taken to be wrong, not the many");
  add_waiting(graph_.meetings[at(k)], {});
  return true;
}

std::optional<std::string> Diagnosis::shifted(int i, int group_index) {
  const Group& g = group(group_index);
  const Slots& s = slots_[at(group_index)];
  const auto mine = g.position.find(rank(i));
  if (mine == g.position.end()) {
    return std::nullopt;
  }
  const auto site_of = [&](int m, std::uint64_t seq) -> std::optional<Site> {
    const Record* r = s.at(c_, g, at(m), seq);
    if (r == nullptr) {
      return std::nullopt;
    }
    Site site = user_site(ev(g.evidence[at(m)]), r->stack);
    return site.file.empty() ? std::nullopt : std::optional<Site>(site);
  };
  int reference = -1;
  for (std::size_t m = 0; m < g.ranks.size() && reference < 0; ++m) {
    if (static_cast<int>(m) != mine->second && !s.records[m].empty()) {
      reference = static_cast<int>(m);
    }
  }
  if (reference < 0 || s.records[at(mine->second)].empty()) {
    return std::nullopt;
  }
  const auto& own = s.records[at(mine->second)];
  const RankEvidence& e = ev(i);
  for (const std::size_t index : own) {
    const std::uint64_t seq = e.records[index].seq;
    const auto a = site_of(mine->second, seq), b = site_of(reference, seq);
    if (!a || !b || *a == *b) {
      continue;
    }
    // From here on, one ahead of the others everywhere?
    std::uint64_t compared = 0;
    for (std::uint64_t k = seq; k <= e.records[own.back()].seq && compared < 64; ++k) {
      const auto x = site_of(mine->second, k), y = site_of(reference, k + 1);
      if (!x || !y) {
        break;
      }
      if (*x != *y) {
        return std::nullopt;
      }
      ++compared;
    }
    if (compared >= 2) {
      const Record* skipped = s.at(c_, g, at(reference), seq);
      return fmt::format(
          "left out {} at {} as early as #{}: its call sites are one ahead of the others' since",
          ev(g.evidence[at(reference)]).text(skipped->op), site_text(*b), seq);
    }
    return std::nullopt;
  }
  return std::nullopt;
}

void Diagnosis::add_fork(Blamed& b, int i, int g, const Meeting& m) {
  for (const Wait& w : m.waits) {
    if (w.evidence != i) {
      b.divergence = fork_of(c_, history_, g, i, w.evidence);
      break;
    }
  }
  if (!b.divergence) {
    return;
  }
  const auto words = [](const Branch& x) {
    if (x.op.empty()) {
      return std::string("nothing");
    }
    const std::string site = site_text(x.site);
    return fmt::format("{}{}{} ({})", x.op, site.empty() ? "" : " at ", site,
                       x.count == 1 ? "once" : fmt::format("{} times", x.count));
  };
  const Fork& f = *b.divergence;
  say("divergence", fmt::format("last in common {}; then rank {}: {}; rank {}: {}", words(f.common),
                                b.rank, words(f.own), f.reference, words(f.others)));
}

void Diagnosis::explain_waits(const std::set<int>& blamed) {
  std::vector<Rank> only_wait;
  std::vector<std::string> chains;
  std::set<int> seen;
  for (const Meeting& m : graph_.meetings) {
    for (const int a : m.absent) {
      if (blamed.contains(a) || !seen.insert(a).second) {
        continue;
      }
      for (const int k : graph_.waits_in[at(a)]) {
        const Meeting& own = graph_.meetings[at(k)];
        chains.push_back(fmt::format("rank {} did not come to {} because it waits in {}", rank(a),
                                     meeting_text(m), meeting_text(own)));
        break;
      }
    }
  }
  for (std::size_t i = 0; i < c_.ranks.size(); ++i) {
    if (!graph_.waits_in[i].empty() && !blamed.contains(static_cast<int>(i))) {
      only_wait.push_back(rank(static_cast<int>(i)));
    }
  }
  constexpr std::size_t kShown = 4;
  for (std::size_t i = 0; i < chains.size() && i < kShown; ++i) {
    say("excluded", chains[i]);
  }
  if (chains.size() > kShown) {
    say("excluded", fmt::format("and {} more likewise", chains.size() - kShown));
  } else if (chains.empty() && !only_wait.empty()) {
    say("excluded", fmt::format("{} only {}", ranks_words(only_wait),
                                only_wait.size() == 1 ? "waits" : "wait"));
  }
}

}  // namespace frtrace
