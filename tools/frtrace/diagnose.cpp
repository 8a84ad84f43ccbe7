#include "diagnose.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "facts.hpp"

namespace frtrace {

const char* verdict_name(Verdict v) {
  static constexpr const char* kNames[] = {"ok",        "missing", "mismatch", "deadlock", "device",
                                           "transport", "exited",  "slow",     "undecided"};
  return kNames[static_cast<int>(v)];
}

const char* confidence_name(Confidence v) {
  static constexpr const char* kNames[] = {"certain", "likely", "possible"};
  return kNames[static_cast<int>(v)];
}

namespace {

constexpr double kStuckSeconds = 1.0;  // younger operations are work in progress
constexpr double kSameCauseSeconds = 2.0;

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

double seconds_between(Time from, Time to) {
  return static_cast<double>(to - from) * 1e-9;
}

std::string slot_text(std::string_view op, std::uint64_t seq, const Group& g) {
  return fmt::format("{} #{} of {}", op, seq, g.title());
}

// One diagnosis in the making. The deciders are tried in the order of `run`; each says whether it
// found the cause.
class Diagnosis {
 public:
  explicit Diagnosis(const Case& c)
      : c_(c),
        slots_(make_slots(c)),
        history_(c),
        ends_(ends_of(c)),
        missing_ends_(ends_of_missing(c)) {}

  Report run() {
    inventory();
    double threshold = kStuckSeconds;
    for (const RankEvidence* e : c_.ranks) {
      threshold = std::min(threshold, 0.5 * e->option_seconds("FR_TIMEOUT_S", 60));
    }
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      if (ends_[i].primary()) {
        primary_.push_back(static_cast<int>(i));
      }
    }
    for (std::size_t i = 0; i < missing_ends_.size(); ++i) {
      if (missing_ends_[i].primary()) {
        missing_primary_.push_back(static_cast<int>(i));
      }
    }
    const bool somebody_died = !primary_.empty() || !missing_primary_.empty();
    const WaitGraph settled = wait_graph(c_, ends_, threshold);
    graph_ = somebody_died ? wait_graph(c_, ends_, 0) : settled;
    divergence_ = first_divergence(c_, slots_);

    (void)((divergence_ && !divergence_->past && mismatch(*divergence_)) ||
           (somebody_died && exited(settled)) || left_early_or_missing() || cycle() ||
           own_errors() || no_evidence() || everybody_came() || lifecycle() || terminated() ||
           (divergence_ && divergence_->past && divergence_->strict && mismatch(*divergence_)) ||
           stale() || nothing_stuck());
    consequences();
    finish();
    return std::move(r_);
  }

 private:
  // ------------------------------------------------------------ words

