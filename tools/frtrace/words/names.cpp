// Names of operations, places and ends, and helpers that build the lines of a report.
#include <algorithm>
#include <csignal>
#include <map>
#include <set>

#include "format/system_names.hpp"
#include "model/operation.hpp"
#include "words/words.hpp"

namespace frtrace {

std::string Names::record(int evidence, const Record& r) const {
  const Group* g = f.group_of(evidence, r);
  std::string out(f.ev(evidence).text(r.op));
  out += r.kind == Kind::kLifecycle ? "" : fmt::format(" #{}", r.seq);
  return out + (g == nullptr ? "" : " of " + g->title()) + peer(evidence, r);
}

std::string Names::peer(int evidence, const Record& r) const {
  const Group* g = f.group_of(evidence, r);
  const bool known = g != nullptr && r.peer >= 0 && r.peer < static_cast<int>(g->ranks.size());
  return given(is_p2p(r), fmt::format(" {} {}", r.kind == Kind::kSend ? "to" : "from",
                                      known        ? fmt::format("rank {}", g->ranks[idx(r.peer)])
                                      : r.peer < 0 ? "any rank"
                                                   : "rank ?"));
}

std::string Names::group_and_peer(const std::vector<Guilty>& all, bool due) const {
  std::set<std::string> titles, descs, peers;
  for (const Guilty& x : all) {
    const int i = due ? x.usual_of : x.evidence;
    const Record& r = f.ev(i).records[due ? x.usual : x.issued];
    const Group* g = f.group_of(i, r);
    if (all.size() > 1 && g != nullptr && g->at(x.rank) < 0) {
      return "";  // a record of another rank, in a group without this rank
    }
    titles.insert(g == nullptr ? "" : g->title());
    descs.insert(g == nullptr ? "" : g->desc);
    peers.insert(peer(i, r));
  }
  if (titles.size() > 1) {
    return descs.size() == 1 && !descs.begin()->empty()
               ? fmt::format(" of {} ({} groups)", *descs.begin(), titles.size())
               : fmt::format(" of {} groups", titles.size());
  }
  return led(" of ", *titles.begin()) + (peers.size() == 1 ? *peers.begin() : "");
}

std::string Names::due(const Guilty& guilty) const {
  const RankEvidence &e = f.ev(guilty.usual_of), &own = f.ev(guilty.evidence);
  const Record &usual = e.records[guilty.usual], &issued = own.records[guilty.issued];
  const Group* g = f.group_of(guilty.usual_of, usual);
  std::string out(e.text(usual.op));
  const std::string site = at(guilty.usual_of, usual.stack);
  if (own.text(issued.op) == out) {
    out += given(g != nullptr && g != f.group_of(guilty.evidence, issued),
                 led(" of ", g != nullptr ? g->title() : "")) +
           peer(guilty.usual_of, usual);
    if (site == at(guilty.evidence, issued.stack)) {
      return out;
    }
  }
  return out + site;
}

std::string Names::at(int evidence, std::uint32_t stack) const {
  return led(" at ", site_text(user_site(f.ev(evidence), stack)));
}

std::vector<std::string> Names::stack(int evidence, std::uint32_t stack) const {
  std::vector<std::string> out;
  const RankEvidence& e = f.ev(evidence);
  for (const std::uint32_t i : stack < e.stacks.size() ? e.stacks[stack] : Stacks::Words()) {
    if (i < e.frames.size()) {
      const Frame& frame = e.frames[i];
      out.push_back(fmt::format("{}:{} {}", short_file(e.text(frame.file), e.id.cwd), frame.line,
                                e.text(frame.func)));
    }
  }
  return out;
}

// Members may have issued different operations: the operation of most members.
std::string Names::op(const Pending& p) const {
  std::map<std::string_view, int> ranks;
  std::string_view most;
  for (const Wait& w : p.waits) {
    if (w.record != kNoRecord) {
      const RankEvidence& e = f.ev(w.evidence);
      const std::string_view op = e.text(e.records[w.record].op);
      most = ++ranks[op] > ranks[most] || most.empty() ? op : most;
    }
  }
  return !most.empty() ? std::string(most) : p.kind == Kind::kCollective ? "collective" : "message";
}

std::string Names::pending(const Pending& p) const {
  return fmt::format("{} #{} of {}", op(p), p.seq, f.group(p.group).title()) +
         (p.kind == Kind::kCollective ? "" : fmt::format(" from rank {} to rank {}", p.from, p.to));
}

std::string Names::waited(const Pending& p) const {
  const Wait* w = p.kind != Kind::kCollective && p.waits.size() == 1 ? &p.waits.front() : nullptr;
  return w == nullptr || w->record == kNoRecord
             ? pending(p)
             : fmt::format("{} #{} of {}{}", op(p), p.seq, f.group(p.group).title(),
                           peer(w->evidence, f.ev(w->evidence).records[w->record]));
}

std::string Names::own_end(const Pending& p, Rank who) const {
  if (p.kind == Kind::kCollective || (who != p.from && who != p.to)) {
    return pending(p);
  }
  return fmt::format("the {} rank {} that {} #{} of {} waits for",
                     who == p.from ? "send to" : "recv from", who == p.from ? p.to : p.from, op(p),
                     p.seq, f.group(p.group).title());
}

std::vector<Rank> Names::waiting(const Pending& p) const {
  return f.ranks(each(p.waits, &Wait::evidence));
}

std::vector<Rank> Names::in_front(const Pending& p) const {
  std::vector<int> who;
  for (const Wait& w : p.waits) {
    if (w.record == kNoRecord || w.failed || f.group(p.group).is_gloo() ||
        f.graph.fronts[idx(w.evidence)].holds(w.record)) {
      who.push_back(w.evidence);
    }
  }
  return f.ranks(who);
}

std::string Names::exit(const Exit& e) const {
  switch (e.kind) {
    case ExitKind::kSignal: {
      const char* name = fr::signal_name(e.signal);
      return "ended by " +
             (name == nullptr ? fmt::format("signal {}", e.signal) : fmt::format("SIG{}", name)) +
             led(", ",
                 !e.message.empty()
                     ? e.message
                     : given(e.sender_pid > 0, fmt::format("sent by process {}", e.sender_pid))) +
             led(", after sys.exit at ", e.exit_place);
    }
    case ExitKind::kException: {
      constexpr std::size_t kShown = 200;
      return e.type + led(": ", e.message.substr(0, kShown)) +
             given(e.message.size() > kShown, "...");
    }
    case ExitKind::kStatus:
      return fmt::format("exited with status {}", e.status) +
             given(!e.last_op.empty(), " after " + e.last_op + led(" at ", e.last_place)) +
             led(", by sys.exit at ", e.exit_place);
    case ExitKind::kGone:
      return "ended and left no exit status (killed, aborted, or os._exit)";
    case ExitKind::kNone:
      break;
  }
  return "runs";
}

std::string handled_text(const Exit& e) {
  const char* name = fr::signal_name(e.handled);
  return e.handled == 0 || name == nullptr
             ? ""
             : fmt::format("got SIG{}{}, which the program handles", name,
                           given(e.sender_pid > 0, fmt::format(" from process {}", e.sender_pid)));
}

const char* exit_verb(ExitKind kind, std::size_t ranks) {
  return kind == ExitKind::kSignal      ? one_or(ranks, "was ", "were ")
         : kind == ExitKind::kException ? "raised "
                                        : "";
}

std::string Names::exit_did(const Exit& e, std::size_t ranks) const {
  std::string text = exit(e);
  text.erase(std::min(text.find('\n'), text.size()));
  if (text.ends_with('.') && !text.ends_with("..")) {
    text.pop_back();  // the sentence goes on
  }
  return exit_verb(e.kind, ranks) + text;
}

std::string before_evidence(const RankEvidence& e, Time t) {
  constexpr Time kLeast = 1000;  // 0 us says nothing
  return t == 0 || e.written < t + kLeast || e.holes.written_guessed
             ? ""
             : fmt::format("{} before {}", duration_text(seconds_between(t, e.written)),
                           e.source == Source::kLiveRing ? "now"
                           : e.process_gone              ? "its last sign of life"
                                                         : "its dump");
}

std::vector<Rank> ranks_of(const std::vector<Guilty>& guilty) {
  const auto all = each(guilty, &Guilty::rank);
  const std::set<Rank> out(all.begin(), all.end());
  return {out.begin(), out.end()};
}

std::set<int> blamed_by(const Cause& c) {
  const auto all = each(c.guilty, &Guilty::evidence);
  return {all.begin(), all.end()};
}

Exit exit_of(const Facts& f, const Guilty& g) {
  const auto at = std::ranges::find(f.c.missing, g.rank) - f.c.missing.begin();
  return g.evidence >= 0                 ? f.exit(g.evidence)
         : at == std::ssize(f.c.missing) ? Exit{}
                                         : f.missing_exits[static_cast<std::size_t>(at)];
}

Side side_of(const Facts& f, const Divergence& d, int of_class) {
  const Group& g = f.group(d.group);
  const std::vector<int>& members = d.classes[idx(of_class)];
  const int first = members.front();
  return {g.evidence[idx(first)], f.slots[idx(d.group)].at(f.c, g, idx(first), d.seq),
          each(members, [&](int m) { return g.ranks[idx(m)]; })};
}

void Events::add(const std::string& text, int who, Time time) {
  Event& x = all_[text];
  x.text = text;
  x.who.push_back(who);
  x.time = x.time == 0 || (time != 0 && time < x.time) ? time : x.time;
}

std::vector<Event> Events::in_order() const {
  std::vector<Event> out = each(all_, [](const auto& x) { return x.second; });
  std::ranges::stable_sort(out, {}, [](const Event& x) { return std::pair(x.time == 0, x.time); });
  return out;
}

void say_few(Report& r, const char* id, const std::vector<std::string>& lines, std::size_t most,
             const char* rest) {
  for (std::size_t k = 0; k < std::min(most, lines.size()); ++k) {
    say(r, id, lines[k]);
  }
  if (lines.size() > most) {
    say(r, id, fmt::format(fmt::runtime(rest), lines.size() - most));
  }
}

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

}  // namespace frtrace
