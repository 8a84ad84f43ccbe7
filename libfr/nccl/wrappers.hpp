// wrappers.hpp - wrappers around NCCL's public functions, put into the callers' GOT.
#pragma once

#include "format/layout.hpp"

namespace fr::nccl {

// Redirects the calls of all objects loaded by now; again whenever more have come. Returns the
// number of places that lead to us. Cold.
u32 hook_calls() noexcept;
// Restores the originals.
u32 unhook_calls() noexcept;
// 1: the calling thread stands in a group of calls that NCCL makes at its end, 0: it does not, -1:
// no calls are seen.
int grouped() noexcept;

}  // namespace fr::nccl
