// The lines of a report after its first line.
#include <algorithm>
#include <map>
#include <set>

#include "facts/limits.hpp"
#include "input/fr/ras.hpp"
#include "model/contains.hpp"
#include "model/operation.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

// Adds the reason why other ranks are not to blame: each waits for another rank. Several waits get
// one line on a screen, because the lines about waiting ranks show them, too.
void add_excluded(const Facts& f, const Cause& c, Report& r) {
  const Names names(f);
  std::set<int> seen;
  std::map<std::pair<int, int>, std::vector<int>> chains;  // not issued, waits in -> evidence
  for (int k = 0; k < static_cast<int>(f.graph.pending.size()); ++k) {
    for (const int a : f.graph[k].absent) {
      if (!contains(r.ranks, f.rank(a)) && f.graph.waits(a) && seen.insert(a).second) {
        chains[{k, f.graph.waits_in[idx(a)].front()}].push_back(a);
      }
    }
  }
  const auto line = [&](const auto& chain) {
    const auto& [ops, who] = chain;
    return fmt::format("{} never issued {} because {} in {}", ranks_words(f.ranks(who)),
                       names.own_end(f.graph[ops.first], f.rank(who.front())),
                       one_or(who.size(), "it waits", "they wait"),
                       names.waited(f.graph[ops.second]));
  };
  const std::vector<int> all(seen.begin(), seen.end());
  const bool told = c.rule == Rule::kLeftOrder &&
                    std::ranges::all_of(all, [&](int i) { return contains(c.explains, i); });
  if (chains.size() > 1 && !told) {  // else a line says which ranks they wait for
    say(r, "excluded",
        ranks_do(f.ranks(all), "keeps others waiting only because it waits itself",
                 "keep others waiting only because they wait themselves"));
  }
  say_few(r, chains.size() > 1 ? "chain" : "excluded", each(chains, line), 4,
          "and {} more likewise");
}

// Adds the operation that the right members issued in a slot in which members differ.
void add_expected(const Facts& f, const Cause& c, Report& r) {
  if (c.divergence->sizes_vary()) {
    return;
  }
  Side due = side_of(f, *c.divergence, c.right);
  if (const auto& splits = c.divergence->splits) {  // they rightly differ by pair: take one pair
    const Rank other = splits->from == c.guilty.front().rank ? splits->to : splits->from;
    const Group& g = f.group(c.divergence->group);
    const std::size_t m = idx(g.position.at(other));
    due = {
        g.evidence[m], f.slots[idx(c.divergence->group)].at(f.c, g, m, c.divergence->seq), {other}};
  }
  const RankEvidence& e = f.ev(due.evidence);
  const std::string others = ranks_words(due.ranks);
  const std::string text = fmt::format("{} issued {}{}", others, operation_text(e, *due.record),
                                       Names(f).at(due.evidence, due.record->stack));
  if (c.rule == Rule::kSkippedSlot) {
    say(r, "why", "{} as #{}; {} did not: {} later operations have lower numbers than the others'",
        text, c.divergence->seq, ranks_words(ranks_of(c.guilty)),
        one_or(c.guilty.size(), "its", "their"));
    return;
  }
  const Guilty& first = c.guilty.front();
  const RankEvidence& own = f.ev(first.evidence);
  const Record& issued = own.records[first.issued];
  // For the same call at the same call site the first line has the difference.
  if (c.divergence->splits || own.text(issued.op) != e.text(due.record->op) ||
      user_site(own, issued.stack) != user_site(e, due.record->stack)) {
    say(r, "why", "{} as #{}", text, c.divergence->seq);
  }
  if (c.parted_since != 0) {
    const Group& g = f.group(c.divergence->group);
    const auto issued_at = [&](Rank rank) {
      const std::size_t m = idx(g.position.at(rank));
      const Record* record = f.slots[idx(c.divergence->group)].at(f.c, g, m, c.parted_since);
      return Names(f).at(g.evidence[m], record->stack);
    };
    say(r, "why", "rank {} departs from the others since #{}, which it issued{}, they{}",
        first.rank, c.parted_since, issued_at(first.rank), issued_at(due.ranks.front()));
  }
  if (first.usual != kNoRecord) {
    const Record& extra = own.records[first.usual];
    const Site from = parting_site(own, extra.stack, own, issued.stack);
    const std::string caller = from == user_site(own, extra.stack) ? "" : site_text(from);
    say(r, "why",
        "rank {} issued {}, the others did not: its later operations have higher numbers than "
        "theirs",
        first.rank, Names(f).record_at(first.evidence, extra) + led(", called from ", caller));
  }
  // `if rank == 0: dist.barrier()` and similar; or all ranks issue it, and one of them too early.
  if (own.text(issued.op) == "barrier" && e.text(due.record->op) != "barrier") {
    const std::string who = ranks_words(ranks_of(c.guilty));
    const Site early = parting_site(own, issued.stack, e, due.record->stack);
    const Site late = parting_site(e, due.record->stack, own, issued.stack);
    const bool still_before = early.line != 0 && early.file == late.file &&
                              early.function == late.function && late.line < early.line;
    if (still_before) {
      say(r, "hint",
          "{} called barrier, which {} may still come to: did {} leave a loop before the others "
          "(fewer iterations), or is the call under a condition?",
          who, others, who);
    } else {
      say(r, "hint", "{} called barrier and {} did not: is it under a condition?", who, others);
    }
  }
}

