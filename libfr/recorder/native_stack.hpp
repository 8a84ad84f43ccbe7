// native_stack.hpp - C++ frames of the calling thread, for FR_STACKS=native.
#pragma once

#include "fr/fr.h"
#include "recorder/intern_tables.hpp"

namespace fr {

// Innermost first; returns how many of at most `limit`. Allocates, takes locks: a call site costs
// microseconds with FR_STACKS=native.
u32 native_frames(Tables& tables, fr_frame* frames, u32 limit) noexcept;
// Once at start: loads the unwinder.
void prepare_native_stacks() noexcept;

}  // namespace fr
