// Members of a group that met in one slot with different operations.
#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "model/hash.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

const Record* record_at(const Facts& f, const Divergence& d, int member, std::uint64_t seq) {
  return f.slots[idx(d.group)].at(f.c, f.group(d.group), idx(member), seq);
}

// +1: after the longest equal run of operations before it, the rank issued the same operation
// before; -1: it issued only others there; 0: there is no such run. Takes linear time (Z-function
// of the steps backwards), because programs repeat themselves.
int precedent(const std::vector<Step>& steps, std::size_t record) {
  const std::size_t pos = step_of(steps, record);
  std::vector<std::size_t> equal(pos < steps.size() ? pos : 0);  // equal steps, that much earlier
  std::size_t most = 0, from = 0, to = 0;
  bool same = false;
  for (std::size_t back = 1; back < equal.size(); ++back) {
    std::size_t& n = equal[back];
    n = back < to ? std::min(to - back, equal[back - from]) : 0;
    while (back + n < pos && steps[pos - 1 - back - n].key == steps[pos - 1 - n].key) {
      ++n;
    }
    if (back + n > to) {
      from = back, to = back + n;
    }
    same = (same && n <= most) || (n >= most && steps[pos - back].key == steps[pos].key);
    most = std::max(most, n);
  }
  return most == 0 ? 0 : same ? 1 : -1;
}

// By all operations of the rank, and by its operations in the group of `d` alone.
std::pair<int, int> precedents(const Facts& f, const Divergence& d, int evidence,
                               std::size_t record) {
  const std::vector<Step>& steps = f.history.of(evidence);
  std::vector<Step> of_group;
  std::ranges::copy_if(steps, std::back_inserter(of_group), [&](const Step& s) {
    return s.group == d.group && f.ev(evidence).records[s.record].kind == Kind::kCollective;
  });
  return {precedent(steps, record), precedent(of_group, record)};
}

// Hash of the operation, its sizes and, if known, its call site.
std::uint64_t what_of(const Facts& f, int evidence, const Record& r) {
  const int group = f.c.group_at(evidence, r.group);
  const auto record = static_cast<std::uint32_t>(f.ev(evidence).index_of(r));
  return mix(f.anomalies.role(evidence, {0, group, record}), signature_hash(f.ev(evidence), r));
}

// Number of members of sister groups (same description and size, other ranks) that issued the same
// in the same slot.
int sisters_that_agree(const Facts& f, const Divergence& d, std::uint64_t what) {
  const Group& g = f.group(d.group);
  int votes = 0;
  for (std::size_t s = 0; s < f.c.groups.size(); ++s) {
    const Group& sister = f.c.groups[s];
    if (static_cast<int>(s) == d.group || sister.kind() != g.kind() || sister.ranks == g.ranks) {
      continue;
    }
    for (std::size_t n = 0; n < sister.ranks.size(); ++n) {
      const Record* other = f.slots[s].at(f.c, sister, n, d.seq);
      votes += other != nullptr && what_of(f, sister.evidence[n], *other) == what;
    }
  }
  return votes;
}

// Hash of the operation that the member issued in that slot; nullopt: unknown.
std::optional<std::uint64_t> what_at(const Facts& f, const Divergence& d, int member,
                                     std::uint64_t seq) {
  const Record* r = record_at(f, d, member, seq);
  const int i = f.group(d.group).evidence[idx(member)];
  return r == nullptr ? std::nullopt : std::optional(what_of(f, i, *r));
}

// The slot from which on two members issue different operations. A member that left an operation
// out meets the other in equal sizes for a while. `apart`: largest distance between two such slots,
// because in a loop both come to the same operation now and then.
std::uint64_t parted_at(const Facts& f, const Divergence& d, int member, int other,
                        std::uint64_t apart = 1) {
  std::uint64_t at = d.seq;
  for (std::uint64_t seq = at; --seq > 0 && at - seq <= apart;) {
    const auto a = what_at(f, d, member, seq), b = what_at(f, d, other, seq);
    if (!a || !b) {
      break;
    }
    at = *a == *b ? at : seq;
  }
  return at;
}

