// thread_work.hpp - the memory of one collection of thread stacks, and the frames, names and
// variables that it fills in. Mapped at init; on the watchdog's thread, with nothing allocated.
#pragma once

#include "sample/modules.hpp"
#include "sample/thread_sampler.hpp"
#include "sample/unwind.hpp"

namespace fr {

constexpr u32 kNativeFrames = 128;  // of one thread, as walked
constexpr u32 kShownFrames = 160;   // of one thread, in the dump

// Memory that a collection needs beside its result.
struct ThreadStacks::Work {
  static constexpr u32 kPcs = 16 * 1024;
  static constexpr u32 kPython = 6 * 1024;
  static constexpr u32 kSymbols = 8 * 1024;
  static constexpr u32 kIndex = 16 * 1024;  // power of two
  struct Raw {
    u32 first_pc, n_pcs;
    u32 first_python, n_python, python_total;
    u64 handled;  // exception
  };
  ModuleTable modules;
  Unwinder unwinder{&modules};
  u64 token;
  u32 n_pcs;
  u32 n_python;
  u32 n_symbols;
  Raw raw[ThreadReport::kThreads];
  u64 pcs[kPcs];
  fr_python_frame python[kPython];
  Symbol symbols[kSymbols];
  u32 text_index[kIndex];   // offset into text, 0 free
  u32 frame_index[kIndex];  // frame + 1, 0 free
  char interpreter[512];    // its file
  u64 interpreter_at;

  u32 intern(ThreadReport& out, const char* text) noexcept;
  // Index of the frame with that key, or one past the last when it is new and there is room.
  u32 find(ThreadReport& out, u64 key, bool is_python, bool* is_new) noexcept;
  const Symbol* symbol(u64 pc) const noexcept;
  void add_module(ThreadReport& out, u32 file, const Module& m) noexcept;
  u32 native(ThreadReport& out, u64 pc) noexcept;
  // process: 0 our own; at the same address others may have other code.
  u32 named(ThreadReport& out, const fr_python_frame& raw_frame, i32 process = 0) noexcept;
  bool evaluates(u64 pc) const noexcept;
  // Does the thread wait for the GIL? Told by who called the wait, with nothing but the C library
  // between: all timed waits that the interpreter's own code makes on a condition are for it. Else
  // by the first function with a name within the interpreter's file.
  bool waits_for_gil(const ThreadRow& row, const Raw& r) const noexcept;
  // Where the main thread of a child is that runs the same interpreter: a worker of a DataLoader.
  void read_child(ThreadReport& out, ChildRow& child) noexcept;
  // Last of all: the table of modules is theirs afterwards.
  void read_children(ThreadReport& out) noexcept;
  void add_variables(ThreadReport& out, const ThreadRow& row, u32 position,
                     const fr_python_frame& frame) noexcept;
  // Native frames, those of the evaluator replaced by the Python frames that it runs. The innermost
  // Python frame and the innermost ones of the user get their variables, `n_variables` in all.
  void merge(ThreadReport& out, ThreadRow& row, const Raw& r, u32 n_variables) noexcept;
};

}  // namespace fr
