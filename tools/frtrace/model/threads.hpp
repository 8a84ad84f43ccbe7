// threads.hpp - the threads of a process as its dump has them, and sentences about them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/schema.hpp"
#include "model/shared.hpp"

namespace frtrace {

// The system call only sleeps.
bool only_sleeps(std::string_view call);
// Demangles C++ symbols; returns others unchanged.
std::string demangled(std::string symbol);

struct ThreadFrame {
  bool python = false;
  std::string function;  // Python: qualified; native: demangled, "": unknown
  std::string file;
  std::uint32_t line = 0;    // Python
  std::uint64_t offset = 0;  // native: address within the file
};

struct FrameVariables {
  std::uint32_t frame = 0;  // position in the stack
  std::vector<std::pair<std::string, std::string>> values;
};

struct ThreadStack {
  int tid = 0;
  std::string name;   // "": unknown
  std::string state;  // R S D T as in /proc
  fr::Activity activity = fr::Activity::kUnknown;
  std::string wchan;
  std::string syscall;     // "": none, or none that waits
  std::string syscall_on;  // its file, socket or address
  fr::Gil gil = fr::Gil::kNone;
  fr::Answer answer = fr::Answer::kNotAsked;
  std::uint32_t answer_us = 0;
  std::uint64_t looked_ns = 0, cpu_ns = 0, runqueue_ns = 0;
  bool whole = false;
  std::string handling;                  // exception that is being handled; "": none
  std::vector<std::uint32_t> stack;      // into ThreadsEvidence::frames, innermost first
  std::uint32_t cut_after = 0, cut = 0;  // Python frames left out, after so many shown
  std::vector<FrameVariables> variables;
};

// A process that the rank has started and not waited for: DataLoader workers, compilers.
struct ChildProcess {
  int pid = 0;
  std::string name, state;
  fr::Activity activity = fr::Activity::kUnknown;
  std::string wchan, syscall, syscall_on;
  int wait_status = -1;                   // if it has ended
  std::vector<std::uint32_t> stack = {};  // Python frames of its main thread, innermost first
};

// A file lock, flock() or fcntl(), that the process waits for or holds.
struct FileLock {
  bool waits = false;
  int holder = -1;  // pid; -1: unknown
  std::string kind, holder_name, file;
};

struct ThreadModule {
  std::string file;
  std::string build_id;  // hex; "": none
};

struct ThreadsEvidence {
  bool present = false;
  int signal = 0;
  std::string not_asked;  // why no thread was asked
  std::uint64_t took_ns = 0, asking_ns = 0;
  std::uint64_t threads_lost = 0, frames_lost = 0, modules_lost = 0;
  Shared<std::vector<ThreadFrame>> frames;
  std::vector<ThreadModule> modules;  // files of native frames
  bool children_known = false;        // false: an older recorder
  std::vector<ChildProcess> children;
  std::vector<FileLock> locks;  // older recorders leave it empty
  std::vector<ThreadStack> threads;
};

// "asleep in futex of /x, in load() at data.py:9, called from train.py:20"; for a process that has
// ended "has exited with status 3".
std::string child_text(const ThreadsEvidence&, const ChildProcess&, std::string_view cwd = {});

// The thread with the process's id; nullptr: missing.
const ThreadStack* main_thread(const ThreadsEvidence&, int pid);
// The main thread runs Python code that no script called, runs an exit handler, or Python is
// ending.
bool script_is_over(const ThreadsEvidence&, int pid);
// The main thread waits for the other threads to end: in threading._shutdown.
bool waits_for_threads(const ThreadsEvidence&, int pid);
const ThreadStack* thread_of(const ThreadsEvidence&, int tid);
// The thread that holds the GIL; nullptr: none, or unknown.
const ThreadStack* gil_holder(const ThreadsEvidence&);

// The user's innermost Python frame (format/call_site.hpp); nullptr: none.
const ThreadFrame* user_frame(const ThreadsEvidence&, const ThreadStack&);

// The user's frame, then the library function that it is in: "load() at train.py:57, in
// FileBaton.wait() at torch/utils/file_baton.py:49"; for a thread without Python frames: "read() in
// libc.so.6". "": unknown. Paths below cwd are relative.
std::string where_text(const ThreadsEvidence&, const ThreadStack&, std::string_view cwd = {});
// "asleep in clock_nanosleep", "running, no system call; holds the GIL", "asleep in openat of
// /x/fifo (wait_for_partner)", and the data that could not be had.
std::string doing_text(const ThreadsEvidence&, const ThreadStack&);
// The path relative to Python's packages, its library, or cwd.
std::string_view short_file(std::string_view file, std::string_view cwd);
// "train.py:57 load_batch" or "clock_nanosleep (libc.so.6)".
std::string frame_text(const ThreadFrame&, std::string_view cwd = {});
// Drops the arguments of a C++ function, and long template arguments.
// "c10d::Reducer::finalize_backward() (libtorch_cpu.so)" loses its parentheses, too.
std::string short_frame(const std::string& frame);
// Frames without information: the interpreter's own, fr's, the start of a thread.
bool is_plumbing(const ThreadFrame&);

}  // namespace frtrace
