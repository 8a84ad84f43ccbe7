// attend.hpp - how a recorder takes part in attendance: its ranks ask in the control page; the one
// that has the node's endpoint asks the other nodes, and writes their answer there.
#pragma once

#include "watch/absent.hpp"

namespace fr {

void forget_attendance(Recorder& r);  // another recorder starts
void attend() noexcept;               // the watchdog's thread, every tick

// From when on an operation that stands still is asked about.
u64 asked_from(const Floors& floors) noexcept;
// Asks about an operation of this process that this node alone cannot judge, and adds what is known
// of it by now to `seen`. Never waits.
void ask_attendance(Recorder& r, AbsentRanks::Seen& seen, u64 now_ns) noexcept;
// Within what time after asked_from() the others' state is known, as a rule.
u64 told_within(const Recorder& r) noexcept;

}  // namespace fr
