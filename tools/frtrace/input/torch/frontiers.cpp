// frontiers.cpp - how far a rank got, from one PyTorch dump.
#include "input/torch/frontiers.hpp"

#include <algorithm>
#include <charconv>

#include "input/torch/entry.hpp"
#include "input/torch/hook_recorder.hpp"

namespace frtrace::torch_dump {

using pickle::pairs;
using pickle::Value;

const Value* member(const Value& dict, std::string_view key) {
  constexpr std::size_t kMaxKeys = 128;
  return pairs(dict).size() <= 2 * kMaxKeys ? pickle::find(dict, key) : nullptr;
}

namespace {

class Frontiers {
 public:
  Frontiers(Progress& p, RankEvidence& e) : p_(p), e_(e) {}

  void finish() {
    // The first entry of a cut file may be the rank's first; its frontier is unknown.
    const bool from_the_start =
        !e_.records.empty() && p_.first_id == 0 && !p_.gaps && e_.unreadable_rows == 0;
    e_.holes.only_active = !p_.any_completed && !e_.records.empty() && (p_.first_id > 0 || p_.gaps);
    e_.holes.no_stacks = !p_.any_stack;
    e_.holes.no_status = p_.status == nullptr;
    e_.id.n_records = e_.records.empty() ? 0 : p_.last_id + 1;
    // A group gets a counter with its first operation: without counters, there were no operations.
    const bool issued_none = e_.records.empty() && e_.unreadable_rows == 0 && !e_.holes.truncated &&
                             p_.status != nullptr && pairs(*p_.status).empty();
    const std::map<std::uint32_t, Status> status = statuses();
    // Then missing operations are overwritten, not left out as completed.
    const auto none_done = [](const auto& s) { return s.second.none_completed(); };
    e_.holes.only_active &= status.empty() || !std::ranges::all_of(status, none_done);
    const bool op_ids = counts_op_ids(p_, [&](std::uint32_t row) {
      const auto it = status.find(row);
      return it == status.end() ? -1 : it->second.enqueued;
    });
    find_unknown_ends(status);
    const auto used = std::count_if(p_.states.begin(), p_.states.end(),
                                    [](const GroupState& s) { return s.collectives != 0; });
    // torchcomms numbers the collectives of a process across groups.
    if (from_the_start && (p_.torchcomms || p_.one_number || (p_.one_counter && used > 1))) {
      number_apart();
    }
    if (e_.holes.only_active) {
      close_batches(status);
    } else if (e_.holes.truncated) {
      leave_cut_batch_open();
    }
    std::vector<std::uint64_t> active(e_.groups.size(), 0);  // lowest seq in flight
    std::vector<std::uint64_t> done(e_.groups.size(), 0);    // highest seq completed
    for (const Record& r : e_.records) {
      if (r.kind != Kind::kCollective) {
        continue;
      }
      if (r.state == State::kCompleted) {
        done[r.group] = std::max(done[r.group], r.seq);
      } else if ((r.flags & kUntracked) == 0 && (active[r.group] == 0 || r.seq < active[r.group])) {
        active[r.group] = r.seq;
      }
    }
    for (std::uint32_t row = 1; row < e_.groups.size(); ++row) {
      GroupEvidence& g = e_.groups[row];
      const GroupState& s = p_.states[row];
      g.own_rank = s.own;
      g.enqueued = s.max_seq;
      g.kept = s.collectives;
      g.first_kept = s.first_seq;
      g.last_kept = s.last_seq;
      g.completed = s.gloo && active[row] != 0 ? active[row] - 1 : done[row];
      const auto it = status.find(row);
      const bool none_completed = it != status.end() && !s.gloo && it->second.none_completed();
      if (active[row] != 0 && g.completed == 0 && !none_completed) {
        g.completed = active[row] - 1;
      }
      // Sends and receives carry the number of the group's last collective. If the file no longer
      // has that collective, it is older than they are, and over.
      if (active[row] == 0 && s.p2p != 0 && !none_completed && g.untracked == 0 &&
          (e_.holes.only_active || s.collectives == 0)) {
        g.completed = g.enqueued;
      }
      // gloo's status counts operations of both kinds; NCCL's number may be that of a send.
      const bool has_status =
          it != status.end() && !s.gloo && !op_ids && s.max_p2p == 0 && s.p2p == 0;
      if (op_ids && !e_.holes.only_active && !p_.gaps) {
        e_.holes.unrecorded += unrecorded_operations(s);
      }
      if (has_status) {
        const auto unsign = [](std::int64_t v) {
          return static_cast<std::uint64_t>(std::max<std::int64_t>(v, 0));
        };
        g.enqueued = std::max(g.enqueued, unsign(it->second.enqueued));
        // Operations in flight may be overwritten: the first record kept does not prove which ones
        // ended.
        g.completed = it->second.completed > 0 ? done[row] : g.completed;
        g.completed = std::max(g.completed, std::min(unsign(it->second.completed), g.enqueued));
        g.started = std::min(unsign(it->second.started), g.enqueued);
        // Without entries nothing is in flight: the counters were not updated.
        if (e_.records.empty() && e_.unreadable_rows == 0 && !e_.holes.truncated) {
          g.completed = g.enqueued;
        }
      }
      if (s.collectives == 0 && s.p2p == 0 && !has_status && !from_the_start && !all_counted_ &&
          !issued_none) {
        g.used = false;  // only its name is known: its frontier is lost
        e_.losses.groups_lost = 1;
        continue;
      }
      g.overwritten = g.enqueued - std::min(g.enqueued, s.collectives);
      e_.losses.overwritten += e_.holes.only_active ? 0 : g.overwritten;
      g.p2p_enqueued = s.p2p;
      e_.holes.no_p2p = e_.holes.no_p2p || (s.gloo && s.max_op > s.max_seq && !p_.torchcomms) ||
                        (p_.torchcomms && s.p2p != 0);
    }
    date();
    records_done(done);
    lanes(from_the_start);
    if (!e_.groups.empty()) {
      e_.id.world_size = world();
    }
  }

