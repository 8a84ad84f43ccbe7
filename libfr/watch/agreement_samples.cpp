// agreement_samples.cpp - what FR_FINGERPRINT sampled: outputs that must be equal on all members, and
// the rank that first put NaN in.
//
// A rank that gets NaN from others has it in an output before it has it in an input. NaN came in at
// a rank that has some in an input and had none in its sampled outputs; if several ranks have it at
// once, it came in between the samples. A rank that missed a sample and had no clean input since is
// not the origin; a rank that received something since may have it from there.
// An origin counts once NaN is there again at the same call site: a gradient scaler makes an
// overflow now and then, and skips that step.
#include <algorithm>

#include "watch/agreement_memory.hpp"

namespace fr {
namespace {

constexpr u64 kGather_ns = 500'000'000;
constexpr u64 kNeverAgain_ns =
    20'000'000'000;  // the call site is not passed again: it counts alone

}  // namespace

void Agreement::add_sample(Ring& ring, const RecordCopy& r, u64 now) noexcept {
  const Payload& p = r.payload;
  Group* g = p.group != 0 && p.group < kGroups ? group_of(ring, p) : nullptr;
  if (g == nullptr || r.n_shape != FR_SAMPLE_WORDS) {
    return;
  }
  const u64 nan = sample_word(r, FR_SAMPLE_NAN);
  const u64 inf = sample_word(r, FR_SAMPLE_INF);
  const u32 side = static_cast<u32>(sample_word(r, FR_SAMPLE_SIDE));
  if (side == FR_SAMPLE_MISSED) {
    ring.unsure = true;
    return;
  }
  if (side == FR_SAMPLE_INPUT) {
    add_input(ring, *g, p, nan, inf, now);
    return;
  }
  ring.tainted = ring.tainted || nan + inf != 0;
  if (!is_same_output(r)) {
    return;
  }
  const u32 seq = static_cast<u32>(p.seq);
  const u64 sum = sample_word(r, FR_SAMPLE_SUM);
  const u64 weighted = sample_word(r, FR_SAMPLE_WEIGHTED);
  // Sampled numbers are multiples of N: mixed, so that they do not share a few places.
  Sample& s = g->samples[(seq ^ seq / kSamples ^ seq / kSamples / kSamples) % kSamples];
  if (s.count == 0 || static_cast<i32>(seq - s.seq) > 0) {
    s = {seq, 1, false, sum, weighted};
  } else if (s.seq == seq) {
    ++s.count;
    if ((s.sum != sum || s.weighted != weighted) && g->output_due_ns == 0 && !g->output_told) {
      s.differs = true;
      g->output_seq = seq;
      g->output_due_ns = now + kGather_ns;
      any_due_ = true;
    }
  }
}

void Agreement::add_input(Ring& ring, const Group& g, const Payload& p, u64 nan, u64 inf,
                          u64 now) noexcept {
  Origin& o = memory_->origin;
  const u32 at = static_cast<u32>(&ring - memory_->rings);
  const u32 seq = static_cast<u32>(p.seq);
  const u32 site = site_of(ring, p.stack);
  const bool again = o.key == g.key && site == o.site && static_cast<i32>(seq - o.seq) > 0;
  if (nan + inf == 0) {
    ring.unsure = false;
    ring.received = false;
    if (again && !memory_->origin_told &&
        std::find(o.rings, o.rings + o.n_rings, at) != o.rings + o.n_rings) {
      o = {};  // it is clean again
      for (u32 i = 0; i < n_rings_; ++i) {
        memory_->rings[i].tainted = false;
      }
    }
    return;
  }
  o.confirmed += again ? 1 : 0;
  const bool was_clean = !ring.tainted && !ring.unsure;
  if (was_clean && (o.key == 0 || (o.key == g.key && static_cast<i32>(seq - o.seq) < 0))) {
    o = {};
    o.key = g.key;
    o.begun_ns = now;
    o.seq = seq;
    o.site = site;
    o.ring = at;
    o.nan = nan;
    o.inf = inf;
    o.by_receive = ring.received;
    o.payload = p;
    o.step = step_of(ring, o.payload.group, seq);  // p is overwritten
  }
  if (was_clean && o.key == g.key && o.seq == seq) {
    o.rings[o.n_rings++] = at;
  }
  ring.tainted = true;
}

// The step of the operation, not of its sample: that may have come when the next step had begun.
i64 Agreement::step_of(const Ring& ring, u32 group, u32 seq) noexcept {
  const u32 slots = ring.view.n_slots();
  bool is_before = false;
  RecordCopy& r = memory_->record;
  for (u64 at = ring.next, n = 0; at > 0 && n < slots; ++n) {
    --at;
    if (ring.view.read(static_cast<u32>(at % slots), r) != Slot::kWhole || r.ticket != at) {
      continue;
    }
    const Payload& p = r.payload;
    if (is_before && p.kind == FR_STEP) {
      return static_cast<i64>(p.seq);
    }
    is_before = is_before ||
                (p.kind == FR_COLLECTIVE && p.group == group && static_cast<u32>(p.seq) == seq);
  }
  return INT64_MIN;
}

bool Agreement::is_origin_due(u64 now) const noexcept {
  const Origin& o = memory_->origin;
  return o.key != 0 && !memory_->origin_told && now > o.begun_ns + kGather_ns &&
         (o.confirmed != 0 || now > o.begun_ns + kNeverAgain_ns);
}

}  // namespace fr
