#include "facts/polls.hpp"

#include <algorithm>
#include <cstdlib>

#include "facts/limits.hpp"
#include "model/contains.hpp"
#include "model/hints.hpp"

namespace frtrace {

namespace {

// "ready-#" of "store.wait ready-#"; "": the record does not tell.
std::string_view key_of(std::string_view call) {
  const std::size_t at = call.find(' ');
  return at == std::string_view::npos ? std::string_view() : call.substr(at + 1);
}

bool is_write(const Record& r) {
  return r.kind == Kind::kStore;
}

// The last record of the rank that is not a note; nullptr: none is kept.
const Record* last_deed(const RankEvidence& e) {
  return e.last_record([](const Record& r) { return r.kind != Kind::kNote; });
}

// The thread's sleep is much shorter than the rank's idle time; if its length is unknown, the
// thread was seen to wake. (A signal wakes a thread from a long sleep, too.)
bool naps(const ThreadStack& t, double idle_s) {
  const std::string_view call = t.syscall;
  const bool sleeps = only_sleeps(call);
  if (sleeps && !t.syscall_on.empty()) {
    return t.syscall_on.ends_with(" ms") &&
           std::atof(t.syscall_on.c_str()) / 1e3 < limits::kNapShare * idle_s;
  }
  return t.activity == fr::Activity::kPolling &&
         (sleeps || call == "select" || call == "futex" || call == "poll" || call == "ppoll");
}

// The thread has woken, and no processor is free for it: the machine is busy.
bool has_woken(const RankEvidence& e, const ThreadStack& t) {
  return t.activity == fr::Activity::kRunnable && !t.stack.empty() &&
         e.threads.frames[t.stack.front()].function.ends_with("nanosleep");
}

std::vector<int> others_that_live(const Facts& f, const std::vector<int>& waiting) {
  return ranks_that(f, [&](int i) { return !contains(waiting, i) && !f.exit(i).ended(); });
}

// All waiting ranks did nothing since the same write, which each made equally often at one place.
std::optional<OwedWrite> by_counts(const Facts& f, const std::vector<int>& waiting) {
  std::optional<OwedWrite> out;
  for (const int i : waiting) {
    const RankEvidence& e = f.ev(i);
    const Record* last = last_deed(e);
    if (last == nullptr || !is_write(*last)) {
      return {};
    }
    OwedWrite own;
    own.call = e.text(last->op);
    own.site = user_site(e, last->stack);
    own.awaited_after = last->in_numel;
    const bool equal = !out || (out->call == own.call && out->site == own.site &&
                                out->awaited_after == own.awaited_after);
    if (!equal || own.site.line == 0) {
      return {};
    }
    out = std::move(own);
  }
  for (const int i : others_that_live(f, waiting)) {
    const RankEvidence& e = f.ev(i);
    const Record* last = e.last_record([&](const Record& r) {
      return is_write(r) && e.text(r.op) == out->call && user_site(e, r.stack) == out->site;
    });
    if (last != nullptr && last->in_numel < out->awaited_after) {
      out->made = std::max(out->made, last->in_numel);
      out->owing.push_back(i);
    }
  }
  return out->owing.empty() ? std::nullopt : out;
}

// The ranks are in a call that waits for a key that only others wrote before.
std::optional<OwedWrite> by_key(const Facts& f, const std::vector<int>& waiting) {
  std::string key;
  for (const int i : waiting) {
    const Record* call = f.lifecycle_in_flight(i);
    const auto own = call == nullptr ? std::string_view() : key_of(f.ev(i).text(call->op));
    if (own.empty() || (!key.empty() && own != key)) {
      return {};
    }
    key = own;
  }
  const auto last_write = [&](int i) {
    const RankEvidence& e = f.ev(i);
    return e.last_record(
        [&](const Record& r) { return is_write(r) && key_of(e.text(r.op)) == key; });
  };
  if (std::ranges::any_of(waiting, last_write)) {
    return {};
  }
  OwedWrite out;
  for (const int i : others_that_live(f, waiting)) {
    if (const Record* last = last_write(i)) {
      out.call = f.ev(i).text(last->op);
      out.site = user_site(f.ev(i), last->stack);
      out.made = last->in_numel;
      out.owing.push_back(i);
    }
  }
  return out.owing.empty() ? std::nullopt : std::optional(out);
}

}  // namespace

bool polls(const RankEvidence& e) {
  const ThreadStack* t = told_thread(e);
  return t != nullptr && (naps(*t, idle_s(e)) || has_woken(e, *t)) &&
         std::ranges::none_of(hints_of(e), [](const Hint& h) {
           return h.kind == HintKind::kLockFile || h.kind == HintKind::kFileLock ||
                  h.kind == HintKind::kFifo || h.kind == HintKind::kLoaderWorker;
         });
}

std::vector<int> that_poll(const Facts& f, const std::vector<int>& ranks) {
  std::vector<int> out, running;
  std::vector<Site> loops;
  for (const int i : ranks) {
    const RankEvidence& e = f.ev(i);
    const ThreadStack* t = told_thread(e);
    if (f.exit(i).by_itself()) {
      continue;  // its stack was taken before its end
    }
    if (polls(e)) {
      out.push_back(i);
      loops.push_back(now_at(e));
    } else if (t != nullptr &&
               (t->activity == fr::Activity::kRunning || t->activity == fr::Activity::kRunnable)) {
      running.push_back(i);
    }
  }
  std::ranges::copy_if(running, std::back_inserter(out), [&](int i) {
    const Site at = now_at(f.ev(i));
    return at.line != 0 && contains(loops, at);
  });
  return out;
}

std::optional<OwedWrite> owed_write(const Facts& f, const std::vector<int>& waiting) {
  if (waiting.empty()) {
    return {};
  }
  auto out = by_counts(f, waiting);
  return out ? out : by_key(f, waiting);
}

}  // namespace frtrace
