// Calls that make or destroy process groups.
#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "causes/rules.hpp"
#include "facts/limits.hpp"
#include "model/contains.hpp"
#include "model/hints.hpp"

namespace frtrace {

namespace {

// The calls of new_group that make groups of the current world, by torch's own ordinal.
std::map<std::int32_t, std::size_t> group_calls(const RankEvidence& e) {
  std::map<std::int32_t, std::size_t> calls;
  for (std::size_t r = 0; r < e.records.size(); ++r) {
    const Record& record = e.records[r];
    if (record.kind != Kind::kLifecycle) {
      continue;
    }
    const std::string_view op = e.text(record.op);
    if (op == "init_process_group") {
      calls.clear();  // counts from the start again
    } else if (op == "new_group" && record.peer >= 0 && record.shape_count != 0) {
      calls[record.peer] = r;
    }
  }
  return calls;
}

// Calls that no peer has to make: a rank that is stuck in such a call does not wait for a peer.
bool is_local(std::string_view op) {
  static constexpr std::string_view kLocal[] = {
      "ncclCommAbort",      "ncclCommRevoke", "ncclCommRegister",         "ncclCommDeregister",
      "ncclDevCommDestroy", "ncclMemAlloc",   "ncclCommWindowDeregister", "ncclMemFree"};
  return contains(std::span(kLocal), op);
}

// PyTorch's files use the ordinal as the group's name. Several groups may rightly share a name, so
// it is evidence only if members of one group know it by different names, and none if two groups
// have the name for most of their members.
void add_named(const Facts& f, std::map<std::int32_t, GroupCalls>& calls) {
  if (std::ranges::all_of(f.c.ranks, [](const RankEvidence* e) { return e->format.empty(); })) {
    return;  // comparing all groups is slow in a large job
  }
  const auto lacks = [](const Group& a, const Group& b) {  // `b` has a member's row that `a` lacks
    for (std::size_t m = 0; m < a.ranks.size(); ++m) {
      if (a.row[m] < 0 && b.row[m] >= 0) {
        return true;
      }
    }
    return false;
  };
  std::map<std::vector<Rank>, std::vector<const Group*>> alike;
  std::set<std::string> names;
  for (const Group& g : f.c.groups) {
    for (const Group* other : alike[g.ranks]) {
      if (lacks(g, *other) && lacks(*other, g)) {
        names.insert({g.name, other->name});
      }
    }
    alike[g.ranks].push_back(&g);
  }
  const auto rows = [](const Group& g) {
    return std::ranges::count_if(g.row, [](int row) { return row >= 0; });
  };
  std::map<std::string, int> groups;  // number with that name by most of their members
  for (const auto& [ranks, known] : alike) {
    std::ptrdiff_t all = 0;
    for (const Group* g : known) {
      all += rows(*g);
    }
    for (const Group* g : known) {
      groups[g->name] += 2 * rows(*g) > all ? 1 : 0;
    }
  }
  for (const Group& g : f.c.groups) {
    const bool number = names.contains(g.name) && groups[g.name] < 2 && g.name.size() < 9 &&
                        g.name.find_first_not_of("0123456789") == std::string::npos;
    for (std::size_t m = 0; number && m < g.ranks.size(); ++m) {
      if (g.row[m] >= 0 && !f.ev(g.evidence[m]).format.empty()) {
        calls[std::stoi(g.name)].classes[g.ranks].push_back({g.evidence[m], kNoRecord});
      }
    }
  }
}

// Per call, evidence of the ranks that have been inside it for long.
std::map<std::string, std::vector<int>> inside(const Facts& f) {
  std::map<std::string, std::vector<int>> out;
  for (const int i : f.c.indices()) {
    const Record* r = f.lifecycle_in_flight(i);
    if (r != nullptr && !f.exit(i).by_itself() && !f.ev(i).text(r->op).starts_with(kStoreCalls) &&
        seconds_between(r->time, f.ev(i).written) >= limits::kStuck_s) {
      out[std::string(f.ev(i).text(r->op))].push_back(i);
    }
  }
  return out;
}

}  // namespace

std::vector<Cause> same_rank(const Facts& f) {
  Cause c(Rule::kSameRank, Verdict::kMismatch);
  for (const auto& [rank, processes] : f.c.twins) {
    if (const auto it = f.c.index.find(rank); it != f.c.index.end()) {
      c.guilty.push_back(guilty_rank(f, it->second, Why::kDiffers));
    }
  }
  if (c.guilty.empty()) {
    return {};
  }
  c.lifecycle = "init_process_group";
  c.explains = ranks_that(f, [](int) { return true; });
  return {c};
}

// Some ranks are in a call that makes groups, for which all must agree on the world size.
std::vector<Cause> other_world(const Facts& f) {
  std::map<int, std::vector<int>> worlds;  // evidence
  for (const int i : f.c.indices()) {
    if (const RankEvidence& e = f.ev(i); e.format.empty() && e.id.world_size > 0) {
      worlds[e.id.world_size].push_back(i);
    }
  }
  const auto few =
      std::ranges::min_element(worlds, {}, [](const auto& x) { return x.second.size(); });
  const auto most =
      std::ranges::max_element(worlds, {}, [](const auto& x) { return x.second.size(); });
  if (worlds.size() != 2 || few->second.size() == most->second.size() || inside(f).empty()) {
    return {};
  }
  Cause c(Rule::kOtherWorld, Verdict::kMismatch);
  c.lifecycle = "init_process_group";
  c.others = most->second;
  c.explains = ranks_that(f, [](int) { return true; });
  for (const int i : few->second) {
    c.guilty.push_back(guilty_rank(f, i, Why::kMinority));
  }
  c.assume(Assume::kFewAreWrong);
  sort_by_rank(c.guilty);
  return {c};
}

std::vector<Cause> group_order(const Facts& f) {
  // By ordinal: all ranks must make the same call, members or not.
  std::map<std::int32_t, GroupCalls> calls;
  for (const int i : f.c.indices()) {
    for (const auto& [ordinal, record] : group_calls(f.ev(i))) {
      std::vector<Rank> members = group_call_ranks(f.ev(i), f.ev(i).records[record]);
      if (!members.empty()) {
        calls[ordinal].classes[std::move(members)].push_back({i, record});
      }
    }
  }
  add_named(f, calls);
  std::map<int, std::size_t> against;  // evidence -> calls of others with other members
  std::size_t most = 0;
  for (const auto& [ordinal, call] : calls) {
    std::size_t callers = 0;
    for (const auto& [members, who] : call.classes) {
      callers += who.size();
    }
    for (const auto& [members, who] : call.classes) {
      for (auto one = who.begin(); one != who.end() && who.size() < callers; ++one) {
        most = std::max(most, against[one->evidence] += callers - who.size());
      }
    }
  }
  if (most == 0 || (f.graph.pending.empty() && inside(f).empty() && f.primary.empty() &&
                    f.missing_primary.empty())) {
    return {};
  }
  Cause c(Rule::kGroupOrder, Verdict::kDeadlock);
  for (auto& [ordinal, call] : calls) {
    std::size_t least = most;
    for (const auto& [members, who] : call.classes) {
      for (const GroupCalls::Call& one : who) {
        if (call.classes.size() > 1 && against[one.evidence] == most) {
          c.guilty.push_back(guilty_rank(f, one.evidence, Why::kOtherOrder));
          c.guilty.back().issued = one.record;
        } else if (against[one.evidence] < least) {
          least = against[one.evidence];
          call.most = members;
        }
      }
    }
    if (!c.guilty.empty()) {
      call.ordinal = ordinal;
      call.tie = call.most.empty();
      c.calls = std::move(call);
      break;
    }
  }
  c.explains = ranks_that(f, [](int) { return true; });  // every later group differs on them
  if (c.calls->tie) {
    c.assume(Assume::kTie);
  }
  sort_by_rank(c.guilty);
  return {c};
}

// The store's rendezvous ends when all ranks have come. If all ranks with evidence are in it, the
// ranks without evidence have not come.
std::vector<Cause> never_started(const Facts& f) {
  constexpr std::string_view kFirstCall = "init_process_group";
  if (f.c.missing.empty() || !missing_seen(f.c, false).empty()) {
    return {};
  }
  Cause c;
  for (const int i : f.c.indices()) {
    const RankEvidence& e = f.ev(i);
    const Record* call = f.lifecycle_in_flight(i);
    const bool first = call != nullptr && call->seq == 1 && e.text(call->op) == kFirstCall;
    if (!first || f.exit(i).ended() || seconds_between(call->time, e.written) < limits::kStuck_s) {
      return {};
    }
    c.others.push_back(i);
  }
  // Rank 0 serves the store and stays in the rendezvous until all have come; the others go on to
  // wait for each other in the backend. If rank 0 is missing, no rank gets past the store.
  const bool served = f.rank(0) == 0;
  bool known = false, passed = false;
  for (const int i : served ? std::vector<int>{0} : c.others) {
    const Rendezvous r = rendezvous_of(f.ev(i));
    known = known || (r.known && r.within);
    passed = passed || (r.known && !r.within);
  }
  // In the backend each rank writes its address to the store and reads the addresses of all others.
  // If all wait for an address, it is the address of rank 0.
  const auto awaits_an_address = [&](int i) { return is_at_store(f, i); };
  if (passed &&
      (served ? serves_store(f.ev(0)) : !std::ranges::all_of(c.others, awaits_an_address))) {
    return {};
  }
  // If nothing was read from a node, its files may be elsewhere.
  std::vector<Rank> unseen;
  for (const Rank r : f.c.missing) {
    const bool has_sister = std::ranges::any_of(f.c.ranks, [&](const auto* e) {
      const int n = e->id.local_world_size;
      return n > 0 && e->id.rank / n == r / n;
    });
    if (!has_sister) {
      unseen.push_back(r);
    }
  }
  if (!known && !unseen.empty()) {
    return {};
  }
  if (!known) {
    c.assume(Assume::kNeedNotMeet);
  }
  if (!unseen.empty()) {
    c.assume(Assume::kLostOnly, unseen);
  }
  for (const Rank r : f.c.missing) {
    c.guilty.push_back({.rank = r, .why = Why::kNeverStarted});
  }
  c.set(Rule::kNeverStarted, Verdict::kMissing);
  c.lifecycle = kFirstCall;
  return {c};
}

// Python waits for a thread, and the launcher for the process; no other rank need wait.
std::vector<Cause> no_exit(const Facts& f) {
  Cause c;
  c.lifecycle = "interpreter_exit";  // fr's own name of that wait: python/fr/capture.py
  for (const auto& [op, members] : inside(f)) {
    if (op == c.lifecycle && f.timed_out) {
      for (const int i : members) {
        c.guilty.push_back(guilty_rank(f, i, Why::kNeverIssued));
      }
    }
  }
  if (c.guilty.empty()) {
    return {};
  }
  c.set(Rule::kNoExit, Verdict::kMissing);
  sort_by_rank(c.guilty);
  return {c};
}

std::vector<int> absent_from_call(const Facts& f, const std::vector<int>& members) {
  const RankEvidence& first = f.ev(members.front());
  const Record& call = *f.lifecycle_in_flight(members.front());
  const std::string_view op = first.text(call.op);
  const std::vector<Rank> ranks =
      op == "new_group" ? group_call_ranks(first, call) : std::vector<Rank>();
  // A call for an earlier group of the same job says nothing about this call.
  const Time began = first.records.front().time - static_cast<Time>(first.timeout_s() * 1e9);
  std::vector<int> out;
  if (is_local(op)) {
    return out;
  }
  for (const int i : f.c.indices()) {
    const RankEvidence& e = f.ev(i);
    const bool came = std::ranges::any_of(e.records, [&](const Record& r) {
      return r.kind == Kind::kLifecycle && e.text(r.op) == op && r.time > began &&
             r.seq >= call.seq;
    });
    if (!contains(members, i) && !came && !f.exit(i).by_itself() &&
        (ranks.empty() || contains(ranks, f.rank(i)))) {
      out.push_back(i);
    }
  }
  return out;
}

namespace {

// The rank has been at the store for as long as a hang lasts.
bool stays_at_store(const Facts& f, int i) {
  const RankEvidence& e = f.ev(i);
  const Record* call = f.lifecycle_in_flight(i);
  const double since_s = call != nullptr ? seconds_between(call->time, e.written) : idle_s(e);
  return !f.exit(i).by_itself() &&
         since_s >= (call != nullptr ? limits::kStuck_s : e.timeout_s()) &&
         program_is_at_store(f, i);
}

}  // namespace

// Ranks have tried to connect to the ranks' store for as long as a hang lasts.
std::vector<Cause> unreached_store(const Facts& f) {
  const auto waits_in_call = [&](int i) {
    const Record* call = f.lifecycle_in_flight(i);
    return call != nullptr && !f.exit(i).by_itself() &&
           seconds_between(call->time, f.ev(i).written) >= limits::kStuck_s;
  };
  const auto connects = [&](int i) {
    return (waits_in_call(i) || stays_at_store(f, i)) && connects_to_store(f.ev(i));
  };
  const std::vector<int> unreached = ranks_that(f, connects);
  if (unreached.empty()) {
    return {};
  }
  Cause c;
  c.lifecycle = "init_process_group";
  c.others = ranks_that(f, [&](int i) { return !connects(i) && waits_in_call(i); });
  if (c.others.empty()) {
    // A rank elsewhere in the program may be the one that serves the store later.
    if (unreached.size() != f.c.ranks.size()) {
      return {};
    }
    c.others = unreached;
    c.set(Rule::kOpenUnreachedStore, Verdict::kUndecided);
    return {c};
  }
  for (const int i : unreached) {
    c.guilty.push_back(guilty_rank(f, i, Why::kNeverIssued));
  }
  c.set(Rule::kUnreachedStore, Verdict::kMissing);
  sort_by_rank(c.guilty);
  return {c};
}

// Nothing is pending except waits for keys of the ranks' store. If only a few ranks are in no
// operation, one of them must set the key.
std::vector<Cause> at_store(const Facts& f) {
  Cause c;
  c.others = ranks_that(f, [&](int i) { return stays_at_store(f, i); });
  if (c.others.empty() || !(f.alarmed || f.exit(c.others.front()).terminated)) {
    return {};
  }
  if (const auto owed = owes_write(f, c.others)) {
    return {*owed};
  }
  const std::vector<int> rest = ranks_that(f, [&](int i) {
    return !contains(c.others, i) && !f.graph.waits(i) && !f.has_left(i) && !f.exit(i).by_itself();
  });
  if (rest.empty() || rest.size() >= c.others.size() || !f.c.missing.empty()) {
    c.set(Rule::kOpenAtStore, Verdict::kUndecided);
    return {c};
  }
  c.set(Rule::kAtStore, Verdict::kMissing);
  for (const int i : rest) {
    c.guilty.push_back(guilty_rank(f, i, Why::kNeverIssued));
  }
  c.assume(Assume::kNeedNotMeet);
  sort_by_rank(c.guilty);
  return {c};
}

bool is_communicator_end(std::string_view op) {
  return op == "ncclCommFinalize" || op == "ncclCommDestroy";
}

// CUDA graphs have, or had, operations of the group's communicator.
bool has_captured(const RankEvidence& e, std::uint32_t group) {
  return std::ranges::any_of(e.device.comms, [&](const CommEvidence& comm) {
    return comm.captured != 0 && (comm.pg_group == group || comm.group == group);
  });
}

std::vector<Cause> lifecycle(const Facts& f) {
  const auto all = inside(f);
  if (all.empty()) {
    return {};
  }
  const auto& [op, members] =
      *std::ranges::max_element(all, {}, [](const auto& call) { return call.second.size(); });
  Cause c;
  c.lifecycle = op;
  c.others = members;
  for (const int i : absent_from_call(f, members)) {
    c.guilty.push_back(guilty_rank(f, i, Why::kNeverIssued));
  }
  if (!c.guilty.empty() && f.c.missing.empty() && c.guilty.size() < f.c.ranks.size()) {
    c.set(Rule::kLifecycle, Verdict::kMissing);
    c.explains = f.graph.leading_to(members);
    c.assume(Assume::kNeedNotMeet);
    sort_by_rank(c.guilty);
    return {c};
  }
  c.guilty.clear();
  const bool graphs = is_communicator_end(op) && std::ranges::all_of(members, [&](int i) {
                        return has_captured(f.ev(i), f.lifecycle_in_flight(i)->group);
                      });
  c.set(graphs ? Rule::kOpenGraphs : Rule::kOpenLifecycle, Verdict::kUndecided);
  return {c};
}

}  // namespace frtrace
