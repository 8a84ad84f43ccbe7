#include "facts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

namespace frtrace {

namespace {

// ---------------------------------------------------------------- hashing

std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h ^= v + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
  return h * 0xff51afd7ed558ccdull;
}

std::uint64_t mix(std::uint64_t h, std::string_view s) {
  return mix(h, std::hash<std::string_view>{}(s));
}

// ---------------------------------------------------------------- operation classes

enum class OpClass {
  kUniform,    // sizes and dtypes of input and output equal on all
  kInputOnly,  // reduce: the output counts on the root only
  kGather,     // one input each, lists on the root
  kScatter,    // one output each, lists on the root
  kAllGather,  // own inputs may be uneven, the gathered total is not
  kReduceScatter,
  kAllToAll,
  kBarrier,
  kOther  // not known: only the name must agree
};

OpClass class_of(std::string_view op) {
  static const std::map<std::string, OpClass, std::less<>> kClasses = {
      {"allreduce", OpClass::kUniform},
      {"allreducecoalesced", OpClass::kUniform},
      {"allreducesparse", OpClass::kOther},
      {"broadcast", OpClass::kUniform},
      {"reduce", OpClass::kInputOnly},
      {"gather", OpClass::kGather},
      {"scatter", OpClass::kScatter},
      {"allgather", OpClass::kAllGather},
      {"allgathercoalesced", OpClass::kAllGather},
      {"allgatherbase", OpClass::kUniform},
      {"allgatherintotensor", OpClass::kUniform},
      {"allgatherintotensorcoalesced", OpClass::kUniform},
      {"reducescatter", OpClass::kReduceScatter},
      {"reducescatterbase", OpClass::kUniform},
      {"reducescattertensor", OpClass::kUniform},
      {"reducescattertensorcoalesced", OpClass::kUniform},
      {"alltoall", OpClass::kAllToAll},
      {"alltoallbase", OpClass::kAllToAll},
      {"alltoallsingle", OpClass::kAllToAll},
      {"barrier", OpClass::kBarrier},
      {"monitoredbarrier", OpClass::kBarrier},
  };
  const auto it = kClasses.find(canonical_op(op));
  return it == kClasses.end() ? OpClass::kOther : it->second;
}

// The one list of what must agree. f(name, text) and f(name, number).
template <class F>
void visit_signature(const RankEvidence& e, const Record& r, F&& f) {
  const std::string_view op = e.text(r.op);
  f("operation", std::string_view(canonical_op(op)));
  const OpClass cls = class_of(op);
  const bool in = cls == OpClass::kUniform || cls == OpClass::kInputOnly ||
                  cls == OpClass::kGather || cls == OpClass::kReduceScatter;
  const bool out =
      cls == OpClass::kUniform || cls == OpClass::kScatter || cls == OpClass::kAllGather;
  if (in) {
    f("size", r.in_numel);
  }
  if (out && !(in && r.in_numel == r.out_numel)) {
    f("output size", r.out_numel);
  }
  if (cls != OpClass::kBarrier && cls != OpClass::kOther) {
    const bool by_output = cls == OpClass::kScatter;
    f("dtype", e.text(by_output || r.in_dtype == 0 ? r.out_dtype : r.in_dtype));
    f("reduce op", e.text(r.reduce_op));
    if (cls != OpClass::kAllGather && cls != OpClass::kReduceScatter && cls != OpClass::kAllToAll) {
      f("root", static_cast<std::uint64_t>(static_cast<std::int64_t>(r.peer)));
    }
  }
}

bool blocks(const Record& r) {
  if (r.kind != Kind::kCollective && r.kind != Kind::kSend && r.kind != Kind::kRecv) {
    return false;
  }
  if (r.state == State::kWaiting) {
    return true;
  }
  return (r.state == State::kEnqueued || r.state == State::kStarted) &&
         (r.flags & (kWaitOnly | kUntracked)) == 0;
}

std::string lower(std::string_view s) {
  std::string out(s);
  for (char& ch : out) {
    ch = static_cast<char>(std::tolower(static_cast<unsigned char>(ch)));
  }
  return out;
}

double seconds_between(Time from, Time to) {
  return static_cast<double>(to - from) * 1e-9;
}

}  // namespace