bool has_aborted_at_exit(const Facts& f, const Cause& c) {
  return std::ranges::any_of(
      c.guilty, [&](const Guilty& g) { return g.evidence >= 0 && f.exit(g.evidence).at_exit; });
}

// Adds further results of some rules that the table of sentences does not hold.
void add_besides(const Facts& f, const Cause& c, Report& r) {
  const std::string guilty = ranks_words(ranks_of(c.guilty));
  if ((c.rule == Rule::kMismatch || c.rule == Rule::kSkippedSlot) && c.right >= 0) {
    add_expected(f, c, r);
  } else if (c.rule == Rule::kPastMismatch) {
    say(r, "context", "all members completed it nevertheless: their results are wrong, not stuck");
  } else if (c.rule == Rule::kExited && c.absent_too >= 0) {
    say(r, "why", "{} ended while waiting for rank {}, which waits for nobody", guilty,
        f.rank(c.absent_too));
  } else if (c.rule == Rule::kExited && has_aborted_at_exit(f, c)) {
    say(r, "hint",
        "end the threads that issue operations, then call destroy_process_group(), before the "
        "script "
        "ends");
  } else if (c.rule == Rule::kDeviceError && c.errors.size() < f.device_errors.size()) {
    say(r, "why", "the error of {} came before those of the others", guilty);
  } else if (const std::string reached = reached_store_text(f, c);
             c.rule == Rule::kUnreachedStore && !reached.empty()) {
    say(r, "why", "{}", reached);
  } else if (c.in_turn) {
    say_in_turn(f, *c.in_turn, r);
  } else if (c.rule == Rule::kOk && !c.late.ranks.empty()) {
    say(r, "context",
        "{} of {} ranks issue some operations later than the others: uneven work, not stragglers",
        c.late.ranks.size(), f.c.ranks.size());
  } else if (c.rule == Rule::kOpenNoEvidence) {
    if (!f.hidden.empty() && f.hidden.front().doubtful) {
      say(r, "input",
          "rank {} stopped after its last operation, or that one failed: these files show a "
          "failure only by what follows it",
          f.rank(f.hidden.front().evidence));
    }
    const std::set<Rank> alive = missing_seen(f.c, true);
    std::vector<Rank> seen;
    for (const Problem& p : f.graph.problems) {
      if (p.kind == Problem::kNoEvidence && alive.contains(p.rank) &&
          !f.c.stacks.contains(p.rank)) {
        seen.push_back(p.rank);
      }
    }
    if (!seen.empty()) {
      say(r, "input", "other ranks saw the {} of {} alive",
          one_or(seen.size(), "process", "processes"), ranks_words(seen));
    }
  }
}

// Adds the device errors that are not part of the lines about a blamed rank.
void add_device_errors(const Facts& f, Report& r) {
  std::vector<DeviceError> errors = f.device_errors;
  std::erase_if(errors, [&](const DeviceError& x) {
    return r.kind == Verdict::kDevice && contains(r.ranks, f.rank(x.evidence));
  });
  const auto line = [&](const DeviceError& x) {
    const RankEvidence& e = f.ev(x.evidence);
    return fmt::format("rank {}: {}{}{}", e.id.rank, x.text,
                       x.record == kNoRecord ? "" : " in " + Names(f).record(x.evidence, x.record),
                       led(", ", before_evidence(e, x.time)));
  };
  say_few(r, "error", each(errors, line), 8, "and errors of {} more ranks");
}