// The rank's earlier records of that operation, in that group and from that call site.
std::vector<const Record*> before_from_there(const RankEvidence& e, const Record& own) {
  std::vector<const Record*> out;
  for (const Record* r = e.records.data(); r != &own; ++r) {
    if (r->stack == own.stack && r->group == own.group && r->op == own.op) {
      out.push_back(r);
    }
  }
  return out;
}

// +1: it moved as many rows as every time before from that call site, -1: a different number, 0:
// the numbers vary or are too few.
int usual_splits(const RankEvidence& e, const Record& own) {
  const std::vector<const Record*> before = before_from_there(e, own);
  const auto text = [&](const Record* r) { return operation_text(e, *r); };
  if (before.size() < limits::kRepeats ||
      std::ranges::adjacent_find(before, std::not_equal_to(), text) != before.end()) {
    return 0;
  }
  return text(before.back()) == text(&own) ? 1 : -1;
}

// +1: it had that type, and with `sized` that size, before from that call site; -1: only others; 0:
// the call site is new.
int usual_tensor(const RankEvidence& e, const Record& own, bool sized) {
  const std::vector<const Record*> before = before_from_there(e, own);
  const bool known = std::ranges::any_of(before, [&](const Record* r) {
    return r->in_dtype == own.in_dtype && r->out_dtype == own.out_dtype &&
           (!sized || (r->in_numel == own.in_numel && r->out_numel == own.out_numel));
  });
  return known ? 1 : before.empty() ? 0 : -1;
}

// For a size that varies. +1: it equals the size of the preceding operation, as every time from
// that call site (layers work on one batch); -1: this time it does not; 0: the sizes were never
// related.
int usual_with_last(const Facts& f, int evidence, const Record& own) {
  const std::vector<Step>& steps = f.history.of(evidence);
  const auto last_of = [&](const Record& r) -> const Record* {
    const std::size_t at = step_of(steps, f.ev(evidence).index_of(r));
    const Record* last = at == 0 ? nullptr : &f.ev(evidence).records[steps[at - 1].record];
    return last != nullptr && last->group == r.group && last->op == r.op ? last : nullptr;
  };
  std::size_t same = 0;
  for (const Record* r : before_from_there(f.ev(evidence), own)) {
    const Record* last = last_of(*r);
    if (last != nullptr && last->in_numel != r->in_numel) {
      return 0;
    }
    same += last != nullptr;
  }
  const Record* last = last_of(own);
  return last == nullptr || same < limits::kRepeats ? 0 : last->in_numel == own.in_numel ? 1 : -1;
}

// The only class that issued the operation that sister groups issued in that slot; -1: none, or
// several did. Sizes may rightly differ between sisters.
int class_of_sisters(const Facts& f, const Divergence& d) {
  int out = -1;
  if (std::ranges::count(d.fields, SlotField::kOperation, &FieldDifference::field) == 0) {
    return out;
  }
  for (std::size_t k = 0; k < d.classes.size(); ++k) {
    const int m = d.classes[k].front();
    const Record* r = record_at(f, d, m, d.seq);
    if (sisters_that_agree(f, d, what_of(f, f.group(d.group).evidence[idx(m)], *r)) != 0) {
      if (out >= 0) {
        return -1;
      }
      out = static_cast<int>(k);
    }
  }
  return out;
}

