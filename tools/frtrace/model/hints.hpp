// hints.hpp - known hang patterns in what a rank's threads do. A pure function of the evidence.
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
  std::string text;  // a sentence whose subject is the rank
};

// By the stacks, system calls and variables of the main thread and of those it waits for.
std::vector<Hint> hints_of(const RankEvidence&);

// One of its threads is about to take a lock of the program's, and does not get it: `with lock` in user
// code.
bool has_thread_at_lock(const RankEvidence&);

// Its main thread is in the program's own code, as its stack shows: in no call of torch's or of a
// device's library, at no lock of a file and at no lock of Python's that a thread of torch's may hold.
bool is_in_program(const RankEvidence&);
// Its main thread is inside such a call.
bool is_in_torch(const RankEvidence&);

// The lock file that the rank waits for, and what is needed to look it up; path "": none, or its
// name is not in the evidence.
struct LockWait {
  std::string path, host;
  Time process_start = 0;
};
LockWait lock_wait(const RankEvidence&);

// The lock of a file that the main thread waits for, by flock(), fcntl() or Python's filelock.
struct FileLockWait {
  std::string file;  // "" it waits for none
  int holder = -1;   // process, where the kernel named it; -1 unknown
  std::string holder_name;
};
FileLockWait file_lock_wait(const RankEvidence&);
// "waits for the lock of data.lock, which rank 0 holds" where the rank is known, else the process.
std::string file_lock_text(const RankEvidence&, Rank holder = -1);

// Where the rank is inside torch's rendezvous: it has not got past the store that all ranks meet at.
struct Rendezvous {
  bool known = false;   // the evidence has the stack of its main thread
  bool within = false;  // it is inside the rendezvous
  std::string address;  // host:port; "" it is not in the evidence
};
Rendezvous rendezvous_of(const RankEvidence&);

// The store that the ranks meet at is in that process: PyTorch has a thread for it. A launcher that
// serves it, as torchrun does, lets all ranks pass at once.
bool serves_store(const RankEvidence&);
// Its main thread is in the call that connects to the ranks' store.
bool connects_to_store(const RankEvidence&);

// The main thread; where Python waits for its threads at exit, one that has issued operations and is in
// user code. null: the evidence has neither.
const ThreadStack* program_thread(const RankEvidence&);
// The thread that crashed, else the program's; null: the evidence has neither.
const ThreadStack* told_thread(const RankEvidence&);
// Where that is in user code; no file: the evidence does not say.
Site now_at(const RankEvidence&);
// The same; of a rank that an exception (Ctrl-C's, say) took out of where it was, the place where it came.
Site stopped_at(const RankEvidence&);

// Lines for a blamed rank, the first as continuation of its name: "is in load_lock() at ...", then
// what the thread does, and hints. Empty: the evidence has no threads.
std::vector<std::string> where_lines(const RankEvidence&);
// "in load_lock(): path = '/tmp/l'", a line per frame.
enum class ShownVariables { kUsers, kAll };  // of frames of the user's code; of a library's, too
std::vector<std::string> variable_lines(const RankEvidence&,
                                        ShownVariables = ShownVariables::kUsers);
// The same of a process that crashed: "got SIGSEGV, address 0x8: nothing is mapped there", its
// stack.
std::vector<std::string> crash_lines(const RankEvidence&);
// What its recorder cannot see of threads; "" nothing is missed.
std::string thread_holes(const RankEvidence&);

}  // namespace frtrace
