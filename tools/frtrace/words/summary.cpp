// The values that the sentences of rules are filled with.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "model/contains.hpp"
#include "model/hints.hpp"
#include "words/sentences.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

using enum Rule;

struct Sentence : Names {
  Sentence(const Facts& facts, const Cause& cause)
      : Names(facts),
        f(facts),
        c(cause),
        guilty(ranks_of(c.guilty)),
        others(f.ranks(c.others)),
        p(c.pending >= 0 ? &f.graph[c.pending] : nullptr) {}

  std::string fill(std::string_view text) const;
  std::string op_text() const {
    return p != nullptr ? pending(*p) : c.lifecycle.empty() ? "an operation" : c.lifecycle;
  }
  const Guilty& first() const { return c.guilty.front(); }
  const RankEvidence& own() const { return f.ev(first().evidence); }
  const Record& issued() const { return own().records[first().issued]; }
  Side right() const { return side_of(f, *c.divergence, std::max(c.right, 0)); }
  std::vector<Rank> waiting_ranks() const {
    return p == nullptr ? std::vector<Rank>{} : waiting(*p);
  }
  std::vector<Rank> without_guilty(std::vector<Rank> ranks) const {
    std::erase_if(ranks, [&](Rank r) { return contains(guilty, r); });
    return ranks;
  }
  std::string waits_beside(const std::vector<Rank>& ranks, const std::string& where) const {
    const std::vector<Rank> who = without_guilty(ranks);
    return given(!who.empty(), "; " + wait_verb(who) + where);
  }

  const Facts& f;
  const Cause& c;
  const std::vector<Rank> guilty, others;
  const Pending* p;
};

std::string all_wait(const Sentence& s) {
  std::vector<int> all;
  for (const Pending& p : s.f.graph.pending) {
    for (const Wait& w : p.waits) {
      all.push_back(w.evidence);
    }
  }
  return s.waits_beside(s.f.ranks(all), "");
}

std::string lacking(const Sentence& s) {
  std::vector<Rank> out;
  for (const Problem& p : s.f.graph.problems) {
    if (p.kind == Problem::kNoEvidence) {
      out.push_back(p.rank);
    }
  }
  return ranks_words(out);
}

std::string reason(const Sentence& s) {
  for (const RankEvidence* e : s.f.c.ranks) {
    if (!e->trigger.empty()) {
      return e->reason.empty() ? e->trigger : e->reason;
    }
  }
  return "unknown";
}

std::string error(const Sentence& s) {
  if (s.p == nullptr) {
    return s.exit(s.f.exit(s.c.others.front()));
  }
  for (const Wait& w : s.p->waits) {
    if (w.evidence == s.c.others.front() && w.record != kNoRecord) {
      return std::string(s.f.ev(w.evidence).text(s.f.ev(w.evidence).records[w.record].error));
    }
  }
  return {};
}

// A message of gloo, which matches by tags; records do not hold these.
bool has_tags(const Sentence& s) {
  return s.p->kind != Kind::kCollective && s.f.group(s.p->group).is_gloo();
}

// Files that list no members show a group by who used it.
bool has_one_member(const Sentence& s) {
  return s.f.group(s.p->group).ranks.size() == 1;
}

std::string complete(const Sentence& s) {
  if (has_one_member(s)) {
    return s.fill(
        "{op} does not finish on {waiters}, and no file shows another member of its group");
  }
  if (!has_tags(s)) {
    return s.fill(
        "all members issued {op}, but it does not finish on {waiters}; what devices and network "
        "do is not recorded");
  }
  return s.fill(
      "both ends issued {op} and do not meet: their tags may differ, which are not recorded");
}

std::string complete_need(const Sentence& s) {
  return has_one_member(s) ? "which ranks are in that group, and where they are"
         : has_tags(s) ? "which tag the program means at the places above"
                       : "device and transfer states of its members: fr dumps with NCCL's profiler "
                         "plugin";
}

std::string longest(const Sentence& s) {
  double longest = 0;
  for (const int i : s.c.others) {
    const Record* call = s.f.lifecycle_in_flight(i);
    longest =
        std::max(longest, call == nullptr ? 0 : seconds_between(call->time, s.f.ev(i).written));
  }
  return duration_text(longest);
}

std::string store(const Sentence& s) {
  for (const int i : s.c.others) {
    if (const std::string address = rendezvous_of(s.f.ev(i)).address; !address.empty()) {
      return "the store at " + address;
    }
  }
  return "the store";
}

