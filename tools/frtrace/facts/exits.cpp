// How processes ended.
#include "facts/exits.hpp"

#include <algorithm>
#include <csignal>
#include <limits>
#include <unordered_map>

namespace frtrace {

namespace {

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& ch : out) {
    ch = static_cast<char>(std::tolower(static_cast<unsigned char>(ch)));
  }
  return out;
}

}  // namespace

bool is_consequence(std::string_view error) {
  const std::string text = lower(error);
  for (const char* sign :
       {"closed by peer", "connection reset", "reset by peer", "broken pipe", "connection refused",
        "timed out", "timeout", "connection closed", "remote process", "was aborted",
        "communicator was aborted", "peer failure", "socket closed"}) {
    if (text.find(sign) != std::string::npos) {
      return true;
    }
  }
  return false;
}

namespace {

// Raised by the user's own code, whatever words its message has: errors of communication are of the
// types that torch and the system raise.
bool is_users_own(const ExitEvidence& x) {
  static constexpr std::string_view kForeign[] = {
      "RuntimeError", "DistBackendError", "DistNetworkError", "DistStoreError", "DistError",
      "Timeout",      "Connection",       "OSError",          "BrokenPipe",     "Cancelled"};
  return std::none_of(std::begin(kForeign), std::end(kForeign), [&](std::string_view part) {
    return x.type.find(part) != std::string::npos;
  });
}

bool asks_to_end(int signal) {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

void end_by_signal(Exit& exit, int signal) {
  exit.kind = ExitKind::kSignal;
  exit.signal = signal;
  exit.terminated = asks_to_end(signal);
}

Exit exit_from_peer(const PeerEvidence& p, const RankEvidence& seen_by) {
  Exit exit;
  exit.seen_by_peers = true;
  exit.time = p.exit_time;
  exit.status = p.status;
  if (p.state == PeerState::kExitedClean) {
    exit.kind = ExitKind::kStatus;
    exit.status = 0;
    exit.last_op = p.last_op;
    exit.last_place = std::string(short_file(p.last_site, seen_by.id.cwd));
    exit.exit_place = p.exit_site;
  } else if (p.state == PeerState::kGone) {
    exit.kind = ExitKind::kGone;
  } else if (p.state == PeerState::kExited) {
    if (p.signal != 0) {
      end_by_signal(exit, p.signal);
    } else {
      exit.kind = ExitKind::kStatus;
    }
  }
  return exit;
}

// What the ranks of a machine saw of each other, by the rank it is about.
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

  // The latest; ends outrank "live". pid 0: any process.
  const PeerEvidence* latest(Rank rank, int pid) const {
    const auto it = about_.find(rank);
    if (it == about_.end()) {
      return nullptr;
    }
    const PeerEvidence* best = nullptr;
    Time best_time = 0;
    for (const auto& [e, p] : it->second) {
      if (pid != 0 && p->pid != 0 && p->pid != pid) {
        continue;
      }
      const bool ended = p->state != PeerState::kLive;
      const bool best_ended = best != nullptr && best->state != PeerState::kLive;
      if (best == nullptr || (ended && !best_ended) ||
          (ended == best_ended && e->written > best_time)) {
        best = p;
        best_time = e->written;
      }
    }
    return best;
  }

 private:
  std::unordered_map<Rank, std::vector<std::pair<const RankEvidence*, const PeerEvidence*>>> about_;
};

// The text of the last operation that failed; "" none did.
std::string last_error_of(const RankEvidence& e) {
  const auto it = std::find_if(e.records.rbegin(), e.records.rend(), [](const Record& r) {
    return r.state == State::kFailed && r.error != 0;
  });
  return it == e.records.rend() ? std::string() : std::string(e.text(it->error));
}

// By the process's own exit record.
Exit exit_by_itself(const RankEvidence& e, const std::string& last_error) {
  const ExitEvidence& x = e.exit;
  Exit exit;
  exit.time = x.time;
  exit.sender_pid = x.sender_pid;
  if (x.kind == ExitBy::kException && !x.type.empty() && x.type != "SystemExit") {
    exit.kind = ExitKind::kException;
    exit.terminated =
        x.type == "KeyboardInterrupt" || x.type.find("SignalException") != std::string::npos;
    exit.type = x.type;
    exit.message = x.message.substr(0, x.message.find('\n'));
    if (exit.message.ends_with(':')) {  // what it leads to is not in that line
      exit.message.pop_back();
    }
    constexpr std::size_t kPrefix = 40;
    exit.consequence = (is_consequence(x.message) && !is_users_own(x)) ||
                       (is_consequence(last_error) &&
                        x.message.find(last_error.substr(0, kPrefix)) != std::string::npos);
  } else if (x.signal != 0) {
    end_by_signal(exit, x.signal);
    if ((x.kind == ExitBy::kSignal || x.kind == ExitBy::kCrash) && !x.message.empty()) {
      exit.message = x.message.substr(0, x.message.find("; thread "));
    }
    exit.consequence = x.signal == SIGABRT && is_consequence(last_error);
  } else if (x.state == fr::kExiting || x.kind == ExitBy::kExit) {
    exit.kind = ExitKind::kStatus;
    exit.status = x.status;
    exit.exit_place = x.type == "SystemExit" ? site_text(user_site(e, x.stack)) : "";
    exit.consequence = !exit.clean() && is_consequence(last_error);
  }
  return exit;
}

Exit exit_of(const PeerTables& peers, const RankEvidence& e) {
  const std::string last_error = last_error_of(e);
  Exit exit = e.exit.present ? exit_by_itself(e, last_error) : Exit{};
  if (!exit.ended()) {
    const Time known = exit.time;
    if (const PeerEvidence* p = peers.latest(e.id.rank, e.id.pid);
        p != nullptr && p->state != PeerState::kLive) {
      exit = exit_from_peer(*p, e);
      exit.consequence = !exit.clean() && is_consequence(last_error);
    } else {
      exit.time = known;
    }
  }
  if (!exit.ended() && e.process_gone) {
    exit.kind = ExitKind::kGone;
    exit.consequence = is_consequence(last_error);
  }
  if (exit.kind == ExitKind::kGone && exit.time == 0) {
    exit.time = e.written;  // its last sign of life, if another process wrote it
  }
  return exit;
}

}  // namespace

Exit own_exit(const RankEvidence& e) {
  Exit exit = e.exit.present ? exit_by_itself(e, last_error_of(e)) : Exit{};
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
    out.push_back(p != nullptr ? exit_from_peer(*p, *c.ranks.front()) : Exit{});
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

}  // namespace frtrace
