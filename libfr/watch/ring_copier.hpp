// ring_copier.hpp - copies rings into the dump directory when a signal ends the process: what is
// mapped already needs no encoder and no answer of any thread, only the disk. A thread of its own
// does it, because a disk may hang, and the handler of the signal waits no longer than it wants to.
//
//   handler                                fr-copier
//   idle -> asked  --futex-->              asked -> busy -> done
//   done: the copies are safe              (a disk that hangs: stays busy, the handler gives up)
#pragma once

#include <atomic>
#include <climits>

#include "format/layout.hpp"

namespace fr {

struct Recorder;

class RingCopier {
 public:
  // Body of the thread fr-copier. Until it runs, copy() gives up when its time is over.
  static void* thread_main(void* self) noexcept;
  void set_recorder(Recorder& recorder) noexcept { recorder_ = &recorder; }

  // Async-signal-safe; once per process, a second call returns false at once. Copies this rank's
  // ring and those of dead peers, and waits for that at most limit_ns. True when the own one is safe
  // in the dump directory. `dumped`: this rank has dumped the incident, the copy goes beside that.
  bool copy(u64 incident, bool dumped, u64 limit_ns) noexcept;
  // Async-signal-safe, after copy() was true: the dump that holds more has been written.
  void remove_own_copy() noexcept;

 private:
  enum : u32 { kIdle, kAsking, kAsked, kBusy, kDone, kFailed };
  bool copy_all() noexcept;

  Recorder* recorder_ = nullptr;
  std::atomic<u32> state_{kIdle};  // the futex
  u64 incident_ = 0;
  bool dumped_ = false;
  char own_copy_[PATH_MAX] = {};
};

}  // namespace fr