std::string young(const Sentence& s) {
  const auto n = static_cast<std::uint64_t>(s.f.graph.young);
  return given(n != 0, fmt::format("; {} {} in flight, none older than {}", counted(n, "operation"),
                                   one_or(n, "is", "are"), duration_text(s.f.threshold_s)));
}

// Sizes as shapes, where these are known: "shape [20,8] instead of [18,8]".
std::string differences(const Sentence& s) {
  const Divergence& d = *s.c.divergence;
  if (d.splits) {
    return fmt::format("rank {} sends {} rows to rank {}, which expects {}", d.splits->from,
                       d.splits->sent, d.splits->to, d.splits->expected);
  }
  const auto shape = [&](bool right) {
    const Side side = side_of(s.f, d, right == (s.c.right == 1) ? 1 : 0);
    const Shape x = parse_shape(s.f.ev(side.evidence), *side.record);
    return x.known ? shape_text(x.in.empty() ? x.out : x.in) : std::string();
  };
  std::vector<std::string> out;
  for (const FieldDifference& x : d.fields) {
    std::string text = fmt::format("{} {}{}", x.field, x.own, led(" instead of ", x.others));
    if (x.field.ends_with("size") && d.classes.size() == 2) {
      const std::string own = shape(false), others = shape(true);
      text = own.empty() || others.empty() || own == others
                 ? text
                 : fmt::format("shape {} instead of {}", own, others);
    }
    if (!contains(out, text)) {
      out.push_back(std::move(text));
    }
  }
  return fmt::format("{}", fmt::join(out, "; "));
}

std::string mismatch(const Sentence& s) {
  if (s.c.right < 0) {
    return s.fill("{who} differ at {due_op} #{seq} of {group}: {differences}");
  }
  const Side right = s.right();
  if (s.own().text(s.issued().op) != s.f.ev(right.evidence).text(right.record->op)) {
    return s.fill("{who} issued {own_op} #{seq} of {group} where {right} issued {due_op}");
  }
  // The same operation from another place is another call: its size is beside the point.
  const std::string own_at = s.at(s.first().evidence, s.issued().stack),
                    due_at = s.at(right.evidence, right.record->stack);
  if (!own_at.empty() && !due_at.empty() && own_at != due_at) {
    return s.fill(
        "{who} issued {due_op} #{seq} of {group}{issued_at}, where {right} issued it{due_at} "
        "({differences})");
  }
  if (s.c.divergence->sizes_vary()) {
    return s.fill(
        "{who} issued {due_op} #{seq} of {group} with {differences}, which do not fit those of "
        "{right}");
  }
  return s.fill(s.c.divergence->splits
                    ? "{who} issued {due_op} #{seq} of {group} with splits that do not fit: "
                      "{differences}; "
                      "{right} "
                    : "{who} issued {due_op} #{seq} of {group} with {differences}; {right} ") +
         (right.ranks.size() > 1   ? "agree"
          : s.c.divergence->splits ? "differs"
                                   : "has the latter");
}

std::string unequal(const Sentence& s) {
  const Unequal& u = *s.p->unequal;
  const RankEvidence &from = s.f.ev(u.sender), &to = s.f.ev(u.receiver);
  const Record& send = from.records[u.send];
  const auto text = [&](const RankEvidence& e, const Record& x, bool in) {
    const Id type = (in ? x.in_dtype != 0 : x.out_dtype == 0) ? x.in_dtype : x.out_dtype;
    const auto n = (in ? x.in_numel != 0 : x.out_numel == 0) ? x.in_numel : x.out_numel;
    return !u.sent_tag.empty() ? "with tag " + (in ? u.sent_tag : u.recv_tag)
           : u.dtype           ? std::string(e.text(type))
                               : fmt::format("{} elements", n);
  };
  return fmt::format("rank {} sends {} to rank {}, which receives {}: {} #{} of {}", from.id.rank,
                     text(from, send, true), to.id.rank, text(to, to.records[u.recv], false),
                     from.text(send.op), send.seq, s.f.group(s.p->group).title()) +
         given(s.guilty.size() == 1,
               s.fill(u.sent_tag.empty() ? "; {who} differs from its earlier iterations"
                                         : "; other ranks use the tag of the other end"));
}

std::string ended(const Sentence& s) {
  const std::vector<Rank>& missing = s.f.c.missing;
  const auto at = std::ranges::find(missing, s.first().rank) - missing.begin();
  return s.exit_verb(s.first().evidence >= 0 ? s.f.exit(s.first().evidence)
                                             : s.f.missing_exits[static_cast<std::size_t>(at)],
                     s.guilty.size());
}

