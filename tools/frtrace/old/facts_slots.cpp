#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "old/facts.hpp"

namespace frtrace {

const Record* Slots::at(const Case& c, const Group& g, std::size_t m, std::uint64_t seq) const {
  if (m >= records.size() || records[m].empty()) {
    return nullptr;
  }
  const std::vector<Record>& all = c.evidence_of(g.evidence[m]).records;
  const auto it = std::lower_bound(records[m].begin(), records[m].end(), seq,
                                   [&](std::size_t r, std::uint64_t s) { return all[r].seq < s; });
  return it != records[m].end() && all[*it].seq == seq ? &all[*it] : nullptr;
}

std::vector<Slots> make_slots(const Case& c) {
  std::vector<Slots> slots(c.groups.size());
  for (std::size_t g = 0; g < c.groups.size(); ++g) {
    slots[g].records.resize(c.groups[g].ranks.size());
  }
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    const RankEvidence& e = *c.ranks[i];
    std::vector<std::vector<std::size_t>*> of_row(e.groups.size(), nullptr);
    for (std::size_t row = 0; row < e.groups.size(); ++row) {
      if (const int g = c.group_of[i][row]; g >= 0) {
        const std::size_t group = static_cast<std::size_t>(g);
        const int m = c.groups[group].position.at(e.id.rank);
        of_row[row] = &slots[group].records[static_cast<std::size_t>(m)];
      }
    }
    for (std::size_t r = 0; r < e.records.size(); ++r) {
      const Record& record = e.records[r];
      if (record.kind == Kind::kCollective && record.group < of_row.size() &&
          of_row[record.group] != nullptr) {
        of_row[record.group]->push_back(r);
      }
    }
    for (auto* list : of_row) {
      if (list != nullptr) {
        std::stable_sort(list->begin(), list->end(), [&](std::size_t a, std::size_t b) {
          return e.records[a].seq < e.records[b].seq;
        });
      }
    }
  }
  return slots;
}

