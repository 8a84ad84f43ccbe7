// Slots of collectives, and the differences between members in them.
#include "facts/slots.hpp"

#include <algorithm>
#include <map>

#include "facts/exits.hpp"
#include "facts/limits.hpp"
#include "model/contains.hpp"
#include "model/operation.hpp"

namespace frtrace {

const Record* Slots::at(const Case& c, const Group& g, std::size_t m, std::uint64_t seq) const {
  if (m >= records.size() || records[m].empty()) {
    return nullptr;
  }
  const std::vector<Record>& all = c.evidence_of(g.evidence[m]).records;
  const auto it =
      std::ranges::lower_bound(records[m], seq, {}, [&](std::size_t r) { return all[r].seq; });
  return it != records[m].end() && all[*it].seq == seq ? &all[*it] : nullptr;
}

std::vector<Slots> make_slots(const Case& c) {
  std::vector<Slots> slots(c.groups.size());
  for (std::size_t g = 0; g < c.groups.size(); ++g) {
    slots[g].records.resize(c.groups[g].ranks.size());
  }
  for (const int i : c.indices()) {
    const RankEvidence& e = c.evidence_of(i);
    std::vector<std::vector<std::uint32_t>*> of_row(e.groups.size(), nullptr);
    for (std::uint32_t row = 0; row < e.groups.size(); ++row) {
      if (const int g = c.group_at(i, row); g >= 0) {
        of_row[row] = &slots[idx(g)].records[idx(c.groups[idx(g)].position.at(e.id.rank))];
      }
    }
    for (std::size_t r = 0; r < e.records.size(); ++r) {
      const Record& record = e.records[r];
      if (record.kind == Kind::kCollective && record.group < of_row.size() &&
          of_row[record.group] != nullptr) {
        of_row[record.group]->push_back(static_cast<std::uint32_t>(r));
      }
    }
    const auto seq = [&](std::uint32_t r) { return e.records[r].seq; };
    for (auto* list : of_row) {
      if (list != nullptr && !std::ranges::is_sorted(*list, {}, seq)) {
        std::ranges::stable_sort(*list, {}, seq);
      }
    }
  }
  return slots;
}

namespace {

// Number of elements that a member sends to, and expects from, each other member; empty if the
// record does not say. Counted in rows of the first dimension, like split sizes.
struct Splits {
  std::vector<std::uint64_t> to, from;
};

Splits splits_of(const RankEvidence& e, const Record& r, std::size_t n) {
  Splits s;
  const Shape shape = parse_shape(e, r);
  if (!shape.known) {
    return s;
  }
  const auto rows = [](const TensorShape& t) { return t.dims.empty() ? 1 : t.dims[0]; };
  const auto fill = [&](const std::vector<TensorShape>& tensors,
                        const std::vector<std::uint64_t>& given, std::vector<std::uint64_t>& to) {
    if (given.size() == n) {
      to = given;
    } else if (tensors.size() == n && n > 1) {
      for (const TensorShape& t : tensors) {
        std::uint64_t numel = 1;
        for (const std::uint64_t d : t.dims) {
          numel *= d;
        }
        to.push_back(numel);
      }
    } else if (tensors.size() == 1 && given.empty() && rows(tensors[0]) % n == 0) {
      to.assign(n, rows(tensors[0]) / n);
    }
  };
  fill(shape.in, shape.in_splits, s.to);
  fill(shape.out, shape.out_splits, s.from);
  return s;
}

// In every other recorded all_to_all of the group, each member sends as much as it receives.
bool all_others_even(const Case& c, const Group& g, const Slots& slots, std::uint64_t seq) {
  std::uint64_t first = seq, last = seq;
  for (std::size_t m = 0; m < g.ranks.size(); ++m) {
    for (const std::size_t i : slots.records[m]) {
      const RankEvidence& e = c.evidence_of(g.evidence[m]);
      const Record& r = e.records[i];
      first = std::min(first, r.seq);
      last = std::max(last, r.seq);
      if (r.seq != seq && r.in_numel != r.out_numel && is_all_to_all(e.text(r.op))) {
        return false;
      }
    }
  }
  return last - first >= limits::kRepeats;
}

// The only member that moved another amount than is due, and by exactly `excess`; -1: none.
int only_misfit(const std::vector<std::int64_t>& moved, const std::vector<std::int64_t>& due,
                std::int64_t excess) {
  int odd = -1;
  for (std::size_t m = 0; m < moved.size(); ++m) {
    if (moved[m] != due[m]) {
      odd = odd == -1 && moved[m] - due[m] == excess ? static_cast<int>(m) : -2;
    }
  }
  return std::max(odd, -1);
}

// The member of an all_to_all without recorded splits that makes the totals sent and received
// differ. It alone sends another size than it receives; or sends, or receives, another size than
// all others; or does not send back the size that it received before. If a member is lost and all
// else is even: it alone sends another size than it receives and than all others send.
std::vector<int> total_misfits(const Case& c, const Group& g, const Slots& slots,
                               std::uint64_t seq) {
  std::vector<int> members;
  std::vector<std::int64_t> in, out, before;
  std::int64_t excess = 0;
  for (std::size_t m = 0; m < g.ranks.size(); ++m) {
    const Record* r = slots.at(c, g, m, seq);
    if (r == nullptr) {
      continue;
    }
    if (r->in_numel == 0 || r->out_numel == 0) {
      return {};
    }
    members.push_back(static_cast<int>(m));
    const Record* last = slots.at(c, g, m, seq - 1);
    in.push_back(static_cast<std::int64_t>(r->in_numel));
    out.push_back(static_cast<std::int64_t>(r->out_numel));
    before.push_back(last != nullptr ? static_cast<std::int64_t>(last->out_numel) : -1);
    excess += in.back() - out.back();
  }
  if (excess == 0) {
    return {};
  }
  const auto usual = [](std::vector<std::int64_t> x) {
    std::nth_element(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
    return std::vector<std::int64_t>(x.size(), x[x.size() / 2]);
  };
  const bool whole = members.size() == g.ranks.size();
  // With two uneven members, either may be wrong. So may a lost member.
  if ((in.size() <= 2 || !whole) && !all_others_even(c, g, slots, seq)) {
    return {};
  }
  int odd = only_misfit(in, out, excess);
  if (!whole && odd >= 0) {
    const bool alone =
        in.size() > 2 && in[idx(odd)] != usual(in)[0] && out[idx(odd)] == usual(out)[0];
    odd = alone ? odd : -1;
  } else if (in.size() > 2) {
    odd = odd < 0 ? only_misfit(in, usual(in), excess) : odd;
    odd = odd < 0 ? only_misfit(out, usual(out), -excess) : odd;
    odd = odd < 0 ? only_misfit(in, before, excess) : odd;
  }
  return odd < 0 ? std::vector<int>{} : std::vector<int>{members[idx(odd)]};
}

// Members with all_to_all splits that do not match: the member that is party to every mismatch, or
// all parties.
std::vector<int> all_to_all_misfits(const Case& c, const Group& g, const Slots& slots,
                                    std::uint64_t seq, SplitDifference& first) {
  const std::size_t n = g.ranks.size();
  if (n > limits::kSplitMembers) {
    return {};
  }
  std::vector<Splits> splits(n);
  for (std::size_t m = 0; m < n; ++m) {
    if (const Record* r = slots.at(c, g, m, seq)) {
      splits[m] = splits_of(c.evidence_of(g.evidence[m]), *r, n);
    }
  }
  std::vector<int> quarrels(n, 0);
  int pairs = 0;
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = 0; b < n; ++b) {
      if (a != b && splits[a].to.size() == n && splits[b].from.size() == n &&
          splits[a].to[b] != splits[b].from[a]) {
        if (pairs++ == 0) {
          first = {g.ranks[a], g.ranks[b], splits[a].to[b], splits[b].from[a]};
        }
        ++quarrels[a];
        ++quarrels[b];
      }
    }
  }
  std::vector<int> worst, all;
  for (std::size_t m = 0; m < n; ++m) {
    if (quarrels[m] > 0) {
      all.push_back(static_cast<int>(m));
      if (quarrels[m] == pairs) {
        worst.push_back(static_cast<int>(m));
      }
    }
  }
  return worst.size() == 1 ? worst : all;
}

bool completed(const Record& r) {
  return r.state == State::kCompleted || r.state == State::kReleased ||
         (r.state == State::kUnknown && (r.flags & kUntracked) != 0);
}

// An operation of the rank had failed shortly before because a peer was gone. The rank was about to
// end, so its later operations (a barrier at exit) differ legitimately.
bool is_after_failure(const RankEvidence& e, const Record& r) {
  const std::ptrdiff_t before = std::min(&r - e.records.data(), limits::kAfterFailure);
  return std::any_of(&r - before, &r, [&](const Record& x) {
    return x.state == State::kFailed && x.ended != 0 && x.ended <= r.time &&
           is_consequence(e.text(x.error));
  });
}

// One slot of a group: the members that still hold it, and their differences.
class SlotView {
 public:
  SlotView(const Case& c, int group, const Slots& slots, std::uint64_t seq)
      : c_(c), slots_(slots), group_(group), g_(c.groups[idx(group)]), seq_(seq) {
    const std::size_t n = g_.ranks.size();
    hashes_.resize(n);
    const std::string* format = nullptr;
    bool alike = true;  // all members' files are of one format
    for (std::size_t m = 0; m < n; ++m) {
      if (g_.evidence[m] >= 0) {
        alike = alike && (format == nullptr || *format == evidence(m).format);
        format = &evidence(m).format;
      }
    }
    for (std::size_t m = 0; m < n; ++m) {
      const Record* r = slots.at(c, g_, m, seq);
      if (r == nullptr) {
        continue;
      }
      const RankEvidence& e = evidence(m);
      // PyTorch before 2.7 does not record the contents of a batch; later releases do.
      const bool unsized = e.text(r->op).ends_with("coalesced") && r->in_numel + r->out_numel == 0;
      if ((unsized && !alike) || is_after_failure(e, *r)) {
        continue;
      }
      hashes_[m] = signature_hash(e, *r);
      a2a_ = a2a_ || is_all_to_all(e.text(r->op));
      differ_ = differ_ || (!having_.empty() && hashes_[idx(having_.front())] != hashes_[m]);
      having_.push_back(static_cast<int>(m));
    }
  }

