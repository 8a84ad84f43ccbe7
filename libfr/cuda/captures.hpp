// captures.hpp - graph captures in progress in this process, by the stream that each was begun on.
// The hooks on CUDA's calls report them; is_capturing() of operations.hpp is what they come to.
#pragma once

#include "cuda/abi.hpp"

namespace fr::cuda {

void capture_began(Stream stream) noexcept;
// Also where the stream is destroyed: a capture that was invalidated need not be ended.
void capture_ended(Stream stream) noexcept;
void captures_ended() noexcept;  // all: the device was reset, or a call says that one is invalid

// Captures older than FR_TIMEOUT_S are over: nobody ends them. Cold.
void lapse_captures() noexcept;

}  // namespace fr::cuda
