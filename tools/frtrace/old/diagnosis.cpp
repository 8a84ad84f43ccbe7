#include "old/diagnosis.hpp"

#include <tuple>

#include "format/call_site.hpp"
#include "input/ras.hpp"
#include "live/hints.hpp"

namespace frtrace {

namespace {

// Without the place in its library's source, the port, which is another on each rank, and what
// follows the first sentence: "RuntimeError: Connection closed by peer [127.0.0.1]".
std::string short_error(std::string_view error) {
  std::string out(error.substr(0, error.find('\n')));
  const std::size_t open = out.find('[');
  const std::size_t close = open != std::string::npos ? out.find("] ", open) : open;
  if (close != std::string::npos && out[close - 1] >= '0' && out[close - 1] <= '9' &&
      out.substr(open, close - open).find(".cc:") != std::string::npos) {
    out.erase(open, close + 2 - open);
  }
  for (std::size_t at = out.find("]:"); at != std::string::npos; at = out.find("]:", at + 1)) {
    const std::size_t end = out.find_first_not_of("0123456789", at + 2);
    out.erase(at + 1, (end == std::string::npos ? out.size() : end) - at - 1);
  }
  out = out.substr(0, out.find(". "));
  constexpr std::size_t kShown = 160;
  return out.size() > kShown ? out.substr(0, kShown) + "..." : out;
}

}  // namespace

std::vector<Rank> Diagnosis::ranks(const std::vector<int>& evidence) const {
  std::vector<Rank> out;
  for (const int i : evidence) {
    out.push_back(rank(i));
  }
  std::sort(out.begin(), out.end());
  return out;
}

void Diagnosis::lower(Confidence to, std::string reason) {
  r_.confidence = std::max(r_.confidence, to);
  if (std::find(doubts_.begin(), doubts_.end(), reason) == doubts_.end()) {
    doubts_.push_back(std::move(reason));
  }
}

const Record* Diagnosis::last_operation(int i) const {
  const RankEvidence& e = ev(i);
  const Record* lifecycle = nullptr;
  for (auto it = e.records.rbegin(); it != e.records.rend(); ++it) {
    if (it->kind == Kind::kCollective || it->kind == Kind::kSend || it->kind == Kind::kRecv) {
      return &*it;
    }
    if (it->kind == Kind::kLifecycle && lifecycle == nullptr) {
      lifecycle = &*it;
    }
  }
  return lifecycle;
}

const Group* Diagnosis::group_of(int i, const Record& r) const {
  const auto& rows = c_.group_of[at(i)];
  const int g = r.group < rows.size() ? rows[r.group] : -1;
  return g < 0 ? nullptr : &group(g);
}

std::string Diagnosis::record_text(int i, const Record& r) const {
  const RankEvidence& e = ev(i);
  std::string out(e.text(r.op));
  const Group* g = group_of(i, r);
  if (r.kind == Kind::kSend || r.kind == Kind::kRecv) {
    std::string peer = "?";
    if (g != nullptr && r.peer >= 0 && r.peer < static_cast<int>(g->ranks.size())) {
      peer = fmt::format("{}", g->ranks[at(r.peer)]);
    }
    out += fmt::format(" {} rank {}", r.kind == Kind::kSend ? "to" : "from", peer);
  }
  if (r.kind != Kind::kLifecycle) {
    out += fmt::format(" #{}", r.seq);
  }
  if (g != nullptr) {
    out += " of " + g->title();
  }
  return out;
}

std::string Diagnosis::at_site(int i, std::uint32_t stack) const {
  const std::string text = site_text(user_site(ev(i), stack));
  return text.empty() ? "" : " at " + text;
}

std::vector<std::string> Diagnosis::stack_lines(int i, std::uint32_t stack) const {
  std::vector<std::string> out;
  const RankEvidence& e = ev(i);
  if (stack < e.stacks.size()) {
    for (const std::uint32_t f : e.stacks[stack]) {
      if (f < e.frames.size()) {
        const Frame& frame = e.frames[f];
        out.push_back(fmt::format("{}:{} {}", e.text(frame.file), frame.line, e.text(frame.func)));
      }
    }
  }
  return out;
}

const Record* Diagnosis::lifecycle_in_flight(int i) const {
  for (auto it = ev(i).records.rbegin(); it != ev(i).records.rend(); ++it) {
    if (it->kind == Kind::kLifecycle && it->ended == 0 &&
        (it->state == State::kEnqueued || it->state == State::kStarted ||
         it->state == State::kWaiting)) {
      return &*it;
    }
  }
  return nullptr;
}

void Diagnosis::inventory() {
  r_.job = c_.job;
  r_.attempt = c_.attempt;
  r_.incident = c_.incident;
  r_.read = static_cast<int>(c_.ranks.size());
  r_.expected = c_.expected;
  r_.missing_ranks = c_.missing;
  for (const Group& g : c_.groups) {
    GroupReport out;
    out.name = g.name;
    out.desc = g.desc;
    out.backend = g.backend;
    out.instance = g.instance;
    out.ranks = g.ranks;
    bool first = true;
    for (std::size_t m = 0; m < g.ranks.size(); ++m) {
      const GroupEvidence* e = c_.member(g, m);
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
    r_.groups.push_back(std::move(out));
  }
  for (int i = 0; i < static_cast<int>(c_.ranks.size()); ++i) {
    const RankEvidence& e = ev(i);
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
    out.state = ends_[at(i)].ended                ? ends_[at(i)].text
                : e.salvage_why == "unresponsive" ? "does not respond"
                                                  : "runs";
    if (const Record* last = last_operation(i)) {
      out.last_op = record_text(i, *last);
      out.site = user_site(e, last->stack);
    }
    if (!e.notes.empty()) {
      out.note = std::max_element(e.notes.begin(), e.notes.end(),
                                  [](const ThreadNotes& a, const ThreadNotes& b) {
                                    return a.note_time < b.note_time;
                                  })
                     ->note;
    }
    r_.rank_reports.push_back(std::move(out));
  }
  for (const std::string& note : c_.notes) {
    say("input", note);
  }
}

namespace {

// Of fr.trace_calls, whose notes are "-> function file:line" and "<- ...": what the thread that
// wrote the last one was in, and entered last. "" without such notes.
std::string traced_calls(const RankEvidence& e) {
  constexpr std::string_view kIn = "-> ", kOut = "<- ";
  const auto call = [&](const Record& r) {
    const std::string_view text = r.kind == Kind::kNote ? e.text(r.op) : std::string_view();
    return text.starts_with(kIn) || text.starts_with(kOut) ? text : std::string_view();
  };
  const auto last = std::find_if(e.records.rbegin(), e.records.rend(),
                                 [&](const Record& r) { return !call(r).empty(); });
  if (last == e.records.rend()) {
    return {};
  }
  std::vector<std::string_view> inside;
  std::string_view entered;
  for (const Record& r : e.records) {
    const std::string_view text = r.tid == last->tid ? call(r) : std::string_view();
    if (text.starts_with(kIn)) {
      entered = text.substr(kIn.size());
      inside.push_back(entered);
    } else if (!text.empty() && !inside.empty() && inside.back() == text.substr(kOut.size())) {
      inside.pop_back();
    }
  }
  // "collate /home/u/train.py:206"
  const auto shown = [&](std::string_view what) {
    const std::size_t space = what.rfind(" /");
    return space == std::string_view::npos
               ? std::string(what)
               : fmt::format("{} {}", what.substr(0, space),
                             short_file(what.substr(space + 1), e.id.cwd));
  };
  std::string out = "traced calls: last entered " + shown(entered);
  if (inside.empty() || inside.back() != entered) {
    out += ", left again";
  }
  constexpr std::size_t kShown = 4;
  for (std::size_t k = 0; k < inside.size() && k < kShown; ++k) {
    out += (k == 0 ? "; inside " : " < ") + shown(inside[inside.size() - 1 - k]);
  }
  return out;
}

}  // namespace

// "raised RuntimeError: no batch", where, and what it came from.
std::vector<std::string> Diagnosis::raised_lines(int i) const {
  const RankEvidence& e = ev(i);
  std::vector<std::string> out{"raised " + ends_[at(i)].text};
  // innermost, then the user's own
  std::string where;
  constexpr std::size_t kShown = 4;
  std::size_t shown = 0;
  for (const std::uint32_t f :
       e.exit.stack < e.stacks.size() ? e.stacks[e.exit.stack] : std::vector<std::uint32_t>()) {
    if (f >= e.frames.size() || shown == kShown ||
        (shown != 0 && fr::is_library_file(e.text(e.frames[f].file)))) {
      continue;
    }
    const Frame& frame = e.frames[f];
    where += fmt::format("{}{}", shown++ == 0 ? "at " : " < ",
                         site_text({std::string(short_file(e.text(frame.file), e.id.cwd)),
                                    frame.line, std::string(e.text(frame.func))}));
  }
  if (!where.empty()) {
    out.push_back(std::move(where));
  }
  // fr's Python package has added where it was raised, and the first cause, below the message.
  for (std::size_t at = e.exit.message.find('\n'); at != std::string::npos;) {
    const std::size_t next = e.exit.message.find('\n', at + 1);
    const std::size_t from = e.exit.message.find_first_not_of(" \n", at);
    const bool place = e.exit.message.compare(from, 3, "at ") == 0;
    if (from < next && !(place && out.size() > 1)) {
      out.push_back(e.exit.message.substr(from, next - from));
    }
    at = next;
  }
  return out;
}

// last note "building extension", step 20 (the others at step 21), span "startup" open for 15.0 s
void Diagnosis::add_breadcrumbs(int i, Blamed& b) const {
  const RankEvidence& e = ev(i);
  std::string step;
  if (e.has_step) {
    step = fmt::format("step {}", e.step);
    std::int64_t low = INT64_MAX, high = INT64_MIN;
    for (const RankEvidence* other : c_.ranks) {
      if (other != &e && other->has_step) {
        low = std::min<std::int64_t>(low, other->step);
        high = std::max<std::int64_t>(high, other->step);
      }
    }
    if (low == high && low != e.step) {
      step += fmt::format(" (the others at step {})", low);
    } else if (low < high) {
      step += fmt::format(" (the others at steps {} to {})", low, high);
    }
  }
  // The main thread, then who is inside a span, then who died of an exception, then the latest.
  constexpr std::string_view kDied = "exception in thread ";
  const auto order = [&](const ThreadNotes* n) {
    return std::tuple(n->tid != static_cast<std::uint32_t>(e.id.pid), n->spans.empty(),
                      !n->note.starts_with(kDied), -n->note_time);
  };
  std::vector<const ThreadNotes*> notes;
  for (const ThreadNotes& n : e.notes) {
    notes.push_back(&n);
  }
  std::stable_sort(notes.begin(), notes.end(),
                   [&](const ThreadNotes* x, const ThreadNotes* y) { return order(x) < order(y); });
  if (!step.empty() &&
      (notes.empty() || notes.front()->tid != static_cast<std::uint32_t>(e.id.pid))) {
    b.evidence.push_back("at " + step);
  }
  std::set<std::string> told;
  std::size_t more = 0;
  for (const ThreadNotes* n : notes) {
    const bool main = n->tid == static_cast<std::uint32_t>(e.id.pid);
    std::string text;
    const auto add = [&text](const std::string& part) {
      text += (text.empty() || part.empty() ? "" : ", ") + part;
    };
    if (!n->note.empty()) {
      add(!main && n->note.starts_with(kDied) ? n->note : fmt::format("last note \"{}\"", n->note));
    }
    if (main) {
      add(step);
    }
    if (!n->spans.empty()) {
      std::string span = "span ";
      for (std::size_t s = 0; s < n->spans.size(); ++s) {
        span += fmt::format("{}\"{}\"", s != 0 ? " > " : "", n->spans[s].first);
      }
      span += " open";
      if (n->spans.back().second != 0 && e.written > n->spans.back().second) {
        span += fmt::format(" for {}",
                            duration_text(seconds_between(n->spans.back().second, e.written)));
      }
      add(span);
    }
    if (text.empty() || !told.insert(text).second) {
      continue;
    }
    constexpr std::size_t kShown = 4;
    if (told.size() > kShown) {
      ++more;
      continue;
    }
    const bool bare = main || n->note.starts_with(kDied);
    b.evidence.push_back(text == step ? "at " + text
                         : bare       ? text
                                      : fmt::format("thread {}: {}", n->tid, text));
  }
  if (more != 0) {
    b.evidence.push_back(fmt::format("and last notes of {} more threads", more));
  }
  if (std::string calls = traced_calls(e); !calls.empty()) {
    b.evidence.push_back(std::move(calls));
  }
}

Blamed& Diagnosis::blame(int i, std::string why) {
  const RankEvidence& e = ev(i);
  Blamed b;
  b.rank = e.id.rank;
  b.host = e.id.host;
  b.pid = e.id.pid;
  b.why = std::move(why);
  // Of a process that was on its way out the place where its dump was written explains nothing.
  const End& end = ends_[at(i)];
  const bool raised = end.ended && end.why == "exception" && e.exit.kind == "exception";
  if (raised) {
    b.evidence = raised_lines(i);
    b.site = user_site(e, e.exit.stack);
  } else if (end.ended && (end.why == "exit" || end.why == "left_early")) {
    b.evidence.push_back(end.text);
  } else {
    b.evidence = e.exit.kind == "crash" ? crash_lines(e) : where_lines(e);
    b.site = now_at(e);
  }
  if (const Record* last = last_operation(i)) {
    b.last_site = user_site(e, last->stack);
    b.site = b.site.file.empty() ? b.last_site : b.site;
    b.stack = stack_lines(i, raised && e.exit.stack != 0 ? e.exit.stack : last->stack);
    std::string text =
        fmt::format("last issued {}{}", record_text(i, *last), at_site(i, last->stack));
    if (last->time != 0 && e.written > last->time) {
      text += fmt::format(", {} before {}", duration_text(seconds_between(last->time, e.written)),
                          e.source == Source::kLiveRing ? "now"
                          : e.process_gone              ? "its last sign of life"
                                                        : "its dump");
    }
    b.evidence.push_back(std::move(text));
  } else {
    b.evidence.push_back(e.losses.overwritten != 0 ? "its last operations are overwritten"
                                                   : "issued no operation at all");
  }
  if (end.ended) {
    const bool told = raised || e.exit.kind == "crash" ||
                      std::find(b.evidence.begin(), b.evidence.end(), end.text) != b.evidence.end();
    if (!told) {
      b.evidence.push_back(end.text);
    }
    if (e.oom_kills > 0) {
      b.evidence.push_back(
          fmt::format("the kernel has killed {} process{} of its control group for want of memory",
                      e.oom_kills, e.oom_kills == 1 ? "" : "es"));
    }
  } else if (const ThreadStack* t = main_thread(e.threads, e.id.pid);
             e.salvage_why == "unresponsive" && (t == nullptr || t->activity != "stopped")) {
    b.evidence.push_back("its process lives but does not respond (stopped?)");
  }
  if (const Record* call = lifecycle_in_flight(i); call != nullptr && !end.ended) {
    b.evidence.push_back(fmt::format("is in {}{}", e.text(call->op), at_site(i, call->stack)));
  }
  add_breadcrumbs(i, b);
  r_.blamed.push_back(std::move(b));
  r_.ranks.push_back(e.id.rank);
  return r_.blamed.back();
}

void Diagnosis::drop_blamed(std::vector<Rank>& who) const {
  std::erase_if(who, [&](Rank x) {
    return std::find(r_.ranks.begin(), r_.ranks.end(), x) != r_.ranks.end();
  });
}

Blamed& Diagnosis::blame_missing(Rank who, std::string why, std::string text) {
  Blamed b;
  b.rank = who;
  b.why = std::move(why);
  b.evidence.push_back(std::move(text));
  r_.blamed.push_back(std::move(b));
  r_.ranks.push_back(who);
  return r_.blamed.back();
}

std::string Diagnosis::meeting_op(const Meeting& m) const {
  for (const Wait& w : m.waits) {
    if (w.record != SIZE_MAX) {
      return std::string(ev(w.evidence).text(ev(w.evidence).records[w.record].op));
    }
  }
  return "an operation";
}

std::string Diagnosis::meeting_text(const Meeting& m) const {
  std::string out = slot_text(meeting_op(m), m.seq, group(m.group));
  if (m.kind != Kind::kCollective) {
    out += fmt::format(" from rank {} to rank {}", m.from, m.to);
  }
  return out;
}

std::vector<Rank> Diagnosis::waiting_ranks(const Meeting& m) const {
  std::vector<Rank> out;
  for (const Wait& w : m.waits) {
    out.push_back(rank(w.evidence));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

void Diagnosis::add_waiting(const Meeting& m, const std::set<int>& but) {
  std::map<std::string, Waiting> by_site;
  for (const Wait& w : m.waits) {
    if (but.contains(w.evidence)) {
      continue;
    }
    Site site;
    std::vector<std::string> stack;
    if (w.record != SIZE_MAX) {
      const Record& record = ev(w.evidence).records[w.record];
      site = user_site(ev(w.evidence), record.stack);
      stack = stack_lines(w.evidence, record.stack);
    }
    Waiting& out = by_site[site_text(site)];
    out.ranks.push_back(rank(w.evidence));
    out.site = site;
    out.stack = stack;
    out.seconds = std::max(out.seconds, seconds_between(w.since, w.until));
  }
  for (auto& [text, w] : by_site) {
    const Group& g = group(m.group);
    std::sort(w.ranks.begin(), w.ranks.end());
    w.group = g.name;
    w.desc = g.desc;
    w.op = meeting_op(m);
    w.seq = m.seq;
    r_.waiting.push_back(std::move(w));
  }
}

void Diagnosis::add_all_waiting(int first_meeting, const std::set<int>& but) {
  if (first_meeting >= 0) {
    add_waiting(graph_.meetings[at(first_meeting)], but);
  }
  for (std::size_t k = 0; k < graph_.meetings.size(); ++k) {
    if (static_cast<int>(k) != first_meeting) {
      add_waiting(graph_.meetings[k], but);
    }
  }
}

int Diagnosis::main_meeting(const std::set<int>& blamed, bool must_be_absent) const {
  int best = -1;
  for (std::size_t k = 0; k < graph_.meetings.size(); ++k) {
    const Meeting& m = graph_.meetings[k];
    const bool absent =
        std::any_of(m.absent.begin(), m.absent.end(), [&](int a) { return blamed.contains(a); });
    if (must_be_absent && !absent) {
      continue;
    }
    if (best < 0 || m.waits.size() > graph_.meetings[at(best)].waits.size() ||
        (m.waits.size() == graph_.meetings[at(best)].waits.size() &&
         m.since < graph_.meetings[at(best)].since)) {
      best = static_cast<int>(k);
    }
  }
  return best;
}

std::string Diagnosis::wait_words(const std::vector<Rank>& who) const {
  return fmt::format("{} {} there", ranks_words(who), who.size() == 1 ? "waits" : "wait");
}

std::optional<std::string> Diagnosis::usual_words(int i, int g, Site* site) {
  const std::vector<Step>& steps = history_.of(i);
  const RankEvidence& e = ev(i);
  const auto describe = [&](std::size_t step) {
    const Record& r = e.records[steps[step].record];
    if (site != nullptr) {
      *site = user_site(e, r.stack);
    }
    return fmt::format("{}{}", e.text(r.op), at_site(i, r.stack));
  };
  if (const auto d = deviation(steps, g)) {
    return fmt::format("issued {} where its earlier iterations had {}", describe(d->issued),
                       describe(d->usual));
  }
  if (!steps.empty()) {
    if (const auto usual = usual_next(steps, steps.size()); usual && steps[*usual].group == g) {
      return fmt::format("next, by its earlier iterations, would be {}", describe(*usual));
    }
  }
  return std::nullopt;
}

void Diagnosis::fill_slot(Blamed& b, const Meeting& m) const {
  b.group = group(m.group).name;
  b.desc = group(m.group).desc;
  b.op = meeting_op(m);
  b.seq = m.seq;
}

void Diagnosis::consequences() {
  if (r_.kind == Verdict::kOk) {
    return;
  }
  // What became of the others, in the order in which it began.
  struct Follow {
    std::vector<Rank> who;
    Time time = 0;  // 0 unknown
  };
  const std::set<Rank> blamed(r_.ranks.begin(), r_.ranks.end());
  std::map<std::string, Follow> after, told;
  Time first = 0;
  const auto add = [](Follow& to, Rank who, Time time) {
    to.who.push_back(who);
    to.time = to.time == 0 || (time != 0 && time < to.time) ? time : to.time;
  };
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    const Rank who = rank(static_cast<int>(i));
    const Time time = ends_[i].time;
    if (blamed.contains(who)) {
      first = ends_[i].ended && time != 0 && (first == 0 || time < first) ? time : first;
    } else if (ends_[i].terminated) {
      add(told[ends_[i].text], who, time);
    } else if (ends_[i].consequence) {
      add(after[short_error(ends_[i].text)], who, time);
    } else {
      for (const Wait& w : waits_of(static_cast<int>(i))) {
        if (w.failed && w.record != SIZE_MAX && ev(w.evidence).records[w.record].error != 0) {
          add(after[short_error(ev(w.evidence).text(ev(w.evidence).records[w.record].error))], who,
              0);
          break;
        }
      }
    }
  }
  const auto in_order = [](const std::map<std::string, Follow>& from) {
    std::vector<std::pair<std::string, Follow>> out(from.begin(), from.end());
    std::stable_sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
      const Time ta = a.second.time, tb = b.second.time;
      return ta != tb && ta != 0 && (tb == 0 || ta < tb);
    });
    return out;
  };
  const auto later = [first](const Follow& f) {
    return first != 0 && f.time > first
               ? fmt::format(", {} later", duration_text(seconds_between(first, f.time)))
               : std::string();
  };
  for (const auto& [text, f] : in_order(after)) {
    say("consequence",
        fmt::format("{} failed after that{}: {}", ranks_words(f.who), later(f), text));
  }
  for (const auto& [text, f] : in_order(told)) {
    const std::string when = later(f);
    say("consequence",
        fmt::format("{} {} {}{}", ranks_words(f.who), f.who.size() == 1 ? "was" : "were", text,
                    when.empty() ? " after that" : when));
  }
}

std::vector<Wait> Diagnosis::waits_of(int i) const {
  std::vector<Wait> out;
  for (const int k : graph_.waits_in[at(i)]) {
    for (const Wait& w : graph_.meetings[at(k)].waits) {
      if (w.evidence == i) {
        out.push_back(w);
      }
    }
  }
  return out;
}

// What the formats could not say, and whether the verdict leans on it.
void Diagnosis::tell_holes(bool fault) {
  struct Hole {
    bool Holes::* set;
    const char* text;
    bool matters;
  };
  static constexpr Hole kHoles[] = {
      {&Holes::truncated, "cut off in the middle: what comes after is unknown", true},
      {&Holes::only_active, "hold only what was in flight when they were written", false},
      {&Holes::no_stacks, "hold no call sites", false},
      {&Holes::no_status, "hold no counters: frontiers are those of the records", false},
      {&Holes::no_members, "do not list the groups' members: taken from who appears in them", true},
      {&Holes::no_p2p, "do not record sends and receives, though there were some", true},
      {&Holes::frontier_inferred, "do not name a group: what the others wait for was not issued",
       true},
      {&Holes::failure_inferred,
       "do not tell failed from done: an operation that cannot have succeeded is taken as failed",
       true},
      {&Holes::written_guessed, "do not tell when they were written: durations are guesses", false},
  };
  for (const Hole& hole : kHoles) {
    std::vector<Rank> who;
    for (const RankEvidence* e : c_.ranks) {
      if (e->holes.*hole.set) {
        who.push_back(e->id.rank);
      }
    }
    if (who.empty()) {
      continue;
    }
    say("hole", fmt::format("files of {} {}", ranks_words(who), hole.text));
    if (fault && hole.matters) {
      lower(Confidence::kLikely, fmt::format("files of {} {}", ranks_words(who), hole.text));
    }
  }
}

// What NCCL's own service says: shown beside the verdict, and never decides it.
void Diagnosis::other_witnesses() {
  const RasEvidence* silent = nullptr;
  for (const RankEvidence* e : c_.ranks) {
    const RasEvidence& ras = e->ras;
    if (ras.asked && ras.answer.empty()) {
      silent = silent != nullptr ? silent : &ras;
    } else if (ras.asked) {
      for (const std::string& line : ras_lines(ras)) {
        say("ras", "NCCL's RAS: " + line);
      }
      if (ras.cut) {
        say("ras", "NCCL's RAS: the answer was cut" +
                       (ras.error.empty() ? std::string() : ": " + ras.error));
      }
      return;  // every process answers for the whole job
    }
  }
  if (silent != nullptr) {
    say("ras", fmt::format("NCCL's RAS at {} did not tell: {}", silent->address, silent->error));
  }
}

void Diagnosis::finish() {
  const bool fault = r_.kind != Verdict::kOk && r_.kind != Verdict::kUndecided;
  if (fault && !c_.missing.empty()) {
    lower(Confidence::kLikely, fmt::format("no evidence of {}", ranks_words(c_.missing)));
  }
  std::uint64_t groups_lost = 0;
  std::set<std::string> overwritten;
  for (const RankEvidence* e : c_.ranks) {
    groups_lost += e->losses.groups_lost + e->losses.no_group;
  }
  for (const Blamed& b : r_.blamed) {
    const auto it = c_.index.find(b.rank);
    if (it != c_.index.end() && ev(it->second).losses.no_group != 0) {
      lower(Confidence::kLikely, "operations of unknown groups were not counted");
    }
  }
  for (const RankEvidence* e : c_.ranks) {
    if (e->losses.cut != 0) {
      say("lost", fmt::format("{} record{} of rank {} lie{} behind the end of its file, which was "
                              "cut off; its counters are exact",
                              e->losses.cut, e->losses.cut == 1 ? "" : "s", e->id.rank,
                              e->losses.cut == 1 ? "s" : ""));
    }
  }
  if (groups_lost != 0) {
    say("lost",
        fmt::format("{} operations of groups that found no room were not counted", groups_lost));
  }
  for (const Waiting& w : r_.waiting) {
    for (const GroupReport& g : r_.groups) {
      if (g.name == w.group && g.overwritten != 0 && overwritten.insert(g.name).second) {
        say("lost", fmt::format("{} older records of {} are overwritten; its counters are exact",
                                g.overwritten, g.desc.empty() ? g.name : g.desc));
      }
      if (g.name == w.group && g.dropped != 0 && overwritten.insert(g.name + "\n").second) {
        say("lost", fmt::format("{} records of {} found no room; its counters are exact", g.dropped,
                                g.desc.empty() ? g.name : g.desc));
      }
    }
  }
  tell_holes(fault);
  std::string reasons = fmt::format("evidence of {} of {} ranks read", r_.read, r_.expected);
  if (fault || r_.kind == Verdict::kOk) {
    if (doubts_.empty()) {
      reasons += ", nothing lost that matters";
    }
    for (const std::string& doubt : doubts_) {
      reasons += "; " + doubt;
    }
  } else {
    r_.confidence = Confidence::kPossible;
  }
  say("confidence", std::move(reasons));
}

}  // namespace frtrace
