// One blamed rank: where it is, what it did last, how it ended.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "format/call_site.hpp"
#include "model/hints.hpp"
#include "words/words.hpp"

namespace frtrace {

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

// The Python package's notes of exceptions that the user's code handled.
constexpr std::string_view kCaught = "caught ";

// "caught OSError at load.py:23 in fetch: no such shard, 2.0 s before its last operation", of the
// last one; "" without.
std::string last_caught(const RankEvidence& e) {
  Time last_operation = 0;
  const Record* caught = nullptr;
  for (const Record& r : e.records) {
    if (r.kind != Kind::kNote) {
      last_operation = std::max(last_operation, r.time);
    } else if (e.text(r.op).starts_with(kCaught) && (caught == nullptr || r.time > caught->time)) {
      caught = &r;
    }
  }
  if (caught == nullptr) {
    return {};
  }
  std::string text(e.text(caught->op));
  if (last_operation == 0) {
    return text;
  }
  const bool before = caught->time < last_operation;
  const double apart_s = before ? seconds_between(caught->time, last_operation)
                                : seconds_between(last_operation, caught->time);
  return fmt::format("{}; that was {} {} its last operation", text, duration_text(apart_s),
                     before ? "before" : "after");
}

// "raised RuntimeError: no batch", where, and what it came from.
std::vector<std::string> raised_lines(const RankEvidence& e, const std::string& exit) {
  std::vector<std::string> out{"raised " + exit};
  // innermost, then the user's own
  std::string where;
  constexpr std::size_t kShown = 4;
  std::size_t shown = 0;
  for (const std::uint32_t k :
       e.exit.stack < e.stacks.size() ? e.stacks[e.exit.stack] : std::vector<std::uint32_t>()) {
    if (k >= e.frames.size() || shown == kShown ||
        (shown != 0 && fr::is_library_file(e.text(e.frames[k].file)))) {
      continue;
    }
    const Frame& frame = e.frames[k];
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
void add_breadcrumbs(const Facts& f, const RankEvidence& e, Blamed& b) {
  std::string step;
  if (e.has_step) {
    step = fmt::format("step {}", e.step);
    std::int64_t low = INT64_MAX, high = INT64_MIN;
    for (const RankEvidence* other : f.c.ranks) {
      if (other != &e && other->has_step && other->incident >= e.incident) {  // none of before
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
    if (!n->note.empty() && !n->note.starts_with(kCaught)) {
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
  if (std::string caught = last_caught(e); !caught.empty()) {
    b.evidence.push_back(std::move(caught));
  }
  if (std::string calls = traced_calls(e); !calls.empty()) {
    b.evidence.push_back(std::move(calls));
  }
}

class Describe : public DeviceWords {
 public:
  Describe(const Facts& f, const Cause& c, const Guilty& g) : DeviceWords(f), c_(c), g_(g) {}

  Blamed run() {
    b_.rank = g_.rank;
    b_.why = why_name(g_.why);
    if (g_.evidence < 0) {
      without_evidence();
    } else {
      e_ = &f_.ev(g_.evidence);
      where();
      last_issued();
      ended();
      add_breadcrumbs(f_, *e_, b_);
    }
    slot();
    if (g_.evidence >= 0) {
      wrong_operation();
      by_rule();
      parted();
    }
    return std::move(b_);
  }

 private:
  void line(std::string text) { b_.evidence.push_back(std::move(text)); }
  void first(std::string text) { b_.evidence.insert(b_.evidence.begin(), std::move(text)); }

  void without_evidence() {
    for (std::size_t i = 0; i < f_.c.missing.size(); ++i) {
      if (f_.c.missing[i] == g_.rank && f_.missing_exits[i].ended()) {
        line(exit(f_.missing_exits[i]) + ", as the ranks of its node saw");
        return;
      }
    }
    if (g_.why == Why::kNeverStarted) {
      line("left no file, and no rank of its node knows of its process");
      return;
    }
    line("left no file, so its place in the code is not known; in the end all wait for it");
  }

  // Of a process that was on its way out the place where its dump was written explains nothing.
  void where() {
    b_.host = e_->id.host;
    b_.pid = e_->id.pid;
    b_.lock = lock_wait(*e_);
    const Exit& x = f_.exit(g_.evidence);
    raised_ = x.kind == ExitKind::kException && e_->exit.kind == "exception";
    if (raised_) {
      b_.evidence = raised_lines(*e_, exit(x));
      b_.site = user_site(*e_, e_->exit.stack);
    } else if (x.kind == ExitKind::kStatus) {
      line(exit(x));
    } else {
      b_.evidence = e_->exit.kind == "crash" ? crash_lines(*e_) : where_lines(*e_);
      b_.site = now_at(*e_);
      name_holder();
    }
  }

  // The rank in the place of the process that holds what this one waits for.
  void name_holder() {
    if (const int holder = f_.graph.lock_holders[idx(g_.evidence)]; holder >= 0) {
      std::replace(b_.evidence.begin(), b_.evidence.end(), file_lock_text(*e_),
                   file_lock_text(*e_, f_.rank(holder)));
    }
  }

  void last_issued() {
    const Record* last = f_.last_operation(g_.evidence);
    if (last == nullptr) {
      if (e_->holes.only_stacks || e_->threads.present) {
        line(fmt::format("left only its stack, by {}", e_->threads_by));
        return;
      }
      line(e_->holes.from_log            ? "is at a place that the log does not say"
           : e_->losses.overwritten != 0 ? "has no record left of its last operations"
                                         : "issued no operation at all");
      return;
    }
    b_.last_site = user_site(*e_, last->stack);
    b_.site = b_.site.file.empty() ? b_.last_site : b_.site;
    b_.stack = stack(g_.evidence, raised_ && e_->exit.stack != 0 ? e_->exit.stack : last->stack);
    if (c_.rule == Rule::kMismatch && g_.issued != kNoRecord && last == &e_->records[g_.issued]) {
      return;  // the first line about it names this operation
    }
    std::string text =
        fmt::format("last issued {}{}", record(g_.evidence, *last), at(g_.evidence, last->stack));
    if (last->time != 0 && e_->written > last->time && !e_->holes.written_guessed) {
      text += fmt::format(", {} before {}", duration_text(seconds_between(last->time, e_->written)),
                          e_->source == Source::kLiveRing ? "now"
                          : e_->process_gone              ? "its last sign of life"
                                                          : "its dump");
    }
    line(std::move(text));
  }

  void ended() {
    const Exit& x = f_.exit(g_.evidence);
    if (x.ended()) {
      const std::string text = exit(x);
      if (!raised_ && e_->exit.kind != "crash" &&
          std::find(b_.evidence.begin(), b_.evidence.end(), text) == b_.evidence.end()) {
        line(text);
      }
      if (e_->oom_kills > 0) {
        line(fmt::format("the kernel's OOM killer has killed {} process{} of its control group",
                         e_->oom_kills, e_->oom_kills == 1 ? "" : "es"));
      }
      return;
    }
    const ThreadStack* t = main_thread(e_->threads, e_->id.pid);
    if (e_->salvage == Salvage::kUnresponsive && (t == nullptr || t->activity != "stopped")) {
      line("its process exists but does not respond (stopped?)");
    }
    if (const Record* call = f_.lifecycle_in_flight(g_.evidence)) {
      line(fmt::format("is in {}{}", e_->text(call->op), at(g_.evidence, call->stack)));
    }
  }

  void slot() {
    if (g_.pending >= 0) {
      const Pending& p = f_.graph[g_.pending];
      b_.group = f_.group(p.group).name;
      b_.desc = f_.group(p.group).desc;
      b_.op = op(p);
      b_.seq = p.seq;
    }
    if (!c_.lifecycle.empty()) {
      b_.op = c_.lifecycle;
    }
  }

  void set_record(const Record& r, bool with_slot) {
    b_.site = user_site(*e_, r.stack);
    b_.stack = stack(g_.evidence, r.stack);
    if (with_slot) {
      b_.op = e_->text(r.op);
      b_.seq = r.seq;
      if (const Group* g = f_.group_of(g_.evidence, r)) {
        b_.group = g->name;
        b_.desc = g->desc;
      }
    }
  }

  // The rank's own operation that is wrong, or that it is stalled in.
  void wrong_operation() {
    if (g_.issued == kNoRecord) {
      return;
    }
    const Record& issued = e_->records[g_.issued];
    switch (c_.rule) {
      case Rule::kLeftOrder: {
        const Record& usual = e_->records[g_.usual];
        const bool left_out = c_.verdict != Verdict::kMismatch;
        set_record(left_out ? usual : issued, true);
        b_.seq = left_out ? g_.seq : issued.seq;
        b_.site = user_site(*e_, issued.stack);
        b_.stack = stack(g_.evidence, issued.stack);
        if (c_.verdict == Verdict::kMissing) {  // as the first line has it
          line(fmt::format("and issued {}{} instead", record(g_.evidence, issued),
                           at(g_.evidence, issued.stack)));
        } else {
          first(fmt::format("issued {}{} where {} had {}{}", record(g_.evidence, issued),
                            at(g_.evidence, issued.stack),
                            c_.by_peers ? "other ranks" : "its earlier iterations",
                            e_->text(usual.op), at(g_.evidence, usual.stack)));
        }
        break;
      }
      case Rule::kGroupOrder:
        set_record(issued, false);
        b_.op = "new_group";
        b_.group = std::to_string(c_.calls->ordinal);
        b_.seq = issued.seq;
        break;
      default:
        set_record(issued, true);
    }
  }

  void by_rule() {
    switch (c_.rule) {
      case Rule::kMismatch:
      case Rule::kPastMismatch:
      case Rule::kSkippedSlot:
      case Rule::kUnequalEnds:
        differs();
        break;
      case Rule::kGroupOrder:
        made_group();
        break;
      case Rule::kExtra:
        first(
            fmt::format("has waited there for {}", duration_text(f_.graph[c_.pending].seconds())));
        std::rotate(b_.evidence.begin(), b_.evidence.begin() + 1, b_.evidence.end());
        break;
      case Rule::kDeviceBehind:
        behind();
        break;
      case Rule::kDeviceStalled:
        first(DeviceWords::line(*g_.device));
        break;
      case Rule::kDeviceError:
        device_error();
        break;
      case Rule::kKilledBefore: {
        const Exit &own = f_.exit(g_.evidence), &next = f_.exit(c_.others[1]);
        line(fmt::format("by process {}, {} before the others were ended by {}", own.sender_pid,
                         duration_text(seconds_between(own.time, next.time)), next.sender_pid));
        break;
      }
      case Rule::kSlow:
        late();
        break;
      case Rule::kNeverIssued:
      case Rule::kLeft:
      case Rule::kStoppedHost:
        usually();
        break;
      default:
        break;
    }
  }

  void differs() {
    const Record& own = e_->records[g_.issued];
    first(fmt::format("issued {}{} as #{}", operation_text(*e_, own), at(g_.evidence, own.stack),
                      own.seq));
    if (c_.rule == Rule::kSkippedSlot) {  // the operation that it left out
      const Divergence& d = *c_.divergence;
      const Group& g = f_.group(d.group);
      const int m = d.classes[idx(c_.right)].front();
      const Record& due = *f_.slots[idx(d.group)].at(f_.c, g, idx(m), d.seq);
      b_.op = f_.ev(g.evidence[idx(m)]).text(due.op);
      b_.seq = d.seq;
    }
  }

  void made_group() {
    const GroupCalls& calls = *c_.calls;
    const auto who = [&](const std::vector<GroupCalls::Call>& same) {
      std::vector<int> out;
      for (const GroupCalls::Call& call : same) {
        out.push_back(call.evidence);
      }
      return ranks_words(f_.ranks(out));
    };
    std::string own, others;
    for (const auto& [members, callers] : calls.classes) {
      const bool mine =
          std::any_of(callers.begin(), callers.end(),
                      [&](const GroupCalls::Call& call) { return call.evidence == g_.evidence; });
      if (mine) {
        own = fmt::format("made group {} of {}{}", calls.ordinal, ranks_words(members),
                          at(g_.evidence, e_->records[g_.issued].stack));
      } else {
        others += fmt::format(", {} made it of {}", who(callers), ranks_words(members));
      }
    }
    first(own + others);
  }

  void behind() {
    const Pending& p = f_.graph[g_.pending];
    if (g_.issued == kNoRecord) {
      return;
    }
    const Record& r = e_->records[g_.issued];
    b_.op = op(p);
    b_.seq = p.seq;
    first(fmt::format("issued {}{}{}; its device has not {} it", pending(p),
                      at(g_.evidence, r.stack),
                      e_->holes.written_guessed
                          ? ""
                          : fmt::format(" {} before its dump",
                                        duration_text(seconds_between(r.time, e_->written))),
                      p.starts_seen && r.state != State::kStarted ? "started" : "finished"));
    if (const auto on_device = f_.devices.of(g_.evidence, g_.issued)) {
      b_.evidence.insert(b_.evidence.begin() + 1, DeviceWords::line(*on_device));
    }
  }

  void device_error() {
    for (const DeviceError& x : c_.errors) {
      if (x.evidence != g_.evidence) {
        continue;
      }
      std::string text = x.text;
      if (x.record != kNoRecord) {
        text += fmt::format("; in flight was {}{}", record(x.evidence, x.record),
                            at(x.evidence, e_->records[x.record].stack));
      }
      if (x.time != 0 && e_->written > x.time) {
        text += fmt::format(", {} before its dump",
                            duration_text(seconds_between(x.time, e_->written)));
      }
      first(std::move(text));
    }
  }

  void late() {
    for (const Straggler& s : c_.late.ranks) {
      if (s.evidence == g_.evidence) {
        first(LateWords(f_).line(s));
      }
    }
  }

  // What the rank usually does next.
  void usually() {
    const int group = f_.graph[g_.pending >= 0 ? g_.pending : c_.pending].group;
    const std::vector<Step>& steps = f_.history.of(g_.evidence);
    const auto describe = [&](std::size_t step) {
      const Record& r = e_->records[steps[step].record];
      return fmt::format("{}{}", e_->text(r.op), at(g_.evidence, r.stack));
    };
    if (!steps.empty()) {
      const auto usual = usual_next(steps, steps.size());
      if (usual && (steps[*usual].group == group || c_.rule == Rule::kStoppedHost)) {
        line("next, by its earlier iterations, would be " + describe(*usual));
      }
    }
    if (g_.why == Why::kSkipped && c_.rule == Rule::kNeverIssued) {
      skipped_early(group);
    }
    const Group& g = f_.group(group);
    const auto position = g.position.find(g_.rank);
    // A ring without room for all groups, or a file that names only those of its records, may lack
    // one that the rank has.
    const bool all_listed = !e_->holes.only_stacks && !e_->losses.may_have_had_other_groups() &&
                            (e_->format.empty() || e_->losses.overwritten == 0);
    if (all_listed && position != g.position.end() && g.row[idx(position->second)] < 0) {
      line(fmt::format("never created the group {}", g.title()));
    }
  }

  void skipped_early(int group) {
    const Group& g = f_.group(group);
    for (std::size_t m = 0; m < g.ranks.size(); ++m) {
      const Record* r = f_.slots[idx(group)].at(f_.c, g, m, g_.seq);
      if (r != nullptr && g.evidence[m] != g_.evidence) {
        line(fmt::format(
            "left out {}{} as early as #{}: its call sites are one ahead of the others' since",
            f_.ev(g.evidence[m]).text(r->op), at(g.evidence[m], r->stack), g_.seq));
        return;
      }
    }
  }

  // Where a rank that waits for it went on.
  void parted() {
    if (c_.rule != Rule::kNeverIssued && c_.rule != Rule::kLeft) {
      return;
    }
    const Pending& p = f_.graph[g_.pending >= 0 ? g_.pending : c_.pending];
    for (const Wait& w : p.waits) {
      if (w.evidence != g_.evidence) {
        b_.divergence = fork_of(f_.c, f_.history, p.group, g_.evidence, w.evidence);
        return;
      }
    }
  }

  const Cause& c_;
  const Guilty& g_;
  const RankEvidence* e_ = nullptr;
  bool raised_ = false;
  Blamed b_;
};

}  // namespace

Blamed describe(const Facts& f, const Cause& c, const Guilty& g) {
  return Describe(f, c, g).run();
}

}  // namespace frtrace