// The class that issued the operation that was due, by earlier iterations and sister groups; -1:
// unknown.
int class_by_precedent(const Facts& f, const Divergence& d) {
  if (const int k = class_of_sisters(f, d); k >= 0) {
    return k;
  }
  const Group& g = f.group(d.group);
  std::vector<int> votes(d.classes.size(), 0), by_order = votes;
  bool all_tell = true;
  // Types do not vary between iterations; sizes may.
  const auto differ_in = [&](SlotField field) {
    return std::ranges::count(d.fields, field, &FieldDifference::field) != 0;
  };
  const bool types = differ_in(SlotField::kDtype);
  const bool sizes = !differ_in(SlotField::kOperation) && differ_in(SlotField::kSize);
  for (std::size_t k = 0; k < d.classes.size(); ++k) {
    for (const int m : d.classes[k]) {
      const int i = g.evidence[idx(m)];
      const Record* r = record_at(f, d, m, d.seq);
      const auto [order, in_group] = precedents(f, d, i, f.ev(i).index_of(*r));
      all_tell = all_tell && order != 0;
      by_order[k] += order;
      votes[k] += in_group;
      votes[k] += sisters_that_agree(f, d, what_of(f, i, *r));
      votes[k] += d.splits ? usual_splits(f.ev(i), *r) : 0;
      const std::vector<Step>& steps = f.history.of(i);
      const bool varies = !steps[step_of(steps, f.ev(i).index_of(*r))].sized;
      votes[k] += types ? usual_tensor(f.ev(i), *r, false) : 0;
      // A usual size is no argument for a rank, which may have left out the other's operation.
      const auto size = [&] {
        return varies ? usual_with_last(f, i, *r) : usual_tensor(f.ev(i), *r, true);
      };
      votes[k] += sizes ? std::min(size(), 0) : 0;
    }
  }
  // A rank that left an operation out a while ago is in its usual order again: a member without
  // such a history is no more wrong than that rank.
  for (std::size_t k = 0; k < votes.size() && all_tell; ++k) {
    votes[k] += by_order[k];
  }
  const auto best = std::ranges::max_element(votes);
  return std::ranges::count(votes, *best) == 1 ? static_cast<int>(best - votes.begin()) : -1;
}

// Members without a record of the slot.
struct Voters {
  std::vector<Rank> not_come;  // have not issued it yet
  bool lost = false;           // a member with evidence issued it; its record is not kept
};

Voters voters_of(const Facts& f, const Divergence& d) {
  const Group& g = f.group(d.group);
  Voters out;
  for (std::size_t m = 0; m < g.ranks.size(); ++m) {
    const GroupEvidence* e = f.c.member(g, m);
    if (g.evidence[m] >= 0 && record_at(f, d, static_cast<int>(m), d.seq) == nullptr) {
      if (e != nullptr && e->enqueued < d.seq) {
        out.not_come.push_back(g.ranks[m]);
      } else {
        out.lost = true;
      }
    }
  }
  return out;
}

// The right class if members have not come to the slot yet: the largest class. Exception: it is a
// minority of the group and issued an operation that is new to all of them, where the other class
// issued the usual operation.
int class_of_all(const Facts& f, const Divergence& d) {
  const Group& g = f.group(d.group);
  const auto order = [&](int m) {
    const int i = g.evidence[idx(m)];
    return precedents(f, d, i, f.ev(i).index_of(*record_at(f, d, m, d.seq))).first;
  };
  const auto all = [&](std::size_t k, int is) {
    return std::ranges::all_of(d.classes[k], [&](int m) { return order(m) == is; });
  };
  const bool few = 2 * d.classes.front().size() < g.ranks.size();
  const bool two = d.classes.size() == 2 && d.classes.back().size() > 1;
  return few && two && all(0, -1) && all(1, 1) ? 1 : 0;
}

// Keys of the operations that the member issued in the group from the slot on, or backwards from
// it, as far as its records are kept.
std::vector<std::uint64_t> keys_from(const Facts& f, const Divergence& d, int member,
                                     bool backwards) {
  const int i = f.group(d.group).evidence[idx(member)];
  const std::vector<Step>& steps = f.history.of(i);
  std::vector<std::uint64_t> out;
  for (std::uint64_t seq = d.seq; seq > 0 && (!backwards || out.size() < limits::kWindow);
       seq = backwards ? seq - 1 : seq + 1) {
    const Record* r = record_at(f, d, member, seq);
    if (r == nullptr) {
      break;
    }
    out.push_back(steps[step_of(steps, f.ev(i).index_of(*r))].exact);
  }
  return out;
}

