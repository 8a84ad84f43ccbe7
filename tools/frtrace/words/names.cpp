// Names of operations, places and ends.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <map>

#include "format/system_names.hpp"
#include "words/words.hpp"

namespace frtrace {

std::string Names::record(int evidence, const Record& r) const {
  const RankEvidence& e = f_.ev(evidence);
  std::string out(e.text(r.op));
  const Group* g = f_.group_of(evidence, r);
  if (r.kind != Kind::kLifecycle) {
    out += fmt::format(" #{}", r.seq);
  }
  out += g == nullptr ? "" : " of " + g->title();
  if (r.kind == Kind::kSend || r.kind == Kind::kRecv) {
    std::string peer = r.peer < 0 ? "any rank" : "rank ?";
    if (g != nullptr && r.peer >= 0 && r.peer < static_cast<int>(g->ranks.size())) {
      peer = fmt::format("rank {}", g->ranks[idx(r.peer)]);
    }
    out += fmt::format(" {} {}", r.kind == Kind::kSend ? "to" : "from", peer);
  }
  return out;
}

std::string Names::record(int evidence, std::size_t index) const {
  return record(evidence, f_.ev(evidence).records[index]);
}

std::string Names::at(int evidence, std::uint32_t stack) const {
  const std::string text = site_text(user_site(f_.ev(evidence), stack));
  return text.empty() ? "" : " at " + text;
}

std::vector<std::string> Names::stack(int evidence, std::uint32_t stack) const {
  std::vector<std::string> out;
  const RankEvidence& e = f_.ev(evidence);
  if (stack < e.stacks.size()) {
    for (const std::uint32_t i : e.stacks[stack]) {
      if (i < e.frames.size()) {
        const Frame& frame = e.frames[i];
        out.push_back(fmt::format("{}:{} {}", short_file(e.text(frame.file), e.id.cwd), frame.line,
                                  e.text(frame.func)));
      }
    }
  }
  return out;
}

// Members may have met with different ones: that of most.
std::string Names::op(const Pending& p) const {
  std::map<std::string_view, int> ranks;
  std::string_view most;
  for (const Wait& w : p.waits) {
    if (w.record != kNoRecord) {
      const RankEvidence& e = f_.ev(w.evidence);
      const std::string_view op = e.text(e.records[w.record].op);
      most = ++ranks[op] > ranks[most] || most.empty() ? op : most;
    }
  }
  return most.empty() ? "an operation" : std::string(most);
}

std::string Names::pending(const Pending& p) const {
  std::string out = fmt::format("{} #{} of {}", op(p), p.seq, f_.group(p.group).title());
  if (p.kind != Kind::kCollective) {
    out += fmt::format(" from rank {} to rank {}", p.from, p.to);
  }
  return out;
}

std::vector<Rank> Names::waiting(const Pending& p) const {
  std::vector<int> who;
  for (const Wait& w : p.waits) {
    who.push_back(w.evidence);
  }
  return f_.ranks(who);
}

namespace {

std::string signal_text(int signal) {
  const char* name = fr::signal_name(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

}  // namespace

std::string Names::exit(const Exit& e) const {
  switch (e.kind) {
    case ExitKind::kSignal: {
      std::string how = e.message;
      if (how.empty() && e.sender_pid > 0) {
        how = fmt::format("sent by process {}", e.sender_pid);
      }
      return fmt::format("ended by {}{}{}", signal_text(e.signal), how.empty() ? "" : ", ", how);
    }
    case ExitKind::kException: {
      constexpr std::size_t kShown = 200;
      const std::string message =
          e.message.size() > kShown ? e.message.substr(0, kShown) + "..." : e.message;
      return e.type + (message.empty() ? "" : ": " + message);
    }
    case ExitKind::kStatus: {
      std::string out = fmt::format("exited with status {}", e.status);
      out += e.last_op.empty() ? "" : " after " + e.last_op;
      out += e.last_op.empty() || e.last_place.empty() ? "" : " at " + e.last_place;
      return out + (e.exit_place.empty() ? "" : ", by sys.exit at " + e.exit_place);
    }
    case ExitKind::kGone:
      return "ended and left no exit status (killed, aborted, or os._exit)";
    case ExitKind::kNone:
      break;
  }
  return "runs";
}

std::string Names::exit_verb(const Exit& e, std::size_t ranks) const {
  std::string text = exit(e);
  text = text.substr(0, text.find('\n'));
  switch (e.kind) {
    case ExitKind::kSignal:
      return (ranks == 1 ? "was " : "were ") + text;
    case ExitKind::kException:
      return "raised " + text;
    default:
      return text;
  }
}

std::string wait_verb(const std::vector<Rank>& who) {
  return ranks_words(who) + (who.size() == 1 ? " waits" : " wait");
}

}  // namespace frtrace
