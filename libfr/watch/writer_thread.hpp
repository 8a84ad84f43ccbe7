// writer_thread.hpp - hands written dumps to the user's function (fr_register_writer), on a thread of
// its own: that function may wait for a network or the GIL, the watchdog may not.
#pragma once

#include <atomic>
#include <climits>

#include "format/layout.hpp"
#include "fr/fr.h"

namespace fr {

// Registered before a recorder exists: the next start uses it.
void keep_writer(fr_writer writer, void* user) noexcept;

class WriterThread {
 public:
  // False without memory or a descriptor.
  bool init() noexcept;
  // Any thread. nullptr: none from now on, after what is queued was delivered.
  void set(fr_writer writer, void* user) noexcept;
  void set_kept() noexcept;  // what keep_writer() was told
  // The watchdog's: this file is safe. Does nothing without a writer; drops it where the queue is
  // full. No lock, no allocation.
  void queue(u64 incident, const char* reason, const char* path) noexcept;
  // Any thread: until all that is queued is delivered, most_ms at most.
  void await(int most_ms) const noexcept;

 private:
  static constexpr u32 kQueue = 16;
  struct Written {
    u64 incident;
    char reason[256];
    char path[PATH_MAX];
  };

  static void* thread_main(void* self) noexcept;

  std::atomic<fr_writer> writer_{nullptr};
  std::atomic<void*> writer_user_{nullptr};
  bool started_ = false;
  int event_fd_ = -1;
  Written* queue_ = nullptr;  // ring of kQueue
  std::atomic<u64> queued_{0};
  std::atomic<u64> delivered_{0};
};

}  // namespace fr
