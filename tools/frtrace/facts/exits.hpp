// exits.hpp - the ends of processes, by their own records and by those of the ranks of their node.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model/case.hpp"
#include "model/rank_data.hpp"

namespace frtrace {

enum class ExitKind : std::uint8_t {
  kNone,       // runs
  kStatus,     // exited with a status
  kException,  // uncaught exception
  kSignal,
  kGone  // no process any more, and nothing tells why
};

struct Exit {
  ExitKind kind = ExitKind::kNone;
  bool terminated = false;   // by SIGTERM, SIGINT, SIGHUP or SIGQUIT: from outside
  bool at_exit = false;      // it aborted after its script was over, because a thread still ran
  bool consequence = false;  // its error says that a peer was gone or late
  int status = 0;
  int signal = 0;
  int handled = 0;  // a signal to end that the program itself handles; the process lived on
  int sender_pid = 0;
  Time time = 0;
  std::string type, message;        // of an exception; of a signal: its sender, the kind of crash
  std::string last_op, last_place;  // as peers saw it
  std::string exit_place;           // of sys.exit, also where a crash followed; "" not known

  bool ended() const { return kind != ExitKind::kNone; }
  bool clean() const { return kind == ExitKind::kStatus && status == 0; }
  // A process that a signal ended from outside was in its place until then.
  bool by_itself() const { return ended() && !terminated; }
  bool primary() const { return by_itself() && !clean() && !consequence; }
  // Both ended in the same way.
  bool same_as(const Exit& o) const {
    return kind == o.kind && status == o.status && signal == o.signal && type == o.type &&
           message == o.message;
  }
};
std::vector<Exit> exits_of(const Case&);  // per evidence
// The end by this evidence alone, without the peers' tables.
Exit own_exit(const RankEvidence&);
std::vector<Exit> exits_of_missing(const Case&);  // per Case::missing, from the peers' tables
// Missing ranks with a process in the table of a rank of their node. `alive`: seen alive there, or
// by a stack.
std::set<Rank> missing_seen(const Case&, bool alive);
// Time at which the first process was told to end, if all were: waits since then tell nothing. Else
// the largest Time.
Time told_to_end(const std::vector<Exit>&);
// Seconds from the last sign of an operation until the evidence was written; negative: not known.
double idle_s(const RankEvidence&);
// The rank is watched and has not made its first group.
bool has_not_begun(const RankEvidence&);
// idle_s(); for a rank that has not begun, the time since its process began.
double silent_s(const RankEvidence&);
// The error says that a peer is gone or late.
bool is_consequence(std::string_view error);
// gloo did not reach a peer when a group was made.
bool is_unreached(std::string_view error);

}  // namespace frtrace
