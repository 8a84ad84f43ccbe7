// threads.hpp - Python frames of a thread that libfr has interrupted, and what is in them.
//
// The handler runs on the interrupted thread, wherever that was, also between two stores of the
// evaluator. So nothing is followed before fr_peek has copied it, and every chain is bounded. Names
// and variables are read later by the watchdog, the same way; no GIL, no lock, no reference count.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fr {

// Tells libfr how to walk. Once, at import; does nothing for interpreters of unknown layout.
void install_thread_walker() noexcept;
// Writes into the ring that threads have no Python frames, where that is so. After fr_start.
void tell_thread_holes() noexcept;

// Tensors among variables are named by `reader`, the torch adapter's: it gets the address
// that lies `offset` bytes into the object, and writes a text. base: the class of all
// tensors, never released.
using TensorReader = std::size_t (*)(std::uint64_t impl, char* out, std::size_t size);
void set_tensor_reader(const void* base, std::size_t offset, TensorReader reader) noexcept;

}  // namespace fr