  std::optional<Divergence> divergence() const {
    const std::size_t n = g_.ranks.size();
    SplitDifference pair;
    std::vector<int> misfits;
    bool totals = false;
    if (!differ_ && a2a_) {
      misfits = having_.size() == n ? all_to_all_misfits(c_, g_, slots_, seq_, pair) : misfits;
      totals = misfits.empty();
      misfits = totals ? total_misfits(c_, g_, slots_, seq_) : misfits;
    }
    if (having_.size() < 2 || (!differ_ && misfits.empty())) {
      return std::nullopt;
    }
    Divergence d;
    d.group = group_;
    d.seq = seq_;
    d.past = d.strict = true;
    d.over = !g_.is_gloo();
    d.incomplete_vote = having_.size() < n;
    for (const int m : having_) {
      const Record& r = record(m);
      d.time = d.time == 0 || (r.time != 0 && r.time < d.time) ? r.time : d.time;
      d.strict = d.strict && is_strict(evidence(idx(m)).text(r.op));
      d.over = d.over && r.state == State::kCompleted;
      d.past = d.past && completed(r) && c_.member(g_, idx(m))->completed > seq_;
    }
    if (misfits.empty()) {
      classify(d);
      compare_fields(d);
      return d;
    }
    if (misfits.size() > 1) {  // both ends of a pair: either may be wrong
      for (const int m : misfits) {
        d.classes.push_back({m});
      }
      d.tie = true;
    } else {
      d.classes = {having_, misfits};
      std::erase(d.classes[0], misfits[0]);
    }
    if (totals) {
      compare_sizes(d);
    } else {
      d.splits = pair;
    }
    return d;
  }