std::string waited_for(const Sentence& s) {
  const std::vector<Rank> who = s.without_guilty(s.waiting_ranks());
  const bool over =
      s.c.rule == kOneKilled || (s.p != nullptr && std::ranges::any_of(s.p->waits, &Wait::failed));
  return given(!who.empty(),
               fmt::format("; {} for {} in {}",
                           ranks_do(who, over ? "waited" : "waits", over ? "waited" : "wait"),
                           one_or(s.guilty.size(), "it", "them"), s.op_text()));
}

// What it did in the place of what was due.
std::string departed(const Sentence& s) {
  const Guilty& g = s.first();
  if (s.c.verdict != Verdict::kMissing) {
    return departure(s.f, s.c, g);
  }
  const Record& usual = s.own().records[g.usual];
  const Group* group = s.f.group_of(g.evidence, usual);
  return fmt::format("skipped {}{}{}{} and issued {} instead", s.own().text(usual.op),
                     given(g.seq != 0, fmt::format(" #{}", g.seq)),
                     led(" of ", group != nullptr ? group->title() : ""),
                     s.peer(g.evidence, usual) + s.at(g.evidence, usual.stack),
                     s.record_at(g.evidence, s.issued()));
}

std::string stalled(const Sentence& s) {
  constexpr const char* kHow[] = {
      "issued {on_device} and never launched it",
      "[is|are] in the launch of {on_device}, which does not return",
      "launched {on_device}, but [its device|their devices] did not start it: earlier work there "
      "is unfinished",
      "started {on_device}, but [its device|their devices] did not start all its channels",
      "started {on_device}, but the kernel on [its device|their devices] makes no progress",
      "launched {on_device}, but [its device|their devices] neither consumed the data that arrived "
      "nor filled free buffers: the kernel did not start, or makes no progress",
      "started {on_device}, but NCCL's network thread there has not begun its transfers"};
  static_assert(std::size(kHow) == StalledDevice::kNetworkThread + 1);
  return s.fill(kHow[s.c.stalled]);
}

std::string behind(const Sentence& s) {
  if (s.p->starts_seen && !s.c.chain.stalled.empty()) {
    return stalled(s);
  }
  const bool started = std::ranges::any_of(s.c.guilty, [&](const Guilty& g) {
    return g.issued != kNoRecord && s.f.ev(g.evidence).records[g.issued].state == State::kStarted;
  });
  return s.fill(started ? "started {op}, but [its device|their devices] did not finish it"
                : s.p->starts_seen
                    ? "issued {op}, but [its device|their devices] did not start it: "
                      "earlier work there is unfinished"
                    : "issued {op}, but [its device|their devices] did not finish it");
}

std::string rest_of_group(const Sentence& s) {
  std::vector<Rank> rest =
      s.without_guilty(s.p->kind == Kind::kCollective ? s.f.group(s.p->group).ranks
                                                      : std::vector<Rank>{s.p->from, s.p->to});
  std::erase_if(rest, [&](Rank r) { return contains(s.p->unknown, r); });
  return s.p->starts_seen ? ranks_do(rest, "started it and waits", "started it and wait")
                          : ranks_words(rest) + " finished it";
}

std::string links(const Sentence& s) {
  const Link& l = s.c.chain.links.front();
  const std::size_t more = s.c.chain.links.size() - 1;
  const bool said = s.p != nullptr && l.from == s.p->from && l.to == s.p->to;
  return (l.from == l.to ? fmt::format(", between card and device of rank {}", l.from)
          : said         ? ""
                         : fmt::format(", from rank {} to rank {}", l.from, l.to)) +
         given(more != 0, " and over " + counted(more, "more link"));
}

std::string new_groups(const Sentence& s) {
  const GroupCalls& calls = *s.c.calls;
  const std::string what = fmt::format("called new_group for group {}", calls.ordinal);
  if (calls.tie) {
    return what + ", each with other members";
  }
  std::vector<int> most;
  for (const GroupCalls::Call& call : calls.classes.at(calls.most)) {
    most.push_back(call.evidence);
  }
  const auto other =
      std::ranges::find_if(calls.classes, [&](const auto& x) { return x.first != calls.most; });
  return fmt::format("{} with {}, where {} called it with {}", what, ranks_words(other->first),
                     ranks_words(s.f.ranks(most)), ranks_words(calls.most));
}