// Distances back to earlier places that were preceded by the same operations, the longest match
// first. `before` runs backwards.
std::vector<std::size_t> places_alike(const std::vector<std::uint64_t>& before) {
  std::vector<std::pair<std::size_t, std::size_t>> found;
  for (std::size_t back = 1; back < before.size(); ++back) {
    if (const std::size_t alike = equal_run(before, 0, before, back); alike != 0) {
      found.emplace_back(alike, back);
    }
  }
  std::ranges::stable_sort(found, std::greater(), [](const auto& x) { return x.first; });
  std::vector<std::size_t> out;
  std::ranges::transform(found, std::back_inserter(out), [](const auto& x) { return x.second; });
  return out;
}

// The issued operations come later in `due`: some were left out.
bool went_on_later(const std::vector<std::uint64_t>& issued, std::vector<std::uint64_t> due,
                   bool fewer) {
  std::size_t support = 0;
  if (kind_of(issued, due, support) != Anomaly::kSkipped) {
    return false;
  }
  // The operations may also fit an exchange, in which one was issued too early. As long as both
  // fit, the member with fewer operations left one out.
  const auto early = std::ranges::find(due, issued[0]);
  std::rotate(due.begin(), early, early + 1);
  const std::size_t exchanged = equal_run(issued, 0, due, 0);
  return exchanged < 2 || exchanged < support || (exchanged == support && fewer);
}

// The member left out one or a few operations: it went on with the operations that followed them in
// some earlier iteration.
bool skipped(const Facts& f, const Divergence& d, int member, int reference) {
  const std::vector<std::uint64_t> issued = keys_from(f, d, member, false);
  const std::vector<std::uint64_t> due = keys_from(f, d, reference, false);
  if (issued.empty() || due.empty() || issued[0] == due[0]) {
    return false;
  }
  const bool fewer = issued.size() < due.size();
  const std::size_t wanted = issued.size() + limits::kSkipLookahead;
  const std::vector<std::uint64_t> before = keys_from(f, d, reference, true);
  std::vector<std::size_t> places = places_alike(before);
  const std::vector<std::uint64_t> own = keys_from(f, d, member, true);
  if (own.size() > 1 && own[1] == issued[0]) {  // a repetition is likelier than a round too early
    places.resize(std::min<std::size_t>(places.size(), 1));
  }
  return went_on_later(issued, due, fewer) || std::ranges::any_of(places, [&](std::size_t back) {
           std::vector<std::uint64_t> all = due;
           while (all.size() < wanted) {
             all.push_back(all.size() < back ? before[back - all.size()] : all[all.size() - back]);
           }
           return went_on_later(issued, std::move(all), fewer);
         });
}

// The slot from which on the member issued the others' operations from a different call site, if in
// this slot it is where the others were then: all its operations since came once more. 0: none.
std::uint64_t once_more_since(const Facts& f, const Divergence& d, int member, int reference) {
  const Group& g = f.group(d.group);
  const auto differ = [&](std::uint64_t own, std::uint64_t others) {
    const Record *a = record_at(f, d, member, own), *b = record_at(f, d, reference, others);
    return a != nullptr && b != nullptr &&
           parting_site(f.ev(g.evidence[idx(member)]), a->stack, f.ev(g.evidence[idx(reference)]),
                        b->stack)
                   .line != 0;
  };
  std::uint64_t since = d.seq;
  while (since > 1 && differ(since - 1, since - 1)) {
    --since;
  }
  const bool kept = record_at(f, d, member, d.seq) != nullptr;
  return since < d.seq && kept && !differ(d.seq, since) ? since : 0;
}

// The slot in which the member left an operation out and met the others in an operation of equal
// size: from there on it issued each of their operations one slot early. 0: none.
std::uint64_t left_out_since(const Facts& f, const Divergence& d, int member, int reference) {
  std::uint64_t since = 0;
  for (std::uint64_t seq = d.seq; --seq > 0 && d.seq - seq <= limits::kRecent;) {
    const auto own = what_at(f, d, member, seq), others = what_at(f, d, reference, seq);
    if (!own || !others || own != what_at(f, d, reference, seq + 1)) {
      break;
    }
    since = own != others ? seq : since;
  }
  return since;
}

