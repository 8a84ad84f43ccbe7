#include "live/hints.hpp"
#include "old/diagnosis.hpp"

namespace frtrace {

namespace {
constexpr double kSameCauseSeconds = 2.0;
}

std::vector<int> Diagnosis::sinks_alive(const WaitGraph& graph) const {
  std::vector<int> out;
  for (const int s : graph.sinks) {
    if (!ends_[at(s)].ended || ends_[at(s)].terminated) {
      out.push_back(s);
    }
  }
  return out;
}

const Meeting* Diagnosis::stays_away(const WaitGraph& settled, int i) const {
  const RankEvidence& e = ev(i);
  if (ends_[at(i)].ended || !e.format.empty() || !settled.waits_in[at(i)].empty() ||
      lifecycle_in_flight(i) != nullptr || leaving(i) || e.losses.no_group != 0 ||
      e.records.empty()) {
    return nullptr;
  }
  // What a rank waits for outside of its operations may be the dead one.
  for (const Hint& hint : hints_of(e)) {
    if (hint.id == "store_wait" || hint.id == "stale_lock" || hint.id == "fifo") {
      return nullptr;
    }
  }
  const Meeting* longest = nullptr;
  for (const Meeting& m : settled.meetings) {
    if (std::find(m.absent.begin(), m.absent.end(), i) != m.absent.end() &&
        (longest == nullptr || m.seconds() > longest->seconds())) {
      longest = &m;
    }
  }
  // As long as it takes to be called a hang; a late rank is none.
  const double hang = e.timeout_s();
  const bool stands = longest != nullptr && longest->seconds() >= hang &&
                      seconds_between(e.records.back().time, e.written) >= hang / 2;
  return stands ? longest : nullptr;
}

std::pair<const Meeting*, int> Diagnosis::in_vain(const WaitGraph& settled,
                                                  const std::vector<int>& alive, int i) const {
  const std::string& why = ends_[at(i)].why;
  if (why != "gone" && why != "killed") {
    return {nullptr, -1};
  }
  for (const int k : settled.waits_in[at(i)]) {
    const Meeting& m = settled.meetings[at(k)];
    for (const int a : m.absent) {
      if (settled.waits_in[at(a)].empty() &&
          std::find(alive.begin(), alive.end(), a) != alive.end()) {
        return {&m, a};
      }
    }
  }
  return {nullptr, -1};
}

bool Diagnosis::exited(const WaitGraph& settled) {
  const bool all_gone = c_.missing.empty() && primary_.size() == c_.ranks.size() &&
                        std::all_of(primary_.begin(), primary_.end(),
                                    [&](int i) { return ends_[at(i)].why == "gone"; });
  if (all_gone && c_.ranks.size() > 1) {
    // Everything was killed at once, perhaps because it hung: the rings tell.
    std::vector<End> alive(ends_.size());
    const WaitGraph before = wait_graph(c_, alive, kStuckSeconds);
    if ((!before.sinks.empty() && before.sinks.size() < c_.ranks.size()) ||
        !before.cycles.empty()) {
      say("end", "all processes are gone without a word: killed from outside, after the hang");
      lower(Confidence::kLikely, "all processes were killed later");
      graph_ = before;
      ends_ = alive;
      return left_early_or_missing() || cycle();
    }
  }
  // A hang that stood longer than the timeout before anybody ended is not explained by that end.
  Time first_end = 0;
  for (const int i : primary_) {
    const Time t = ends_[at(i)].time;
    first_end = first_end == 0 || (t != 0 && t < first_end) ? t : first_end;
  }
  const std::vector<int> alive = sinks_alive(settled);
  if (!alive.empty() && first_end != 0) {
    for (const Meeting& m : settled.meetings) {
      const double timeout = ev(m.waits.front().evidence).timeout_s();
      const bool sink_absent = std::any_of(m.absent.begin(), m.absent.end(), [&](int a) {
        return std::find(alive.begin(), alive.end(), a) != alive.end();
      });
      if (sink_absent && seconds_between(m.since, first_end) > timeout) {
        graph_ = settled;
        return false;
      }
    }
  }
  // Those who were waiting for another ended one are explained by it.
  std::vector<int> causes;
  std::set<int> dead(primary_.begin(), primary_.end());
  for (const int i : primary_) {
    bool explained = false;
    for (const int k : graph_.waits_in[at(i)]) {
      const Meeting& m = graph_.meetings[at(k)];
      explained = explained || (ends_[at(i)].why == "gone" && !all_gone &&
                                std::any_of(m.absent.begin(), m.absent.end(),
                                            [&](int a) { return a != i && dead.contains(a); }));
    }
    if (!explained) {
      causes.push_back(i);
    }
  }
  if (causes.empty() && missing_primary_.empty()) {
    causes = primary_;
  }
  // First in time, and whoever met the same fate at the same moment.
  std::sort(causes.begin(), causes.end(), [&](int a, int b) {
    const Time ta = ends_[at(a)].time, tb = ends_[at(b)].time;
    return ta != tb ? (ta == 0 ? false : tb == 0 || ta < tb) : a < b;
  });
  std::vector<int> chosen;
  for (const int i : causes) {
    const End& first = ends_[at(causes.front())];
    const End& end = ends_[at(i)];
    if (i == causes.front() || all_gone || first.time == 0 || end.time == 0 ||
        (end.why == first.why && seconds_between(first.time, end.time) < kSameCauseSeconds)) {
      chosen.push_back(i);
    }
  }
  std::sort(chosen.begin(), chosen.end());
  r_.kind = Verdict::kExited;
  std::set<int> blamed(chosen.begin(), chosen.end());
  const int meeting = main_meeting(blamed);
  for (const int i : chosen) {
    Blamed& b = blame(i, ends_[at(i)].why);
    if (meeting >= 0) {
      fill_slot(b, graph_.meetings[at(meeting)]);
    }
  }
  // Of an end that only others saw the reason is unknown: it may follow from one that is known,
  // unless it came before.
  const Time known = chosen.empty() ? 0 : ends_[at(causes.front())].time;
  bool unseen = false;
  // Of those, who ended without a word was killed; a status of its own may be an error's that
  // followed.
  const bool silent = std::any_of(missing_primary_.begin(), missing_primary_.end(), [&](int i) {
    return missing_ends_[at(i)].why == "gone" || missing_ends_[at(i)].why == "killed";
  });
  for (const int i : missing_primary_) {
    const End& end = missing_ends_[at(i)];
    if (silent && end.why == "exit") {
      continue;
    }
    const bool before =
        known != 0 && end.time != 0 && seconds_between(end.time, known) > kSameCauseSeconds;
    if (chosen.empty() || before || end.why == "killed") {
      blame_missing(c_.missing[at(i)], end.why, end.text + ", as the ranks of its node saw");
      unseen = true;
    }
  }
  if (unseen) {
    lower(Confidence::kLikely, "the ended rank left no evidence of its own");
  }
  const std::vector<Rank> ended = r_.ranks;
  std::vector<Rank> away;
  for (const int i : alive) {
    if (const Meeting* m = stays_away(settled, i)) {
      Blamed& b = blame(i, ev(i).salvage_why == "unresponsive" ? "unresponsive" : "never_issued");
      fill_slot(b, *m);
      blamed.insert(i);
      away.push_back(rank(i));
      say("why", fmt::format("rank {} is a fault of its own: it never issued {}, which {} wait{} "
                             "for, and waits for nobody",
                             rank(i), meeting_text(*m), ranks_words(waiting_ranks(*m)),
                             waiting_ranks(*m).size() == 1 ? "s" : ""));
    }
  }
  // Whoever ended it may have done so for a hang that was there before.
  for (const int i : chosen) {
    const auto [m, absent] = in_vain(settled, alive, i);
    if (m != nullptr && !blamed.contains(absent)) {
      say("why", fmt::format("rank {} ended in a wait of its own: for rank {}, which never issued "
                             "{} and waits for nobody",
                             rank(i), rank(absent), meeting_text(*m)));
      lower(Confidence::kLikely,
            fmt::format("rank {} may be what stopped them, before rank {} was ended", rank(absent),
                        rank(i)));
      break;
    }
  }
  std::sort(r_.ranks.begin(), r_.ranks.end());
  const std::string text = !chosen.empty() ? ends_[at(chosen.front())].text
                                           : missing_ends_[at(missing_primary_.front())].text;
  const bool verb = text.compare(0, 6, "ended ") == 0 || text.compare(0, 7, "exited ") == 0;
  r_.summary = fmt::format("{} {}{}", ranks_words(ended), verb ? "" : "ended: ", text);
  const int shown = meeting >= 0 ? meeting : main_meeting(blamed, false);
  if (shown >= 0) {
    const Meeting& m = graph_.meetings[at(shown)];
    std::vector<Rank> who = waiting_ranks(m);
    drop_blamed(who);
    if (!who.empty()) {
      const bool failed =
          std::any_of(m.waits.begin(), m.waits.end(), [](const Wait& w) { return w.failed; });
      r_.summary += fmt::format("; {} {} for it in {}", ranks_words(who),
                                failed            ? "waited"
                                : who.size() == 1 ? "waits"
                                                  : "wait",
                                meeting_text(m));
    }
  }
  if (!away.empty()) {
    r_.summary += fmt::format("; besides, {} stopped by {}", ranks_words(away),
                              away.size() == 1 ? "itself" : "themselves");
    lower(Confidence::kLikely, "there are two faults");
  }
  add_all_waiting(shown, blamed);
  if (all_gone && chosen.size() > 1) {
    lower(Confidence::kLikely, "all processes are gone and none says why");
  } else if (chosen.size() > 1) {
    lower(Confidence::kLikely, "several ended at about the same time");
  }
  say_followers(chosen, blamed);
  return true;
}

// Those who ended after the first, in that order; the same end of neighbours in one line.
void Diagnosis::say_followers(const std::vector<int>& chosen, const std::set<int>& blamed) {
  Time first = 0;
  for (const int i : chosen) {
    const Time t = ends_[at(i)].time;
    first = first == 0 || (t != 0 && t < first) ? t : first;
  }
  std::vector<int> followers;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    if (ends_[i].primary() && !blamed.contains(static_cast<int>(i))) {
      followers.push_back(static_cast<int>(i));
    }
  }
  std::stable_sort(followers.begin(), followers.end(), [&](int a, int b) {
    const Time ta = ends_[at(a)].time, tb = ends_[at(b)].time;
    return ta != tb && ta != 0 && (tb == 0 || ta < tb);
  });
  constexpr std::size_t kLines = 8;
  std::size_t lines = 0;
  for (std::size_t k = 0; k < followers.size();) {
    const End& end = ends_[at(followers[k])];
    std::vector<Rank> who;
    for (; k < followers.size() && ends_[at(followers[k])].text == end.text; ++k) {
      who.push_back(rank(followers[k]));
    }
    if (++lines > kLines) {
      say("excluded",
          fmt::format("{} more ranks ended after them", followers.size() - k + who.size()));
      return;
    }
    std::sort(who.begin(), who.end());
    std::string when = "later or while it waited";
    if (first != 0 && end.time > first) {
      when = duration_text(seconds_between(first, end.time)) + " later";
    }
    say("excluded", fmt::format("{} ended too ({}), {}", ranks_words(who), end.text, when));
  }
}