  const RankEvidence& ev(int i) const { return c_.evidence_of(i); }
  Rank rank(int i) const { return ev(i).id.rank; }
  std::vector<Rank> ranks(const std::vector<int>& evidence) const {
    std::vector<Rank> out;
    for (const int i : evidence) {
      out.push_back(rank(i));
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  const Group& group(int g) const { return c_.groups[at(g)]; }

  void say(const char* id, std::string text) { r_.findings.push_back({id, std::move(text)}); }
  void lower(Confidence to, std::string reason) {
    r_.confidence = std::max(r_.confidence, to);
    if (std::find(doubts_.begin(), doubts_.end(), reason) == doubts_.end()) {
      doubts_.push_back(std::move(reason));
    }
  }

  const Record* last_operation(int i) const {
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

  const Group* group_of(int i, const Record& r) const {
    const auto& rows = c_.group_of[at(i)];
    const int g = r.group < rows.size() ? rows[r.group] : -1;
    return g < 0 ? nullptr : &group(g);
  }

  std::string record_text(int i, const Record& r) const {
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

  std::string at_site(int i, std::uint32_t stack) const {
    const std::string text = site_text(user_site(ev(i), stack));
    return text.empty() ? "" : " at " + text;
  }

  std::vector<std::string> stack_lines(int i, std::uint32_t stack) const {
    std::vector<std::string> out;
    const RankEvidence& e = ev(i);
    if (stack < e.stacks.size()) {
      for (const std::uint32_t f : e.stacks[stack]) {
        if (f < e.frames.size()) {
          const Frame& frame = e.frames[f];
          out.push_back(
              fmt::format("{}:{} {}", e.text(frame.file), frame.line, e.text(frame.func)));
        }
      }
    }
    return out;
  }

  // Lifecycle call in which the rank is right now ("destroy_process_group"), nullptr if in none.
  const Record* lifecycle_in_flight(int i) const {
    for (auto it = ev(i).records.rbegin(); it != ev(i).records.rend(); ++it) {
      if (it->kind == Kind::kLifecycle && it->ended == 0 &&
          (it->state == State::kEnqueued || it->state == State::kStarted ||
           it->state == State::kWaiting)) {
        return &*it;
      }
    }
    return nullptr;
  }

  // ------------------------------------------------------------ what was read

  void inventory() {
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

  // ------------------------------------------------------------ blame

  Blamed& blame(int i, std::string why) {
    const RankEvidence& e = ev(i);
    Blamed b;
    b.rank = e.id.rank;
    b.host = e.id.host;
    b.pid = e.id.pid;
    b.why = std::move(why);
    if (const Record* last = last_operation(i)) {
      b.site = user_site(e, last->stack);
      b.stack = stack_lines(i, last->stack);
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
    const End& end = ends_[at(i)];
    if (end.ended) {
      b.evidence.push_back(end.text);
    } else if (e.salvage_why == "unresponsive") {
      b.evidence.push_back("its process lives but does not respond (stopped?)");
    }
    if (const Record* call = lifecycle_in_flight(i); call != nullptr && !end.ended) {
      b.evidence.push_back(fmt::format("is in {}{}", e.text(call->op), at_site(i, call->stack)));
    }
    if (e.has_step) {
      b.evidence.push_back(fmt::format("at step {}", e.step));
    }
    for (const ThreadNotes& n : e.notes) {
      if (!n.spans.empty()) {
        std::string text = "inside span ";
        for (std::size_t s = 0; s < n.spans.size(); ++s) {
          text += (s != 0 ? " > " : "") + n.spans[s].first;
        }
        if (n.spans.back().second != 0 && e.written > n.spans.back().second) {
          text += fmt::format(" for {}",
                              duration_text(seconds_between(n.spans.back().second, e.written)));
        }
        b.evidence.push_back(std::move(text));
      }
      if (!n.note.empty()) {
        b.evidence.push_back(fmt::format("last note \"{}\"", n.note));
      }
    }
    r_.blamed.push_back(std::move(b));
    r_.ranks.push_back(e.id.rank);
    return r_.blamed.back();
  }

  Blamed& blame_missing(Rank who, std::string why, std::string text) {
    Blamed b;
    b.rank = who;
    b.why = std::move(why);
    b.evidence.push_back(std::move(text));
    r_.blamed.push_back(std::move(b));
    r_.ranks.push_back(who);
    return r_.blamed.back();
  }

  std::string meeting_op(const Meeting& m) const {
    for (const Wait& w : m.waits) {
      if (w.record != SIZE_MAX) {
        return std::string(ev(w.evidence).text(ev(w.evidence).records[w.record].op));
      }
    }
    return "an operation";
  }

  std::string meeting_text(const Meeting& m) const {
    std::string out = slot_text(meeting_op(m), m.seq, group(m.group));
    if (m.kind != Kind::kCollective) {
      out += fmt::format(" from rank {} to rank {}", m.from, m.to);
    }
    return out;
  }

  std::vector<Rank> waiting_ranks(const Meeting& m) const {
    std::vector<Rank> out;
    for (const Wait& w : m.waits) {
      out.push_back(rank(w.evidence));
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  // Who waits where, by call site.
  void add_waiting(const Meeting& m, const std::set<int>& but) {
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

  void add_all_waiting(int first_meeting, const std::set<int>& but) {
    if (first_meeting >= 0) {
      add_waiting(graph_.meetings[at(first_meeting)], but);
    }
    for (std::size_t k = 0; k < graph_.meetings.size(); ++k) {
      if (static_cast<int>(k) != first_meeting) {
        add_waiting(graph_.meetings[k], but);
      }
    }
  }

  // The meeting that says most about the blamed: most waiting, then earliest.
  int main_meeting(const std::set<int>& blamed, bool must_be_absent = true) const {
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

  std::string wait_words(const std::vector<Rank>& who) const {
    return fmt::format("{} {} there", ranks_words(who), who.size() == 1 ? "waits" : "wait");
  }

  // What the rank usually does next, after its last operation in `g` or at its very end.
  std::optional<std::string> usual_words(int i, int g, Site* site = nullptr) {
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

  // ------------------------------------------------------------ mismatch

  // Which class did what was due, judged by earlier iterations and sister groups; -1: nothing
  // tells.
  int class_by_precedent(const Divergence& d) {
    const Group& g = group(d.group);
    std::vector<int> votes(d.classes.size(), 0);
    for (std::size_t k = 0; k < d.classes.size(); ++k) {
      for (const int m : d.classes[k]) {
        const int i = g.evidence[at(m)];
        const Record* r = slots_[at(d.group)].at(c_, g, at(m), d.seq);
        const std::vector<Step>& steps = history_.of(i);
        const std::size_t index = static_cast<std::size_t>(r - ev(i).records.data());
        const auto step =
            std::lower_bound(steps.begin(), steps.end(), index,
                             [](const Step& s, std::size_t wanted) { return s.record < wanted; });
        const auto pos = static_cast<std::size_t>(step - steps.begin());
        const auto usual = usual_next(steps, pos);
        if (usual) {
          votes[k] += steps[*usual].key == steps[pos].key ? 1 : -1;
        }
        // Sister groups: same description and size, other members, same slot.
        const std::uint64_t own = signature_hash(ev(i), *r);
        for (std::size_t s = 0; s < c_.groups.size(); ++s) {
          const Group& sister = c_.groups[s];
          if (static_cast<int>(s) == d.group || sister.ranks.size() != g.ranks.size() ||
              sister.ranks == g.ranks) {
            continue;
          }
          for (std::size_t n = 0; n < sister.ranks.size(); ++n) {
            if (const Record* other = slots_[s].at(c_, sister, n, d.seq);
                other != nullptr && signature_hash(ev(sister.evidence[n]), *other) == own) {
              ++votes[k];
            }
          }
        }
      }
    }
    const auto best = std::max_element(votes.begin(), votes.end());
    return *best > 0 && std::count(votes.begin(), votes.end(), *best) == 1
               ? static_cast<int>(best - votes.begin())
               : -1;
  }

  // Did the member leave one operation out? Its record at the slot is what comes one (or a few)
  // slots later, or usually came one after what the others have there.
  bool skipped(const Divergence& d, int member, int reference) {
    const Group& g = group(d.group);
    const Slots& s = slots_[at(d.group)];
    const auto key = [&](int m, std::uint64_t seq) -> std::optional<std::uint64_t> {
      const Record* r = s.at(c_, g, at(m), seq);
      if (r == nullptr) {
        return std::nullopt;
      }
      const int i = g.evidence[at(m)];
      const std::vector<Step>& steps = history_.of(i);
      const std::size_t index = static_cast<std::size_t>(r - ev(i).records.data());
      const auto it =
          std::lower_bound(steps.begin(), steps.end(), index,
                           [](const Step& x, std::size_t wanted) { return x.record < wanted; });
      return it->key;
    };
    const auto own = key(member, d.seq), others = key(reference, d.seq);
    if (!own || !others || *own == *others) {
      return false;
    }
    constexpr std::uint64_t kLookahead = 4;
    for (std::uint64_t ahead = 1; ahead <= kLookahead; ++ahead) {
      if (key(reference, d.seq + ahead) == own) {
        return true;
      }
    }
    // What usually follows: the last earlier slot with what the others have now.
    const std::uint64_t oldest = d.seq > 4096 ? d.seq - 4096 : 1;
    for (std::uint64_t j = d.seq - 1; j >= oldest && j > 0; --j) {
      const auto earlier = key(reference, j);
      if (!earlier) {
        break;
      }
      if (*earlier == *others) {
        for (std::uint64_t ahead = 1; ahead <= kLookahead && j + ahead < d.seq; ++ahead) {
          if (key(reference, j + ahead) == own) {
            return true;
          }
        }
        return false;
      }
    }
    return false;
  }

  bool mismatch(Divergence d) {
    const Group& g = group(d.group);
    int right = 0;
    bool open = false;
    if (d.tie) {
      right = class_by_precedent(d);
      if (right < 0) {
        open = true;
        right = 0;
      } else {
        lower(Confidence::kLikely, "as many on either side, earlier iterations decide");
      }
    }
    if (d.incomplete_vote) {
      lower(Confidence::kLikely, "not all members' records of that slot are at hand");
      if (open && !c_.missing.empty()) {
        // Whoever is not heard could turn the vote.
        r_.kind = Verdict::kUndecided;
        r_.summary = fmt::format(
            "members of {} differ at #{} ({}); evidence of {} is lacking to say who is wrong",
            g.title(), d.seq, fmt::join(d.words, "; "), ranks_words(c_.missing));
        return true;
      }
    }
    std::vector<int> guilty;  // members
    for (std::size_t k = 0; k < d.classes.size(); ++k) {
      if (open || static_cast<int>(k) != right) {
        guilty.insert(guilty.end(), d.classes[k].begin(), d.classes[k].end());
      }
    }
    std::sort(guilty.begin(), guilty.end());
    const int reference = d.classes[at(right)].front();
    const int ref_evidence = g.evidence[at(reference)];
    const Record& due = *slots_[at(d.group)].at(c_, g, at(reference), d.seq);
    const std::string due_text = operation_text(ev(ref_evidence), due);
    const std::string due_site = at_site(ref_evidence, due.stack);
    const std::string due_op(ev(ref_evidence).text(due.op));
    const bool all_skipped = !open && std::all_of(guilty.begin(), guilty.end(),
                                                  [&](int m) { return skipped(d, m, reference); });
    r_.kind = all_skipped ? Verdict::kMissing : Verdict::kMismatch;
    std::set<int> blamed;
    std::string own_words;
    for (const int m : guilty) {
      const int i = g.evidence[at(m)];
      blamed.insert(i);
      const Record& own = *slots_[at(d.group)].at(c_, g, at(m), d.seq);
      if (own_words.empty()) {
        own_words = operation_text(ev(i), own) + at_site(i, own.stack);
      }
      Blamed& b = blame(i, all_skipped ? "never_issued" : open ? "differs" : "minority");
      b.group = g.name;
      b.desc = g.desc;
      b.op = all_skipped ? due_op : std::string(ev(i).text(own.op));
      b.seq = d.seq;
      b.site = user_site(ev(i), own.stack);
      b.stack = stack_lines(i, own.stack);
      b.evidence.insert(b.evidence.begin(),
                        fmt::format("issued {}{} as #{}", operation_text(ev(i), own),
                                    at_site(i, own.stack), d.seq));
    }
    std::vector<Rank> others;
    for (std::size_t k = 0; k < d.classes.size(); ++k) {
      if (!open && static_cast<int>(k) == right) {
        for (const int m : d.classes[k]) {
          others.push_back(g.ranks[at(m)]);
        }
      }
    }
    std::sort(r_.ranks.begin(), r_.ranks.end());
    if (all_skipped) {
      r_.summary = fmt::format("{} never issued {}{}; what {} issued there is what comes after it",
                               ranks_words(r_.ranks), slot_text(due_op, d.seq, g), due_site,
                               r_.ranks.size() == 1 ? "it" : "they");
      say("why", fmt::format("as #{} {} issued {}, {} issued {}{}: one operation was left out, all "
                             "later ones are shifted",
                             d.seq, ranks_words(r_.ranks), own_words, ranks_words(others), due_text,
                             due_site));
    } else if (open) {
      r_.summary = fmt::format("{} differ at {}: {}", ranks_words(r_.ranks),
                               slot_text(due_op, d.seq, g), fmt::join(d.words, "; "));
      lower(Confidence::kPossible, "as many on either side, and nothing tells which is right");
    } else {
      if (r_.blamed.front().op != due_op) {
        r_.summary =
            fmt::format("{} issued {} where {} issued {}", ranks_words(r_.ranks),
                        slot_text(r_.blamed.front().op, d.seq, g), ranks_words(others), due_op);
      } else {
        r_.summary = fmt::format("{} issued {} with {}", ranks_words(r_.ranks),
                                 slot_text(due_op, d.seq, g), fmt::join(d.words, "; "));
        if (!others.empty()) {
          r_.summary +=
              fmt::format("; {} {}", ranks_words(others), others.size() == 1 ? "differs" : "agree");
        }
      }
      say("why", fmt::format("{} issued {}{}; {} issued {}", ranks_words(others), due_text,
                             due_site, ranks_words(r_.ranks), own_words));
    }
    if (d.past) {
      say("context", "all members completed it nevertheless: their results are wrong, not stuck");
      lower(Confidence::kLikely, "the operation completed");
    }
    int first = -1;
    for (std::size_t k = 0; k < graph_.meetings.size(); ++k) {
      if (graph_.meetings[k].group == d.group && graph_.meetings[k].seq == d.seq) {
        first = static_cast<int>(k);
      }
    }
    add_all_waiting(first, blamed);
    return true;
  }

  // ------------------------------------------------------------ ended processes

  // Evidence the waits of a settled hang end in.
  std::vector<int> sinks_alive(const WaitGraph& graph) const {
    std::vector<int> out;
    for (const int s : graph.sinks) {
      if (!ends_[at(s)].ended || ends_[at(s)].terminated) {
        out.push_back(s);
      }
    }
    return out;
  }

  bool exited(const WaitGraph& settled) {
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
        const double timeout = ev(m.waits.front().evidence).option_seconds("FR_TIMEOUT_S", 60);
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
      const ExitEvidence& x = ev(i).exit;
      if (const std::string site = at_site(i, x.stack); x.present && !site.empty()) {
        b.evidence.push_back("ended" + site);
      }
    }
    if (chosen.empty() || !missing_primary_.empty()) {
      for (const int i : missing_primary_) {
        const End& end = missing_ends_[at(i)];
        blame_missing(c_.missing[at(i)], end.why, end.text + ", as the ranks of its node saw");
      }
      lower(Confidence::kLikely, "the ended rank left no evidence of its own");
    }
    std::sort(r_.ranks.begin(), r_.ranks.end());
    const std::string text = !chosen.empty() ? ends_[at(chosen.front())].text
                                             : missing_ends_[at(missing_primary_.front())].text;
    r_.summary = fmt::format("{} ended: {}", ranks_words(r_.ranks), text);
    const int shown = meeting >= 0 ? meeting : main_meeting(blamed, false);
    if (shown >= 0) {
      const Meeting& m = graph_.meetings[at(shown)];
      std::vector<Rank> who = waiting_ranks(m);
      std::erase_if(who, [&](Rank x) {
        return std::find(r_.ranks.begin(), r_.ranks.end(), x) != r_.ranks.end();
      });
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
    add_all_waiting(shown, blamed);
    if (all_gone && chosen.size() > 1) {
      lower(Confidence::kLikely, "all processes are gone and none says why");
    } else if (chosen.size() > 1) {
      lower(Confidence::kLikely, "several ended at about the same time");
    }
    for (const int i : primary_) {
      if (!blamed.contains(i)) {
        say("excluded", fmt::format("rank {} ended too ({}), later or while it waited", rank(i),
                                    ends_[at(i)].text));
      }
    }
    return true;
  }

  void fill_slot(Blamed& b, const Meeting& m) const {
    b.group = group(m.group).name;
    b.desc = group(m.group).desc;
    b.op = meeting_op(m);
    b.seq = m.seq;
  }

  // ------------------------------------------------------------ never came

  bool leaving(int i) const {
    if (ends_[at(i)].ended) {
      return ends_[at(i)].clean;
    }
    for (auto it = ev(i).records.rbegin(); it != ev(i).records.rend(); ++it) {
      if (it->kind == Kind::kCollective || it->kind == Kind::kSend || it->kind == Kind::kRecv) {
        return false;
      }
      if (it->kind == Kind::kLifecycle &&
          canonical_op(ev(i).text(it->op)) == "destroyprocessgroup") {
        return true;
      }
    }
    return false;
  }

  // A minority waits in an operation that is none of the job's: all others have gone, or nobody
  // ever issued it before.
  bool extra_operation(const Meeting& m, const std::vector<int>& absent, bool ended_too) {
    if (m.kind != Kind::kCollective || absent.size() < 2 || m.waits.size() >= absent.size()) {
      return false;
    }
    const bool all_leaving =
        std::all_of(absent.begin(), absent.end(), [&](int i) { return leaving(i); });
    bool novel = !ended_too;
    for (const Wait& w : m.waits) {
      const std::vector<Step>& steps = history_.of(w.evidence);
      const auto pos = static_cast<std::size_t>(
          std::lower_bound(steps.begin(), steps.end(), w.record,
                           [](const Step& s, std::size_t r) { return s.record < r; }) -
          steps.begin());
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

  bool left_early_or_missing() {
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
      if (const auto shift = shifted(i, own->group)) {
        b.evidence.push_back(*shift);
      }
      const Group& g = group(own->group);
      const auto position = g.position.find(rank(i));
      if (position != g.position.end() && g.row[at(position->second)] < 0) {
        b.evidence.push_back(
            fmt::format("does not know the group {}: never created it", g.title()));
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
      const bool timed_out =
          std::any_of(c_.ranks.begin(), c_.ranks.end(),
                      [](const RankEvidence* e) { return e->trigger == "timeout"; });
      if (!timed_out) {
        lower(Confidence::kLikely, fmt::format("it lasted only {} when the evidence was taken",
                                               duration_text(m.seconds())));
      }
    }
    return true;
  }

  bool blame_extra(const Meeting& m, int k, const std::vector<int>& absent) {
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

  // "skipped all_reduce #41 at f:1": its call sites run ahead of the others' from that slot on.
  std::optional<std::string> shifted(int i, int group_index) {
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

  // Why the others are not to blame: each waits, and for whom.
  void explain_waits(const std::set<int>& blamed) {
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

  // ------------------------------------------------------------ cycles

  bool cycle() {
    if (graph_.cycles.empty()) {
      return false;
    }
    struct Deviant {
      int evidence;
      int meeting;
      Deviation how;
      bool foreign;  // what it issued instead is new: another order, not one left out
    };
    std::vector<Deviant> deviants;
    std::set<int> on_cycle;
    std::set<int> cycle_meetings;
    bool all_explained = true;
    for (const std::vector<int>& members : graph_.cycles) {
      std::size_t before = deviants.size();
      const std::set<int> in(members.begin(), members.end());
      on_cycle.insert(in.begin(), in.end());
      for (std::size_t k = 0; k < graph_.meetings.size(); ++k) {
        const Meeting& m = graph_.meetings[k];
        const bool inner = std::any_of(m.waits.begin(), m.waits.end(),
                                       [&](const Wait& w) { return in.contains(w.evidence); });
        if (!inner) {
          continue;
        }
        cycle_meetings.insert(static_cast<int>(k));
        for (const int a : m.absent) {
          if (!in.contains(a)) {
            continue;
          }
          const std::vector<Step>& steps = history_.of(a);
          if (const auto how = deviation(steps, m.group)) {
            bool foreign = true;
            for (std::size_t j = 0; j < how->issued && foreign; ++j) {
              foreign = steps[j].key != steps[how->issued].key;
            }
            deviants.push_back({a, static_cast<int>(k), *how, foreign});
          }
        }
      }
      std::set<int> distinct;
      for (std::size_t d = before; d < deviants.size(); ++d) {
        distinct.insert(deviants[d].evidence);
      }
      if (distinct.size() == in.size() && in.size() > 1) {
        deviants.resize(before);  // everybody deviates: nobody does
      }
      all_explained = all_explained && deviants.size() > before;
    }
    if (all_explained) {
      std::set<int> blamed;
      const bool order =
          std::all_of(deviants.begin(), deviants.end(), [](const Deviant& d) { return d.foreign; });
      r_.kind = order ? Verdict::kDeadlock : Verdict::kMissing;
      for (const Deviant& d : deviants) {
        if (!blamed.insert(d.evidence).second) {
          continue;
        }
        Blamed& b = blame(d.evidence, order ? "other_order" : "never_issued");
        fill_slot(b, graph_.meetings[at(d.meeting)]);
        if (const auto words = usual_words(d.evidence, graph_.meetings[at(d.meeting)].group)) {
          b.evidence.push_back(*words);
        }
      }
      std::sort(r_.ranks.begin(), r_.ranks.end());
      const int k = deviants.front().meeting;
      const Meeting& m = graph_.meetings[at(k)];
      r_.summary =
          order ? fmt::format("{} took another order: {} did not come before it; {}",
                              ranks_words(r_.ranks), meeting_text(m), wait_words(waiting_ranks(m)))
                : fmt::format("{} never issued {}; {}", ranks_words(r_.ranks), meeting_text(m),
                              wait_words(waiting_ranks(m)));
      say("why",
          "the ranks wait for each other in a circle; only the blamed left the order of "
          "their earlier iterations");
      explain_waits(blamed);
      add_all_waiting(k, {});
      lower(Confidence::kLikely, "the order of earlier iterations decides");
      return true;
    }
    return deadlock(on_cycle, cycle_meetings);
  }

  bool deadlock(const std::set<int>& on_cycle, const std::set<int>& meetings) {
    // Most members of both groups took them in one order: the few others are wrong.
    std::set<int> guilty = on_cycle;
    if (meetings.size() == 2) {
      const int a = *meetings.begin(), b = *meetings.rbegin();
      const Meeting& ma = graph_.meetings[at(a)];
      const Meeting& mb = graph_.meetings[at(b)];
      std::set<int> in_a, in_b;
      for (const int i : on_cycle) {
        const Rank who = rank(i);
        if (group(ma.group).position.contains(who) && group(mb.group).position.contains(who)) {
          const auto waits = [&](const Meeting& m) {
            return std::any_of(m.waits.begin(), m.waits.end(),
                               [&](const Wait& w) { return w.evidence == i; });
          };
          (waits(ma) ? in_a : in_b).insert(i);
        }
      }
      if (!in_a.empty() && !in_b.empty() && in_a.size() != in_b.size()) {
        guilty = in_a.size() < in_b.size() ? in_a : in_b;
        lower(Confidence::kLikely, "the order of most members is taken for the right one");
      }
    }
    const bool everybody = guilty == on_cycle;
    if (everybody && c_.missing.empty()) {
      lower(Confidence::kLikely, "nobody's earlier iterations tell which order is right");
    } else if (everybody) {
      lower(Confidence::kPossible, "nobody's earlier iterations tell which order is right");
    }
    r_.kind = Verdict::kDeadlock;
    std::vector<std::string> parts;
    int first = -1;
    for (const int k : meetings) {
      const Meeting& m = graph_.meetings[at(k)];
      first = first < 0 ? k : first;
      if (parts.size() < 4) {
        parts.push_back(fmt::format("{} in {}", ranks_words(waiting_ranks(m)), meeting_text(m)));
      }
    }
    for (const int i : guilty) {
      Blamed& b = blame(i, everybody ? "on_cycle" : "other_order");
      if (!graph_.waits_in[at(i)].empty()) {
        fill_slot(b, graph_.meetings[at(graph_.waits_in[at(i)].front())]);
      }
    }
    std::sort(r_.ranks.begin(), r_.ranks.end());
    r_.summary = everybody ? fmt::format("{} wait for each other: {}", ranks_words(r_.ranks),
                                         fmt::join(parts, "; "))
                           : fmt::format("{} took another order than the others: {}",
                                         ranks_words(r_.ranks), fmt::join(parts, "; "));
    add_all_waiting(first, {});
    return true;
  }

  // ------------------------------------------------------------ the rest

  // An operation that failed on its own account, without anybody dying of it.
  bool own_errors() {
    std::set<int> blamed;
    Time first = 0;
    const Wait* earliest = nullptr;
    const Meeting* where = nullptr;
    for (const Meeting& m : graph_.meetings) {
      for (const Wait& w : m.waits) {
        if (w.own_error && (first == 0 || w.until < first)) {
          first = w.until;
          earliest = &w;
          where = &m;
        }
      }
    }
    if (earliest == nullptr) {
      return false;
    }
    std::vector<Rank> who;
    for (const Wait& w : where->waits) {
      if (w.own_error) {
        who.push_back(rank(w.evidence));
      }
    }
    r_.kind = Verdict::kUndecided;
    const Record& record = ev(earliest->evidence).records[earliest->record];
    r_.summary = fmt::format(
        "{} failed on {}: {}; its members agree on what they issued, so the "
        "evidence does not name who caused it",
        meeting_text(*where), ranks_words(who), ev(earliest->evidence).text(record.error));
    add_all_waiting(static_cast<int>(where - graph_.meetings.data()), {});
    return true;
  }

  bool no_evidence() {
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
    add_all_waiting(k, {});
    // A rank that left its usual order may be what the one without evidence waits for.
    bool suspect = false;
    for (const Meeting& other : graph_.meetings) {
      for (const Wait& w : other.waits) {
        const auto& rows = c_.group_of[at(w.evidence)];
        for (const int g : rows) {
          suspect = suspect || (g >= 0 && group(g).position.contains(who.front()) &&
                                deviation(history_.of(w.evidence), g).has_value());
        }
      }
    }
    const bool alive =
        std::any_of(who.begin(), who.end(), [&](Rank x) { return seen_alive(c_, x); });
    if (who.size() == 1 && !alive && !suspect && !m.complete) {
      r_.kind = Verdict::kExited;
      Blamed& b = blame_missing(who.front(), "no_evidence",
                                "left no evidence at all, and all waits end at it");
      fill_slot(b, m);
      r_.summary = fmt::format("{} left no evidence and is waited for in {} by {}",
                               ranks_words(who), meeting_text(m), ranks_words(waiting_ranks(m)));
      lower(Confidence::kPossible, "it may have lost its evidence only");
      return true;
    }
    r_.kind = Verdict::kUndecided;
    r_.summary = fmt::format("{} {} in {}; evidence of {} is lacking to say why",
                             ranks_words(waiting_ranks(m)), m.waits.size() == 1 ? "waits" : "wait",
                             meeting_text(m), ranks_words(who));
    if (alive) {
      say("input", fmt::format("others saw {} alive", ranks_words(who)));
    }
    return true;
  }

  // All members issued it, and it does not end.
  bool everybody_came() {
    if (graph_.complete.empty()) {
      return false;
    }
    const int k = *std::min_element(
        graph_.complete.begin(), graph_.complete.end(),
        [&](int a, int b) { return graph_.meetings[at(a)].since < graph_.meetings[at(b)].since; });
    const Meeting& m = graph_.meetings[at(k)];
    const Group& g = group(m.group);
    std::set<int> blamed;
    for (const int i : g.evidence) {
      if (i >= 0 && ev(i).salvage_why == "unresponsive") {
        blamed.insert(i);
      }
    }
    if (!blamed.empty()) {
      r_.kind = Verdict::kDevice;
      for (const int i : blamed) {
        fill_slot(blame(i, "unresponsive"), m);
      }
      r_.summary =
          fmt::format("{} issued {} and no longer respond{}; the others wait there",
                      ranks_words(r_.ranks), meeting_text(m), r_.ranks.size() == 1 ? "s" : "");
      add_all_waiting(k, blamed);
      return true;
    }
    bool all_started = m.kind == Kind::kCollective && m.waits.size() == g.ranks.size();
    bool failed = false;
    for (const Wait& w : m.waits) {
      all_started = all_started && w.record != SIZE_MAX &&
                    ev(w.evidence).records[w.record].state == State::kStarted;
      failed = failed || w.failed;
    }
    add_all_waiting(k, {});
    if (all_started) {
      r_.kind = Verdict::kTransport;
      r_.summary = fmt::format("all members started {} and none finished", meeting_text(m));
      lower(Confidence::kLikely, "the layer below is not seen");
      return true;
    }
    r_.kind = Verdict::kUndecided;
    r_.summary = failed ? fmt::format(
                              "{} failed though all its members issued it; nobody's process ended "
                              "before, so the evidence does not name who caused it",
                              meeting_text(m))
                        : fmt::format(
                              "all members issued {} and it does not end on {}; what happens below "
                              "the host is not in the evidence",
                              meeting_text(m), ranks_words(waiting_ranks(m)));
    return true;
  }

  // Ranks inside init_process_group, new_group or destroy_process_group for long.
  bool lifecycle() {
    std::map<std::string, std::vector<int>> inside;
    double longest = 0;
    for (int i = 0; i < static_cast<int>(c_.ranks.size()); ++i) {
      const Record* r = lifecycle_in_flight(i);
      if (r == nullptr || ends_[at(i)].ended) {
        continue;
      }
      const double seconds = seconds_between(r->time, ev(i).written);
      if (seconds >= kStuckSeconds) {
        inside[std::string(ev(i).text(r->op))].push_back(i);
        longest = std::max(longest, seconds);
      }
    }
    if (inside.empty()) {
      return false;
    }
    const auto& [op, members] = *std::max_element(
        inside.begin(), inside.end(),
        [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    for (const int i : members) {
      const Record& r = *lifecycle_in_flight(i);
      Waiting w;
      w.ranks = {rank(i)};
      w.op = op;
      if (const Group* g = group_of(i, r)) {
        w.group = g->name;
        w.desc = g->desc;
      }
      w.site = user_site(ev(i), r.stack);
      w.seconds = seconds_between(r.time, ev(i).written);
      w.stack = stack_lines(i, r.stack);
      if (!r_.waiting.empty() && r_.waiting.back().site == w.site) {
        r_.waiting.back().ranks.push_back(rank(i));
        r_.waiting.back().seconds = std::max(r_.waiting.back().seconds, w.seconds);
      } else {
        r_.waiting.push_back(std::move(w));
      }
    }
    std::vector<int> outside;
    const std::set<int> in(members.begin(), members.end());
    for (int i = 0; i < static_cast<int>(c_.ranks.size()); ++i) {
      if (in.contains(i) || ends_[at(i)].ended) {
        continue;
      }
      const bool came =
          std::any_of(ev(i).records.begin(), ev(i).records.end(), [&](const Record& r) {
            return r.kind == Kind::kLifecycle && ev(i).text(r.op) == op &&
                   r.time + 60'000'000'000 > ev(members.front()).records.front().time &&
                   r.seq >= lifecycle_in_flight(members.front())->seq;
          });
      if (!came) {
        outside.push_back(i);
      }
    }
    if (!outside.empty() && c_.missing.empty() && outside.size() < c_.ranks.size()) {
      r_.kind = Verdict::kMissing;
      for (const int i : outside) {
        blame(i, "never_issued").op = op;
      }
      std::sort(r_.ranks.begin(), r_.ranks.end());
      r_.summary = fmt::format("{} never came to {}; {} {} there", ranks_words(r_.ranks), op,
                               ranks_words(ranks(members)), members.size() == 1 ? "waits" : "wait");
      lower(Confidence::kPossible, op + " need not wait for all ranks");
      return true;
    }
    r_.kind = Verdict::kUndecided;
    r_.summary = fmt::format(
        "{} {} been in {} for {}; no operation is in flight, and the evidence "
        "does not say what it waits for",
        ranks_words(ranks(members)), members.size() == 1 ? "has" : "have", op,
        duration_text(longest));
    if (!c_.missing.empty()) {
      r_.summary += "; evidence of " + ranks_words(c_.missing) + " is lacking";
    }
    return true;
  }

  // Told to end from outside, with nothing stuck and nobody dead.
  bool terminated() {
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
        b.evidence.push_back(fmt::format(
            "by process {}, {} before the others were ended by {}", first.sender_pid,
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

  bool stale() {
    if (graph_.too_old.empty()) {
      return false;
    }
    r_.kind = Verdict::kUndecided;
    r_.summary = fmt::format(
        "something is stuck, but the evidence of {} is older than the waits "
        "of the others",
        ranks_words(ranks(graph_.too_old)));
    return true;
  }

  bool nothing_stuck() {
    // Somebody had a reason to dump, and it is not among what was read.
    const auto alarm = std::find_if(c_.ranks.begin(), c_.ranks.end(), [](const RankEvidence* e) {
      return e->trigger == "timeout" || e->trigger == "peer" || e->trigger == "failure" ||
             e->trigger == "salvage";
    });
    if (!c_.missing.empty() && alarm != c_.ranks.end()) {
      r_.kind = Verdict::kUndecided;
      r_.summary = fmt::format(
          "nothing is stuck on {}, but it dumped for a reason ({}); evidence of "
          "{} is lacking",
          c_.ranks.size() == 1 ? ranks_words({c_.ranks[0]->id.rank}) : "the ranks that were read",
          (*alarm)->reason.empty() ? (*alarm)->trigger : (*alarm)->reason, ranks_words(c_.missing));
      return true;
    }
    r_.kind = Verdict::kOk;
    r_.summary = "nothing is stuck";
    if (graph_.fresh > 0) {
      r_.summary += fmt::format(
          "; {} in flight, all young",
          graph_.fresh == 1 ? "1 operation" : fmt::format("{} operations", graph_.fresh));
    }
    if (!c_.missing.empty()) {
      lower(Confidence::kLikely, fmt::format("no evidence of {}", ranks_words(c_.missing)));
    }
    return true;
  }

  // ------------------------------------------------------------ closing words

  void consequences() {
    if (r_.kind == Verdict::kOk) {
      return;
    }
    const std::set<Rank> blamed(r_.ranks.begin(), r_.ranks.end());
    std::map<std::string, std::vector<Rank>> after, told;
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      const Rank who = rank(static_cast<int>(i));
      if (blamed.contains(who)) {
        continue;
      }
      if (ends_[i].terminated) {
        told[ends_[i].text].push_back(who);
      } else if (ends_[i].consequence) {
        after[ends_[i].text].push_back(who);
      } else {
        for (const Wait& w : waits_of(static_cast<int>(i))) {
          if (w.failed && w.record != SIZE_MAX) {
            after[std::string(ev(w.evidence).text(ev(w.evidence).records[w.record].error))]
                .push_back(who);
            break;
          }
        }
      }
    }
    for (const auto& [text, who] : after) {
      say("consequence",
          fmt::format("{} failed after that: {}", ranks_words(who), text.substr(0, 160)));
    }
    for (const auto& [text, who] : told) {
      say("consequence", fmt::format("{} {} {} after that", ranks_words(who),
                                     who.size() == 1 ? "was" : "were", text));
    }
  }

  std::vector<Wait> waits_of(int i) const {
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

  void finish() {
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
          say("lost", fmt::format("{} records of {} found no room; its counters are exact",
                                  g.dropped, g.desc.empty() ? g.name : g.desc));
        }
      }
    }
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

  const Case& c_;
  Report r_;
  std::vector<Slots> slots_;
  History history_;
  std::vector<End> ends_, missing_ends_;
  std::vector<int> primary_, missing_primary_;
  WaitGraph graph_;
  std::optional<Divergence> divergence_;
  std::vector<std::string> doubts_;
};

}  // namespace

Report diagnose(const Case& c) {
  return Diagnosis(c).run();
}

}  // namespace frtrace
