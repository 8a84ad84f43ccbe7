// start.hpp - starts the recorder of this process, once, with every part of libfr that takes part.
#pragma once

#include "format/layout.hpp"

namespace fr {

// True when the process records. off_reason() says why it does not.
bool start() noexcept;
// As start(), but not in a forked child: only what makes a process a rank starts a recorder there.
bool start_unless_child() noexcept;
const char* off_reason() noexcept;
// Kept for the start: a rank that only the script knows. Negative or 0: unknown.
void keep_identity(i32 rank, i32 world_size, i32 local_rank) noexcept;
// Kept for the start: where the ranks meet and what they run; "" or nullptr leaves what is known.
void keep_job(const char* store, const char* program) noexcept;

// Called by fork.cpp in a forked child. Async-signal-safe.
void forget_recorder_in_child() noexcept;

}  // namespace fr