// Do these ranks look like one machine? By the node size that the others know, else by being an
// aligned block of the usual sizes.
bool Diagnosis::is_node(const std::vector<Rank>& who) const {
  if (who.size() < 2 || who.back() - who.front() + 1 != static_cast<Rank>(who.size())) {
    return false;
  }
  const auto n = static_cast<Rank>(who.size());
  for (const RankEvidence* e : c_.ranks) {
    if (const int local = e->id.local_world_size; local > 0 && local < e->id.world_size) {
      return n == local && who.front() % local == 0;
    }
  }
  return (n == 4 || n == 8 || n == 16) && who.front() % n == 0;
}

bool Diagnosis::no_evidence() {
  if (graph_.unknown_sinks.empty()) {
    return false;
  }
  const std::vector<Rank>& who = graph_.unknown_sinks;
  int k = -1;
  for (std::size_t j = 0; j < graph_.meetings.size(); ++j) {
    if (!graph_.meetings[j].unknown.empty() &&
        (k < 0 || graph_.meetings[j].waits.size() > graph_.meetings[at(k)].waits.size())) {
      k = static_cast<int>(j);
    }
  }
  const Meeting& m = graph_.meetings[at(k)];
  // What the devices of the others show may be the cause, or that it did come.
  const DeviceChain chain = chain_from(m, {});
  const bool told =
      !chain.links.empty() ||
      std::any_of(chain.standing.begin(), chain.standing.end(), [&](const Standing& s) {
        return devices_[s.at].state == DeviceState::kStarted || devices_.started_elsewhere(s.at);
      });
  if (told && chain_ends(m, k, chain)) {
    lower(Confidence::kLikely, fmt::format("evidence of {} is lacking", ranks_words(c_.missing)));
    return true;
  }
  const bool came = std::any_of(who.begin(), who.end(), [&](Rank x) {
    return std::any_of(graph_.meetings.begin(), graph_.meetings.end(),
                       [&](const Meeting& each) { return moved(each, x); });
  });
  add_all_waiting(k, {});
  // A rank that left its usual order may be what the one without evidence waits for.
  bool suspect = false;
  constexpr std::size_t kAsked = 64;
  std::set<int> asked;
  for (const Meeting& other : graph_.meetings) {
    const Group& g = group(other.group);
    for (const Wait& w : other.waits) {
      if (!suspect && asked.size() < kAsked && g.position.contains(who.front()) &&
          asked.insert(w.evidence).second) {
        suspect = own_anomaly(w.evidence).has_value();
      }
    }
  }
  const bool alive = std::any_of(who.begin(), who.end(), [&](Rank x) { return seen_alive(c_, x); });
  // The ranks of its node saw it end.
  for (std::size_t i = 0; i < missing_ends_.size(); ++i) {
    const End& end = missing_ends_[i];
    if (end.ended && std::find(who.begin(), who.end(), c_.missing[i]) != who.end()) {
      fill_slot(blame_missing(c_.missing[i], end.why, end.text + ", as the ranks of its node saw"),
                m);
    }
  }
  if (!r_.ranks.empty()) {
    r_.kind = Verdict::kExited;
    std::sort(r_.ranks.begin(), r_.ranks.end());
    r_.summary = fmt::format("{} {}; {} {} for it in {}", ranks_words(r_.ranks),
                             r_.blamed.front().evidence.front(), ranks_words(waiting_ranks(m)),
                             m.waits.size() == 1 ? "waits" : "wait", meeting_text(m));
    lower(Confidence::kLikely, "the ended rank left no evidence of its own");
    return true;
  }
  // Short waits of a job that nobody had a reason to dump are its usual ones.
  constexpr double kLong_s = 5;
  const bool failed =
      std::any_of(m.waits.begin(), m.waits.end(), [](const Wait& w) { return w.failed; });
  const bool lasting = alarmed() || failed || m.seconds() >= kLong_s;
  const bool node = is_node(c_.missing);
  const bool doubtful = !hidden_.empty() && hidden_.front().doubtful;
  // With more than one lost, the one that is waited for may itself wait for another.
  const bool alone = who.size() == 1 && c_.missing.size() == 1 && who.front() == c_.missing.front();
  if ((alone || node) && lasting && !alive && !came && !suspect && !m.complete && !doubtful) {
    r_.kind = Verdict::kExited;
    const std::vector<Rank>& lost = node ? c_.missing : who;
    for (const Rank x : lost) {
      fill_slot(blame_missing(x, "no_evidence", "left no evidence at all, and all waits end at it"),
                m);
    }
    r_.summary = fmt::format("{} left no evidence and {} waited for in {} by {}", ranks_words(lost),
                             lost.size() == 1 ? "is" : "are", meeting_text(m),
                             ranks_words(waiting_ranks(m)));
    lower(Confidence::kPossible, lost.size() == 1 ? "it may have lost its evidence only"
                                                  : "they may have lost their evidence only");
    return true;
  }
  r_.kind = Verdict::kUndecided;
  r_.summary = fmt::format("{} {} in {}; evidence of {} is lacking to say why",
                           ranks_words(waiting_ranks(m)), m.waits.size() == 1 ? "waits" : "wait",
                           meeting_text(m), ranks_words(who));
  if (doubtful) {
    say("input", fmt::format("rank {} stopped after its last operation, or that one failed: these "
                             "files tell done from failed only by what follows",
                             rank(hidden_.front().evidence)));
  }
  if (alive) {
    say("input", fmt::format("others saw {} alive", ranks_words(who)));
  }
  return true;
}