// Adds ranks on which the recorder's own thread, which observes the device, is stuck.
void add_stuck_observers(const Facts& f, Report& r) {
  for (const RankEvidence* e : f.c.ranks) {
    const DeviceEvidence& d = e->device;
    const double stuck = d.observer_since == 0 ? 0 : seconds_between(d.observer_since, e->written);
    if (!d.observer_call.empty() && stuck >= limits::kStuck_s) {
      say(r, "device",
          "rank {}: the recorder's own thread has been in {} for {}: that CUDA call does not "
          "return",
          e->id.rank, d.observer_call, duration_text(stuck));
    }
  }
}

// The operation that the rank waited in failed, and no operation came after it.
bool ended_in_failure(const Facts& f, int i, const RankEvidence& later) {
  const auto last = std::find_if(later.records.rbegin(), later.records.rend(), communicates);
  return last != later.records.rend() && last->state == State::kFailed &&
         std::ranges::any_of(f.graph.waits_in[idx(i)], [&](int k) {
           return std::ranges::any_of(f.graph[k].waits, [&](const Wait& w) {
             return w.evidence == i && w.record != kNoRecord &&
                    f.ev(i).records[w.record].ticket == last->ticket;
           });
         });
}

// Time at which the rank went on after the incident; 0: it did not.
Time went_on(const Facts& f, int i) {
  for (const RankEvidence* e : f.c.later[idx(i)]) {
    if (e->trigger == Trigger::kWentOn && e->incident >= f.c.incident &&
        !ended_in_failure(f, i, *e)) {
      return e->written;
    }
  }
  return 0;
}

// Time at which the last of the hung ranks went on; 0: not all of them did.
Time all_went_on(const Facts& f, const Judgement& j) {
  const auto hangs = [&](int i) { return f.graph.waits(i) || f.lifecycle_in_flight(i) != nullptr; };
  Time last = 0;
  for (const int i : j.main().rule == Rule::kExited  // the process survived the signal
                         ? each(j.main().guilty, &Guilty::evidence)
                         : ranks_that(f, hangs)) {
    const Time on = i < 0 ? 0 : went_on(f, i);
    if (on == 0) {
      return 0;
    }
    last = std::max(last, on);
  }
  return last;
}

// The evidence that the rank wrote when its process ended after its dump; nullptr: none.
const RankEvidence* end_after(const Facts& f, int i) {
  const auto& later = f.c.later[idx(i)];
  const auto it = std::ranges::find_if(later, [](auto* e) { return own_exit(*e).ended(); });
  return it == later.end() || f.exit(i).ended() ? nullptr : *it;
}

// Further facts that the evidence of an end shows.
std::string more_of(const RankEvidence& then, const RankEvidence& later) {
  const auto issued = [](const RankEvidence& e) {
    std::uint64_t n = 0;
    for (const GroupEvidence& g : e.groups) {
      n += g.enqueued + g.p2p_enqueued;
    }
    return n;
  };
  const std::uint64_t now = issued(later), before = issued(then);
  return given(later.oom_kills > 0,
               fmt::format("; the kernel's OOM killer has killed {} of its control group",
                           later.oom_kills)) +
         given(now > before, "; it had issued " + counted(now - before, "more operation"));
}

std::string past_summary(const Facts& f, const Judgement& j, const Report& r) {
  if (j.main().rule == Rule::kExited) {
    return fmt::format("{} met a fatal signal, handled it and went on", ranks_words(r.ranks));
  }
  std::set<Rank> waited;
  for (const Waiting& w : r.waiting) {
    waited.insert(w.ranks.begin(), w.ranks.end());
  }
  const std::string after = duration_text(r.ended->after_s);
  const std::string who = waited.empty() ? "the job" : ranks_words({waited.begin(), waited.end()});
  const std::string in = j.main().pending >= 0
                             ? " in " + Names(f).pending(f.graph[j.main().pending])
                         : !r.waiting.empty() ? " in " + r.waiting.front().op
                                              : "";
  return r.ranks.empty() || waited.empty()
             ? fmt::format("nothing is stuck: {} waited{} and went on after {}", who, in, after)
             : fmt::format("nothing is stuck: {} kept {} waiting{}; all went on after {}",
                           ranks_words(r.ranks), who, in, after);
}

