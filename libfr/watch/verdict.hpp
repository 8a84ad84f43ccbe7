// verdict.hpp - makes the job's own log name the rank at fault. After an incident one rank of each
// node starts `frtrace verdict`, which waits until the dumps are there, settles with the other
// nodes which of them speaks, writes <job>.verdict.json and .txt and puts the lines on stderr. A
// rank that ends with an error leaves the file that torchrun shows in its report.
//
//   watchdog, handlers        fr-verdict
//   ask(incident)  --futex--> elect -> spawn
//   leave_word()   --futex--> wait for the verdict's text -> write the error file
#pragma once

#include <atomic>
#include <climits>

#include "format/layout.hpp"

namespace fr {

struct Recorder;

class VerdictThread {
 public:
  // Looks for frtrace and for what the launcher asks for. Allocates; before thread_main() runs.
  void prepare(const Recorder& recorder);
  // False: nothing to do for such a thread.
  bool is_needed() const noexcept { return frtrace_[0] != '\0' || error_file_[0] != '\0'; }
  static void* thread_main(void* self) noexcept;

  // The rest is async-signal-safe.
  // This rank's evidence of the incident is safe.
  void ask(u64 incident) noexcept;
  // For a process that ends: waits until it is settled which rank starts frtrace, and that is done.
  void await_start(u64 limit_ns) const noexcept;
  // For a process that ends by an error or a fatal signal: writes torchrun's error file, with the
  // verdict where it comes in time. An error file that is there stays as it is.
  void leave_word(u64 limit_ns) noexcept;

 private:
  enum : u32 { kNoWord, kWordAsking, kWordAsked, kWordLeft };

  void run() noexcept;
  bool elect(u64 incident) noexcept;
  void start_frtrace(u64 incident) noexcept;
  void write_error_file() noexcept;
  std::size_t await_text(char* to, std::size_t bytes, u64 limit_ns) noexcept;

  const Recorder* recorder_ = nullptr;
  char frtrace_[PATH_MAX] = {};     // "" unknown, or not wanted
  char error_file_[PATH_MAX] = {};  // "" none
  const char* environment_[12] = {};
  std::atomic<u32> posted_{0};   // the futex: grows with every request
  std::atomic<u64> asked_{0};    // newest incident
  std::atomic<u64> settled_{0};  // newest incident with the starter of frtrace settled
  u64 started_ = 0;              // incident that this rank started it for
  u64 word_limit_ns_ = 0;
  std::atomic<u32> word_{kNoWord};
};

}  // namespace fr
