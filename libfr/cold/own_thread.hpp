// own_thread.hpp - threads of libfr's own: detached, with a small stack, deaf to the host's
// signals.
#pragma once

namespace fr {

// Allocates, as pthread_create() does: not for the dump path. False when the thread cannot be had.
bool start_thread(void* (*entry)(void*), void* argument, const char* name) noexcept;

}  // namespace fr
