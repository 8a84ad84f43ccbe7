// threads.hpp - Python frames of a thread that libfr has interrupted, and what is in them.
//
// The handler runs on the interrupted thread, wherever that was, also between two stores of the
// evaluator. So nothing is followed before fr_peek has copied it, and every chain is bounded. Names
// and variables are read later by the watchdog, the same way; no GIL, no lock, no reference count.
#pragma once

namespace fr {

// Tells libfr how to walk. Once, at import; does nothing for interpreters of unknown layout.
void install_thread_walker() noexcept;

}  // namespace fr