namespace {

// Number of elements that a member sends to, and expects from, each other member; empty when the
// record does not say. Counted in rows of the first dimension, as split sizes are.
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

// Members whose all_to_all splits do not fit each other's: the one that is party to every
// disagreement, or all parties.
std::vector<int> all_to_all_misfits(const Case& c, const Group& g, const Slots& slots,
                                    std::uint64_t seq, std::string& words) {
  const std::size_t n = g.ranks.size();
  if (n > 512) {
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
          words = fmt::format("rank {} sends {} rows to rank {}, which expects {}", g.ranks[a],
                              splits[a].to[b], g.ranks[b], splits[b].from[a]);
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

std::optional<Divergence> divergence_in(const Case& c, int group, const Slots& slots,
                                        std::uint64_t first, std::uint64_t last, bool past_too) {
  const Group& g = c.groups[static_cast<std::size_t>(group)];
  const std::size_t n = g.ranks.size();
  std::vector<std::size_t> cursor(n, 0);
  std::vector<int> having;
  std::vector<std::uint64_t> hashes(n);
  for (std::uint64_t seq = first; seq <= last; ++seq) {
    having.clear();
    bool differ = false, a2a = false;
    std::uint64_t next = last;  // the next slot that anybody has
    for (std::size_t m = 0; m < n; ++m) {
      const auto& list = slots.records[m];
      if (list.empty()) {
        continue;
      }
      const RankEvidence& e = c.evidence_of(g.evidence[m]);
      while (cursor[m] < list.size() && e.records[list[cursor[m]]].seq < seq) {
        ++cursor[m];
      }
      if (cursor[m] == list.size() || e.records[list[cursor[m]]].seq != seq) {
        next = cursor[m] == list.size() ? next : std::min(next, e.records[list[cursor[m]]].seq);
        continue;
      }
      const Record& r = e.records[list[cursor[m]]];
      hashes[m] = signature_hash(e, r);
      a2a = a2a || is_all_to_all(e.text(r.op));
      differ = differ ||
               (!having.empty() && hashes[static_cast<std::size_t>(having.front())] != hashes[m]);
      having.push_back(static_cast<int>(m));
    }
    if (having.empty() && next > seq) {
      seq = next - 1;  // seqs may be any number in a damaged file
      continue;
    }
    if (having.size() < 2) {
      continue;
    }
    std::string pair_words;
    std::vector<int> misfits;
    if (!differ && a2a && having.size() == n) {
      misfits = all_to_all_misfits(c, g, slots, seq, pair_words);
    }
    if (!differ && misfits.empty()) {
      continue;
    }
    Divergence d;
    d.group = group;
    d.seq = seq;
    d.past = true;
    d.strict = true;
    d.incomplete_vote = having.size() < n;
    std::map<std::uint64_t, std::vector<int>> by_hash;
    for (const int m : having) {
      const std::size_t i = static_cast<std::size_t>(m);
      const RankEvidence& e = c.evidence_of(g.evidence[i]);
      const Record& r = *slots.at(c, g, i, seq);
      d.time = d.time == 0 || (r.time != 0 && r.time < d.time) ? r.time : d.time;
      d.strict = d.strict && is_strict(e.text(r.op));
      d.past = d.past && completed(r) && c.member(g, i)->completed > seq;
      const bool misfit = std::find(misfits.begin(), misfits.end(), m) != misfits.end();
      by_hash[misfits.empty() ? hashes[i] : static_cast<std::uint64_t>(misfit)].push_back(m);
    }
    if (d.past && !past_too) {
      continue;
    }
    for (auto& [hash, members] : by_hash) {
      d.classes.push_back(std::move(members));
    }
    if (!misfits.empty()) {
      d.words.push_back(pair_words);
      if (misfits.size() > 1) {  // both ends of a pair, nobody knows which
        d.classes.assign(1, {});
        for (const int m : misfits) {
          d.classes.push_back({m});
        }
        d.classes.erase(d.classes.begin());
        d.tie = true;
        return d;
      }
      std::sort(d.classes.begin(), d.classes.end(),
                [](const auto& a, const auto& b) { return a.size() > b.size(); });
      if (d.classes.size() == 2 && d.classes[0].size() == d.classes[1].size()) {
        d.tie = true;
      }
      return d;
    }
    std::sort(d.classes.begin(), d.classes.end(), [](const auto& a, const auto& b) {
      return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
    });
    d.tie = d.classes[0].size() == d.classes[1].size();
    const auto fields = [&](int m) {
      return signature_fields(c.evidence_of(g.evidence[static_cast<std::size_t>(m)]),
                              *slots.at(c, g, static_cast<std::size_t>(m), seq));
    };
    const auto most = fields(d.classes[0].front());
    for (std::size_t k = 1; k < d.classes.size(); ++k) {
      for (const auto& [name, value] : fields(d.classes[k].front())) {
        for (const auto& [other_name, other_value] : most) {
          if (name == other_name && value != other_value) {
            d.words.push_back(fmt::format("{} {} instead of {}", name, value, other_value));
          }
        }
        if (name == "operation" && value != most.front().second) {
          break;  // another operation: its sizes are beside the point
        }
      }
    }
    return d;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Divergence> first_divergence(const Case& c, const std::vector<Slots>& slots) {
  std::optional<Divergence> best;
  for (const bool past_too : {false, true}) {
    for (std::size_t group = 0; group < c.groups.size(); ++group) {
      const Group& g = c.groups[group];
      // Slots that at least two members still hold.
      std::vector<std::uint64_t> firsts;
      std::uint64_t last = 0;
      for (std::size_t m = 0; m < g.ranks.size(); ++m) {
        if (const auto& list = slots[group].records[m]; !list.empty()) {
          const auto& records = c.evidence_of(g.evidence[m]).records;
          firsts.push_back(records[list.front()].seq);
          last = std::max(last, records[list.back()].seq);
        }
      }
      if (firsts.size() < 2) {
        continue;
      }
      std::nth_element(firsts.begin(), firsts.begin() + 1, firsts.end());
      const auto d =
          divergence_in(c, static_cast<int>(group), slots[group], firsts[1], last, past_too);
      if (d && (!best || d->time < best->time)) {
        best = d;
      }
    }
    if (best) {
      break;
    }
  }
  return best;
}

}  // namespace frtrace