 private:
  const RankEvidence& evidence(std::size_t m) const { return c_.evidence_of(g_.evidence[m]); }
  // The record of a member that holds the slot.
  const Record& record(int m) const { return *slots_.at(c_, g_, idx(m), seq_); }

  // Sorts members that did the same into classes, the largest first.
  void classify(Divergence& d) const {
    std::map<std::uint64_t, std::vector<int>> by_hash;
    for (const int m : having_) {
      by_hash[hashes_[idx(m)]].push_back(m);
    }
    for (auto& [hash, members] : by_hash) {
      d.classes.push_back(std::move(members));
    }
    std::ranges::sort(d.classes, [](const auto& a, const auto& b) {
      return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
    });
    d.tie = d.classes[0].size() == d.classes[1].size();
  }

  void compare_sizes(Divergence& d) const {
    const Record& own = record(d.classes[1].front());
    const Record& most = record(d.classes[0].front());
    const bool alike = std::ranges::all_of(d.classes[0], [&](int m) {
      return record(m).in_numel == most.in_numel && record(m).out_numel == most.out_numel;
    });
    const auto compare = [&](SlotField field, std::uint64_t a, std::uint64_t b) {
      if (a != b) {
        d.fields.push_back({field, std::to_string(a), std::to_string(b)});
      }
    };
    if (!alike) {
      d.fields.push_back({SlotField::kSizes, "", ""});
      return;
    }
    compare(SlotField::kSize, own.in_numel, most.in_numel);
    compare(SlotField::kOutputSize, own.out_numel, most.out_numel);
  }