int pending_of(const Facts& f, const Divergence& d) {
  for (std::size_t k = 0; k < f.graph.pending.size(); ++k) {
    if (f.graph.pending[k].group == d.group && f.graph.pending[k].kind == Kind::kCollective &&
        f.graph.pending[k].seq == d.seq) {
      return static_cast<int>(k);
    }
  }
  return -1;
}

// All members wait in an earlier operation of the group.
bool is_ahead(const Facts& f, const Divergence& d, const std::vector<int>& members) {
  const auto waits_before = [&](int i) {
    const std::vector<int>& in = f.graph.waits_in[idx(i)];
    return std::ranges::any_of(in, [&](int k) {
      const Pending& p = f.graph[k];
      return p.group == d.group && p.kind == Kind::kCollective && p.seq < d.seq;
    });
  };
  return std::ranges::all_of(members, waits_before);
}

// The second class is right: tells the differences from the side of the first class.
void tell_from_first(Divergence& d) {
  for (FieldDifference& x : d.fields) {
    std::swap(x.own, x.others);
  }
}

// A repeated operation raises the sequence numbers of a member's later operations by one; an
// operation left out lowers them by one.
void tell_shifts(const Facts& f, const Divergence& d, Cause& c) {
  const Group& g = f.group(d.group);
  const int reference = d.classes[idx(c.right)].front();
  for (Guilty& x : c.guilty) {
    const int member = g.position.at(x.rank);
    if (const std::uint64_t since = once_more_since(f, d, member, reference)) {
      x.usual = f.ev(x.evidence).index_of(*record_at(f, d, member, since));
    }
  }
  if (c.guilty.size() == 1 && c.guilty.front().usual == kNoRecord) {
    const std::uint64_t at = parted_at(f, d, g.position.at(c.guilty.front().rank), reference);
    c.parted_since = at < d.seq ? at : 0;
  }
  std::set<std::uint64_t> since;
  for (const Guilty& x : c.guilty) {
    const int member = g.position.at(x.rank);
    const std::uint64_t left_out = left_out_since(f, d, member, reference);
    const bool parted = parted_at(f, d, member, reference) < d.seq;  // by something else
    if (x.usual != kNoRecord || (left_out == 0 && (parted || !skipped(f, d, member, reference)))) {
      return;
    }
    since.insert(left_out == 0 ? d.seq : left_out);
  }
  c.set(Rule::kSkippedSlot, Verdict::kMissing);
  c.parted_since = 0;
  for (Guilty& x : c.guilty) {
    x.why = Why::kSkipped;
  }
  if (since.size() == 1) {  // reported where it began
    c.divergence->seq = *since.begin();
    for (Guilty& x : c.guilty) {
      x.seq = *since.begin();
      x.issued = f.ev(x.evidence).index_of(*record_at(f, d, g.position.at(x.rank), x.seq));
    }
  }
}

// The only rank that stands alone in the ties of two or more groups, in every one of them: one
// fault explains all. Its evidence; -1: none.
int odd_in_all(const Facts& f) {
  std::map<int, std::size_t> times;  // by evidence
  std::set<int> groups;
  for (const Divergence& d : f.divergences) {
    if (d.tie && !d.past && !d.over) {
      groups.insert(d.group);
      for (const std::vector<int>& side : d.classes) {
        times[f.group(d.group).evidence[idx(side.front())]] += side.size() == 1;
      }
    }
  }
  std::erase_if(times, [&](const auto& x) { return x.second < groups.size(); });
  return groups.size() > 1 && times.size() == 1 ? times.begin()->first : -1;
}

// The class on the other side of the tie; -1: the rank is on neither side.
int class_against(const Facts& f, const Divergence& d, int evidence) {
  for (std::size_t k = 0; k < d.classes.size() && d.classes.size() == 2; ++k) {
    if (f.group(d.group).evidence[idx(d.classes[k].front())] == evidence) {
      return 1 - static_cast<int>(k);
    }
  }
  return -1;
}

