// codes.hpp - the words for codes, as they stand in dumps, in frtrace and in fr.snapshot().
#pragma once

#include "format/layout.hpp"

namespace fr {

const char* kind_name(u16 kind) noexcept;      // "collective", "send", ... "?" when unknown
const char* state_name(State state) noexcept;  // "started", ...
const char* dtype_name(u8 code) noexcept;      // "Float", ...; "" for 0
const char* reduce_op_name(u8 code) noexcept;  // "SUM", ...; "" for 0
const char* clock_name(ClockKind kind) noexcept;
const char* wait_name(Wait wait) noexcept;             // "own_kernel", "peer_credit", ...
const char* phase_kind_name(PhaseKind kind) noexcept;  // "kernel", "send", "recv"

}  // namespace fr