std::string canonical_op(std::string_view op) {
  if (const std::size_t colon = op.rfind(':'); colon != std::string_view::npos) {
    op.remove_prefix(colon + 1);  // "c10d::allreduce_", "nccl:all_reduce"
  }
  std::string out;
  for (const char ch : op) {
    if (ch != '_') {
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(ch)));
    }
  }
  return out;
}

bool is_strict(std::string_view op) {
  return class_of(op) == OpClass::kUniform;
}
bool is_all_to_all(std::string_view op) {
  return class_of(op) == OpClass::kAllToAll;
}

std::uint64_t signature_hash(const RankEvidence& e, const Record& r) {
  std::uint64_t h = 1;
  visit_signature(e, r, [&h](const char*, auto value) { h = mix(h, value); });
  return h;
}

std::vector<std::pair<std::string, std::string>> signature_fields(const RankEvidence& e,
                                                                  const Record& r) {
  std::vector<std::pair<std::string, std::string>> out;
  visit_signature(e, r, [&](std::string_view name, auto value) {
    if (name == "operation") {
      out.emplace_back(name, std::string(e.text(r.op)));
    } else if (name == "root") {
      out.emplace_back(name, fmt::format("{}", r.peer));
    } else {
      out.emplace_back(name, fmt::format("{}", value));
    }
  });
  return out;
}

// ---------------------------------------------------------------- order

const std::vector<Step>& History::of(int evidence) {
  const std::size_t i = static_cast<std::size_t>(evidence);
  if (built_[i]) {
    return steps_[i];
  }
  built_[i] = true;
  const RankEvidence& e = case_.evidence_of(evidence);
  std::unordered_map<std::uint32_t, std::uint64_t> site_keys;
  for (std::size_t r = 0; r < e.records.size(); ++r) {
    const Record& record = e.records[r];
    if (record.kind != Kind::kCollective && record.kind != Kind::kSend &&
        record.kind != Kind::kRecv) {
      continue;
    }
    const int group =
        record.group < case_.group_of[i].size() ? case_.group_of[i][record.group] : -1;
    auto [it, added] = site_keys.try_emplace(record.stack, 0);
    if (added) {
      const Site site = user_site(e, record.stack);
      it->second = mix(mix(7, site.file), static_cast<std::uint64_t>(site.line));
    }
    std::uint64_t key = signature_hash(e, record);
    key = mix(mix(key, it->second), static_cast<std::uint64_t>(group + 1));
    key = mix(key, static_cast<std::uint64_t>(record.kind));
    if (record.kind != Kind::kCollective) {
      key = mix(key, static_cast<std::uint64_t>(record.peer + 1));
    }
    steps_[i].push_back({key, group, r});
  }
  return steps_[i];
}

std::optional<std::size_t> usual_next(const std::vector<Step>& steps, std::size_t pos) {
  constexpr std::size_t kContext = 8, kWindow = 4096;
  const std::size_t oldest = pos > kWindow ? pos - kWindow : 0;
  for (std::size_t c = std::min(kContext, pos - oldest); c >= 1; --c) {
    for (std::size_t j = pos - 1; j >= oldest + c && j < pos; --j) {
      bool equal = true;
      for (std::size_t t = 1; t <= c && equal; ++t) {
        equal = steps[j - t].key == steps[pos - t].key;
      }
      if (equal) {
        return j;
      }
    }
  }
  return std::nullopt;
}

std::optional<Deviation> deviation(const std::vector<Step>& steps, int group) {
  std::size_t after_last = 0;
  for (std::size_t i = steps.size(); i > 0 && after_last == 0; --i) {
    if (steps[i - 1].group == group) {
      after_last = i;
    }
  }
  if (after_last == 0) {
    return std::nullopt;
  }
  constexpr std::size_t kLookahead = 256;
  for (std::size_t p = after_last; p < std::min(steps.size(), after_last + kLookahead); ++p) {
    if (const auto usual = usual_next(steps, p); usual && steps[*usual].group == group) {
      return Deviation{p, *usual};
    }
  }
  return std::nullopt;
}

// ---------------------------------------------------------------- slots

