// main_thread.hpp - where the main thread of this process is, in words. No allocation, no lock.
#pragma once

#include <cstddef>

#include "format/layout.hpp"

namespace fr {

class ThreadStacks;

enum class MainPlace {
  kUnknown,  // nothing is written: the thread could not be sampled
  kCode,
  kPrompt,  // of a debugger or an interactive interpreter
};
// Samples the threads and writes "rank 0 is in load() at data.py:13, asleep in read of pipe:[4711]".
MainPlace main_place(ThreadStacks& threads, i32 rank, i32 pid, char* out,
                     std::size_t bytes) noexcept;

}  // namespace fr