 private:
  struct Status {
    std::int64_t enqueued = -1, started = -1, completed = -1;
    bool counts_completed = false;
    // PyTorch begins at -1.
    bool none_completed() const { return counts_completed && enqueued > 0 && completed < 0; }
  };

  // A file with operations in flight only leaves out completed ones: its backend reports
  // completions.
  void find_unknown_ends(const std::map<std::uint32_t, Status>& status) {
    const bool counted =
        std::ranges::any_of(status, [](const auto& s) { return s.second.completed >= 0; });
    mark_unknown_ends(p_, p_.any_completed || counted || e_.holes.only_active, e_);
  }

  // pg_status, by row. Its keys count the groups of the process. Entries show which key is which
  // group; for the remaining ones, the order of creation does if it is unambiguous.
  std::map<std::uint32_t, Status> statuses() {
    std::map<std::uint32_t, Status> out;
    if (p_.status == nullptr) {
      return out;
    }
    std::map<std::int64_t, Status> by_id;
    bool ended = true;
    const auto all = pairs(*p_.status);
    for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
      const auto id = to_int(all[i]);
      if (!id) {
        continue;
      }
      Status s;
      const auto get = [&](const char* key, std::int64_t& to) {
        if (const Value* v = member(all[i + 1], key)) {
          to = number(*v, -1);
        }
      };
      get("last_enqueued_collective", s.enqueued);
      get("last_started_collective", s.started);
      get("last_completed_collective", s.completed);
      s.counts_completed = member(all[i + 1], "last_completed_collective") != nullptr;
      by_id.emplace(*id, s);
      ended = ended && s.enqueued > 0 && s.completed == s.enqueued;
    }
    std::vector<std::uint32_t> open;
    const bool counts = !by_id.empty();
    for (std::uint32_t row = 1; row < p_.states.size(); ++row) {
      const GroupState& g = p_.states[row];
      const auto it = g.pg_id ? by_id.find(*g.pg_id) : by_id.end();
      if (it != by_id.end()) {
        out.emplace(row, it->second);
        by_id.erase(it);
      } else if (g.in_config && !g.pg_id) {
        open.push_back(row);
      }
    }
    // A group gets a counter with its first operation.
    all_counted_ = counts && by_id.empty();
    e_.holes.only_active |= counts && e_.records.empty() && ended;
    // The names of groups are numbers in the order of creation.
    std::vector<std::pair<std::int64_t, std::uint32_t>> named;
    for (const std::uint32_t row : open) {
      std::int64_t n = 0;
      const std::string_view name = e_.text(e_.groups[row].name);
      const auto parsed = std::from_chars(name.data(), name.data() + name.size(), n);
      if (parsed.ec != std::errc() || parsed.ptr != name.data() + name.size()) {
        return out;
      }
      named.emplace_back(n, row);
    }
    if (named.size() != by_id.size()) {
      return out;
    }
    std::sort(named.begin(), named.end());
    std::size_t k = 0;
    for (const auto& [id, s] : by_id) {
      out.emplace(named[k++].second, s);
    }
    return out;
  }