const Record* Slots::at(const Case& c, const Group& g, std::size_t m, std::uint64_t seq) const {
  if (m >= records.size() || records[m].empty()) {
    return nullptr;
  }
  const std::vector<Record>& all = c.evidence_of(g.evidence[m]).records;
  const auto it = std::lower_bound(records[m].begin(), records[m].end(), seq,
                                   [&](std::size_t r, std::uint64_t s) { return all[r].seq < s; });
  return it != records[m].end() && all[*it].seq == seq ? &all[*it] : nullptr;
}

std::vector<Slots> make_slots(const Case& c) {
  std::vector<Slots> slots(c.groups.size());
  for (std::size_t g = 0; g < c.groups.size(); ++g) {
    slots[g].records.resize(c.groups[g].ranks.size());
  }
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    const RankEvidence& e = *c.ranks[i];
    std::vector<std::vector<std::size_t>*> of_row(e.groups.size(), nullptr);
    for (std::size_t row = 0; row < e.groups.size(); ++row) {
      if (const int g = c.group_of[i][row]; g >= 0) {
        const std::size_t group = static_cast<std::size_t>(g);
        const int m = c.groups[group].position.at(e.id.rank);
        of_row[row] = &slots[group].records[static_cast<std::size_t>(m)];
      }
    }
    for (std::size_t r = 0; r < e.records.size(); ++r) {
      const Record& record = e.records[r];
      if (record.kind == Kind::kCollective && record.group < of_row.size() &&
          of_row[record.group] != nullptr) {
        of_row[record.group]->push_back(r);
      }
    }
    for (auto* list : of_row) {
      if (list != nullptr) {
        std::stable_sort(list->begin(), list->end(), [&](std::size_t a, std::size_t b) {
          return e.records[a].seq < e.records[b].seq;
        });
      }
    }
  }
  return slots;
}