// `odd`: result of odd_in_all().
Cause judge_divergence(const Facts& f, const Divergence& d, int odd) {
  const Group& g = f.group(d.group);
  Cause c;
  c.divergence = d;
  c.verdict = Verdict::kMismatch;
  c.rule = d.past ? Rule::kPastMismatch : Rule::kMismatch;
  c.pending = pending_of(f, d);
  c.right = d.tie ? -1 : 0;
  if (d.tie) {
    c.right = odd < 0 ? -1 : class_against(f, d, odd);
    Divergence parted = d;
    for (const std::uint64_t apart : {std::uint64_t{1}, std::uint64_t{limits::kLookahead}}) {
      if (c.right < 0) {
        parted.seq = g.ranks.size() == 2
                         ? parted_at(f, d, d.classes[0].front(), d.classes[1].front(), apart)
                         : d.seq;
        c.right = class_by_precedent(f, parted);
      }
    }
    if (c.right >= 0) {
      c.assume(Assume::kTieByPrecedent);
    }
  }
  const Voters voters = d.incomplete_vote ? voters_of(f, d) : Voters();
  if (voters.lost) {
    c.assume(Assume::kRecordsNotKept);
  }
  if (!voters.not_come.empty()) {
    c.assume(Assume::kNotCome, voters.not_come);
    if (c.right == 0 && class_of_all(f, d) == 1) {
      c.right = 1;
      c.assume(Assume::kEarlierIterations);
    }
  }
  if (c.right == 1 && d.classes.size() == 2) {
    tell_from_first(*c.divergence);
  }
  if (d.sizes_vary()) {
    c.assume(Assume::kFewAreWrong);  // several sizes may be wrong and add up to the same
  }
  std::vector<int> members;
  for (std::size_t k = 0; k < d.classes.size(); ++k) {
    for (const int m : d.classes[k]) {
      members.push_back(g.evidence[idx(m)]);
      if (static_cast<int>(k) != c.right) {
        const int i = g.evidence[idx(m)];
        Guilty guilty = guilty_rank(f, i, c.right < 0 ? Why::kDiffers : Why::kMinority, c.pending);
        guilty.issued = f.ev(i).index_of(*record_at(f, d, m, d.seq));
        guilty.seq = d.seq;
        c.guilty.push_back(guilty);
      }
    }
  }
  // The slot is queued behind the operations that the members wait in: no rank waits for this fault
  // yet. A single rank against several is wrong, whatever else is.
  const bool ahead = !d.past && is_ahead(f, d, members);
  const bool clear = !d.past && !d.tie && c.guilty.size() == 1 && members.size() > 2;
  c.independent = ahead || clear;
  if (!ahead) {
    c.explains = f.graph.leading_to(
        members, c.pending >= 0 ? std::vector<int>{c.pending} : std::vector<int>{});
  }
  sort_by_rank(c.guilty);
  if (c.right < 0 && d.incomplete_vote && !f.c.missing.empty()) {
    // A rank without evidence could turn the vote.
    c.set(Rule::kOpenDivergence, Verdict::kUndecided);
    c.guilty.clear();
    return c;
  }
  if (c.right < 0) {
    c.assume(Assume::kTie);
  } else if (!d.past) {
    tell_shifts(f, d, c);
  }
  if (d.past) {
    c.assume(Assume::kCompleted);
  }
  return c;
}

}  // namespace

std::vector<Cause> mismatch(const Facts& f) {
  std::vector<Cause> out;
  const int odd = odd_in_all(f);
  for (const Divergence& d : f.divergences) {
    if (!d.past && !d.over) {  // releases of PyTorch name the same operation differently
      out.push_back(judge_divergence(f, d, odd));
    }
  }
  return out;
}

std::vector<Cause> past_mismatch(const Facts& f) {
  std::vector<Cause> out;
  for (const Divergence& d : f.divergences) {
    if (d.past && d.strict && out.empty()) {
      out.push_back(judge_divergence(f, d, odd_in_all(f)));
    }
  }
  return out;
}

}  // namespace frtrace
