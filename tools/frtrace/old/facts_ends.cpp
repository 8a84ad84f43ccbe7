#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <unordered_map>

#include "old/facts.hpp"

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

bool asks_to_end(int signal) {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

std::string signal_text(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

void end_by_signal(End& end, int signal, std::string_view how = {}) {
  end.ended = true;
  end.terminated = asks_to_end(signal);
  end.why = "killed";
  end.text = fmt::format("ended by {}{}{}", signal_text(signal), how.empty() ? "" : ", ", how);
}

// Who sent the signal, or what the crash was; "" unknown.
std::string sender_text(const ExitEvidence& x) {
  if ((x.kind == "signal" || x.kind == "crash") && !x.message.empty()) {
    return x.message.substr(0, x.message.find("; thread "));
  }
  return x.sender_pid > 0 ? fmt::format("sent by process {}", x.sender_pid) : std::string();
}

End end_from_peer(const PeerEvidence& p, const RankEvidence& seen_by) {
  End end;
  end.time = p.exit_time;
  if (p.state == "exited_clean") {
    end.ended = end.clean = true;
    end.why = "left_early";
    end.text = "exited with status 0";
    if (!p.last_op.empty()) {
      end.text += " after " + p.last_op;
      end.text += p.last_site.empty() ? "" : " at " + below_cwd(seen_by, p.last_site);
    }
  } else if (p.state == "gone") {
    end.ended = true;
    end.why = "gone";
    end.text = "its process is gone without a word (killed, aborted, or os._exit)";
  } else if (p.state == "exited") {
    if (p.signal != 0) {
      end_by_signal(end, p.signal);
    } else {
      end.ended = true;
      end.clean = p.status == 0;
      end.why = end.clean ? "left_early" : "exit";
      end.text = fmt::format("exited with status {}", p.status);
    }
  }
  return end;
}

// What the ranks of a machine saw of each other, by the rank it is about.
class Words {
 public:
  explicit Words(const Case& c) {
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
      const bool ended = p->state != "live";
      const bool best_ended = best != nullptr && best->state != "live";
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

End end_of(const Words& words, const RankEvidence& e) {
  End end;
  const ExitEvidence& x = e.exit;
  std::string last_error;
  for (auto it = e.records.rbegin(); it != e.records.rend(); ++it) {
    if (it->state == State::kFailed && it->error != 0) {
      last_error = e.text(it->error);
      break;
    }
  }
  if (x.present) {
    end.time = x.time;
    end.sender_pid = x.sender_pid;
    const bool interrupt = x.type == "KeyboardInterrupt";
    if (x.kind == "exception" && !x.type.empty() && x.type != "SystemExit") {
      end.ended = true;
      end.terminated = interrupt || (x.type.find("SignalException") != std::string::npos);
      end.why = "exception";
      // The first line; fr's Python package adds where it was raised below it.
      constexpr std::size_t kShown = 200;
      std::string message = x.message.substr(0, x.message.find('\n'));
      if (message.size() > kShown) {
        message = message.substr(0, kShown) + "...";
      }
      end.text = x.type + (message.empty() ? "" : ": " + message);
      end.consequence = is_consequence(x.message) ||
                        (!last_error.empty() && is_consequence(last_error) &&
                         x.message.find(last_error.substr(0, 40)) != std::string::npos);
    } else if (x.signal != 0) {
      end_by_signal(end, x.signal, sender_text(x));
      end.consequence = x.signal == SIGABRT && is_consequence(last_error);
    } else if (x.state == "exiting" || x.kind == "exit") {
      end.ended = true;
      end.clean = x.status == 0;
      end.why = end.clean ? "left_early" : "exit";
      end.text = fmt::format("exited with status {}", x.status);
      end.consequence = !end.clean && is_consequence(last_error);
    }
  }
  if (!end.ended) {
    if (const PeerEvidence* p = words.latest(e.id.rank, e.id.pid);
        p != nullptr && p->state != "live") {
      end = end_from_peer(*p, e);
      end.consequence = !end.clean && is_consequence(last_error);
    }
  }
  if (!end.ended && e.process_gone) {
    end.ended = true;
    end.why = "gone";
    end.text = "its process is gone without a word (killed, aborted, or os._exit)";
    end.time = e.written;
    for (const Record& r : e.records) {
      end.time = e.salvaged ? std::max({r.time, r.ended}) : end.time;
    }
    end.consequence = !last_error.empty() && is_consequence(last_error);
  }
  return end;
}

}  // namespace

std::vector<End> ends_of(const Case& c) {
  const Words words(c);
  std::vector<End> out;
  for (const RankEvidence* e : c.ranks) {
    out.push_back(end_of(words, *e));
  }
  return out;
}

std::vector<End> ends_of_missing(const Case& c) {
  const Words words(c);
  std::vector<End> out;
  for (const Rank rank : c.missing) {
    const PeerEvidence* p = words.latest(rank, 0);
    out.push_back(p != nullptr ? end_from_peer(*p, *c.ranks.front()) : End{});
  }
  return out;
}

bool seen_alive(const Case& c, Rank rank) {
  const PeerEvidence* p = Words(c).latest(rank, 0);
  return p != nullptr && p->state == "live";
}

}  // namespace frtrace
