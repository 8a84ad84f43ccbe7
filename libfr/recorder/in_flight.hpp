// in_flight.hpp - how many operations have begun and not ended, from the counters of a
// group alone. Async-signal-safe.
#pragma once

#include "format/view.hpp"

namespace fr {

struct Recorder;

u64 count_open(const GroupRow& row) noexcept;
u64 count_in_flight(const GroupRow& row) noexcept;  // 0 of a destroyed group
u64 count_in_flight(const View& view) noexcept;     // of all groups
// The call stack of the request to end (sys.exit); 0 where none was made, or operations came after it.
u32 exit_stack(const Recorder&) noexcept;

}  // namespace fr
