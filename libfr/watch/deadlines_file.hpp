// deadlines_file.hpp - FR_DEADLINES: what deadlines learned, over restarts. One rank of the job
// writes it, on a thread of its own: the file system may be what hangs.
#pragma once

#include <atomic>
#include <string>

#include "format/view.hpp"

namespace fr {

struct Recorder;

// The text of the file: a line that names program and world size, a line per site, and a last one
// with a hash of all before it. Returns its bytes, 0 where there is no room.
std::size_t format_deadlines(const SiteRow* rows, u32 n, const char* of, char* to,
                             std::size_t bytes) noexcept;
enum class Deadlines : u8 { kTaken, kOfAnother, kDamaged, kForeign };
// Fills rows, which are empty; what was not visited in two to the seventh restarts is forgotten.
Deadlines parse_deadlines(const std::string& text, const char* of, SiteRow* rows, u32 n,
                          u64 now_ns);

class DeadlinesFile {
 public:
  void open(Recorder& recorder);  // reads; may throw std::bad_alloc
  void start() noexcept;
  // Before an orderly exit: writes once more, at most so long.
  void finish(u64 limit_ns) noexcept;

 private:
  static void* thread_main(void* self) noexcept;
  void write() noexcept;
  void merge(const View& view) noexcept;

  Recorder* recorder_ = nullptr;
  std::string dir_, name_;  // "" name: nothing to write
  char of_[256] = "";
  SiteRow* merged_ = nullptr;
  char* text_ = nullptr;
  int wake_fd_ = -1;
  bool is_failure_said_ = false;
  std::atomic<bool> asked_{false}, done_{false};
};

}  // namespace fr