  // Layouts with one seq_id count sends and collectives together, and ranks differ in their sends.
  void number_apart() {
    for (GroupState& s : p_.states) {
      s.max_seq = s.first_seq = s.last_seq = s.collectives = 0;
    }
    for (Record& r : e_.records) {
      if (r.kind == Kind::kCollective) {
        GroupState& s = p_.states[r.group];
        r.seq = ++s.collectives;
        s.first_seq = 1;
        s.max_seq = s.last_seq = r.seq;
      }
    }
  }

  // Members of a batch never complete by themselves. If completed entries are left out, the members
  // of a completed batch stay, and the entry of the batch leaves a gap in the numbers. A single
  // entry is a member only in a group with batches, and only before such a gap. The newest batch
  // may be incomplete, unless the status has its number or that of a later collective.
  void close_batches(const std::map<std::uint32_t, Status>& status) {
    const auto is_over = [&](const GroupState& s, const std::vector<std::size_t>& batch) {
      const std::size_t next = batch.back() + 1;
      const bool gap =
          next < e_.records.size() && e_.records[next].ticket > e_.records[batch.back()].ticket + 1;
      return batch.size() > 1 || (gap && s.batches);
    };
    for (std::uint32_t row = 0; row < p_.states.size(); ++row) {
      GroupState& s = p_.states[row];
      const std::size_t newest = e_.records.size() - 1;
      const auto it = status.find(row);
      const auto batch_seq = static_cast<std::int64_t>(s.batch_seq);
      const bool enqueued = it != status.end() && it->second.enqueued <= batch_seq &&
                            it->second.enqueued + 1 != batch_seq &&
                            it->second.enqueued != static_cast<std::int64_t>(s.max_seq);
      // A completed single operation would have been left out: this one is a member of a batch.
      if (enqueued && it->second.completed == it->second.enqueued) {
        s.batches = s.batches || !s.batch.empty();
        for (const std::size_t member : s.batch) {
          e_.records[member].state = State::kCompleted;
        }
      }
      if (!s.batch.empty() && (s.batch.back() != newest || enqueued)) {
        s.open_batches.push_back(std::move(s.batch));
      }
      for (const auto& batch : s.open_batches) {
        for (const std::size_t member : batch) {
          State& state = e_.records[member].state;
          state = is_over(s, batch) ? State::kCompleted : state;
        }
      }
      for (const std::size_t unit : s.open_units) {
        if (unit != newest) {
          e_.records[unit].state = State::kCompleted;
        }
      }
    }
  }

