// dump_store.hpp - where dumps go: FR_DUMP_DIR, the temporary directory where that fails, or a
// function of the user's in the place of both. One thread at a time: the watchdog's.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <climits>
#include <cstddef>

#include "format/encode.hpp"
#include "fr/fr.h"
#include "watch/durable_write.hpp"

namespace fr {

struct Recorder;

class DumpStore {
 public:
  explicit DumpStore(const Recorder& recorder) noexcept;

  // False with errno; last_path() then is "".
  bool store(const char* name, const DumpEncoder::Bytes& bytes,
             Existing existing = Existing::kReplace) noexcept;
  // Removes this rank's older dumps in the directory of the last one. The first incident of this
  // run and the newest FR_KEEP_DUMPS - 1 stay.
  void prune() noexcept;

  // Any thread: dumps go to this function; nullptr: to files again.
  void set_sink(fr_sink sink, void* user) noexcept;
  // Do file names still mean to this process what they mean to its peers? Not after chroot().
  bool is_seen_by_peers() const noexcept;
  bool has_sink() const noexcept { return sink_.load() != nullptr; }
  const char* last_path() const noexcept { return last_path_; }  // the watchdog's thread only
  // Any thread: the path of the last dump that is on disk; "" none, or one is being written.
  using Path = char[PATH_MAX];
  void last_path(Path& out) const noexcept;

 private:
  bool store_anywhere(const char* name, const DumpEncoder::Bytes& bytes,
                      Existing existing) noexcept;
  void tell() noexcept;

  const Recorder& recorder_;
  const struct stat root_;  // as it was at the start
  std::atomic<fr_sink> sink_{nullptr};
  std::atomic<void*> sink_user_{nullptr};
  bool unwritable_said_ = false;
  char last_path_[PATH_MAX] = {};
  // A copy for other threads; odd while it is being replaced.
  std::atomic<u32> told_revisions_{0};
  std::atomic<char> told_path_[PATH_MAX] = {};
};

}  // namespace fr
