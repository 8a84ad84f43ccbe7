// The values that fill the sentences of rules.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "format/system_names.hpp"
#include "model/contains.hpp"
#include "model/hints.hpp"
#include "words/sentences.hpp"
#include "words/words.hpp"

namespace frtrace {

namespace {

using namespace sentences;

struct Sentence : Names {
  Sentence(const Facts& facts, const Cause& cause, const std::vector<Rank>& all_blamed)
      : Names(facts),
        c(cause),
        guilty(ranks_of(c.guilty)),
        blamed(all_blamed),
        others(f.ranks(c.others)),
        p(c.pending >= 0 ? &f.graph[c.pending] : nullptr) {}

  std::string fill(std::string_view text) const;
  std::string op_text() const {
    return p != nullptr ? pending(*p) : c.lifecycle.empty() ? "an operation" : c.lifecycle;
  }
  std::string waited_text() const { return p != nullptr ? waited(*p) : op_text(); }
  const Guilty& first() const { return c.guilty.front(); }
  const RankEvidence& own() const { return f.ev(first().evidence); }
  const Record& issued() const { return own().records[first().issued]; }
  Side right() const { return side_of(f, *c.divergence, std::max(c.right, 0)); }
  // For a slot in which members differ: the operation of the first blamed rank, and that of the
  // right members.
  std::string own_op() const { return std::string(own().text(issued().op)); }
  std::string due_op() const {
    return std::string(f.ev(right().evidence).text(right().record->op));
  }
  std::string due_at() const { return at(right().evidence, right().record->stack); }
  std::string issued_at() const {
    return first().issued == kNoRecord ? "" : at(first().evidence, issued().stack);
  }
  std::vector<Rank> waiting_ranks() const {
    return p == nullptr ? std::vector<Rank>{} : waiting(*p);
  }
  std::vector<Rank> without_blamed(std::vector<Rank> ranks) const {
    std::erase_if(ranks, [&](Rank r) { return contains(blamed, r); });
    return ranks;
  }
  std::string waits_beside(const std::vector<Rank>& ranks, const std::string& where) const {
    const std::vector<Rank> who = without_blamed(ranks);
    return given(!who.empty(), "; " + wait_verb(who) + where);
  }