  // A file cut inside a batch lacks the states of its members.
  void leave_cut_batch_open() {
    for (std::uint32_t row = 0; row < p_.states.size(); ++row) {
      const GroupState& s = p_.states[row];
      if (!s.batches || s.batch.empty() || s.batch.back() + 1 != e_.records.size()) {
        continue;
      }
      for (const std::size_t member : s.batch) {
        e_.records[member].state = State::kUnknown;
        e_.records[member].flags |= kUntracked;
      }
      e_.groups[row].untracked += s.batch.size();
    }
  }

  // The writer of a file checks operations that the watchdog has not retired. The ends that it
  // finds all have the time of that check, not of the operations' ends.
  void date() {
    constexpr Time kTakes = kSecond / 10;
    if (p_.last_found == 0 || p_.last_found < e_.newest ||
        p_.last_found > p_.first_found + kTakes) {
      return;
    }
    e_.looked = p_.last_found;
    for (Record& r : e_.records) {
      r.ended = r.ended >= p_.first_found ? 0 : r.ended;
    }
  }

  void records_done(const std::vector<std::uint64_t>& done) {
    for (Record& r : e_.records) {
      if (r.kind != Kind::kCollective) {
        continue;
      }
      GroupEvidence& g = e_.groups[r.group];
      // Collectives of one device communicator end in order; the CPU observes them late.
      if (!p_.states[r.group].gloo && (r.flags & kUntracked) == 0 && r.state != State::kCompleted &&
          r.seq < done[r.group]) {
        r.state = State::kCompleted;
      }
      if (r.seq <= g.completed && !p_.states[r.group].gloo && (r.flags & kUntracked) == 0) {
        r.state = State::kCompleted;
      }
      if (r.state == State::kCompleted || r.state == State::kStarted) {
        g.started = std::max(g.started, r.seq);
        g.started_time = std::max(g.started_time, r.started);
      }
      g.enqueued_time = std::max(g.enqueued_time, r.time);
      if (r.state == State::kCompleted) {
        g.completed_time = std::max(g.completed_time, r.ended);
      }
      if (g.created == 0) {
        g.created = r.time;
      }
    }
    for (GroupEvidence& g : e_.groups) {
      if (g.enqueued_time == 0 && g.enqueued != 0) {
        g.enqueued_time = e_.newest;  // known from counters only: no better time exists
      }
      g.ended = g.completed;
      g.started = std::max(g.started, g.completed);
    }
  }

  void lanes(bool from_the_start) {
    for (LaneEvidence& lane : e_.lanes) {
      lane.relative = !from_the_start;
      e_.holes.relative_p2p = e_.holes.relative_p2p || lane.relative;
    }
    for (Record& r : e_.records) {
      if ((r.kind != Kind::kSend && r.kind != Kind::kRecv) || r.peer < 0) {
        continue;
      }
      LaneEvidence& lane = e_.lanes[p_.states[r.group].lanes.at({r.peer, r.kind == Kind::kSend})];
      lane.enqueued_time = std::max(lane.enqueued_time, r.time);
      if (r.state == State::kCompleted || r.state == State::kStarted) {
        ++lane.started;
      }
      if (r.state == State::kCompleted) {
        ++lane.completed;
        ++lane.ended;
        lane.completed_time = std::max(lane.completed_time, r.ended);
        ++e_.groups[r.group].p2p_ended;
      }
    }
    if (!from_the_start) {
      e_.losses.lanes_lost = 1;  // an unseen lane may have been used before
    }
  }

  int world() const {
    std::int64_t world = 0;
    for (const GroupEvidence& g : e_.groups) {
      for (const RankRange& r : g.ranks) {
        world = std::max<std::int64_t>(
            world, std::max<std::int64_t>(
                       r.first, r.first + std::int64_t{r.stride} * (std::int64_t{r.count} - 1)) +
                       1);
      }
    }
    return static_cast<int>(world);
  }

  Progress& p_;
  RankEvidence& e_;
  bool all_counted_ = false;  // each counter belongs to a group with entries
};

}  // namespace

void finish(Progress& p, RankEvidence& e) {
  Frontiers(p, e).finish();
}

}  // namespace frtrace::torch_dump