std::string cycle(const Sentence& s) {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < s.c.operations.size() && i < kShown; ++i) {
    const Pending& p = s.f.graph[s.c.operations[i]];
    parts.push_back(ranks_words(s.waiting(p)) + " in " + s.pending(p));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

// Of the blamed ranks those that the operation of the sentence misses.
std::vector<Rank> missed(const Sentence& s) {
  std::vector<Rank> out;
  for (const Guilty& g : s.c.guilty) {
    if (g.pending == s.c.pending) {
      out.push_back(g.rank);
    }
  }
  return out.empty() ? s.guilty : out;
}

std::string own_end(const Sentence& s) {
  const std::vector<Rank> who = missed(s);
  return s.p == nullptr || who.size() != 1 ? s.op_text() : s.Names::own_end(*s.p, who.front());
}

// "; rank 1 never issued all_reduce #9 of group {0-3}; ranks 0,2,3 wait there"
std::string elsewhere(const Sentence& s) {
  std::vector<Rank> who;
  std::set<int> where;
  for (const Guilty& g : s.c.guilty) {
    if (g.pending != s.c.pending && g.pending >= 0) {
      who.push_back(g.rank);
      where.insert(g.pending);
    }
  }
  if (where.size() != 1) {
    return given(!where.empty(),
                 "; " + ranks_words(who) + " never issued what others wait for elsewhere");
  }
  const Pending& p = s.f.graph[*where.begin()];
  return fmt::format("; {} never issued {}", ranks_words(who),
                     who.size() == 1 ? s.Names::own_end(p, who.front()) : s.pending(p)) +
         s.waits_beside(s.waiting(p), " there");
}

// "rank 0 holds the lock of data.lock, which ranks 1-3 wait for, and waits for them in barrier #2"
std::string locks(const Sentence& s) {
  std::map<int, std::vector<int>> waiters;  // by holder
  for (const Guilty& g : s.c.guilty) {
    if (const int holder = s.f.graph.lock_holders[idx(g.evidence)]; holder >= 0) {
      waiters[holder].push_back(g.evidence);
    }
  }
  std::vector<std::string> parts;
  for (const auto& [holder, who] : waiters) {
    const RankEvidence& e = s.f.ev(who.front());
    parts.push_back(fmt::format("rank {} holds the lock of {}, which {} for", s.f.rank(holder),
                                short_file(file_lock_wait(e).file, e.id.cwd),
                                wait_verb(s.f.ranks(who))));
    if (s.f.graph.waits(holder)) {
      parts.back() += fmt::format(", and waits for {} in {}", one_or(who.size(), "it", "them"),
                                  s.pending(s.f.graph[s.f.graph.waits_in[idx(holder)].front()]));
    }
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

using S = const Sentence&;
constexpr struct {
  std::string_view name;
  std::string (*value)(S);
} kValues[] = {
    {"all_wait", all_wait},
    {"behind", behind},
    {"complete", complete},
    {"complete_need", complete_need},
    {"cycle", cycle},
    {"departed", departed},
    {"differences", differences},
    {"elsewhere", elsewhere},
    {"ended", ended},
    {"error", error},
    {"lacking", lacking},
    {"links", links},
    {"locks", locks},
    {"longest", longest},
    {"mismatch", mismatch},
    {"new_groups", new_groups},
    {"own_end", own_end},
    {"reason", reason},
    {"rest_of_group", rest_of_group},
    {"stalled", stalled},
    {"store", store},
    {"unequal", unequal},
    {"waited_for", waited_for},
    {"young", young},
    {"who", [](S s) { return ranks_words(s.guilty); }},
    {"who_here", [](S s) { return ranks_words(missed(s)); }},
    {"others", [](S s) { return ranks_words(s.others); }},
    {"others_wait", [](S s) { return wait_verb(s.others); }},
    {"who_or_others", [](S s) { return ranks_words(s.guilty.empty() ? s.others : s.guilty); }},
    {"op", [](S s) { return s.op_text(); }},
    {"call", [](S s) { return s.c.lifecycle; }},
    {"waiting", [](S s) { return wait_verb(s.waiting_ranks()); }},
    {"waiters", [](S s) { return ranks_words(s.waiting_ranks()); }},
    {"wait_there", [](S s) { return s.waits_beside(s.waiting_ranks(), " there"); }},
    {"wait_in_op", [](S s) { return s.waits_beside(s.waiting_ranks(), " in " + s.op_text()); }},
    {"missing", [](S s) { return ranks_words(s.f.c.missing); }},
    {"missing_too",
     [](S s) {
       return given(!s.f.c.missing.empty(), s.fill("; evidence of {missing} is lacking"));
     }},
    {"read",
     [](S s) {
       return s.f.c.ranks.size() == 1 ? ranks_words({s.f.rank(0)}) : "the ranks that were read";
     }},
    {"how_ended", [](S s) { return s.exit(s.f.exit(s.c.others.front())); }},
    {"late", [](S s) { return LateWords(s.f).summary(s.c.late); }},
    {"seq", [](S s) { return std::to_string(s.c.divergence->seq); }},
    {"group", [](S s) { return s.f.group(s.c.divergence->group).title(); }},
    {"own_op", [](S s) { return std::string(s.own().text(s.issued().op)); }},
    {"issued_at",
     [](S s) {
       return s.first().issued == kNoRecord ? "" : s.at(s.first().evidence, s.issued().stack);
     }},
    {"due_op",
     [](S s) { return std::string(s.f.ev(s.right().evidence).text(s.right().record->op)); }},
    {"due_at", [](S s) { return s.at(s.right().evidence, s.right().record->stack); }},
    {"right", [](S s) { return ranks_words(s.right().ranks); }},
    {"no_order",
     [](S s) { return given(s.guilty.empty(), ", and nothing shows who left the usual order"); }},
    {"order",
     [](S s) {
       return s.c.by_peers ? "the other ranks" : s.fill("[its|their] own earlier iterations");
     }},
    {"did_without",
     [](S s) -> std::string {
       const auto is_leaving = [&](int i) { return s.f.is_leaving(i); };
       return std::ranges::all_of(s.c.others, is_leaving) ? "finished without" : "never issued";
     }},
    {"on_device",
     [](S s) {
       return s.c.rule != kDeviceStalled ? s.op_text() : DeviceWords(s.f).title(*s.first().device);
     }},
    {"with_evidence", [](S s) { return given(!s.p->unknown.empty(), " with evidence"); }},
    {"device_error", [](S s) {
       const DeviceError& e = s.c.errors.front();
       return e.text + (e.record == kNoRecord ? "" : ", in " + s.record(e.evidence, e.record));
     }}};

std::string Sentence::fill(std::string_view text) const {
  const bool one = (guilty.empty() ? others : guilty).size() == 1;
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t open = std::min(text.find_first_of("{[", at), text.size());
    const std::size_t close = std::min(text.find_first_of("}]", open), text.size());
    const std::string_view name = text.substr(open, close - open);
    out += text.substr(at, open - at);
    if (name.starts_with('{')) {
      out +=
          std::ranges::find(kValues, name.substr(1), [](auto& v) { return v.name; })->value(*this);
    } else if (!name.empty()) {
      const std::size_t bar = name.find('|');
      out += one ? name.substr(1, bar - 1) : name.substr(bar + 1);
    }
    at = close + 1;
  }
  return out;
}

template <std::size_t N>
std::string sentence(const sentences::Row (&rows)[N], const Facts& f, const Cause& c) {
  const auto* const row = std::ranges::find(rows, c.rule, &sentences::Row::rule);
  return row == std::end(rows) ? "" : Sentence(f, c).fill(row->text);
}

}  // namespace

std::string departure(const Facts& f, const Cause& c, const Guilty& g) {
  const Names names(f);
  const std::vector<Record>& records = f.ev(g.evidence).records;
  return fmt::format("issued {} where {} had {}", names.record_at(g.evidence, records[g.issued]),
                     c.by_peers ? "other ranks" : "its earlier iterations",
                     names.due(g.evidence, records[g.usual], records[g.issued]));
}

std::string summary(const Facts& f, const Cause& c) {
  return sentence(sentences::kSummaries, f, c);
}

void add_reasons(const Facts& f, const Cause& c, Report& r) {
  std::string why = sentence(sentences::kWhys, f, c);
  if (c.rule == kNeverIssued && c.guilty.size() == 1 && c.guilty.front().evidence >= 0 &&
      f.graph.waits(c.guilty.front().evidence)) {
    why = fmt::format("the thread of rank {} that issued its operations of {} has ended",
                      c.guilty.front().rank, f.group(f.graph[c.pending].group).title());
  }
  if (!why.empty()) {
    say(r, "why", std::move(why));
  }
  const std::string need = sentence(sentences::kNeeds, f, c);
  if (!need.empty() && r.kind == Verdict::kUndecided) {
    say(r, "need", "what would decide it: " + need);
  }
}

}  // namespace frtrace