  const Cause& c;
  const std::vector<Rank> guilty, blamed, others;
  const Pending* p;
};
using S = const Sentence&;

// A message of gloo, which matches by tags. Records do not hold tags.
bool has_tags(S s) {
  return s.p->kind != Kind::kCollective && s.f.group(s.p->group).is_gloo();
}

// Files that list no members show only the ranks that used a group.
bool has_one_member(S s) {
  return s.f.group(s.p->group).ranks.size() == 1;
}

// The same operation from another call site is another call: its size does not matter.
bool from_elsewhere(S s) {
  return !s.issued_at().empty() && !s.due_at().empty() && s.issued_at() != s.due_at();
}

bool some_started(S s) {
  return std::ranges::any_of(s.c.guilty, [&](const Guilty& g) {
    return g.issued != kNoRecord && s.f.ev(g.evidence).records[g.issued].state == State::kStarted;
  });
}

bool runs_exit_hooks(S s) {
  const RankEvidence& e = s.f.ev(s.first().evidence);
  return e.threads.present && !waits_for_threads(e.threads, e.id.pid);
}

// The evidence shows the end of the script, but not of the process.
bool ends_its_script(S s) {
  const int i = s.first().evidence;
  return i >= 0 && !s.f.exit(i).ended() && s.f.is_leaving(i);
}

bool otherwise(S) {
  return true;
}

bool lacks_stacks(S s) {
  return std::ranges::any_of(s.c.others, [&](int i) { return !s.f.ev(i).threads.present; });
}

// Parts of sentences that depend on the case. The first part of that name that applies is used; ""
// if there is none.
constexpr struct {
  std::string_view name;
  bool (*applies)(S);
  const char* text;
} kParts[] = {
    {"alarm", [](S s) { return s.f.alarmed; }, "a dump was triggered ({reason})"},
    {"alarm", otherwise, "nothing has been issued for some time"},
    {"behind", [](S s) { return s.p->starts_seen && !s.c.chain.stalled.empty(); }, "{stalled}"},
    {"behind", some_started,
     "started {own_record}, but [its device|their devices] did not finish it"},
    {"behind", [](S s) { return s.p->starts_seen || s.first().why == Why::kNotStarted; },
     "issued {own_record}, but [its device|their devices] did not start it"},
    {"behind", otherwise, "issued {own_record}, but [its device|their devices] did not finish it"},
    {"complete", has_one_member,
     "{op} does not finish on {waiters}, and no file shows another member of its group"},
    {"complete", has_tags,
     "both ends issued {op} and do not meet: their tags may differ, which are not recorded"},
    {"complete", [](S s) { return s.p->in_transit; },
     "{op} does not finish on {waiters}, though its send finished: the network or the device of "
     "{waiters} holds it up"},
    {"complete", otherwise,
     "{members} issued {op}, but it does not finish on {waiters}; what devices and network do is "
     "not recorded"},
    {"complete_need", has_one_member, "which ranks are in that group, and where they are"},
    {"complete_need", has_tags, "which tag the program means at the places above"},
    {"complete_need", [](S s) { return s.p->root_unknown(s.f.c); },
     "which root each member passed, and what their devices did: fr dumps"},
    {"complete_need", otherwise,
     "device and transfer states of its members: fr dumps with NCCL's profiler plugin"},
    {"ended", ends_its_script, "came to the end of [its script|their scripts]{messages_left}"},
    {"exit_waits", runs_exit_hooks,
     "[its script is|their scripts are] over, and [an exit hook does|exit hooks do] not return"},
    {"exit_waits", otherwise,
     "[it has|they have] destroyed [its|their] process groups, and Python waits for [its|their] "
     "other threads to end"},
    {"did_without", [](S s) { return s.p->absent.empty(); }, "do not have in their files"},
    {"did_without",
     [](S s) { return std::ranges::all_of(s.c.others, [&](int i) { return s.f.is_leaving(i); }); },
     "finished without"},
    {"did_without", [](S s) { return s.p->kind == Kind::kSend; }, "never received"},
    {"did_without", [](S s) { return s.p->kind == Kind::kRecv; }, "never sent"},
    {"did_without", otherwise, "never issued"},
    {"left", [](S s) { return s.f.exit(s.first().evidence).ended(); }, "exited"},
    {"left", otherwise, "left"},
    {"members", [](S s) { return s.p == nullptr; }, "its members"},
    {"members", [](S s) { return s.p->kind != Kind::kCollective; }, "both ends"},
    {"members", has_one_member, "the only known member"},
    {"members", [](S s) { return !s.p->unknown.empty(); }, "all members with evidence"},
    {"members", otherwise, "all members"},
    {"mismatch",
     [](S s) {
       return s.c.right < 0 && std::ranges::any_of(
                                   s.c.divergence->fields,
                                   [](const auto& x) { return x.field == SlotField::kOperation; });
     },
     "{who} issued different operations as #{seq} of {group}: {differences}"},
    {"mismatch", [](S s) { return s.c.right < 0; },
     "{who} do not agree in {due_op} #{seq} of {group}: {differences}"},
    {"mismatch", [](S s) { return s.own_op() != s.due_op(); },
     "{who} issued {own_op} #{seq} of {group} where {right} issued {due_op}"},
    {"mismatch", from_elsewhere,
     "{who} issued {due_op} #{seq} of {group}{issued_at}, where {right} issued it{due_at} "
     "({differences})"},
    {"mismatch", [](S s) { return s.c.divergence->sizes_vary(); },
     "{who} issued {due_op} #{seq} of {group} with {differences}, which do not fit those of "
     "{right}"},
    {"mismatch", [](S s) { return s.c.divergence->splits.has_value(); },
     "{who} issued {due_op} #{seq} of {group} with splits that do not fit: {differences}"},
    {"mismatch", otherwise,
     "{who} issued {due_op} #{seq} of {group} with {differences}, unlike {right}"},
    {"missing_too", [](S s) { return !s.f.c.missing.empty(); },
     "; evidence of {missing} is lacking"},
    {"no_order", [](S s) { return s.guilty.empty(); },
     ", and nothing shows who left the usual order"},
    {"or_stacks", lacks_stacks, ", or the Python stacks of {others} (FR_STACKS)"},
    {"order_need", [](S s) { return s.guilty.empty(); },
     "in which order, and how often, the program issues these operations"},
    {"unusual", [](S s) { return s.p->kind != Kind::kCollective; },
     "{who} had not issued it with that peer from that place before"},
    {"unusual", otherwise,
     "only {who} issued it, and no rank had issued it from that place before"}};

// The state of the operation on its device, by StalledDevice::Why.
std::string stalled(S s) {
  constexpr const char* kHow[] = {
      "issued {on_device} and never launched it",
      "[is|are] in the launch of {on_device}, which does not return",
      "launched {on_device}, but [its device|their devices] did not start it",
      "started {on_device}, but [its device|their devices] did not start all its channels",
      "started {on_device}, but the kernel on [its device|their devices] makes no progress",
      "launched {on_device}, but [its device|their devices] neither consumed the data that arrived "
      "nor filled free buffers: the kernel did not start, or makes no progress",
      "started {on_device}, but NCCL's network thread there has not begun its transfers"};
  static_assert(std::size(kHow) == StalledDevice::kNetworkThread + 1);
  return s.fill(kHow[s.c.stalled]);
}

std::string lacking(S s) {
  std::vector<Rank> out;
  for (const Problem& p : s.f.graph.problems) {
    if (p.kind == Problem::kNoEvidence) {
      out.push_back(p.rank);
    }
  }
  return ranks_words(out);
}

std::string reason(S s) {
  const auto e =
      std::ranges::find_if(s.f.c.ranks, [](auto* x) { return x->trigger != Trigger::kUnknown; });
  return e == s.f.c.ranks.end() ? "unknown"
         : (*e)->reason.empty() ? fr::word((*e)->trigger)
                                : (*e)->reason;
}

std::string error(S s) {
  if (s.p == nullptr) {
    return short_error(s.exit(s.f.exit(s.c.others.front())));
  }
  for (const Wait& w : s.p->waits) {
    if (w.evidence == s.c.others.front() && w.record != kNoRecord) {
      return short_error(s.f.ev(w.evidence).text(s.f.ev(w.evidence).records[w.record].error));
    }
  }
  return {};
}

std::string longest(S s) {
  double longest = 0;
  for (const int i : s.c.others) {
    const Record* call = s.f.lifecycle_in_flight(i);
    longest =
        std::max(longest, call == nullptr ? 0 : seconds_between(call->time, s.f.ev(i).written));
  }
  return duration_text(longest);
}

std::string store_of(S s, const std::vector<int>& evidence) {
  for (const int i : evidence) {
    if (const std::string address = rendezvous_of(s.f.ev(i)).address; !address.empty()) {
      return "store at " + address;
    }
  }
  return "store";
}

std::string served(S s) {
  const auto server =
      std::ranges::find_if(s.f.c.ranks, [](const auto* e) { return serves_store(*e); });
  return server == s.f.c.ranks.end() ? ""
                                     : fmt::format("; rank {} (host {}) serves a store",
                                                   (*server)->id.rank, (*server)->id.host);
}

// ", with 3 sends in flight": sends issued by isend that no wait followed.
std::string messages_left(S s) {
  const auto n = std::ranges::count_if(s.own().records, [](const Record& r) {
    return r.kind == Kind::kSend && r.ended == 0 && r.state != State::kCompleted;
  });
  return given(n != 0,
               fmt::format(", with {} in flight", counted(static_cast<std::uint64_t>(n), "send")));
}

// Time from the signal to the dump that the last of the ranks wrote as it ended.
std::string ended_after(S s) {
  double longest_s = 0;
  for (const int i : s.c.others) {
    longest_s = std::max(longest_s, seconds_between(s.f.exit(i).time, s.f.ev(i).written));
  }
  return duration_text(longest_s);
}

std::string young(S s) {
  const auto n = static_cast<std::uint64_t>(s.f.graph.young);
  return given(n != 0, fmt::format("; {} {} in flight, none older than {}", counted(n, "operation"),
                                   one_or(n, "is", "are"), duration_text(s.f.threshold_s)));
}

std::string unequal(S s) {
  const Unequal& u = *s.p->unequal;
  const RankEvidence &from = s.f.ev(u.sender), &to = s.f.ev(u.receiver);
  const Record& send = from.records[u.send];
  const auto text = [&](const RankEvidence& e, const Record& x, bool in) {
    const Id type = (in ? x.in_dtype != 0 : x.out_dtype == 0) ? x.in_dtype : x.out_dtype;
    const auto n = (in ? x.in_numel != 0 : x.out_numel == 0) ? x.in_numel : x.out_numel;
    return !u.sent_tag.empty() ? "with tag " + (in ? u.sent_tag : u.recv_tag)
           : u.dtype           ? std::string(e.text(type))
                               : counted(n, "element");
  };
  return fmt::format("rank {} sends {} to rank {}, which receives {}: {} #{} of {}", from.id.rank,
                     text(from, send, true), to.id.rank, text(to, to.records[u.recv], false),
                     from.text(send.op), send.seq, s.f.group(s.p->group).title()) +
         given(s.guilty.size() == 1,
               s.fill(!u.sent_tag.empty() ? "; other ranks use the tag of the other end"
                      : s.c.by_peers      ? "; {who} departs from what its peers do there"
                                          : "; {who} departs from its earlier iterations"));
}

std::string waited_for(S s) {
  const std::vector<Rank> who = s.without_blamed(s.waiting_ranks());
  const bool over =
      s.c.rule == kOneKilled || (s.p != nullptr && std::ranges::any_of(s.p->waits, &Wait::failed));
  return given(!who.empty(), fmt::format("; {} for {} in {}",
                                         over ? ranks_words(who) + " waited" : wait_verb(who),
                                         one_or(s.guilty.size(), "it", "them"), s.waited_text()));
}

// The ranks that wait for the blamed ranks elsewhere than in the operation of the first line.
std::string wait_through_others(S s) {
  const std::vector<Rank> who = s.without_blamed(s.f.ranks(s.c.explains));
  return given(
      who != s.without_blamed(s.waiting_ranks()) && !who.empty(),
      fmt::format("{} for {}, directly or through others", wait_verb(who), ranks_words(s.guilty)));
}

// Leaves out the call site if the sentence names the same call site next.
std::string left_out(S s, const std::string& next_place) {
  const Guilty& g = s.first();
  const Record& usual = s.f.ev(g.usual_of).records[g.usual];
  const std::string place = s.at(g.usual_of, usual.stack);
  const bool one_number = std::ranges::all_of(s.c.guilty, [&](auto& x) { return x.seq == g.seq; });
  return fmt::format("skipped {}{}{}{}", s.f.ev(g.usual_of).text(usual.op),
                     given(g.seq != 0 && one_number, fmt::format(" #{}", g.seq)),
                     s.group_and_peer(s.c.guilty, true), given(place != next_place, place));
}

// The operation issued in that slot. The same call at the same call site is a later operation.
std::string instead(S s) {
  const std::string place = s.issued_at() != s.due_at() ? s.issued_at() : "";
  return place.empty() && s.own_op() == s.due_op() ? "a later operation" : s.own_op() + place;
}

// The issued operation and the operation that was due. If the due operation was not clearly left
// out, the issued operation comes first: it may have been added.
std::string departed(S s) {
  const Guilty& g = s.first();
  const std::string issued = s.c.guilty.size() == 1
                                 ? s.record_at(g.evidence, s.issued())
                                 : s.own_op() + s.group_and_peer(s.c.guilty, false) + s.issued_at();
  return s.c.verdict != Verdict::kMissing
             ? departure(s.f, s.c, g)
             : fmt::format("{} and issued {} instead", left_out(s, s.issued_at()), issued);
}

std::string rest_of_group(S s) {
  std::vector<Rank> waiting, ended;
  for (const Rank r :
       s.without_blamed(s.p->kind == Kind::kCollective ? s.f.group(s.p->group).ranks
                                                       : std::vector<Rank>{s.p->from, s.p->to})) {
    if (!contains(s.p->unknown, r)) {
      (s.p->starts_seen && contains(s.waiting_ranks(), r) ? waiting : ended).push_back(r);
    }
  }
  const std::string wait = ranks_do(waiting, "started it and waits", "started it and wait");
  return given(!waiting.empty(), "; " + wait) +
         given(!ended.empty(), "; " + ranks_words(ended) + " finished it");
}

std::string links(S s) {
  const Link& l = s.c.chain.links.front();
  const std::size_t more = s.c.chain.links.size() - 1;
  const bool said = s.p != nullptr && l.from == s.p->from && l.to == s.p->to;
  return (l.from == l.to ? fmt::format(", between network card and device of rank {}", l.from)
          : said         ? ""
                         : fmt::format(", from rank {} to rank {}", l.from, l.to)) +
         given(more != 0, " and over " + counted(more, "more link"));
}

std::string new_groups(S s) {
  const GroupCalls& calls = *s.c.calls;
  const std::string what = fmt::format("called new_group for group {}", calls.ordinal);
  if (calls.tie) {
    return what + ", each with other members";
  }
  const auto other =
      std::ranges::find_if(calls.classes, [&](const auto& x) { return x.first != calls.most; });
  return fmt::format(
      "{} with {}, where {} called it with {}", what, ranks_words(other->first),
      ranks_words(s.f.ranks(each(calls.classes.at(calls.most), &GroupCalls::Call::evidence))),
      ranks_words(calls.most));
}

std::string cycle(S s) {
  constexpr std::size_t kShown = 4;
  std::vector<std::string> parts;
  for (const int k : s.c.operations) {
    if (const std::vector<Rank> who = s.in_front(s.f.graph[k]); !who.empty()) {
      parts.push_back(wait_verb(who) + " in " + s.waited(s.f.graph[k]));
    }
  }
  if (parts.empty()) {
    parts.push_back("their operations wait behind others");
  }
  const std::size_t more = parts.size() - std::min(parts.size(), kShown);
  parts.resize(parts.size() - more);
  return fmt::format("{}", fmt::join(parts, "; ")) +
         given(more != 0, fmt::format("; and {} more likewise", more));
}

// The blamed ranks that the operation of the sentence lacks; all blamed ranks if there are none.
std::vector<Rank> missed(S s) {
  std::vector<Rank> out;
  for (const Guilty& g : s.c.guilty) {
    if (g.pending == s.c.pending) {
      out.push_back(g.rank);
    }
  }
  return out.empty() ? s.guilty : out;
}

std::string own_end(S s) {
  const std::vector<Rank> who = missed(s);
  return s.p == nullptr || who.size() != 1 ? s.op_text() : s.Names::own_end(*s.p, who.front());
}

// "; rank 1 never issued all_reduce #9 of group {0-3}; ranks 0,2,3 wait there"
std::string elsewhere(S s) {
  std::vector<Rank> who;
  std::set<int> where;
  for (const Guilty& g : s.c.guilty) {
    if (g.pending != s.c.pending && g.pending >= 0) {
      who.push_back(g.rank);
      where.insert(g.pending);
    }
  }
  if (where.size() != 1) {
    return given(!where.empty(), "; likewise " + ranks_words(who) +
                                     fmt::format(" in {} other operations", where.size()));
  }
  const Pending& p = s.f.graph[*where.begin()];
  return fmt::format("; {} never issued {}", ranks_words(who),
                     who.size() == 1 ? s.Names::own_end(p, who.front()) : s.pending(p)) +
         s.waits_beside(s.waiting(p), " there");
}

constexpr struct {
  std::string_view name;
  std::string (*value)(S);
} kValues[] = {
    {"nothing_before", [](S s) { return before_unstarted(s.f, s.c); }},
    {"instead", instead},
    {"all_wait",
     [](S s) {
       return s.waits_beside(s.f.ranks(ranks_that(s.f, [&](int i) { return s.f.graph.waits(i); })),
                             "");
     }},
    {"cycle", cycle},
    {"departed", departed},
    {"differences", [](S s) { return differences_text(s.f, s.c); }},
    {"elsewhere", elsewhere},
    {"error", error},
    {"lacking", lacking},
    {"idle", [](S s) { return idle_text(s.f, s.c.others); }},
    {"idle_place", [](S s) { return idle_place_text(s.f, s.c.others); }},
    {"links", links},
    {"locks", [](S s) { return locks_text(s.f, s.c); }},
    {"longest", longest},
    {"new_groups", new_groups},
    {"reason", reason},
    {"rest_of_group", rest_of_group},
    {"stalled", stalled},
    {"store", [](S s) { return store_of(s, s.c.others); }},
    {"served", served},
    {"own_store", [](S s) { return store_of(s, {s.first().evidence}); }},
    {"unequal", unequal},
    {"usually", [](S s) { return usual_gap_text(s.f.ev(s.c.others.front())); }},
    {"waited_for", waited_for},
    {"young", young},
    {"who", [](S s) { return ranks_words(s.guilty); }},
    {"who_here", [](S s) { return ranks_words(missed(s)); }},
    {"others", [](S s) { return ranks_words(s.others); }},
    {"others_wait", [](S s) { return wait_verb(s.others); }},
    {"who_or_others", [](S s) { return ranks_words(s.guilty.empty() ? s.others : s.guilty); }},
    {"op", [](S s) { return s.op_text(); }},
    {"own_end", own_end},
    {"own_record",
     [](S s) {
       return s.guilty.size() == 1 && s.first().issued != kNoRecord
                  ? s.record(s.first().evidence, s.first().issued)
                  : s.op_text();
     }},
    {"call", [](S s) { return s.c.lifecycle; }},
    {"own_world", [](S s) { return std::to_string(s.f.ev(s.first().evidence).id.world_size); }},
    {"other_world", [](S s) { return std::to_string(s.f.ev(s.c.others[0]).id.world_size); }},
    {"waiting",
     [](S s) {
       const std::vector<Rank> who = s.without_blamed(s.waiting_ranks());
       return wait_verb(who.empty() ? s.waiting_ranks() : who);
     }},
    {"waiters", [](S s) { return ranks_words(s.waiting_ranks()); }},
    {"wait_there", [](S s) { return s.waits_beside(s.waiting_ranks(), " there"); }},
    {"wait_through_others", wait_through_others},
    {"wait_in_op", [](S s) { return s.waits_beside(s.waiting_ranks(), " in " + s.waited_text()); }},
    {"missing", [](S s) { return ranks_words(s.f.c.missing); }},
    {"read",
     [](S s) {
       return s.f.c.ranks.size() == 1 ? ranks_words({s.f.rank(0)}) : "the ranks that were read";
     }},
    {"messages_left", messages_left},
    {"ended", [](S s) { return s.exit_did(exit_of(s.f, s.first()), s.guilty.size()); }},
    {"how_ended", [](S s) { return s.exit(s.f.exit(s.c.others.front())); }},
    {"signal",
     [](S s) {
       const char* name = fr::signal_name(s.f.exit(s.c.others.front()).handled);
       return std::string("SIG") + (name == nullptr ? "" : name);
     }},
    {"ended_after", ended_after},
    {"twins", [](S s) { return twins_text(s.f); }},
    {"owed_write", [](S s) { return owed_text(s.f, s.c); }},
    {"polled_at", [](S s) { return polled_text(s.f, s.c); }},
    {"slower", [](S s) { return slower_text(*s.c.slower); }},
    {"late_in_turn", [](S s) { return late_in_turn_text(s.f, *s.c.in_turn); }},
    {"late", [](S s) { return late_summary(s.f, s.c.late); }},
    {"seq", [](S s) { return std::to_string(s.c.divergence->seq); }},
    {"group", [](S s) { return s.f.group(s.c.divergence->group).title(); }},
    {"own_op", [](S s) { return s.own_op(); }},
    {"issued_at", [](S s) { return s.issued_at(); }},
    {"due_op", [](S s) { return s.due_op(); }},
    {"due_at", [](S s) { return s.due_at(); }},
    {"right", [](S s) { return ranks_words(s.right().ranks); }},
    {"on_device",
     [](S s) {
       return s.c.rule != kDeviceStalled ? s.op_text() : device_title(s.f, *s.first().device);
     }},
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
      const auto is_it = [&](const auto& x) { return x.name == name.substr(1); };
      const auto* const part =
          std::ranges::find_if(kParts, [&](auto& x) { return is_it(x) && x.applies(*this); });
      const auto* const value = std::ranges::find_if(kValues, is_it);
      out += part != std::end(kParts)     ? fill(part->text)
             : value != std::end(kValues) ? value->value(*this)
                                          : "";
    } else if (!name.empty()) {
      const std::size_t bar = name.find('|');
      out += one ? name.substr(1, bar - 1) : name.substr(bar + 1);
    }
    at = close + 1;
  }
  return out;
}

const Row& sentences_of(const Cause& c) {
  return *std::ranges::find(kSentences, c.rule, &Row::rule);
}

}  // namespace

std::string summary(const Facts& f, const Cause& c, const std::vector<Rank>& blamed) {
  return Sentence(f, c, blamed).fill(sentences_of(c).first);
}

void add_reasons(const Facts& f, const Cause& c, Report& r) {
  const std::string more = Sentence(f, c, r.ranks).fill(sentences_of(c).more);
  const bool open =
      c.verdict == Verdict::kUndecided || (c.rule >= kOpenDivergence && c.rule < kOkTerminated);
  if (c.thread_ended) {
    say(r, "why", "the thread of rank {} that issued its operations of {} has ended",
        c.guilty.front().rank, f.group(f.graph[c.pending].group).title());
  } else if (!open && !more.empty() && !contains(each(r.findings, &Finding::text), more)) {
    say(r, "why", more);
  } else if (!more.empty() && r.kind == Verdict::kUndecided) {
    say(r, "need", "what would decide it: " + more);
  }
}

}  // namespace frtrace