void take_back(const Facts& f, const Judgement& j, Report& r) {
  const std::string text = past_summary(f, j, r);
  for (const Blamed& b : r.blamed) {
    if (!b.site.file.empty()) {
      say(r, "was_late", "rank {} was then at {}", b.rank, site_text(b.site));
    }
  }
  r.kind = Verdict::kOk;
  r.summary = text;
  r.ranks.clear();
  r.causes.clear();
  r.blamed.clear();
  r.waiting.clear();
  r.devices.clear();
  r.links.clear();
  std::erase_if(r.findings, [](const Finding& x) {
    return x.id != "was_late" && x.id != "lost" && x.id != "input" && x.id != "earlier";
  });
}

// Sets how the incident ended, if it is not yet set.
void note_end(Report& r, ExitKind kind, std::string by, Time time, std::vector<Rank> ranks) {
  if (!r.ended) {
    const bool exited = kind == ExitKind::kException || kind == ExitKind::kStatus;
    const double after_s = r.time != 0 && time > r.time ? seconds_between(r.time, time) : 0;
    r.ended = Ended{exited ? "exited" : "killed", std::move(by), after_s, std::move(ranks)};
  }
}

}  // namespace

void add_cause_findings(const Facts& f, const Cause& c, Report& r) {
  add_besides(f, c, r);
  add_reasons(f, c, r);
  if (c.names() && c.rule != Rule::kExited && c.verdict != Verdict::kMismatch &&
      c.verdict != Verdict::kTransport && c.verdict != Verdict::kSlow &&
      std::ranges::find(r.findings, "excluded", &Finding::id) == r.findings.end()) {
    add_excluded(f, c, r);
  }
}

// Adds the events on other ranks, in the order in which they began.
void add_consequences(const Facts& f, const Judgement& j, Report& r) {
  for (std::string& line : restart_lines(f)) {
    say(r, "restart", std::move(line));
  }
  add_device_errors(f, r);
  if (r.kind == Verdict::kOk) {
    return;
  }
  add_stuck_observers(f, r);
  if (f.scene == Scene::kAllKilled) {
    say(r, "end",
        "all processes are gone and left no exit status: killed from outside, after the hang");
  }
  // For each rank, the error text of the first failed operation in which it waited.
  std::vector<std::string> failed(f.c.ranks.size());
  for (const Pending& p : f.graph.pending) {
    for (const Wait& w : p.waits) {
      const RankEvidence& e = f.ev(w.evidence);
      if (w.failed && w.record != kNoRecord && failed[idx(w.evidence)].empty()) {
        failed[idx(w.evidence)] = e.text(e.records[w.record].error);
      }
    }
  }
  const Names names(f);
  const auto has_device_error = [&](int i) {  // add_device_errors has it
    return std::ranges::binary_search(f.device_errors, i, {}, &DeviceError::evidence);
  };
  const bool exited =
      std::ranges::any_of(j.causes, [](auto& c) { return c.rule == Rule::kExited; });
  Events too, after, told;
  bool stale_address = false;
  Time first = 0;
  for (int i = 0; i < static_cast<int>(f.exits.size()); ++i) {
    const Exit& e = f.exit(i);
    if (j.main().rule == Rule::kOpenOwnErrors && contains(j.main().others, i)) {
      stale_address |= f.c.attempt > 0 && is_unreached(e.message);
      continue;  // the first line has it
    }
    if (std::ranges::binary_search(r.ranks, f.rank(i))) {
      first = e.ended() && e.time != 0 && (first == 0 || e.time < first) ? e.time : first;
    } else if (exited && contains(f.primary, i)) {
      too.add(names.exit(e), i, e.time);
    } else if (e.terminated) {
      told.add(names.exit(e), i, e.time);
    } else if (e.consequence) {
      after.add(short_error(names.exit(e)), i, e.time);
    } else if (e.primary() && j.main().verdict != Verdict::kExited) {
      told.add(names.exit(e), i, e.time);
    } else if (!failed[idx(i)].empty() && !has_device_error(i)) {
      after.add(short_error(failed[idx(i)]), i, 0);
    }
  }
  if (stale_address) {
    say(r, "hint",
        "torchrun keeps one store for all attempts: gloo may have read addresses of an attempt "
        "before in it, which are gone; TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 avoids that");
  }
  const auto later = [first](const Event& x, const char* otherwise) {
    return first != 0 && x.time > first ? duration_text(seconds_between(first, x.time)) + " later "
                                        : otherwise;
  };
  const char* const after_that = r.ranks.empty() ? "" : "after that ";
  const auto says = [&](const Event& x) {
    return ranks_words(f.ranks(x.who)) + ' ' + names.exit_did(f.exit(x.who.front()), x.who.size());
  };
  say_few(r, "excluded",
          each(too.in_order(),
               [&](const Event& x) { return later(x, "later or while waiting ") + says(x); }),
          8, "and {} more ends likewise");
  for (const Event& x : after.in_order()) {
    say(r, "consequence", "{}{} failed: {}", later(x, after_that), ranks_words(f.ranks(x.who)),
        x.text);
  }
  for (const Event& x : told.in_order()) {
    say(r, "consequence", later(x, after_that) + says(x));
    note_end(r, f.exit(x.who.front()).kind, names.exit(f.exit(x.who.front())), x.time,
             f.ranks(x.who));
  }
}