  void compare_fields(Divergence& d) const {
    const auto fields = [&](int m) { return signature_fields(evidence(idx(m)), record(m)); };
    const auto most = fields(d.classes[0].front());
    for (std::size_t k = 1; k < d.classes.size(); ++k) {
      for (const auto& [field, value] : fields(d.classes[k].front())) {
        for (const auto& [other_field, other_value] : most) {
          if (field == other_field && value != other_value) {
            d.fields.push_back({field, value, other_value});
          }
        }
        if (field == SlotField::kOperation && value != most.front().second) {
          break;  // another operation: its sizes do not matter
        }
      }
    }
  }

  const Case& c_;
  const Slots& slots_;
  int group_;
  const Group& g_;
  std::uint64_t seq_;
  std::vector<int> having_;  // members that hold the slot
  std::vector<std::uint64_t> hashes_;
  bool differ_ = false, a2a_ = false;
};

// The slots of a group in which members may differ, in order. Scanned member by member, as the
// records lie in memory, and in blocks of numbers, as a damaged file may hold any number.
class Suspects {
 public:
  Suspects(const Case& c, const Group& g, const Slots& slots) {
    for (std::size_t m = 0; m < g.ranks.size(); ++m) {
      if (!slots.records[m].empty()) {
        const RankEvidence& e = c.evidence_of(g.evidence[m]);
        members_.push_back({&slots.records[m], &e.records, Signatures(e), 0});
      }
    }
  }

  // The next suspect slots; empty: there are no more.
  std::vector<std::uint64_t> next() {
    std::vector<std::uint64_t> out;
    while (out.empty()) {
      std::uint64_t first = UINT64_MAX;
      for (const Member& m : members_) {
        first = m.at < m.list->size() ? std::min(first, m.record().seq) : first;
      }
      if (first == UINT64_MAX) {
        break;
      }
      seen_.assign(kNumbers, {});
      for (Member& m : members_) {
        look(m, first);
      }
      for (std::size_t n = 0; n < kNumbers; ++n) {
        if (seen_[n].suspect) {
          out.push_back(first + n);
        }
      }
    }
    return out;
  }

