#include "old/diagnosis.hpp"

namespace frtrace {

std::map<std::string, std::vector<int>> Diagnosis::in_lifecycle(double* longest) const {
  std::map<std::string, std::vector<int>> inside;
  for (int i = 0; i < static_cast<int>(c_.ranks.size()); ++i) {
    const Record* r = lifecycle_in_flight(i);
    if (r == nullptr || ends_[at(i)].ended) {
      continue;
    }
    const double seconds = seconds_between(r->time, ev(i).written);
    if (seconds >= kStuckSeconds) {
      inside[std::string(ev(i).text(r->op))].push_back(i);
      if (longest != nullptr) {
        *longest = std::max(*longest, seconds);
      }
    }
  }
  return inside;
}

void Diagnosis::add_lifecycle_waiting(const std::string& op, const std::vector<int>& members) {
  for (const int i : members) {
    const Record& r = *lifecycle_in_flight(i);
    Waiting w;
    w.ranks = {rank(i)};
    w.op = op;
    if (const Group* g = group_of(i, r)) {
      w.group = g->name;
      w.desc = g->desc;
    }
    w.site = user_site(ev(i), r.stack);
    w.seconds = seconds_between(r.time, ev(i).written);
    w.stack = stack_lines(i, r.stack);
    if (!r_.waiting.empty() && r_.waiting.back().site == w.site) {
      r_.waiting.back().ranks.push_back(rank(i));
      r_.waiting.back().seconds = std::max(r_.waiting.back().seconds, w.seconds);
    } else {
      r_.waiting.push_back(std::move(w));
    }
  }
}

namespace {

// The calls of new_group that make groups of the present world, by torch's own ordinal.
std::map<std::int32_t, const Record*> group_calls(const RankEvidence& e) {
  std::map<std::int32_t, const Record*> calls;
  for (const Record& r : e.records) {
    if (r.kind != Kind::kLifecycle) {
      continue;
    }
    const std::string_view op = e.text(r.op);
    if (op == "init_process_group") {
      calls.clear();  // counts from the start again
    } else if (op == "new_group" && r.peer >= 0 && r.shape_count != 0) {
      calls[r.peer] = &r;
    }
  }
  return calls;
}

}  // namespace

bool Diagnosis::group_order() {
  struct Call {
    int evidence;
    const Record* record;
  };
  // By ordinal, by members: all ranks have to make the same call, also those that are no members.
  std::map<std::int32_t, std::map<std::vector<Rank>, std::vector<Call>>> calls;
  for (int i = 0; i < static_cast<int>(c_.ranks.size()); ++i) {
    for (const auto& [ordinal, record] : group_calls(ev(i))) {
      std::vector<Rank> members = group_call_ranks(ev(i), *record);
      if (!members.empty()) {
        calls[ordinal][std::move(members)].push_back({i, record});
      }
    }
  }
  const auto differs = std::find_if(calls.begin(), calls.end(),
                                    [](const auto& call) { return call.second.size() > 1; });
  const auto inside = in_lifecycle();
  if (differs == calls.end() ||
      (graph_.meetings.empty() && inside.empty() && primary_.empty() && missing_primary_.empty())) {
    return false;
  }
  const auto& classes = differs->second;
  const auto most = std::max_element(
      classes.begin(), classes.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::size_t callers = 0;
  for (const auto& [members, who] : classes) {
    callers += who.size();
  }
  const bool tie = most->second.size() * 2 <= callers;
  const auto who_of = [&](const std::vector<Call>& same) {
    std::vector<int> who;
    for (const Call& call : same) {
      who.push_back(call.evidence);
    }
    return ranks(who);
  };
  r_.kind = Verdict::kDeadlock;
  std::set<int> blamed;
  for (const auto& [members, who] : classes) {
    if (!tie && members == most->first) {
      continue;
    }
    for (const Call& call : who) {
      blamed.insert(call.evidence);
      Blamed& b = blame(call.evidence, "other_order");
      b.op = "new_group";
      b.group = std::to_string(differs->first);
      b.seq = call.record->seq;
      b.site = user_site(ev(call.evidence), call.record->stack);
      b.stack = stack_lines(call.evidence, call.record->stack);
      std::string text = fmt::format("made group {} of {}{}", differs->first, ranks_words(members),
                                     at_site(call.evidence, call.record->stack));
      for (const auto& [others, others_who] : classes) {
        if (others != members) {
          text += fmt::format(", {} made it of {}", ranks_words(who_of(others_who)),
                              ranks_words(others));
        }
      }
      b.evidence.insert(b.evidence.begin(), std::move(text));
    }
  }
  std::sort(r_.ranks.begin(), r_.ranks.end());
  r_.summary =
      fmt::format("{} made group {} by new_group of other members than {}", ranks_words(r_.ranks),
                  differs->first, tie ? "one another" : ranks_words(who_of(most->second)));
  if (!tie) {
    const auto other = most == classes.begin() ? std::next(most) : classes.begin();
    r_.summary +=
        fmt::format(": of {} instead of {}", ranks_words(other->first), ranks_words(most->first));
  }
  say("why",
      "all ranks must call new_group for the same members in the same order, members or not");
  if (tie) {
    lower(Confidence::kPossible, "as many ranks have the one order as the other");
  }
  add_all_waiting(-1, blamed);
  for (const auto& [op, members] : inside) {
    std::vector<int> others;
    std::copy_if(members.begin(), members.end(), std::back_inserter(others),
                 [&](int i) { return !blamed.contains(i); });
    add_lifecycle_waiting(op, others);
  }
  return true;
}

namespace {

// Nobody else has to make these: who is stuck in one does not wait for a rank that did not.
bool is_local(std::string_view op) {
  static constexpr std::string_view kLocal[] = {
      "ncclCommAbort",      "ncclCommRevoke", "ncclCommRegister",         "ncclCommDeregister",
      "ncclDevCommDestroy", "ncclMemAlloc",   "ncclCommWindowDeregister", "ncclMemFree"};
  return std::find(std::begin(kLocal), std::end(kLocal), op) != std::end(kLocal);
}

}  // namespace

bool Diagnosis::lifecycle() {
  double longest = 0;
  const auto inside = in_lifecycle(&longest);
  if (inside.empty()) {
    return false;
  }
  const auto& busiest = *std::max_element(
      inside.begin(), inside.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  const std::string& op = busiest.first;
  const std::vector<int>& members = busiest.second;
  add_lifecycle_waiting(op, members);
  std::vector<int> outside;
  const std::set<int> in(members.begin(), members.end());
  for (int i = 0; i < static_cast<int>(c_.ranks.size()); ++i) {
    if (in.contains(i) || ends_[at(i)].ended) {
      continue;
    }
    const bool came = std::any_of(ev(i).records.begin(), ev(i).records.end(), [&](const Record& r) {
      return r.kind == Kind::kLifecycle && ev(i).text(r.op) == op &&
             r.time + 60'000'000'000 > ev(members.front()).records.front().time &&
             r.seq >= lifecycle_in_flight(members.front())->seq;
    });
    if (!came && !is_local(op)) {
      outside.push_back(i);
    }
  }
  if (!outside.empty() && c_.missing.empty() && outside.size() < c_.ranks.size()) {
    r_.kind = Verdict::kMissing;
    for (const int i : outside) {
      blame(i, "never_issued").op = op;
    }
    std::sort(r_.ranks.begin(), r_.ranks.end());
    r_.summary = fmt::format("{} never came to {}; {} {} there", ranks_words(r_.ranks), op,
                             ranks_words(ranks(members)), members.size() == 1 ? "waits" : "wait");
    lower(Confidence::kPossible, op + " need not wait for all ranks");
    return true;
  }
  r_.kind = Verdict::kUndecided;
  r_.summary = fmt::format(
      "{} {} been in {} for {}; no operation is in flight, and the evidence "
      "does not say what it waits for",
      ranks_words(ranks(members)), members.size() == 1 ? "has" : "have", op,
      duration_text(longest));
  if (!c_.missing.empty()) {
    r_.summary += "; evidence of " + ranks_words(c_.missing) + " is lacking";
  }
  return true;
}

}  // namespace frtrace