namespace {

// Number of elements that a member sends to, and expects from, each other member; empty when the
// record does not say. Counted in rows of the first dimension, as split sizes are.
struct Splits {
  std::vector<std::uint64_t> to, from;
};

Splits splits_of(const RankEvidence& e, const Record& r, std::size_t n) {
  Splits s;
  const Shape shape = parse_shape(e, r);
  if (!shape.known) {
    return s;
  }
  const auto rows = [](const TensorShape& t) { return t.dims.empty() ? 1 : t.dims[0]; };
  const auto fill = [&](const std::vector<TensorShape>& tensors,
                        const std::vector<std::uint64_t>& given, std::vector<std::uint64_t>& to) {
    if (given.size() == n) {
      to = given;
    } else if (tensors.size() == n && n > 1) {
      for (const TensorShape& t : tensors) {
        std::uint64_t numel = 1;
        for (const std::uint64_t d : t.dims) {
          numel *= d;
        }
        to.push_back(numel);
      }
    } else if (tensors.size() == 1 && given.empty() && rows(tensors[0]) % n == 0) {
      to.assign(n, rows(tensors[0]) / n);
    }
  };
  fill(shape.in, shape.in_splits, s.to);
  fill(shape.out, shape.out_splits, s.from);
  return s;
}

// Members whose all_to_all splits do not fit each other's: the one that is party to every
// disagreement, or all parties.
std::vector<int> all_to_all_misfits(const Case& c, const Group& g, const Slots& slots,
                                    std::uint64_t seq, std::string& words) {
  const std::size_t n = g.ranks.size();
  if (n > 512) {
    return {};
  }
  std::vector<Splits> splits(n);
  for (std::size_t m = 0; m < n; ++m) {
    if (const Record* r = slots.at(c, g, m, seq)) {
      splits[m] = splits_of(c.evidence_of(g.evidence[m]), *r, n);
    }
  }
  std::vector<int> quarrels(n, 0);
  int pairs = 0;
  for (std::size_t a = 0; a < n; ++a) {
    for (std::size_t b = 0; b < n; ++b) {
      if (a != b && splits[a].to.size() == n && splits[b].from.size() == n &&
          splits[a].to[b] != splits[b].from[a]) {
        if (pairs++ == 0) {
          words = fmt::format("rank {} sends {} rows to rank {}, which expects {}", g.ranks[a],
                              splits[a].to[b], g.ranks[b], splits[b].from[a]);
        }
        ++quarrels[a];
        ++quarrels[b];
      }
    }
  }
  std::vector<int> worst, all;
  for (std::size_t m = 0; m < n; ++m) {
    if (quarrels[m] > 0) {
      all.push_back(static_cast<int>(m));
      if (quarrels[m] == pairs) {
        worst.push_back(static_cast<int>(m));
      }
    }
  }
  return worst.size() == 1 ? worst : all;
}

bool completed(const Record& r) {
  return r.state == State::kCompleted || r.state == State::kReleased ||
         (r.state == State::kUnknown && (r.flags & kUntracked) != 0);
}

std::optional<Divergence> divergence_in(const Case& c, int group, const Slots& slots,
                                        std::uint64_t first, std::uint64_t last, bool past_too) {
  const Group& g = c.groups[static_cast<std::size_t>(group)];
  const std::size_t n = g.ranks.size();
  std::vector<std::size_t> cursor(n, 0);
  std::vector<int> having;
  std::vector<std::uint64_t> hashes(n);
  for (std::uint64_t seq = first; seq <= last; ++seq) {
    having.clear();
    bool differ = false, a2a = false;
    for (std::size_t m = 0; m < n; ++m) {
      const auto& list = slots.records[m];
      if (list.empty()) {
        continue;
      }
      const RankEvidence& e = c.evidence_of(g.evidence[m]);
      while (cursor[m] < list.size() && e.records[list[cursor[m]]].seq < seq) {
        ++cursor[m];
      }
      if (cursor[m] == list.size() || e.records[list[cursor[m]]].seq != seq) {
        continue;
      }
      const Record& r = e.records[list[cursor[m]]];
      hashes[m] = signature_hash(e, r);
      a2a = a2a || is_all_to_all(e.text(r.op));
      differ = differ ||
               (!having.empty() && hashes[static_cast<std::size_t>(having.front())] != hashes[m]);
      having.push_back(static_cast<int>(m));
    }
    if (having.size() < 2) {
      continue;
    }
    std::string pair_words;
    std::vector<int> misfits;
    if (!differ && a2a && having.size() == n) {
      misfits = all_to_all_misfits(c, g, slots, seq, pair_words);
    }
    if (!differ && misfits.empty()) {
      continue;
    }
    Divergence d;
    d.group = group;
    d.seq = seq;
    d.past = true;
    d.strict = true;
    d.incomplete_vote = having.size() < n;
    std::map<std::uint64_t, std::vector<int>> by_hash;
    for (const int m : having) {
      const std::size_t i = static_cast<std::size_t>(m);
      const RankEvidence& e = c.evidence_of(g.evidence[i]);
      const Record& r = *slots.at(c, g, i, seq);
      d.time = d.time == 0 || (r.time != 0 && r.time < d.time) ? r.time : d.time;
      d.strict = d.strict && is_strict(e.text(r.op));
      d.past = d.past && completed(r) && c.member(g, i)->completed > seq;
      const bool misfit = std::find(misfits.begin(), misfits.end(), m) != misfits.end();
      by_hash[misfits.empty() ? hashes[i] : static_cast<std::uint64_t>(misfit)].push_back(m);
    }
    if (d.past && !past_too) {
      continue;
    }
    for (auto& [hash, members] : by_hash) {
      d.classes.push_back(std::move(members));
    }
    if (!misfits.empty()) {
      d.words.push_back(pair_words);
      if (misfits.size() > 1) {  // both ends of a pair, nobody knows which
        d.classes.assign(1, {});
        for (const int m : misfits) {
          d.classes.push_back({m});
        }
        d.classes.erase(d.classes.begin());
        d.tie = true;
        return d;
      }
      std::sort(d.classes.begin(), d.classes.end(),
                [](const auto& a, const auto& b) { return a.size() > b.size(); });
      if (d.classes.size() == 2 && d.classes[0].size() == d.classes[1].size()) {
        d.tie = true;
      }
      return d;
    }
    std::sort(d.classes.begin(), d.classes.end(), [](const auto& a, const auto& b) {
      return a.size() != b.size() ? a.size() > b.size() : a.front() < b.front();
    });
    d.tie = d.classes[0].size() == d.classes[1].size();
    const auto fields = [&](int m) {
      return signature_fields(c.evidence_of(g.evidence[static_cast<std::size_t>(m)]),
                              *slots.at(c, g, static_cast<std::size_t>(m), seq));
    };
    const auto most = fields(d.classes[0].front());
    for (std::size_t k = 1; k < d.classes.size(); ++k) {
      for (const auto& [name, value] : fields(d.classes[k].front())) {
        for (const auto& [other_name, other_value] : most) {
          if (name == other_name && value != other_value) {
            d.words.push_back(fmt::format("{} {} instead of {}", name, value, other_value));
          }
        }
        if (name == "operation" && value != most.front().second) {
          break;  // another operation: its sizes are beside the point
        }
      }
    }
    return d;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Divergence> first_divergence(const Case& c, const std::vector<Slots>& slots) {
  std::optional<Divergence> best;
  for (const bool past_too : {false, true}) {
    for (std::size_t group = 0; group < c.groups.size(); ++group) {
      const Group& g = c.groups[group];
      // Slots that at least two members still hold.
      std::vector<std::uint64_t> firsts;
      std::uint64_t last = 0;
      for (std::size_t m = 0; m < g.ranks.size(); ++m) {
        if (const auto& list = slots[group].records[m]; !list.empty()) {
          const auto& records = c.evidence_of(g.evidence[m]).records;
          firsts.push_back(records[list.front()].seq);
          last = std::max(last, records[list.back()].seq);
        }
      }
      if (firsts.size() < 2) {
        continue;
      }
      std::nth_element(firsts.begin(), firsts.begin() + 1, firsts.end());
      const auto d =
          divergence_in(c, static_cast<int>(group), slots[group], firsts[1], last, past_too);
      if (d && (!best || d->time < best->time)) {
        best = d;
      }
    }
    if (best) {
      break;
    }
  }
  return best;
}

// ---------------------------------------------------------------- ends

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
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
}

std::string signal_text(int signal) {
  static const std::map<int, const char*> kNames = {
      {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"},   {SIGHUP, "SIGHUP"},   {SIGKILL, "SIGKILL"},
      {SIGSEGV, "SIGSEGV"}, {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},
      {SIGILL, "SIGILL"},   {SIGQUIT, "SIGQUIT"}, {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}};
  const auto it = kNames.find(signal);
  return it == kNames.end() ? fmt::format("signal {}", signal) : it->second;
}

void end_by_signal(End& end, int signal) {
  end.ended = true;
  end.terminated = asks_to_end(signal);
  end.why = "killed";
  end.text = "ended by " + signal_text(signal);
}

End end_from_peer(const PeerEvidence& p) {
  End end;
  end.time = p.exit_time;
  if (p.state == "exited_clean") {
    end.ended = end.clean = true;
    end.why = "left_early";
    end.text = "exited with status 0";
    if (!p.last_op.empty()) {
      end.text += " after " + p.last_op + (p.last_site.empty() ? "" : " at " + p.last_site);
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

// Latest word of the others about a rank; ends outrank "live".
const PeerEvidence* told_by_others(const Case& c, Rank rank, int own_pid) {
  const PeerEvidence* best = nullptr;
  Time best_time = 0;
  for (const RankEvidence* e : c.ranks) {
    if (e->id.rank == rank) {
      continue;
    }
    for (const PeerEvidence& p : e->peers) {
      if (p.rank != rank || (own_pid != 0 && p.pid != 0 && p.pid != own_pid)) {
        continue;
      }
      const bool ended = p.state != "live";
      const bool best_ended = best != nullptr && best->state != "live";
      if (best == nullptr || (ended && !best_ended) ||
          (ended == best_ended && e->written > best_time)) {
        best = &p;
        best_time = e->written;
      }
    }
  }
  return best;
}

End end_of(const Case& c, const RankEvidence& e) {
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
      end_by_signal(end, x.signal);
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
    if (const PeerEvidence* p = told_by_others(c, e.id.rank, e.id.pid);
        p != nullptr && p->state != "live") {
      end = end_from_peer(*p);
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
  std::vector<End> out;
  for (const RankEvidence* e : c.ranks) {
    out.push_back(end_of(c, *e));
  }
  return out;
}

std::vector<End> ends_of_missing(const Case& c) {
  std::vector<End> out;
  for (const Rank rank : c.missing) {
    const PeerEvidence* p = told_by_others(c, rank, 0);
    out.push_back(p != nullptr ? end_from_peer(*p) : End{});
  }
  return out;
}

bool seen_alive(const Case& c, Rank rank) {
  const PeerEvidence* p = told_by_others(c, rank, 0);
  return p != nullptr && p->state == "live";
}

// ---------------------------------------------------------------- waits

double Meeting::seconds() const {
  double longest = 0;
  for (const Wait& w : waits) {
    longest = std::max(longest, seconds_between(w.since, w.until));
  }
  return longest;
}

namespace {

// Everybody's waits, sorted into meetings.
std::vector<Meeting> meetings_of(const Case& c) {
  using Key = std::tuple<int, Kind, std::uint64_t, Rank, Rank>;
  std::map<Key, std::size_t> index;
  std::vector<Meeting> out;
  const auto add = [&](const Key& key, const Wait& w) {
    const auto [it, added] = index.try_emplace(key, out.size());
    if (added) {
      Meeting m;
      std::tie(m.group, m.kind, m.seq, m.from, m.to) = key;
      out.push_back(std::move(m));
    }
    out[it->second].waits.push_back(w);
  };
  for (std::size_t i = 0; i < c.ranks.size(); ++i) {
    const RankEvidence& e = *c.ranks[i];
    std::vector<std::uint64_t> found(e.groups.size(), 0);
    for (std::size_t r = 0; r < e.records.size(); ++r) {
      const Record& record = e.records[r];
      const bool failed = record.state == State::kFailed &&
                          (record.kind == Kind::kCollective || record.kind == Kind::kSend ||
                           record.kind == Kind::kRecv);
      if ((!blocks(record) && !failed) || record.group >= e.groups.size()) {
        continue;
      }
      const int group = c.group_of[i][record.group];
      if (group < 0) {
        continue;
      }
      const GroupEvidence& own = e.groups[record.group];
      if (failed && record.kind == Kind::kCollective && own.completed > record.seq) {
        continue;  // the job went on
      }
      ++found[record.group];
      Wait w;
      w.evidence = static_cast<int>(i);
      w.record = r;
      w.since =
          record.state == State::kWaiting && record.started != 0 ? record.started : record.time;
      w.until = failed && record.ended != 0 ? record.ended : e.written;
      w.failed = failed;
      w.own_error = failed && record.error != 0 && !is_consequence(e.text(record.error));
      if (record.kind == Kind::kCollective) {
        add({group, Kind::kCollective, record.seq, -1, -1}, w);
      } else {
        const Group& g = c.groups[static_cast<std::size_t>(group)];
        if (record.peer < 0 || record.peer >= static_cast<int>(g.ranks.size()) || !g.ranks_known) {
          continue;  // from anybody
        }
        const Rank peer = g.ranks[static_cast<std::size_t>(record.peer)];
        const bool send = record.kind == Kind::kSend;
        add({group, record.kind, record.seq, send ? e.id.rank : peer, send ? peer : e.id.rank}, w);
      }
    }
    // In flight by its counters, its record overwritten since.
    for (std::size_t row = 1; row < e.groups.size(); ++row) {
      const GroupEvidence& own = e.groups[row];
      const int group = c.group_of[i][row];
      if (group < 0 || found[row] != 0 || own.untracked != 0 || own.wait_only != 0 ||
          own.enqueued <= own.ended || own.overwritten == 0 || own.completed >= own.enqueued) {
        continue;
      }
      if (own.kept != 0 && own.completed + 1 >= own.first_kept) {
        continue;
      }
      Wait w;
      w.evidence = static_cast<int>(i);
      w.since = own.completed_time != 0 ? own.completed_time : own.enqueued_time;
      w.until = e.written;
      add({group, Kind::kCollective, own.completed + 1, -1, -1}, w);
    }
  }
  return out;
}

// How far a member got in what a meeting counts; nullopt when its evidence does not tell.
std::optional<std::uint64_t> frontier(const Case& c, const Meeting& m, const Group& g,
                                      std::size_t member) {
  const int evidence = g.evidence[member];
  if (evidence < 0) {
    return std::nullopt;
  }
  const RankEvidence& e = c.evidence_of(evidence);
  if (g.row[member] < 0) {
    return e.losses.groups_lost != 0 ? std::nullopt : std::optional<std::uint64_t>(0);
  }
  if (m.kind == Kind::kCollective) {
    return c.member(g, member)->enqueued;
  }
  const Rank other = m.from == g.ranks[member] ? m.to : m.from;
  const bool send = m.from == g.ranks[member];
  for (const LaneEvidence& lane : e.lanes) {
    if (static_cast<int>(lane.group) == g.row[member] && lane.send == send && lane.peer >= 0 &&
        lane.peer < static_cast<int>(g.ranks.size()) &&
        g.ranks[static_cast<std::size_t>(lane.peer)] == other) {
      return lane.enqueued;
    }
  }
  return e.losses.lanes_lost != 0 ? std::nullopt : std::optional<std::uint64_t>(0);
}

// Sets who came and who did not; false when the meeting is too young to mean anything.
bool fill(const Case& c, const std::vector<End>& ends, double threshold_s, Meeting& m) {
  const Group& g = c.groups[static_cast<std::size_t>(m.group)];
  Time until = 0;
  for (const Wait& w : m.waits) {
    m.since = m.since == 0 ? w.since : std::min(m.since, w.since);
    until = std::max(until, w.until);
  }
  std::set<int> waiting;
  bool failed = false;
  for (const Wait& w : m.waits) {
    waiting.insert(w.evidence);
    failed = failed || w.failed;
  }
  std::vector<std::size_t> members;
  if (m.kind == Kind::kCollective) {
    for (std::size_t i = 0; i < g.ranks.size(); ++i) {
      members.push_back(i);
    }
  } else {
    const Rank waiter = m.kind == Kind::kSend ? m.from : m.to;
    const Rank other = waiter == m.from ? m.to : m.from;
    members.push_back(static_cast<std::size_t>(g.position.at(other)));
  }
  const bool old_enough = seconds_between(m.since, until) >= threshold_s || failed;
  bool young = false;
  for (const std::size_t member : members) {
    const int evidence = g.evidence[member];
    if (evidence >= 0 && waiting.contains(evidence)) {
      continue;
    }
    const auto reached = frontier(c, m, g, member);
    if (!reached) {
      m.unknown.push_back(g.ranks[member]);
    } else if (*reached < m.seq) {
      const RankEvidence& e = c.evidence_of(evidence);
      const bool ended = ends[static_cast<std::size_t>(evidence)].ended;
      const Time seen = ended || failed || e.written == 0 ? until : std::min(until, e.written);
      if (seconds_between(m.since, seen) >= threshold_s || failed) {
        m.absent.push_back(evidence);
      } else if (old_enough) {
        m.too_old.push_back(evidence);
      } else {
        young = true;
      }
    }
  }
  m.complete = m.absent.empty() && m.unknown.empty() && m.too_old.empty() && !young;
  return old_enough &&
         (!m.absent.empty() || !m.unknown.empty() || !m.too_old.empty() || m.complete);
}

// Tarjan over ranks and meetings; iterative, the graph may be deep.
class Components {
 public:
  explicit Components(const std::vector<std::vector<int>>& edges)
      : edges_(edges), order_(edges.size(), -1), low_(edges.size()), component_(edges.size(), -1) {
    for (std::size_t v = 0; v < edges.size(); ++v) {
      if (order_[v] < 0) {
        visit(static_cast<int>(v));
      }
    }
  }
  int count() const { return count_; }
  int of(int v) const { return component_[static_cast<std::size_t>(v)]; }

 private:
  void visit(int root) {
    std::vector<std::pair<int, std::size_t>> path{{root, 0}};
    while (!path.empty()) {
      const int v = path.back().first;
      const std::size_t i = static_cast<std::size_t>(v);
      if (path.back().second == 0) {
        order_[i] = low_[i] = next_++;
        stack_.push_back(v);
      }
      if (path.back().second < edges_[i].size()) {
        const int w = edges_[i][path.back().second++];
        const std::size_t j = static_cast<std::size_t>(w);
        if (order_[j] < 0) {
          path.emplace_back(w, 0);
        } else if (component_[j] < 0) {
          low_[i] = std::min(low_[i], order_[j]);
        }
        continue;
      }
      if (low_[i] == order_[i]) {
        int w = -1;
        do {
          w = stack_.back();
          stack_.pop_back();
          component_[static_cast<std::size_t>(w)] = count_;
        } while (w != v);
        ++count_;
      }
      path.pop_back();
      if (!path.empty()) {
        const std::size_t parent = static_cast<std::size_t>(path.back().first);
        low_[parent] = std::min(low_[parent], low_[i]);
      }
    }
  }

  const std::vector<std::vector<int>>& edges_;
  std::vector<int> order_, low_, component_, stack_;
  int next_ = 0, count_ = 0;
};

}  // namespace

WaitGraph wait_graph(const Case& c, const std::vector<End>& ends, double threshold_s) {
  WaitGraph graph;
  graph.waits_in.resize(c.ranks.size());
  std::set<int> too_old;
  for (Meeting& m : meetings_of(c)) {
    if (!fill(c, ends, threshold_s, m)) {
      ++graph.fresh;
      continue;
    }
    too_old.insert(m.too_old.begin(), m.too_old.end());
    if (m.absent.empty() && m.unknown.empty() && !m.complete) {
      continue;
    }
    for (const Wait& w : m.waits) {
      graph.waits_in[static_cast<std::size_t>(w.evidence)].push_back(
          static_cast<int>(graph.meetings.size()));
    }
    graph.meetings.push_back(std::move(m));
  }
  graph.too_old.assign(too_old.begin(), too_old.end());

  // Vertices: evidence, ranks without evidence, meetings.
  std::map<Rank, int> unknown;
  for (const Meeting& m : graph.meetings) {
    for (const Rank r : m.unknown) {
      unknown.try_emplace(r, 0);
    }
  }
  const int n = static_cast<int>(c.ranks.size());
  int next = n;
  std::vector<Rank> unknown_rank;
  for (auto& [rank, vertex] : unknown) {
    vertex = next++;
    unknown_rank.push_back(rank);
  }
  const int first_meeting = next;
  std::vector<std::vector<int>> edges(static_cast<std::size_t>(first_meeting) +
                                      graph.meetings.size());
  std::vector<bool> reached(edges.size(), false);
  for (std::size_t k = 0; k < graph.meetings.size(); ++k) {
    const Meeting& m = graph.meetings[k];
    const std::size_t vertex = static_cast<std::size_t>(first_meeting) + k;
    reached[vertex] = true;
    for (const Wait& w : m.waits) {
      // One that left by itself waits no more; one that was ended from outside did until then.
      const End& end = ends[static_cast<std::size_t>(w.evidence)];
      if (!end.clean && (!end.primary() || end.why == "gone")) {
        edges[static_cast<std::size_t>(w.evidence)].push_back(static_cast<int>(vertex));
      }
      reached[static_cast<std::size_t>(w.evidence)] = true;
    }
    for (const int a : m.absent) {
      edges[vertex].push_back(a);
      reached[static_cast<std::size_t>(a)] = true;
    }
    // Those who certainly did not come explain the wait without those who may have come.
    if (m.absent.empty()) {
      for (const Rank r : m.unknown) {
        edges[vertex].push_back(unknown[r]);
        reached[static_cast<std::size_t>(unknown[r])] = true;
      }
    }
  }
  const Components components(edges);
  std::vector<bool> leaves(static_cast<std::size_t>(components.count()), true);
  std::vector<std::vector<int>> vertices(static_cast<std::size_t>(components.count()));
  for (std::size_t v = 0; v < edges.size(); ++v) {
    const int own = components.of(static_cast<int>(v));
    vertices[static_cast<std::size_t>(own)].push_back(static_cast<int>(v));
    for (const int w : edges[v]) {
      if (components.of(w) != own) {
        leaves[static_cast<std::size_t>(own)] = false;
      }
    }
  }
  for (std::size_t k = 0; k < vertices.size(); ++k) {
    if (!leaves[k] || !reached[static_cast<std::size_t>(vertices[k].front())]) {
      continue;
    }
    if (vertices[k].size() > 1) {
      std::vector<int> cycle;
      for (const int v : vertices[k]) {
        if (v < n) {
          cycle.push_back(v);
        }
      }
      graph.cycles.push_back(std::move(cycle));
    } else if (const int v = vertices[k].front(); v < n) {
      graph.sinks.push_back(v);
    } else if (v < first_meeting) {
      graph.unknown_sinks.push_back(unknown_rank[static_cast<std::size_t>(v - n)]);
    } else {
      graph.complete.push_back(v - first_meeting);
    }
  }
  std::sort(graph.sinks.begin(), graph.sinks.end());
  return graph;
}

}  // namespace frtrace
