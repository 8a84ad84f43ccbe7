// frames.hpp - the calling thread's Python stack as an interned id, without the GIL.
//
// The torch bindings release the GIL before the dispatcher is called, so fr_begin runs without
// it. That is enough: while a thread is inside C, no other thread changes its chain of frames,
// and each frame keeps its code object alive. Hence no lock, no GIL and no reference count on
// the hit path:
//
//   frames -> 64-bit hash over (code, call site, file, name, first line, identity) -> table -> id
//
// The table keeps no references. Instead the hash covers enough of each code object's content that
// another one at the same address does not match. On a miss the stack is turned into text at once,
// so no reader ever needs this process.
#pragma once

#include <cstdint>

namespace fr {

// Id of the calling thread's stack; 0 when it has none. Fits fr_stack_provider.
std::uint32_t capture_stack() noexcept;

// Registers capture_stack with libfr, and what a forked child needs. Once, at import.
void install_stack_provider() noexcept;

// A child of a recording process, forked or begun by multiprocessing (be_silent_child), that is not
// a rank of its own: a DataLoader's worker.
bool silent_child() noexcept;
void be_silent_child() noexcept;

// "raw", or "public" where the frame layout of this Python is not known.
const char* frame_walk_kind() noexcept;

}  // namespace fr
