// Sends that do not fit their receives.
#include <algorithm>
#include <set>
#include <tuple>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "model/operation.hpp"

namespace frtrace {

namespace {

// +1: the rank moved as much in its last comparable operation, 0: at other times, or unknown, -1:
// never. Comparable are operations of the same kind and call site, or of the same peer if the call
// site is unknown; preferably after the same operations, else any.
int size_precedent(const Facts& f, int evidence, std::size_t record) {
  const std::vector<Record>& all = f.ev(evidence).records;
  const std::vector<Step>& steps = f.history.of(evidence);
  const auto usual = usual_next(steps, step_of(steps, record));
  const Record& own = all[record];
  const bool anywhere = user_site(f.ev(evidence), own.stack).file.empty();
  const auto alike = [&](const Record& r) {
    return r.kind == own.kind && r.group == own.group && r.stack == own.stack &&
           (!anywhere || r.peer == own.peer);
  };
  const auto moved = [](const Record& r) {
    return std::tuple(r.in_numel, r.out_numel, r.in_dtype, r.out_dtype);
  };
  const Record* before = usual ? &all[steps[*usual].record] : nullptr;
  // Another message between the two, from another call site, was due: sizes at this call site do
  // not matter.
  if (before != nullptr && before->kind == own.kind && before->group == own.group &&
      before->peer == own.peer && before->stack != own.stack && moved(*before) != moved(own)) {
    return 0;
  }
  before = before != nullptr && alike(*before) ? before : nullptr;
  for (std::size_t i = record; before == nullptr && i-- > 0;) {
    before = alike(all[i]) ? &all[i] : nullptr;
  }
  if (before == nullptr) {
    return 0;
  }
  if (moved(*before) == moved(own)) {
    return 1;
  }
  const bool at_times =
      std::any_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(record),
                  [&](const Record& r) { return alike(r) && moved(r) == moved(own); });
  return at_times ? 0 : -1;
}

// The batch has more or fewer messages with that peer than each batch before it.
bool is_odd_batch(const Facts& f, int evidence, std::size_t record) {
  const std::vector<Record>& all = f.ev(evidence).records;
  const Record& own = all[record];
  std::vector<std::pair<std::uint32_t, std::size_t>> sizes;  // batch, messages; newest first
  for (std::size_t i = all.size(); i-- > 0 && own.batch != 0 && sizes.size() < limits::kRecent;) {
    const Record& r = all[i];
    if (r.kind != own.kind || r.group != own.group || r.peer != own.peer || r.batch == 0) {
      continue;
    }
    if (sizes.empty() || sizes.back().first != r.batch) {
      sizes.emplace_back(r.batch, 0);
    }
    ++sizes.back().second;
  }
  const auto it = std::ranges::find(sizes, own.batch, [](const auto& s) { return s.first; });
  const auto before = it == sizes.end() ? it : it + 1;
  // The ring may have lost messages of the oldest batch.
  return sizes.end() - before > 1 + static_cast<std::ptrdiff_t>(limits::kPeersAgree) &&
         std::all_of(before, sizes.end() - 1, [&](const auto& s) {
           return s.second == before->second && s.second != it->second;
         });
}

// Number of peers that moved the same size and type in their last message from that call site.
std::size_t peers_with(const Facts& f, const Unequal& u, int evidence, std::size_t record) {
  const Record& own = f.ev(evidence).records[record];
  const std::vector<Step>& steps = f.history.of(evidence);
  const std::uint64_t role = f.anomalies.role(evidence, steps[step_of(steps, record)]);
  const auto did = [&](int j) {
    const std::vector<std::uint64_t>& roles = f.anomalies.roles(j);
    const auto last = std::find(roles.rbegin(), roles.rend(), role);
    if (j == u.sender || j == u.receiver || last == roles.rend()) {
      return false;
    }
    const Record& r = f.history.record(j, idx(roles.rend() - last) - 1);
    return r.in_numel == own.in_numel && r.out_numel == own.out_numel &&
           f.ev(j).text(r.in_dtype) == f.ev(evidence).text(own.in_dtype);
  };
  return idx(std::ranges::count_if(f.anomalies.peers(evidence, true), did));
}

// Number of other ranks that are now in a message of that group with that tag.
int with_tag(const Facts& f, const Unequal& u, int group, const std::string& tag) {
  int n = 0;
  for (const int i : f.c.indices()) {
    const std::size_t front = f.graph.fronts[idx(i)].first;
    const Record* r = front == kNoRecord ? nullptr : &f.ev(i).records[front];
    n += r != nullptr && i != u.sender && i != u.receiver && r->kind != Kind::kCollective &&
         f.c.group_at(i, r->group) == group && tag_of(f.ev(i), *r) == tag;
  }
  return n;
}

std::vector<Cause> unequal_pairs(const Facts& f) {
  std::vector<Cause> out;
  std::set<std::pair<std::pair<int, int>, std::uint64_t>> seen;
  for (std::size_t k = 0; k < f.graph.pending.size(); ++k) {
    const Pending& p = f.graph.pending[k];
    if (!p.unequal || !seen.insert({{p.unequal->sender, p.unequal->receiver}, p.seq}).second) {
      continue;
    }
    const Unequal& u = *p.unequal;
    Cause c(Rule::kUnequalEnds, Verdict::kMismatch);
    c.pending = static_cast<int>(k);
    c.explains = f.graph.leading_to({u.sender, u.receiver}, {c.pending});
    const bool tags = !u.sent_tag.empty();
    int sends = tags ? with_tag(f, u, p.group, u.sent_tag) : size_precedent(f, u.sender, u.send);
    int receives =
        tags ? with_tag(f, u, p.group, u.recv_tag) : size_precedent(f, u.receiver, u.recv);
    const bool odd = !tags && is_odd_batch(f, u.sender, u.send);
    const bool counted = !tags && odd != is_odd_batch(f, u.receiver, u.recv);
    if (counted) {
      sends = odd ? -1 : 1;
      receives = -sends;
    }
    // If several peers move the size of one end there, and no peer that of the other end, the
    // former end is right.
    if (!tags && !counted && sends != receives) {
      const std::size_t with_sender = peers_with(f, u, u.sender, u.send);
      const std::size_t with_receiver = peers_with(f, u, u.receiver, u.recv);
      c.by_peers = sends > receives ? with_sender == 0 && with_receiver >= limits::kPeersAgree
                                    : with_receiver == 0 && with_sender >= limits::kPeersAgree;
      if (c.by_peers) {
        std::swap(sends, receives);
      }
    }
    // Neither size is new: one end left out a message, or sent one too many, before.
    auto earlier =
        !tags && sends == receives ? left_order(f, {u.sender, u.receiver}, true) : std::nullopt;
    if (earlier && earlier->guilty.size() == 1) {
      earlier->explains = c.explains;
      out.push_back(std::move(*earlier));
      continue;
    }
    const bool only_sender = sends < receives, only_receiver = receives < sends;
    if (!only_receiver) {
      c.guilty.push_back(guilty_rank(f, u.sender, Why::kMinority, c.pending));
      c.guilty.back().issued = u.send;
    }
    if (!only_sender) {
      c.guilty.push_back(guilty_rank(f, u.receiver, Why::kMinority, c.pending));
      c.guilty.back().issued = u.recv;
    }
    c.assume(!only_sender && !only_receiver ? Assume::kTie
             : tags                         ? Assume::kFewAreWrong
             : c.by_peers                   ? Assume::kPeersOrder
                                            : Assume::kTieByPrecedent);
    for (Guilty& g : c.guilty) {
      g.why = c.guilty.size() == 2 ? Why::kDiffers : Why::kMinority;
    }
    sort_by_rank(c.guilty);
    out.push_back(std::move(c));
  }
  return out;
}

}  // namespace

std::vector<Cause> unequal_ends(const Facts& f) {
  std::vector<Cause> out = unequal_pairs(f);
  std::erase_if(out, [](const Cause& c) { return c.guilty.size() > 1; });
  return out;
}

// Sequence numbers of sends count from the records that a file still holds, and one send too many
// shifts all later sends: pairs that no earlier size decides may only be numbered wrongly.
std::vector<Cause> unequal_ends_tie(const Facts& f) {
  std::vector<Cause> out = unequal_pairs(f);
  std::erase_if(out, [&](const Cause& c) {
    const Unequal& u = *f.graph[c.pending].unequal;
    return c.guilty.size() == 1 || f.ev(u.sender).holes.relative_p2p ||
           f.ev(u.receiver).holes.relative_p2p;
  });
  return out;
}

}  // namespace frtrace
