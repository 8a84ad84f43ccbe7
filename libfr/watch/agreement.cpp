// agreement.cpp - reads rings, and compares operation by operation. The text about a difference is
// made in agreement_words.cpp.
#include "watch/agreement.hpp"

#include <sys/mman.h>

#include <algorithm>

#include "format/hash.hpp"
#include "fr/fr.h"
#include "watch/agreement_memory.hpp"

namespace fr {
namespace {

constexpr u64 kGather_ns = 300'000'000;  // most members have come by then
constexpr u32 kLateRecords = 2048;       // of a ring at a time: the thread has other work as well

}  // namespace

bool Agreement::init() noexcept {
  void* memory = mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  memory_ = memory != MAP_FAILED ? static_cast<Memory*>(memory) : nullptr;
  return memory_ != nullptr;
}

void Agreement::release() noexcept {
  munmap(memory_, sizeof(Memory));
  memory_ = nullptr;
}

void Agreement::attach(u32 at, const View& view, u64 first) noexcept {
  Ring& ring = memory_->rings[at];
  if (ring.view.ok()) {
    forget_all();  // what its rows named is gone
  }
  ring = {};
  ring.view = view;
  ring.next = first;
  ring.step = INT64_MIN;
  n_rings_ = std::max(n_rings_, at + 1);
  ++attached_;
}

// Groups begin anew with what comes: no member is ahead of another by that.
void Agreement::forget_all() noexcept {
  for (u32 i = 0; i < kGroupsHere; ++i) {
    if (memory_->groups[i].key != 0) {
      memory_->groups[i] = {};
    }
  }
  for (u32 i = 0; i < n_rings_; ++i) {
    for (GroupRef& ref : memory_->rings[i].groups) {
      ref = {};
    }
  }
  n_groups_ = 0;
}

void Agreement::read_all(u64 now) noexcept {
  RecordCopy& r = memory_->record;
  // In turns, so that the members of a group stay within its window.
  bool more = true;
  for (u32 turn = 0; more; ++turn) {
    more = false;
    for (u32 i = 0; i < n_rings_; ++i) {
      Ring& ring = memory_->rings[i];
      if (!ring.view.ok()) {
        continue;
      }
      const u64 until = ring.seen_head;  // as of the last call: whole by now, or nobody's
      const u64 head = get(ring.view.header().head);
      const u32 slots = ring.view.n_slots();
      if (head > slots && ring.next < head - slots) {
        const u64 lost = std::min(head - slots, until) - std::min(ring.next, until);
        passed_by_ += lost;
        ring.next += lost;
        ring.unsure = ring.unsure || lost != 0;
      }
      for (u32 n = 0; ring.next < until && n < kLateRecords / 8; ++n, ++ring.next) {
        const u32 slot = static_cast<u32>(ring.next % slots);
        if (ring.view.read(slot, r) != Slot::kWhole || r.ticket != ring.next) {
          continue;
        }
        if (r.payload.kind == FR_COLLECTIVE && r.payload.group != 0) {
          add(ring, r.payload, now);
        } else if (r.payload.kind == FR_STEP) {
          ring.step = static_cast<i64>(r.payload.seq);
        } else if (r.payload.kind == FR_SAMPLE) {
          add_sample(ring, r, now);
        } else if (r.payload.kind == FR_RECV) {
          ring.received = true;
        }
      }
      more = more || ring.next < until;
    }
  }
  for (u32 i = 0; i < n_rings_; ++i) {
    if (memory_->rings[i].view.ok()) {
      memory_->rings[i].seen_head = get(memory_->rings[i].view.header().head);
    }
  }
}

void Agreement::add(Ring& ring, const Payload& p, u64 now) noexcept {
  Group* g = p.group < kGroups ? group_of(ring, p) : nullptr;
  const u32 signed_as = g != nullptr ? signature(name_of(ring, p.op), p) : 0;
  if (signed_as == 0) {
    return;
  }
  if (g->counted != attached_) {
    g->members = count_members(*g);
    g->counted = attached_;
  }
  const u32 seq = static_cast<u32>(p.seq);
  const u32 site = site_of(ring, p.stack);
  Entry& e = g->window[seq % kWindow];
  ++compared_;
  if (e.count == 0 || static_cast<i32>(seq - e.seq) > 0) {
    const bool has_step = ring.step != INT64_MIN;
    e = {seq, signed_as, site, 0, 0, 1, 0, 0, static_cast<u32>(ring.step), has_step, false};
    hash_on(*g, seq);
  } else if (e.seq != seq) {
    return;  // so far behind the others that their operation is forgotten
  } else {
    ++e.count;
    if (signed_as != e.signature) {
      e.differs = 1;
      if (g->due_ns == 0) {
        g->due_seq = seq;
        g->due_other = 0;
        g->due_ns = now + kGather_ns;
        any_due_ = true;
      }
    }
    e.steps_differ = e.steps_differ || (e.has_step && ring.step != INT64_MIN &&
                                        e.step != static_cast<u32>(ring.step));
    if (site != e.site && site != e.other_site) {
      e.other_site = site;
      e.sites = e.sites == 0 ? 1 : 2;
    }
  }
  if (e.count == g->members && g->members > 1) {
    compare_steps(*g, e);
    complete(*g, e, now);
  }
}

void Agreement::compare_steps(Group& g, const Entry& e) noexcept {
  if (!e.steps_differ) {
    g.steps_apart = 0;
    return;
  }
  g.steps_seq = g.steps_apart == 0 ? e.seq : g.steps_seq;
  if (++g.steps_apart == kStepsApart) {
    steps_due_ = true;
  }
}

// ---------------------------------------------------------------- groups, names, sites

Agreement::Group* Agreement::group_of(Ring& ring, const Payload& p) noexcept {
  GroupRef& ref = ring.groups[p.group];
  const GroupRow* row = ring.view.group(p.group);
  if (row == nullptr) {
    return nullptr;
  }
  const u64 created = get(row->created_ticks);
  if (ref.index == 0 || ref.created_ticks != created) {
    if (p.ticks < created || get(row->destroyed_ticks) != 0) {
      return nullptr;
    }
    const u64 key = group_key(ring.view, *row);
    const bool one = row->n_ranks.load() < 2;
    const u32 at = static_cast<u32>(&ring - memory_->rings);
    if (get(row->created_ticks) != created || get(row->destroyed_ticks) != 0) {
      return nullptr;  // the row became another's meanwhile
    }
    const u32 found = one ? kNone : find_group(key, at, p.group);
    ref = {created, found};
    if (found != kNone) {
      memory_->groups[found - 1].counted = 0;
    }
  }
  return ref.index == kNone ? nullptr : &memory_->groups[ref.index - 1];
}

u32 Agreement::find_group(u64 key, u32 ring, u32 row) noexcept {
  if (n_groups_ >= kGroupsHere * 3 / 4) {
    forget_all();  // of a job that makes groups without end
  }
  u32 at = static_cast<u32>(key >> 32) % kGroupsHere;
  while (memory_->groups[at].key != 0 && memory_->groups[at].key != key) {
    at = (at + 1) % kGroupsHere;
  }
  Group& g = memory_->groups[at];
  if (g.key == 0) {
    g = {};
    g.key = key;
    g.ring = ring;
    g.row = row;
    g.hash_next = 1;
    const u64* told = memory_->told;
    g.told = std::find(told, told + memory_->n_told, key) != told + memory_->n_told;
    ++n_groups_;
  }
  return at + 1;
}

// Where the ranks are not known, as of NCCL's communicators: 0 until all have come.
u32 Agreement::count_members(const Group& g) noexcept {
  const View& view = memory_->rings[g.ring].view;
  const GroupRow& row = *view.group(g.row);
  const auto ranges = view.group_ranks(row);
  const u32 index = static_cast<u32>(&g - memory_->groups) + 1;
  u32 n = 0;
  for (u32 i = 0; i < n_rings_; ++i) {
    const Ring& ring = memory_->rings[i];
    const bool has_come = ring.view.ok() && ranges.empty() &&
                          std::any_of(std::begin(ring.groups), std::end(ring.groups),
                                      [&](const GroupRef& x) { return x.index == index; });
    n += has_come || (ring.view.ok() && is_in(ranges, ring.view.header().rank.load())) ? 1 : 0;
  }
  return ranges.empty() && static_cast<i32>(n) != row.n_ranks.load() ? 0 : n;
}

OpName Agreement::name_of(Ring& ring, u32 op) noexcept {
  if (op >= kStrings) {
    return op_name(ring.view.string(op));
  }
  Name& name = ring.names[op];
  if (name.hash == 0) {
    const OpName found = op_name(ring.view.string(op));
    name = {found.hash, static_cast<u32>(found.op_class)};
  }
  return {name.hash, static_cast<OpClass>(name.op_class)};
}

// Hash of all frames: a wrapper of an operation is called from several places. 0: not captured.
u32 Agreement::site_of(Ring& ring, u32 stack) noexcept {
  if (stack == 0 || stack >= kStacks) {
    return 0;
  }
  if (ring.sites[stack] == 0) {
    u64 h = 1;
    for (const u32 id : ring.view.stack(stack)) {
      const FrameRow frame = ring.view.frame(id);
      const std::string_view file = ring.view.string(frame.file);
      h = mix(mix(h, hash_bytes(file.data(), file.size())), frame.line);
    }
    const u32 folded = static_cast<u32>(h ^ (h >> 32));
    ring.sites[stack] = folded != 0 ? folded : 1;
  }
  return ring.sites[stack];
}

// ---------------------------------------------------------------- exchanges

// Operations that are equal but for their call sites may be issued at different ones by right (the
// root has a branch of its own). An exchange is two that were always issued at one site each by all,
// often, and are now taken in another order by some.
void Agreement::complete(Group& g, Entry& e, u64 now) noexcept {
  if (e.differs != 0 || e.site == 0 || (e.sites != 0 && e.other_site == 0)) {
    return;
  }
  Deviation& d = g.deviation;
  if (d.seq != 0 && e.seq - d.seq > kSwapWithin) {
    spoil(g, d.site);
    spoil(g, d.other);
    d = {};
  }
  if (e.sites == 0) {
    if (SiteCount* c = count_of(g, e.site); c != nullptr && c->agreed < kAgreed) {
      ++c->agreed;
    }
    return;
  }
  look_for_exchange(g, e, now);
}

void Agreement::look_for_exchange(Group& g, const Entry& e, u64 now) noexcept {
  const auto is_known = [&](u32 site) {
    const SiteCount* c = count_of(g, site);
    return c != nullptr && c->agreed >= kAgreed && c->spoiled == 0;
  };
  Deviation& d = g.deviation;
  const bool known = e.sites == 1 && is_known(e.site) && is_known(e.other_site);
  const bool same = (d.site == e.site && d.other == e.other_site) ||
                    (d.site == e.other_site && d.other == e.site);
  if (known && d.seq == 0) {
    d = {e.seq, e.site, e.other_site};
  } else if (known && same) {
    if (g.due_ns == 0) {
      g.due_seq = d.seq;
      g.due_other = e.seq;
      g.due_ns = now;
      any_due_ = true;
    }
    d = {};
  } else {
    spoil(g, e.site);
    spoil(g, e.other_site);
  }
}

Agreement::SiteCount* Agreement::count_of(Group& g, u32 site) noexcept {
  for (u32 probe = 0; probe < 8; ++probe) {
    SiteCount& c = g.sites[(site + probe) % kSites];
    if (c.site == site || c.site == 0) {
      c.site = site;
      return &c;
    }
  }
  return nullptr;
}

void Agreement::spoil(Group& g, u32 site) noexcept {
  if (SiteCount* c = count_of(g, site)) {
    c->spoiled = 1;
  }
}

}  // namespace fr
