// control_page.hpp - the control page: the ranks of one job, attempt and node (pid namespace).
//
// The rank that dumps first raises `incident`; the watchdogs of all others see it and dump too. The
// page also remembers the end of a rank that left no ring behind.
#pragma once

#include <string>

#include "format/layout.hpp"

namespace fr {

class ControlPage {
 public:
  // Maps (and if need be initialises) the page; private memory when that fails. Keeps it locked
  // until join().
  void open(const std::string& dir, const std::string& job, i32 attempt, u64 first_incident);
  // Claims a row; false when all are taken by living ranks.
  bool join(i32 pid, u64 proc_start, i32 rank, i32 local_rank, const char* ring) noexcept;

  // False where the page could not be shared: then peers on this node are met in FR_DUMP_DIR only.
  bool is_shared() const noexcept { return !path_.empty(); }
  Control& page() const noexcept { return *page_; }
  PeerRow* own() const noexcept { return own_; }

  // In incident.cpp; async-signal-safe. The incident to dump now: a newer one than `last` if there is one; with
  // `join` also the current one while its hang lasts, or while it is fresh and not over; else a new
  // one, opened for this reason.
  u64 open_incident(u64 last, i32 rank, const char* reason, bool join) noexcept;
  bool lasts(u64 incident) const noexcept;
  // Another process of this node that lives has the own rank.
  bool shares_rank() const noexcept;
  // True for the one rank of this node that is to say that the incident is over.
  bool claim_over(u64 incident) noexcept;
  // True for the one rank of this node that is to say that it is dumped.
  bool claim_dump_line(u64 incident) noexcept;
  // This rank has a stall to warn of. Then one of those that have says it, true, unless one did
  // within apart_ns: for "ranks 0,1,3 of this node: ", or "" where it is alone.
  void note_warning(u64 now_unix_ns) noexcept;
  bool claim_warning(u64 now_unix_ns, u64 apart_ns, char* ranks, std::size_t bytes) noexcept;
  // Copies the current reason; "" while being written.
  void reason(char* text, std::size_t bytes) const noexcept;
  // A living rank of this node is in fr.breakpoint().
  bool is_paused() const noexcept;
  // Another node opened this incident. False: it is not newer than ours.
  bool follow(u64 incident, i32 rank, const char* reason) noexcept;
  // Room for the list of nodes in the file; false where there is none.
  bool make_room(u32 nodes) noexcept;

  // Removes the page when no rank on it lives but ourselves.
  void remove_if_last() noexcept;

 private:
  Control* page_ = nullptr;
  PeerRow* own_ = nullptr;
  std::string path_;
  int lock_fd_ = -1;
};

bool is_dead(const PeerRow& row) noexcept;  // live or claimed by its state, but its process is gone

}  // namespace fr