 private:
  static constexpr std::uint64_t kNumbers = 4096;  // a block of them stays in the cache
  struct Member {
    const std::vector<std::uint32_t>* list;
    const std::vector<Record>* records;
    Signatures signatures;
    std::size_t at;
    const Record& record() const { return (*records)[(*list)[at]]; }
  };
  struct Seen {
    std::uint64_t signature = 0;
    bool any = false, suspect = false;
  };

  void look(Member& m, std::uint64_t first) {
    for (; m.at < m.list->size() && m.record().seq - first < kNumbers; ++m.at) {
      const Record& r = m.record();
      const std::uint64_t signature = m.signatures.hash(r);
      Seen& seen = seen_[r.seq - first];
      seen.suspect = seen.suspect ||
                     (seen.any && (seen.signature != signature || m.signatures.is_all_to_all(r)));
      seen.signature = signature;
      seen.any = true;
    }
  }

  std::vector<Member> members_;
  std::vector<Seen> seen_;
};

// stuck: the first slot with a difference that not all completed, else the first that is not past.
// past: the first past slot with a difference.
struct Differences {
  std::optional<Divergence> stuck, past;
};

Differences differences(const Case& c, int group, const Slots& slots) {
  Differences out;
  Suspects suspects(c, c.groups[idx(group)], slots);
  for (auto some = suspects.next(); !some.empty(); some = suspects.next()) {
    for (const std::uint64_t seq : some) {
      auto d = SlotView(c, group, slots, seq).divergence();
      if (d && !d->past && !d->over) {
        out.stuck = std::move(d);
        return out;
      }
      std::optional<Divergence>& ended = d && !d->past ? out.stuck : out.past;
      if (!ended) {
        ended = std::move(d);
      }
    }
  }
  return out;
}

}  // namespace

std::vector<int> Divergence::apart() const {
  std::vector<int> out;
  for (std::size_t k = tie ? 0 : 1; k < classes.size(); ++k) {
    out.insert(out.end(), classes[k].begin(), classes[k].end());
  }
  return out;
}

std::vector<Divergence> divergences(const Case& c, const std::vector<Slots>& slots) {
  std::vector<Divergence> out, past;
  for (std::size_t group = 0; group < c.groups.size(); ++group) {
    Differences d = differences(c, static_cast<int>(group), slots[group]);
    if (d.stuck) {
      out.push_back(std::move(*d.stuck));
    }
    if (d.past) {
      past.push_back(std::move(*d.past));
    }
  }
  if (out.empty()) {
    out = std::move(past);
  }
  std::ranges::stable_sort(out, {}, &Divergence::time);
  return out;
}

std::vector<WholeSlot> whole_slots(const Case& c, const std::vector<Slots>& slots) {
  std::vector<WholeSlot> out;
  for (std::size_t g = 0; g < c.groups.size(); ++g) {
    const Group& group = c.groups[g];
    std::size_t present = 0, shortest = SIZE_MAX, shortest_member = 0;
    for (std::size_t m = 0; m < group.ranks.size(); ++m) {
      if (group.evidence[m] >= 0) {
        ++present;
        if (slots[g].records[m].size() < shortest) {
          shortest = slots[g].records[m].size();
          shortest_member = m;
        }
      }
    }
    if (present < 2 || shortest == 0) {
      continue;
    }
    const RankEvidence& e = c.evidence_of(group.evidence[shortest_member]);
    for (const std::size_t r : slots[g].records[shortest_member]) {
      WholeSlot slot{static_cast<int>(g), {}};
      for (std::size_t m = 0; m < group.ranks.size(); ++m) {
        if (group.evidence[m] < 0) {
          continue;
        }
        const Record* record = slots[g].at(c, group, m, e.records[r].seq);
        const RankEvidence& own = c.evidence_of(group.evidence[m]);
        if (record == nullptr || record->time == 0 || !meets_all(own.text(record->op))) {
          break;
        }
        slot.members.emplace_back(group.evidence[m], own.index_of(*record));
      }
      if (slot.members.size() == present) {
        out.push_back(std::move(slot));
      }
    }
  }
  return out;
}

}  // namespace frtrace
