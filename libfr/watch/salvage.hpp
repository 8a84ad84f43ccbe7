// salvage.hpp - the data of ranks that cannot bring it themselves: dead and unresponsive peers of
// this node, and rings that earlier attempts left behind. Part of the watchdog's thread but where
// it says otherwise; no allocation, no lock.
#pragma once

#include "format/encode.hpp"
#include "sample/thread_sampler.hpp"
#include "watch/dump_store.hpp"

namespace fr {

struct Recorder;

class Salvage {
 public:
  Salvage(Recorder& recorder, DumpEncoder& encoder, ThreadStacks& threads,
          DumpStore& store) noexcept;
  // Once, by the thread that starts the watchdog.
  void init() noexcept;

  // An incident is open since then: peers have to answer it.
  void expect_answers(u64 incident, u64 now_ns) noexcept;
  // Salvages those that are dead, or have not answered in time.
  void check_peers(u64 now_ns) noexcept;
  // Any thread: is a peer still to answer the incident, or being salvaged?
  bool is_awaited() const noexcept;

  // Rings of dead processes in the ring directory: those of this job's earlier attempts become
  // dumps, others are cleaned up by age and total size. In leftovers.cpp.
  void take_leftovers() noexcept;

  // Writes what the file at `ring` holds as the dump of its rank. False when it was not written;
  // errno says why: EEXIST where both names of that incident are taken.
  bool salvage_file(const char* ring, u64 incident, dump::Salvage why, bool has_dumped) noexcept;

 private:
  bool is_awaited(const PeerRow& row, u64 incident) const noexcept;
  void salvage(PeerRow& row, dump::Salvage why) noexcept;
  bool take_leftover(const char* path, u64 incident) noexcept;

  Recorder& recorder_;
  DumpEncoder& encoder_;
  ThreadStacks& threads_;
  DumpStore& store_;
  i64 oom_kills_ = -1;  // at the start
  std::atomic<u64> incident_{0};
  u64 checked_incident_ = 0;  // everyone has answered it
  u64 incident_seen_ns_ = 0;  // monotonic
  std::atomic<bool> salvaging_{false};
};

}  // namespace fr
