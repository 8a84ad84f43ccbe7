// thread_sampler.hpp - where every thread of this process is: native and Python frames, system call, GIL.
//
//   watchdog                                  the thread
//   two looks into /proc
//   slot.word = asked          --signal-->    registers, top of the stack, Python frames -> slot
//   walks the copy, names it   <--futex---    slot.word = answered, goes on
//
// The thread does nothing but copy: it takes no lock, allocates nothing, and needs no GIL. One that
// blocks the signal, or sleeps uninterruptibly, is told of by /proc alone. All memory is mapped by
// init(); collect() takes no lock and allocates nothing.
#pragma once

#include <signal.h>

#include "fr/fr.h"
#include "sample/proc_task.hpp"
#include "sample/unwind.hpp"

namespace fr {

enum class Answer : u8 { kNotAsked, kOwn, kAnswered, kBlocked, kUnanswered, kGone };
const char* answer_name(Answer answer) noexcept;

enum class Gil : u8 { kNone, kHolds, kWaits };

struct NamedFrame {
  bool python;
  bool entry;    // Python: called by native code
  u32 function;  // into ThreadReport::text; 0 unknown
  u32 file;
  u32 line;    // Python
  u64 offset;  // native: address within the file
  u64 key;     // what makes it this frame and no other
};

struct ThreadRow {
  Task task;
  Answer answer;
  Gil gil;
  bool python;       // known to the interpreter
  bool whole;        // native frames down to the start of the thread
  bool interrupted;  // waits in a handler of ours, shown as it was when that signal came
  u32 answer_us;     // from the signal to the answer
  u32 first_frame;   // into ThreadReport::stack
  u32 n_frames;      // innermost first, native and Python merged
  u32 python_cut;    // Python frames left out in the middle, after `cut_after` frames
  u32 cut_after;
};

struct VariableRow {
  u32 thread;
  u32 frame;  // position in the thread's stack
  u32 name;   // into ThreadReport::text
  u32 value;
};

// A process that this one has started and not waited for.
struct ChildRow {
  Task task;
  i32 wait_status;  // of one that has ended; -1 it lives
};

// A file that native frames are in.
struct ModuleRow {
  u32 file;  // into ThreadReport::text
  u8 build_id_bytes;
  u8 build_id[20];
};

struct ThreadReport {
  static constexpr u32 kThreads = 512;
  static constexpr u32 kFrames = 4096;  // different ones
  static constexpr u32 kStackWords = 32 * 1024;
  static constexpr u32 kTextBytes = 384 * 1024;
  static constexpr u32 kVariables = 256;
  static constexpr u32 kModules = 256;
  static constexpr u32 kChildren = 64;

  u32 n_threads;
  u32 n_frames;
  u32 n_words;
  u32 text_used;
  u32 n_variables;
  u32 n_children;
  ChildRow children[kChildren];
  u32 n_modules;
  ModuleRow modules[kModules];
  VariableRow variables[kVariables];  // by thread and frame
  ThreadRow threads[kThreads];
  NamedFrame frames[kFrames];
  u32 stack[kStackWords];
  char text[kTextBytes];
  // what is missing
  u32 threads_lost;
  u32 children_lost;
  u32 frames_lost;  // tables full
  u32 modules_lost;
  // how it was done
  i32 signal;       // 0 none: nobody was asked
  const char* why;  // why nobody was asked; ""
  u64 took_ns;
  u64 asking_ns;
};

class ThreadStacks {
 public:
  static constexpr u64 kAsking_ns = 200'000'000;

  // Maps the memory, installs the handler. ask: false leaves the threads alone. asking_ns: how long
  // all threads together have for their answers.
  bool init(bool ask, bool variables, u64 asking_ns = kAsking_ns) noexcept;
  int signal() const noexcept;  // 0: none, nobody is asked
  // Threads of this process, as seen from the calling one; nullptr without memory.
  const ThreadReport* collect() noexcept;
  // Of another process: what /proc says.
  const ThreadReport* look_at(i32 pid) noexcept;
  // In a handler: the calling thread alone, as it was interrupted.
  const ThreadReport* collect_own(const ucontext_t& context) noexcept;

 private:
  struct Work;
  void list(i32 pid) noexcept;
  void second_look(i32 pid, u64 first_ns) noexcept;
  void ask_all() noexcept;
  void take(u32 slot, ThreadRow& row) noexcept;
  void name_all() noexcept;
  void reset() noexcept;

  Work* work_ = nullptr;
  ThreadReport* report_ = nullptr;
  bool asks_ = false;
  bool variables_ = false;
  u64 asking_ns_ = kAsking_ns;
};

// A handler that has a dump written, for its life: asked meanwhile, its thread tells where it was
// when the handler's signal came. Async-signal-safe.
class Interrupted {
 public:
  explicit Interrupted(const void* context) noexcept;
  ~Interrupted();
  Interrupted(const Interrupted&) = delete;
  Interrupted& operator=(const Interrupted&) = delete;

 private:
  const ucontext_t* outer_;
};

void set_python(const fr_python* python) noexcept;
const fr_python* python() noexcept;

}  // namespace fr