bool Diagnosis::ended_alone() {
  int who = -1;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    const End& end = ends_[i];
    if (end.terminated && end.sender_pid != 0 && end.time != 0 &&
        (who < 0 || end.time < ends_[at(who)].time)) {
      who = static_cast<int>(i);
    }
  }
  if (who < 0) {
    return false;
  }
  const End& end = ends_[at(who)];
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    // A launcher ends all; of a signal without a sender nobody knows whose it was.
    const bool same =
        ends_[i].terminated && static_cast<int>(i) != who &&
        (ends_[i].sender_pid == end.sender_pid || ends_[i].time == 0 || ends_[i].time <= end.time);
    if (same) {
      return false;
    }
  }
  const WaitGraph all = wait_graph(c_, ends_, 0, hidden_);
  int met = -1;
  for (std::size_t k = 0; k < all.meetings.size(); ++k) {
    const Meeting& m = all.meetings[k];
    if (std::find(m.absent.begin(), m.absent.end(), who) == m.absent.end()) {
      continue;
    }
    if (seconds_between(m.since, end.time) > kStuckSeconds) {
      return false;  // it was late before that
    }
    met =
        met < 0 || m.waits.size() > all.meetings[at(met)].waits.size() ? static_cast<int>(k) : met;
  }
  if (met < 0 || !all.waits_in[at(who)].empty()) {
    return false;
  }
  graph_ = all;
  const Meeting& m = graph_.meetings[at(met)];
  r_.kind = Verdict::kExited;
  fill_slot(blame(who, "killed"), m);
  r_.summary = fmt::format("rank {} {}; {} waited for it in {}", rank(who), end.text,
                           ranks_words(waiting_ranks(m)), meeting_text(m));
  add_all_waiting(met, {who});
  return true;
}

