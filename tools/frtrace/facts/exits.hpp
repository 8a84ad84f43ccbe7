// exits.hpp - how processes ended, by their own record and by what the ranks of their node saw.
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
  bool terminated = false;   // by SIGTERM, SIGINT, SIGHUP, SIGQUIT: somebody ended it
  bool at_exit = false;      // it aborted when its script was over, because a thread still ran
  bool consequence = false;  // its error says that a peer was gone or late
  int status = 0;
  int signal = 0;
  int handled = 0;  // a signal to end that the program itself handles; it lived on
  int sender_pid = 0;
  Time time = 0;
  std::string type, message;        // of an exception; of a signal: who sent it, what the crash was
  std::string last_op, last_place;  // as peers saw it
  std::string exit_place;           // of sys.exit, also where a crash followed; "" not known

  bool ended() const { return kind != ExitKind::kNone; }
  bool clean() const { return kind == ExitKind::kStatus && status == 0; }
  // Whom a signal ended from outside was where it was until then.
  bool by_itself() const { return ended() && !terminated; }
  bool primary() const { return by_itself() && !clean() && !consequence; }
  // Both ended in the same way.
  bool same_as(const Exit& o) const {
    return kind == o.kind && status == o.status && signal == o.signal && type == o.type &&
           message == o.message;
  }
};
std::vector<Exit> exits_of(const Case&);  // per evidence
// By this evidence alone, without what peers saw.
Exit own_exit(const RankEvidence&);
std::vector<Exit> exits_of_missing(const Case&);  // per Case::missing, from the peers' tables
// Missing ranks whose process a rank of their node has had in its table of them; or has seen alive.
std::set<Rank> missing_seen(const Case&, bool alive);
// When the first of them was told to end, if all were: what they waited for since then tells nothing.
Time told_to_end(const std::vector<Exit>&);
// From its last sign of an operation until it was written; negative: not known.
double idle_s(const RankEvidence&);
// It is watched before it made its first group.
bool has_not_begun(const RankEvidence&);
// idle_s(); for a rank that has not begun, the time since its process began.
double silent_s(const RankEvidence&);
// The error says that a peer is gone, or late.
bool is_consequence(std::string_view error);
// gloo did not reach a peer when a group was made.
bool is_unreached(std::string_view error);

}  // namespace frtrace