// Adds events that the recorder itself noticed while the job ran and kept as notes of its own.
void add_told(const Facts& f, Report& r) {
  constexpr std::string_view kOwn = "fr: ";  // a user's fr_note may begin so, too: it is shown
  constexpr std::string_view kOpen = "nothing tells which is right: ";  // no longer true
  constexpr std::size_t kMost = 16;
  Events told;
  const auto add = [&](int i, Time time, std::string_view text) {
    if (text.starts_with(kOwn)) {
      told.add(std::string(text.substr(kOwn.size())), i, time);
    }
  };
  for (int i = 0; i < r.read; ++i) {
    for (const Record& record : f.ev(i).records) {
      if (record.kind == Kind::kNote) {
        add(i, record.time, f.ev(i).text(record.op));
      }
    }
    for (const ThreadNotes& n : f.ev(i).notes) {  // notes that the ring has overwritten
      add(i, n.note_time, n.note);
    }
  }
  std::vector<Event> events = told.in_order();
  events.resize(std::min(events.size(), kMost));
  for (Event& x : events) {
    if (const auto at = x.text.find(kOpen); at != std::string::npos && !r.ranks.empty()) {
      x.text.erase(at, kOpen.size());
    }
    say(r, "told", std::move(x.text));
  }
}

// Adds how an incident ended: the job went on, or its processes ended. The source is the evidence
// that ranks wrote after their first dump. The diagnosis, which is about the hang, ignores it.
void add_ending(const Facts& f, const Judgement& j, Report& r) {
  if (r.kind == Verdict::kOk || r.kind == Verdict::kSlow) {
    return;
  }
  if (const Time on = all_went_on(f, j); on != 0) {
    r.ended = Ended{"went_on", "", seconds_between(r.time, on), {}};
    if (f.c.asked_for) {
      say(r, "ended", "the job went on after " + duration_text(r.ended->after_s));
    } else {
      take_back(f, j, r);
    }
    return;
  }
  // Processes that ended after their dump; equal ends share a line.
  Events ends;
  for (const int i : ranks_that(f, [&](int i) { return end_after(f, i) != nullptr; })) {
    const RankEvidence& e = *end_after(f, i);
    ends.add(short_error(Names(f).exit(own_exit(e))) + more_of(f.ev(i), e), i, own_exit(e).time);
  }
  for (const Event& x : ends.in_order()) {
    const std::vector<Rank> ranks = f.ranks(x.who);
    const double after = r.time != 0 && x.time != 0 ? seconds_between(r.time, x.time) : 0;
    const ExitKind kind = own_exit(*end_after(f, x.who.front())).kind;
    say(r, "ended", "{} {} {}{}", after > 0 ? duration_text(after) + " later" : "then",
        ranks_words(ranks), exit_verb(kind, ranks.size()), x.text);
    note_end(r, kind, x.text, x.time, ranks);
  }
}

}  // namespace frtrace
