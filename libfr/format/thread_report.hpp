// thread_report.hpp - where the threads of a process are, as plain data: sample/ fills it, the
// encoder writes it into a dump.
#pragma once

#include "format/layout.hpp"

namespace fr {

struct Task {
  i32 tid;
  char name[16];
  char state;      // R S D T t Z X as /proc has it; '?' unknown
  char wchan[40];  // kernel function it sleeps in; "" none or unknown
  i64 syscall;     // number; see below
  u64 args[6];
  u64 sp, pc;        // where the system call was made; 0 unknown
  char target[168];  // what the call is about: file behind a descriptor, path, address of a futex
  u64 signals_blocked;
  // growth between the two samples
  u64 looked_ns;  // time between them; 0: seen once only
  u64 cpu_ns;
  u64 runqueue_ns;  // runnable, but without a processor
  u64 voluntary_switches;
  u64 involuntary_switches;
};

enum : i64 { kNoSyscall = -1, kSyscallUnknown = -2, kOnProcessor = -3 };

enum class Activity : u8 {
  kUnknown,
  kRunning,
  kRunnable,
  kPolling,
  kAsleep,
  kUninterruptible,
  kStopped,
  kGone,
  kInterrupted  // in a handler of ours, shown as it was when that signal came
};
// By the two samples; never kUnknown or kInterrupted.
Activity activity(const Task& task) noexcept;

enum class Answer : u8 { kNotAsked, kOwn, kAnswered, kBlocked, kUnanswered, kGone };

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
  u32 handling;  // exception that it handles, into ThreadReport::text; 0 none
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
  u32 first_frame;  // Python frames of its main thread, into ThreadReport::stack
  u32 n_frames;
};

// A lock of a file, flock() or fcntl(), that the process waits for or holds.
struct LockRow {
  bool waits;
  char kind[8];          // FLOCK, POSIX, OFDLCK, as /proc/locks has it
  i32 holder;            // process; -1 unknown
  char holder_name[16];  // "" unknown
  u64 inode;
  char file[168];  // "" unknown
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
  static constexpr u32 kLocks = 32;

  u32 n_threads;
  u32 n_frames;
  u32 n_words;
  u32 text_used;
  u32 n_variables;
  u32 n_children;
  ChildRow children[kChildren];
  u32 n_locks;
  LockRow locks[kLocks];
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
  u32 locks_lost;
  u32 frames_lost;  // tables full
  u32 modules_lost;
  // how it was done
  i32 signal;       // 0 none: no thread was interrupted
  const char* why;  // why no thread was interrupted; ""
  u64 took_ns;
  u64 asking_ns;
};

}  // namespace fr
