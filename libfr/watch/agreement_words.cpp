// agreement_words.cpp - a difference in words: which ranks issued what, and where. The largest
// class of members is right; where two are largest, no rank is named as wrong.
#include <algorithm>
#include <cstring>
#include <utility>

#include "format/call_site.hpp"
#include "format/codes.hpp"
#include "format/text.hpp"
#include "fr/fr.h"
#include "watch/agreement_memory.hpp"

namespace fr {
namespace {

constexpr u32 kSidesShown = 3;
constexpr u32 kUnnamed = 8;  // differences without records before one is told without names

int length(std::string_view text) {
  return static_cast<int>(text.size());
}

// Appends to a text of fixed size.
struct Line {
  char* out;
  std::size_t bytes, used = 0;
  template <class... A>
  void add(const char* text, A... arguments) noexcept {
    used += format(out + used, bytes - used, text, arguments...);
  }
};

// " at train.py:91 (step)"; where both stacks are at the same line of the user, the line of the user
// from which they part.
void add_site(Line& line, const View& view, u32 stack, const View& other,
              u32 other_stack) noexcept {
  Site site = user_site(view, stack);
  const Site theirs = user_site(other, other_stack);
  if (site.file == theirs.file && site.line == theirs.line) {
    const auto own = view.stack(stack);
    const auto others = other.stack(other_stack);
    for (std::size_t n = 1; n <= std::min(own.size(), others.size()); ++n) {
      const FrameRow a = view.frame(own[own.size() - n]);
      const FrameRow b = other.frame(others[others.size() - n]);
      if (a.line != b.line || view.string(a.file) != other.string(b.file)) {
        if (!is_library_file(view.string(a.file))) {
          site = {view.string(a.file), view.string(a.func), a.line, {}, {}};
        }
        break;
      }
    }
  }
  if (!site.file.empty()) {
    const std::string_view file = site.file.substr(site.file.rfind('/') + 1);
    line.add(" at %.*s:%u (%.*s)", length(file), file.data(), site.line, length(site.function),
             site.function.data());
  }
}

// ", dtype Int, reduce op MAX": what the signatures differ in.
void add_fields(Line& line, OpClass c, const Payload& own, const Payload& other) noexcept {
  const MustAgree must = must_agree(c);
  if (must.in_size && own.in_numel != other.in_numel) {
    line.add(", %l elements", u64{own.in_numel});
  }
  if (must.out_size && own.out_numel != other.out_numel && own.out_numel != own.in_numel) {
    line.add(", %l elements of output", u64{own.out_numel});
  }
  if (must.types && agreed_dtype(c, own) != agreed_dtype(c, other)) {
    line.add(", dtype %s", dtype_name(agreed_dtype(c, own)));
  }
  if (must.types && own.reduce_op != other.reduce_op) {
    line.add(", reduce op %s", reduce_op_name(own.reduce_op));
  }
  if (must.root && own.peer != other.peer) {
    line.add(", root %d", own.peer);
  }
}

}  // namespace

// Members that issued the same.
struct Agreement::Side {
  u64 what;
  u32 n;
  const Held* first;
};

// The records of one operation, from members with a ring that still has it.
u32 Agreement::find_held(const Group& g, u32 seq, Held* held, u16 kind) noexcept {
  u32 n = 0;
  RecordCopy& r = memory_->record;
  for (u32 i = 0; i < n_rings_; ++i) {
    Ring& ring = memory_->rings[i];
    const u32 index = static_cast<u32>(&g - memory_->groups) + 1;
    const auto* ref = std::find_if(std::begin(ring.groups), std::end(ring.groups),
                                   [&](const GroupRef& x) { return x.index == index; });
    if (!ring.view.ok() || ref == std::end(ring.groups)) {
      continue;
    }
    const u32 row = static_cast<u32>(ref - ring.groups);
    const u64 head = get(ring.view.header().head);
    const u32 slots = ring.view.n_slots();
    for (u64 back = 1; back <= head && back <= slots; ++back) {
      const u64 ticket = head - back;
      if (ring.view.read(static_cast<u32>(ticket % slots), r) == Slot::kWhole &&
          r.payload.kind == kind && r.payload.group == row &&
          static_cast<u32>(r.payload.seq) == seq) {
        if (kind == FR_SAMPLE && !is_same_output(r)) {
          continue;
        }
        const u32 signed_as = kind == FR_SAMPLE ? output_signature(r)
                                                : signature(name_of(ring, r.payload.op), r.payload);
        held[n++] = {i, signed_as, site_of(ring, r.payload.stack), r.payload};
        break;
      }
    }
  }
  return n;
}

namespace {

// "all_reduce #5 of default_pg".
void add_operation(Line& line, const View& view, const Payload& p) noexcept {
  const std::string_view op = view.string(p.op);
  const GroupLabel label(view, view.group(p.group));
  const std::string_view name = label.text();
  line.add("%.*s #%l of %.*s", length(op), op.data(), u64{p.seq}, length(name), name.data());
}

// "rank 3", "ranks 0-2,4".
template <class RankAt>
void add_ranks(Line& line, u32 n, RankAt rank_at) noexcept {
  u32 shown = 0;
  for (i32 last = -1; shown < n;) {
    i32 first = INT32_MAX;
    for (u32 i = 0; i < n; ++i) {
      first = rank_at(i) > last ? std::min(first, rank_at(i)) : first;
    }
    if (first == INT32_MAX) {
      break;
    }
    i32 end = first;
    for (bool more = true; more;) {
      more = false;
      for (u32 i = 0; i < n; ++i) {
        if (rank_at(i) == end + 1) {
          ++end;
          more = true;
        }
      }
    }
    line.add(shown == 0 ? (n == 1 ? "rank %d" : "ranks %d") : ",%d", first);
    if (end > first) {
      line.add(end == first + 1 ? ",%d" : "-%d", end);
    }
    shown += static_cast<u32>(end - first) + 1;
    last = end;
  }
}

// Sorts members into classes by what(i), the largest first; returns how many there are.
template <class SideOf, class What, class HeldAt>
u32 sort_sides(SideOf* sides, u32 limit, u32 n, What what, HeldAt held_at) noexcept {
  u32 n_sides = 0;
  for (u32 i = 0; i < n; ++i) {
    u32 k = 0;
    while (k < n_sides && sides[k].what != what(i)) {
      ++k;
    }
    if (k == n_sides) {
      if (n_sides == limit) {
        continue;
      }
      sides[n_sides++] = {what(i), 0, held_at(i)};
    }
    ++sides[k].n;
  }
  // Stable, which std::stable_sort is not without allocating.
  for (u32 i = 1; i < n_sides; ++i) {
    for (u32 k = i; k > 0 && sides[k - 1].n < sides[k].n; --k) {
      std::swap(sides[k - 1], sides[k]);
    }
  }
  return n_sides;
}

}  // namespace

i32 Agreement::rank_of(const Held& held) const noexcept {
  return memory_->rings[held.ring].view.header().rank.load();
}

bool Agreement::tell_difference(Group& g, char* text, std::size_t bytes) noexcept {
  Held* held = memory_->held[0];
  const u32 n = find_held(g, g.due_seq, held, FR_COLLECTIVE);
  Side sides[8];
  const auto what = [&](u32 i) { return u64{held[i].signature}; };
  const u32 n_sides = sort_sides(sides, 8, n, what, [&](u32 i) { return &held[i]; });
  Line line{text, bytes};
  if (n_sides < 2) {
    if (++g.unnamed < kUnnamed) {
      return false;
    }
    const GroupLabel label(memory_->rings[g.ring].view, memory_->rings[g.ring].view.group(g.row));
    const std::string_view name = label.text();
    line.add(
        "mismatch: ranks of this node issue different operations as #%l of %.*s; which ones, "
        "the rings (FR_BUFFER_SIZE) no longer have",
        u64{g.due_seq}, length(name), name.data());
    return true;
  }
  const bool tie = sides[0].n == sides[1].n;
  line.add(tie ? "mismatch: nothing tells which is right: " : "mismatch: ");
  // The wrong side first, against the other.
  for (u32 k = 0; k < n_sides && k < kSidesShown; ++k) {
    const Side& side = tie ? sides[k] : sides[(k + 1) % n_sides];
    const Held& against = *(&side == &sides[0] ? sides[1] : sides[0]).first;
    Ring& ring = memory_->rings[side.first->ring];
    Ring& other = memory_->rings[against.ring];
    const Payload& p = side.first->payload;
    line.add(k == 0 ? "" : "; ");
    u32 places[kRings];
    u32 n_places = 0;
    for (u32 i = 0; i < n; ++i) {
      if (what(i) == side.what) {
        places[n_places++] = i;
      }
    }
    add_ranks(line, n_places, [&](u32 i) { return rank_of(held[places[i]]); });
    const std::string_view op = ring.view.string(p.op);
    const GroupLabel label(ring.view, ring.view.group(p.group));
    const std::string_view name = label.text();
    line.add(" issued %.*s", length(op), op.data());
    line.add(k == 0 ? " #%l of %.*s" : " #%l", u64{p.seq}, length(name), name.data());
    add_site(line, ring.view, p.stack, other.view, against.payload.stack);
    const OpName own_name = name_of(ring, p.op);
    if (own_name.hash == name_of(other, against.payload.op).hash) {
      add_fields(line, own_name.op_class, p, against.payload);
    }
  }
  return true;
}

bool Agreement::tell_exchange(Group& g, char* text, std::size_t bytes) noexcept {
  Held* first = memory_->held[0];
  Held* second = memory_->held[1];
  const u32 n = find_held(g, g.due_seq, first, FR_COLLECTIVE);
  if (n < 2 || find_held(g, g.due_other, second, FR_COLLECTIVE) != n) {
    return false;
  }
  const auto sites = [&](u32 i) { return static_cast<u64>(first[i].site) << 32 | second[i].site; };
  for (u32 i = 0; i < n; ++i) {
    if (first[i].signature != second[i].signature || first[i].signature != first[0].signature ||
        first[i].ring != second[i].ring) {
      return false;
    }
  }
  Side sides[3];
  const u32 n_sides = sort_sides(sides, 3, n, sites, [&](u32 i) { return &first[i]; });
  if (n_sides != 2 || sides[0].what != (sides[1].what << 32 | sides[1].what >> 32)) {
    return false;
  }
  const bool tie = sides[0].n == sides[1].n;
  const Side& wrong = sides[tie ? 0 : 1];
  const Side& right = sides[tie ? 1 : 0];
  Line line{text, bytes};
  line.add(tie ? "mismatch: nothing tells which is right: " : "mismatch: ");
  for (const Side* side : {&wrong, &right}) {
    u32 places[kRings];
    u32 n_places = 0;
    for (u32 i = 0; i < n; ++i) {
      if (sites(i) == side->what) {
        places[n_places++] = i;
      }
    }
    const View& view = memory_->rings[side->first->ring].view;
    const Payload& p = side->first->payload;
    const Payload& q = second[side->first - first].payload;
    const std::string_view op = view.string(p.op);
    const GroupLabel label(view, view.group(p.group));
    const std::string_view name = label.text();
    line.add(side == &wrong ? "" : "; ");
    add_ranks(line, n_places, [&](u32 i) { return rank_of(first[places[i]]); });
    line.add(" issued %.*s #%l", length(op), op.data(), u64{p.seq});
    if (side == &wrong) {
      line.add(" of %.*s", length(name), name.data());
    }
    add_site(line, view, p.stack, view, q.stack);
    line.add(" and #%l", u64{q.seq});
    add_site(line, view, q.stack, view, p.stack);
  }
  line.add("; two equal operations are exchanged");
  return true;
}

bool Agreement::tell_steps(Group& g, char* text, std::size_t bytes) noexcept {
  Held* held = memory_->held[0];
  const u32 n = find_held(g, g.steps_seq, held, FR_COLLECTIVE);
  i64 steps[kRings];
  for (u32 i = 0; i < n; ++i) {
    steps[i] = step_of(memory_->rings[held[i].ring], held[i].payload.group, g.steps_seq);
    if (steps[i] == INT64_MIN) {
      return false;
    }
  }
  Side sides[8];
  const auto what = [&](u32 i) { return static_cast<u64>(steps[i]); };
  const u32 n_sides = sort_sides(sides, 8, n, what, [&](u32 i) { return &held[i]; });
  if (n_sides < 2) {
    return false;
  }
  const View& view = memory_->rings[held[0].ring].view;
  const Payload& p = held[0].payload;
  Line line{text, bytes};
  line.add("steps differ: in ");
  add_operation(line, view, p);
  add_site(line, view, p.stack, view, 0);
  for (u32 k = 0; k < n_sides && k < kSidesShown; ++k) {
    u32 places[kRings];
    u32 n_places = 0;
    for (u32 i = 0; i < n; ++i) {
      if (what(i) == sides[n_sides - 1 - k].what) {
        places[n_places++] = i;
      }
    }
    line.add(k == 0 ? " " : ", ");
    add_ranks(line, n_places, [&](u32 i) { return rank_of(held[places[i]]); });
    line.add(n_places == 1 ? " is in step %l" : " are in step %l", sides[n_sides - 1 - k].what);
  }
  return true;
}

bool Agreement::tell_output(Group& g, char* text, std::size_t bytes) noexcept {
  Held* held = memory_->held[0];
  const u32 n = find_held(g, g.output_seq, held, FR_SAMPLE);
  Side sides[8];
  const auto what = [&](u32 i) { return u64{held[i].signature}; };
  const u32 n_sides = sort_sides(sides, 8, n, what, [&](u32 i) { return &held[i]; });
  if (n_sides < 2) {
    return false;
  }
  Held* issued = memory_->held[1];
  const View& view = memory_->rings[held[0].ring].view;
  const Payload& p = held[0].payload;
  Line line{text, bytes};
  line.add("output of ");
  add_operation(line, view, p);
  if (find_held(g, g.output_seq, issued, FR_COLLECTIVE) != 0) {
    const View& at = memory_->rings[issued[0].ring].view;
    add_site(line, at, issued[0].payload.stack, at, 0);
  }
  const bool tie = sides[0].n == sides[1].n;
  line.add(tie ? " differs between ranks, nothing tells which is right: " : " differs on ");
  u32 places[kRings];
  u32 n_places = 0;
  const auto add_where = [&](bool largest) {
    n_places = 0;
    for (u32 i = 0; i < n; ++i) {
      if ((what(i) == sides[0].what) == largest) {
        places[n_places++] = i;
      }
    }
    add_ranks(line, n_places, [&](u32 i) { return rank_of(held[places[i]]); });
  };
  add_where(false);
  line.add(tie ? " and " : ", ");
  add_where(true);
  if (!tie) {
    line.add(" agree%s: its device, its links, or a write to the buffer before the wait",
             n_places == 1 ? "s" : "");
  }
  return true;
}

bool Agreement::tell_origin(u64 now, char* text, std::size_t bytes) noexcept {
  if (!is_origin_due(now)) {
    return false;
  }
  memory_->origin_told = true;
  const Origin& o = memory_->origin;
  const View& view = memory_->rings[o.ring].view;
  const std::string_view op = view.string(o.payload.op);
  const GroupLabel label(view, view.group(o.payload.group));
  const std::string_view name = label.text();
  const char* what = o.nan != 0 ? "NaN" : "Inf";
  const auto rank_at = [&](u32 ring) { return memory_->rings[ring].view.header().rank.load(); };
  Line line{text, bytes};
  if (o.n_rings == 1) {
    line.add("%s entered at rank %d%s, ", what, rank_at(o.ring),
             o.by_receive ? ", or came to it by a receive" : "");
  } else {
    line.add("%s entered before ", what);
  }
  if (o.step != INT64_MIN) {
    line.add("step %l, ", static_cast<u64>(o.step));
  }
  line.add("%.*s #%l of %.*s", length(op), op.data(), u64{o.payload.seq}, length(name),
           name.data());
  add_site(line, view, o.payload.stack, view, 0);
  if (o.n_rings > 1) {
    line.add(": the inputs of ");
    add_ranks(line, o.n_rings, [&](u32 i) { return rank_at(o.rings[i]); });
    line.add(" have it at once; FR_FINGERPRINT=1 tells whose was first");
    return true;
  }
  u32 others[kRings];
  u32 n_others = 0;
  u32 n = 0;
  for (u32 i = 0; i < n_rings_; ++i) {
    const Ring& ring = memory_->rings[i];
    n += ring.view.ok() ? 1 : 0;
    if (ring.view.ok() && i != o.ring && ring.tainted) {
      others[n_others++] = i;
    }
  }
  if (n_others + 1 == n && n > 1) {
    line.add("; everybody has it since");
  } else if (n_others != 0) {
    line.add("; ");
    add_ranks(line, n_others, [&](u32 i) { return rank_at(others[i]); });
    line.add(n_others == 1 ? " has it since" : " have it since");
  }
  return true;
}

// Describes the operation of our own members, for the node that compares. False: no ring has it.
bool Agreement::describe_own(Group& g, u32 seq, Issued& to) noexcept {
  Held* held = memory_->held[0];
  const u32 n = find_held(g, seq, held, FR_COLLECTIVE);
  if (n == 0) {
    return false;
  }
  Ring& ring = memory_->rings[held[0].ring];
  const Payload& p = held[0].payload;
  const OpName name = name_of(ring, p.op);
  to = {seq,        name.hash,   p.in_numel,  p.out_numel, p.peer, static_cast<u8>(name.op_class),
        p.in_dtype, p.out_dtype, p.reduce_op, {}};
  Line line{to.text, sizeof to.text};
  add_ranks(line, n, [&](u32 i) { return rank_of(held[i]); });
  const std::string_view op = ring.view.string(p.op);
  line.add(" issued %.*s", length(op), op.data());
  add_site(line, ring.view, p.stack, ring.view, 0);
  return true;
}

bool Agreement::tell_dispute(Group& g, char* text, std::size_t bytes) noexcept {
  const Dispute& d = memory_->dispute;
  const Issued& theirs = d.issued;
  Issued own;
  if (!describe_own(g, theirs.seq, own)) {
    return false;
  }
  const auto payload = [](const Issued& x) {
    Payload p{};
    p.in_numel = x.in_numel;
    p.out_numel = x.out_numel;
    p.peer = x.peer;
    p.in_dtype = x.in_dtype;
    p.out_dtype = x.out_dtype;
    p.reduce_op = x.reduce_op;
    return p;
  };
  const i32 with_us = static_cast<i32>(g.members) + d.agree;
  const GroupLabel label(memory_->rings[g.ring].view, memory_->rings[g.ring].view.group(g.row));
  const std::string_view name = label.text();
  Line line{text, bytes};
  line.add("mismatch: %sin #%l of %.*s ",
           with_us == d.differ ? "nothing tells which is right: " : "", u64{theirs.seq},
           length(name), name.data());
  // The wrong side first.
  for (const bool ours : {with_us < d.differ, with_us >= d.differ}) {
    const Issued& side = ours ? own : theirs;
    const Issued& other = ours ? theirs : own;
    const char* host = nodes_[ours ? own_node_ : d.node].host;
    const i32 more = (ours ? with_us : d.differ) - (ours ? static_cast<i32>(g.members) : 0);
    line.add("%s", side.text);
    line.add(" on %.*s", static_cast<int>(strnlen(host, sizeof NodeRow::host)), host);
    if (side.op == other.op) {
      add_fields(line, static_cast<OpClass>(side.op_class), payload(side), payload(other));
    }
    if (ours && more > 0) {
      line.add(" (and %d ranks of other nodes)", more);
    }
    line.add(ours == (with_us < d.differ) ? "; " : "");
  }
  return true;
}

bool Agreement::tell(u64 now, char* text, std::size_t bytes) noexcept {
  if (Dispute& d = memory_->dispute; d.key != 0 && d.due_ns != 0 && now >= d.due_ns) {
    Group* g = group_by(d.key);
    const bool told =
        g != nullptr && !g->told && memory_->n_told < kTold && tell_dispute(*g, text, bytes);
    d = {};
    if (told) {
      g->told = true;
      memory_->told[memory_->n_told++] = g->key;
      return true;
    }
  }
  if (tell_origin(now, text, bytes)) {
    return true;
  }
  for (u32 i = 0; i < kGroupsHere && steps_due_ && !steps_told_ && operations_; ++i) {
    Group& g = memory_->groups[i];
    if (g.key != 0 && g.steps_apart >= kStepsApart && tell_steps(g, text, bytes)) {
      steps_told_ = true;
      return true;
    }
  }
  steps_due_ = false;
  if (!any_due_ || memory_->n_told == kTold) {
    return false;
  }
  bool later = false;
  for (u32 i = 0; i < kGroupsHere; ++i) {
    Group& g = memory_->groups[i];
    if (g.output_due_ns != 0 && now >= g.output_due_ns) {
      g.output_due_ns = 0;
      // Only where the operations agree: otherwise their inputs differ already.
      if (!g.told && g.due_ns == 0 && tell_output(g, text, bytes)) {
        g.output_told = true;
        return true;
      }
    }
    const bool is_due = g.due_ns != 0 && !g.told && operations_;
    later = later || g.output_due_ns != 0 || (is_due && now < g.due_ns);
    if (!is_due || now < g.due_ns) {
      continue;
    }
    const bool told =
        g.due_other != 0 ? tell_exchange(g, text, bytes) : tell_difference(g, text, bytes);
    g.due_ns = 0;
    if (told) {
      g.told = true;
      memory_->told[memory_->n_told++] = g.key;
      return true;
    }
  }
  any_due_ = later;
  return false;
}

}  // namespace fr
