// The ends of processes.
#include "facts/exits.hpp"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <initializer_list>
#include <limits>
#include <unordered_map>

#include "model/contains.hpp"

namespace frtrace {

namespace {

bool has_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::ranges::any_of(parts, [&](std::string_view part) { return has(text, part); });
}

}  // namespace

bool is_consequence(std::string_view error) {
  std::string text(error);
  std::ranges::transform(text, text.begin(),
                         [](unsigned char ch) { return static_cast<char>(std::tolower(ch)); });
  return has_any(text, {"closed by peer", "connection reset", "reset by peer", "broken pipe",
                        "connection refused", "timed out", "timeout", "connection closed",
                        "remote process", "was aborted", "peer failure", "socket closed"});
}

bool is_unreached(std::string_view error) {
  return error.find("connectFullMesh") != std::string_view::npos;
}

namespace {

// Raised by the user's own code, whatever its message says: errors of communication have the types
// that torch and the system raise.
bool is_users_own(const ExitEvidence& x) {
  return !has_any(x.type,
                  {"RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError",
                   "DistError", "Timeout", "Connection", "OSError", "BrokenPipe", "Cancelled"});
}

// The text of the exception with its first cause. The first cause is left out if it is a connection
// of multiprocessing, as to a DataLoader's worker: that connects to no other rank.
std::string_view told_by(const ExitEvidence& x) {
  const std::string_view text = x.message;
  const std::size_t first = text.find("\n  first cause: ");
  const bool other = first != text.npos && has(text.substr(first), ", at connection.py:");
  return other ? text.substr(0, first) : text;
}

bool is_end_signal(int signal) {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

void end_by_signal(Exit& exit, int signal) {
  exit.kind = ExitKind::kSignal;
  exit.signal = signal;
  exit.terminated = is_end_signal(signal);
}

Exit exit_from_peer(const PeerEvidence& p, std::string_view cwd) {
  Exit exit;
  exit.time = p.exit_time;
  exit.status = p.status;
  if (p.state == PeerState::kExitedClean) {
    exit.kind = ExitKind::kStatus;
    exit.status = 0;
    exit.last_op = p.last_op;
    exit.last_place = std::string(short_file(p.last_site, cwd));
    exit.exit_place = p.exit_site;
  } else if (p.state == PeerState::kGone) {
    exit.kind = ExitKind::kGone;
  } else if (p.state == PeerState::kExited && p.signal != 0) {
    end_by_signal(exit, p.signal);
  } else if (p.state == PeerState::kExited) {
    exit.kind = ExitKind::kStatus;
  }
  return exit;
}

// The peer tables of all ranks, by the rank that an entry is about.
class PeerTables {
 public:
  explicit PeerTables(const Case& c) {
    for (const RankEvidence* e : c.ranks) {
      for (const PeerEvidence& p : e->peers) {
        if (p.rank != e->id.rank) {
          about_[p.rank].emplace_back(e, &p);
        }
      }
    }
  }

  // The latest entry; ends outrank "live". pid 0: any process. nullptr: none.
  const PeerEvidence* latest(Rank rank, int pid) const {
    const auto it = about_.find(rank);
    if (it == about_.end()) {
      return nullptr;
    }
    const PeerEvidence* best = nullptr;
    std::pair<bool, Time> best_key;  // ended, when it was seen
    for (const auto& [e, p] : it->second) {
      const std::pair key(p->state != PeerState::kLive, e->written);
      const bool is_it = pid == 0 || p->pid == 0 || p->pid == pid;
      if (is_it && (best == nullptr || key > best_key)) {
        best = p;
        best_key = key;
      }
    }
    return best;
  }

 private:
  std::unordered_map<Rank, std::vector<std::pair<const RankEvidence*, const PeerEvidence*>>> about_;
};

// The text of the last operation that failed; "": none did.
std::string_view last_error_of(const RankEvidence& e) {
  const Record* failed =
      e.last_record([](const Record& r) { return r.state == State::kFailed && r.error != 0; });
  return failed == nullptr ? std::string_view() : e.text(failed->error);
}

// A signal to end that the program handles itself and survives; 0: none. The recorder reports that
// a signal ends the process only if the program has no handler. Python's own handler of SIGINT
// raises KeyboardInterrupt, so SIGINT counts as an end unless the rank goes on.
int handled_signal(const RankEvidence& e) {
  const ExitEvidence& x = e.exit;
  const bool ends = x.kind == ExitBy::kSignal || x.kind == ExitBy::kCrash;
  if (!x.present || !is_end_signal(x.signal) || ends) {
    return 0;
  }
  const bool went_on = !e.records.empty() && e.records.back().time > x.time;
  return x.signal != SIGINT || went_on ? x.signal : 0;
}

// After Python has ended, it ends a thread that returns to it by pthread_exit(). If a C++ function
// on that thread's stack lets no exception pass, the process aborts: "terminate called without an
// active exception". Python 3.14 lets such threads wait instead.
bool aborted_at_exit(const ExitEvidence& x) {
  return x.kind == ExitBy::kCrash && x.signal == SIGABRT &&
         x.message.find("_Unwind_ForcedUnwind") != std::string::npos;
}

// The end by the process's own exit record.
Exit recorded_exit(const RankEvidence& e) {
  const std::string_view last_error = last_error_of(e);
  const ExitEvidence& x = e.exit;
  Exit exit;
  exit.time = x.time;
  exit.sender_pid = x.sender_pid;
  exit.handled = handled_signal(e);
  if (x.kind == ExitBy::kException && !x.type.empty() && x.type != "SystemExit") {
    exit.kind = ExitKind::kException;
    exit.terminated =
        x.type == "KeyboardInterrupt" || x.type.find("SignalException") != std::string::npos;
    exit.type = x.type;
    exit.message = x.message.substr(0, x.message.find('\n'));
    if (exit.message.ends_with(':')) {  // the rest is on later lines
      exit.message.pop_back();
    }
    constexpr std::size_t kPrefix = 40;
    exit.consequence = (is_consequence(told_by(x)) && !is_users_own(x)) ||
                       (is_consequence(last_error) &&
                        x.message.find(last_error.substr(0, kPrefix)) != std::string::npos);
  } else if (x.signal != 0 && exit.handled == 0) {
    end_by_signal(exit, x.signal);
    if ((x.kind == ExitBy::kSignal || x.kind == ExitBy::kCrash) && !x.message.empty()) {
      exit.message = x.message.substr(0, x.message.find("; thread "));
    }
    exit.consequence = x.signal == SIGABRT && is_consequence(last_error);
    if (aborted_at_exit(x)) {
      exit.at_exit = true;
      exit.message = "at exit: a thread still ran when Python had ended";
    }
    exit.exit_place = x.kind == ExitBy::kCrash ? site_text(user_site(e, x.stack)) : "";
  } else if (x.state == fr::kExiting || x.kind == ExitBy::kExit) {
    exit.kind = ExitKind::kStatus;
    exit.status = x.status;
    exit.exit_place = x.type == "SystemExit" ? site_text(user_site(e, x.stack)) : "";
    exit.consequence = !exit.clean() && is_consequence(last_error);
  }
  return exit;
}

Exit exit_of(const PeerTables& peers, const RankEvidence& e) {
  Exit exit = own_exit(e);
  if (!exit.ended() || exit.kind == ExitKind::kGone) {
    const PeerEvidence* p = peers.latest(e.id.rank, e.id.pid);
    const Exit seen = p != nullptr ? exit_from_peer(*p, e.id.cwd) : Exit{};
    const int handled = exit.handled, sender_pid = exit.sender_pid;
    if (seen.ended() && !(handled != 0 && seen.signal == handled)) {
      exit = seen;
      exit.handled = handled;
      exit.sender_pid = sender_pid;
    }
    exit.consequence = exit.ended() && !exit.clean() && is_consequence(last_error_of(e));
  }
  if (exit.kind == ExitKind::kGone && exit.time == 0) {
    exit.time = e.written;  // its last sign of life, if another process wrote it
  }
  return exit;
}

}  // namespace

Exit own_exit(const RankEvidence& e) {
  Exit exit = e.exit.present ? recorded_exit(e) : Exit{};
  if (!exit.ended() && e.process_gone) {
    exit.kind = ExitKind::kGone;
  }
  return exit;
}

std::vector<Exit> exits_of(const Case& c) {
  const PeerTables peers(c);
  std::vector<Exit> out;
  out.reserve(c.ranks.size());
  for (const RankEvidence* e : c.ranks) {
    out.push_back(exit_of(peers, *e));
  }
  return out;
}

Time told_to_end(const std::vector<Exit>& exits) {
  Time first = std::numeric_limits<Time>::max();
  for (const Exit& e : exits) {
    if (!e.terminated) {
      return std::numeric_limits<Time>::max();
    }
    first = e.time != 0 ? std::min(first, e.time) : first;
  }
  return first;
}

std::vector<Exit> exits_of_missing(const Case& c) {
  const PeerTables peers(c);
  std::vector<Exit> out;
  for (const Rank rank : c.missing) {
    const PeerEvidence* p = peers.latest(rank, 0);
    out.push_back(p != nullptr ? exit_from_peer(*p, c.ranks.front()->id.cwd) : Exit{});
  }
  return out;
}

std::set<Rank> missing_seen(const Case& c, bool alive) {
  std::set<Rank> out;
  const PeerTables peers(c);
  for (const Rank rank : c.missing) {
    const PeerEvidence* p = peers.latest(rank, 0);
    if ((p != nullptr && (!alive || p->state == PeerState::kLive)) ||
        (alive && c.stacks.contains(rank))) {
      out.insert(rank);
    }
  }
  return out;
}

double idle_s(const RankEvidence& e) {
  Time last = 0;
  for (const Record& r : e.records) {
    last = r.kind == Kind::kNote ? last : std::max({last, r.time, r.started, r.ended});
  }
  return last == 0 || e.holes.written_guessed ? -1 : seconds_between(last, e.written);
}

bool has_not_begun(const RankEvidence& e) {
  return e.format.empty() && e.id.start != 0 && e.losses.overwritten == 0 && e.groups.size() <= 1 &&
         std::ranges::all_of(e.records, [](const Record& r) { return r.kind == Kind::kNote; });
}

double silent_s(const RankEvidence& e) {
  return has_not_begun(e) ? seconds_between(e.id.start, e.written) : idle_s(e);
}

}  // namespace frtrace
