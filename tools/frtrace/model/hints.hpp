// hints.hpp - known patterns of hangs in a rank's threads. A pure function of the evidence.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/rank_data.hpp"

namespace frtrace {

enum class HintKind : std::uint8_t {
  kLockFile,
  kFileLock,
  kStore,
  kLoaderWorker,
  kChild,
  kFifo,
  kUninterruptible,
  kImportLock,
  kForkedCuda,
  kGil,
  kPythonLock,
  kStopped
};

struct Hint {
  HintKind kind;
  std::string text;  // a sentence with the rank as its subject
};

// Based on stacks, system calls and variables of the main thread and of the threads it waits for.
std::vector<Hint> hints_of(const RankEvidence&);

// A thread of the rank waits for a lock of the program: `with lock` in user code.
bool has_thread_at_lock(const RankEvidence&);

// The main thread is in the program's own code, by its stack: not in a call of torch or of a device
// library, not at a file lock, and not at a Python lock that a torch thread may hold.
bool is_in_program(const RankEvidence&);
// The main thread is in a call of torch or of a device library.
bool is_in_torch(const RankEvidence&);

// The lock file that the rank waits for, and the data to look it up; path "": none, or the evidence
// lacks its name.
struct LockWait {
  std::string path, host;
  Time process_start = 0;
};
LockWait lock_wait(const RankEvidence&);

// The file lock that the main thread waits for, by flock(), fcntl() or Python's filelock.
struct FileLockWait {
  std::string file;  // "": it waits for none
  int holder = -1;   // pid, if the kernel named it; -1: unknown
  std::string holder_name;
};
FileLockWait file_lock_wait(const RankEvidence&);
// "waits for the lock of data.lock, which rank 0 holds"; without the rank, the process is named.
std::string file_lock_text(const RankEvidence&, Rank holder = -1);

// The rank is in torch's rendezvous: it has not passed the store that all ranks meet at.
struct Rendezvous {
  bool known = false;   // the evidence has the stack of the main thread
  bool within = false;  // the main thread is inside the rendezvous
  std::string address;  // host:port; "": unknown
};
Rendezvous rendezvous_of(const RankEvidence&);

// The process serves the store that the ranks meet at: PyTorch has a thread for it. A launcher that
// serves the store, as torchrun does, lets all ranks pass at once.
bool serves_store(const RankEvidence&);
// The main thread is in the call that connects to the ranks' store.
bool connects_to_store(const RankEvidence&);

// The main thread; if Python waits for its threads at exit, a thread that has issued operations and
// is in user code. nullptr: the evidence has neither.
const ThreadStack* program_thread(const RankEvidence&);
// The thread that crashed, else program_thread(); nullptr: the evidence has neither.
const ThreadStack* told_thread(const RankEvidence&);
// The place of told_thread() in user code; no file: unknown.
Site now_at(const RankEvidence&);
// The same; for a rank that an exception (such as Ctrl-C) interrupted, the place where it was
// raised.
Site stopped_at(const RankEvidence&);

// Lines about a blamed rank; the first continues its name: "is in load_lock() at ...", then the
// thread's activity, and hints. Empty: the evidence has no threads.
std::vector<std::string> where_lines(const RankEvidence&);
// "in load_lock(): path = '/tmp/l'", a line per frame.
enum class ShownVariables { kUsers, kAll };  // frames of user code only; library frames too
std::vector<std::string> variable_lines(const RankEvidence&,
                                        ShownVariables = ShownVariables::kUsers);
// The same for a process that crashed: "got SIGSEGV, address 0x8: nothing is mapped there", its
// stack.
std::vector<std::string> crash_lines(const RankEvidence&);
// The gaps of the recorder's view of threads, in words; "": none.
std::string thread_holes(const RankEvidence&);

}  // namespace frtrace
