// clock_anchor.hpp - which counter the record path reads, and the anchors that date its ticks.
#pragma once

#include "format/layout.hpp"

namespace fr {

// The counter the kernel itself keeps time with, else CLOCK_MONOTONIC.
ClockKind choose_clock() noexcept;

// Stores (ticks, unix time, monotonic time) of now. One writer per anchor.
void take_anchor(Anchor& anchor, ClockKind kind) noexcept;

}  // namespace fr
