// in_flight.cpp - subtracts what ended from what was issued.
#include "recorder/in_flight.hpp"

#include "format/call_site.hpp"
#include "recorder/recorder.hpp"

namespace fr {

u64 count_open(const GroupRow& g) noexcept {
  // ended before issued: a race then counts too many, and the next look corrects it
  const u64 ended = get(g.ended) + get(g.p2p_ended) + get(g.lifecycle_ended);
  const u64 wait_only_ended = get(g.wait_only_ended);
  const u64 wait_ended = get(g.wait_ended);
  const u64 issued = (get(g.issued) & kSeqMask) + get(g.p2p_issued) + get(g.lifecycle_issued);
  const u64 tracked = issued - get(g.untracked) - get(g.wait_only);
  const u64 tracked_ended = ended - wait_only_ended;
  const u64 waiting = get(g.waited) - wait_ended;
  const i64 n = static_cast<i64>(tracked - tracked_ended) + static_cast<i64>(waiting);
  return n > 0 ? static_cast<u64>(n) : 0;
}

u64 count_in_flight(const GroupRow& g) noexcept {
  return get(g.destroyed_ticks) != 0 ? 0 : count_open(g);
}

u64 count_in_flight(const View& view) noexcept {
  u64 n = 0;
  for (u32 i = 0; i < view.n_groups(); ++i) {
    n += count_in_flight(*view.group(i));
  }
  return n;
}

u32 exit_stack(const Recorder& r) noexcept {
  RecordCopy last;
  const auto main_thread = static_cast<u32>(r.pid);  // sys.exit is noted there only
  const bool went_on =
      last_operation(r.view, last, main_thread) && last.ticket >= r.exit_head.load();
  return went_on ? 0 : r.exit_stack.load();
}

}  // namespace fr