bool Diagnosis::terminated() {
  std::vector<int> told;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    if (ends_[i].terminated) {
      told.push_back(static_cast<int>(i));
    }
  }
  if (told.empty()) {
    return false;
  }
  // One of them by another hand and before the others: that one was the target.
  std::sort(told.begin(), told.end(),
            [&](int a, int b) { return ends_[at(a)].time < ends_[at(b)].time; });
  if (told.size() > 1) {
    const End& first = ends_[at(told[0])];
    const End& second = ends_[at(told[1])];
    if (first.sender_pid != 0 && second.sender_pid != 0 && first.time != 0 &&
        first.sender_pid != second.sender_pid && first.time < second.time) {
      r_.kind = Verdict::kExited;
      Blamed& b = blame(told[0], "killed");
      b.evidence.push_back(
          fmt::format("by process {}, {} before the others were ended by {}", first.sender_pid,
                      duration_text(seconds_between(first.time, second.time)), second.sender_pid));
      r_.summary =
          fmt::format("rank {} {}; the others were ended after it", rank(told[0]), first.text);
      lower(Confidence::kLikely, "only the order of the signals tells");
      return true;
    }
  }
  if (!c_.missing.empty()) {
    r_.kind = Verdict::kUndecided;
    r_.summary = fmt::format("{} ended from outside ({}); evidence of {} is lacking to say why",
                             ranks_words(ranks(told)) + (told.size() == 1 ? " was" : " were"),
                             ends_[at(told[0])].text, ranks_words(c_.missing));
    return true;
  }
  r_.kind = Verdict::kOk;
  r_.summary = fmt::format("nothing was stuck; {} ended from outside ({})",
                           ranks_words(ranks(told)) + (told.size() == 1 ? " was" : " were"),
                           ends_[at(told[0])].text);
  return true;
}

}  // namespace frtrace
