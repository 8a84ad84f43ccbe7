// builder.hpp - a job in a few lines: what each rank issued, how it ended, when it was dumped.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "model/case.hpp"
#include "model/rank_data.hpp"
#include "words/diagnose.hpp"

namespace frtest {

inline std::span<const unsigned char> bytes_of(std::string_view s) {
  return {reinterpret_cast<const unsigned char*>(s.data()), s.size()};
}

using namespace frtrace;

struct Op {
  std::string op = "all_reduce";
  std::uint32_t line = 10;
  std::uint64_t numel = 1024;
  std::string dtype = "Float";
  std::string reduce_op = "SUM";
  int peer = -1;
  Kind kind = Kind::kCollective;
  std::uint64_t out_numel = 0;  // 0: as numel
  std::string file = "/home/u/train.py";
  std::vector<std::uint32_t> shape = {};
  std::uint32_t caller = 0;  // line in main() that the user's function was called from; 0: none
};

class JobBuilder {
 public:
  explicit JobBuilder(int world, std::string job = "j") : world_(world) {
    for (int r = 0; r < world; ++r) {
      auto e = std::make_unique<RankEvidence>();
      e->file = job + ".r" + std::to_string(r) + ".fr";
      e->id.job = job;
      e->id.rank = r;
      e->id.local_rank = r;
      e->id.world_size = world;
      e->id.host = "n0";
      e->id.pid = 1000 + r;
      e->id.cwd = "/home/u";
      e->id.start = kStart;
      e->incident = 1;
      e->trigger = Trigger::kTimeout;
      e->strings.emplace_back();
      e->stacks.emplace_back();
      e->groups.emplace_back();  // the process itself
      e->groups[0].used = true;
      ranks_.push_back(std::move(e));
    }
    std::vector<Rank> all(static_cast<std::size_t>(world));
    std::iota(all.begin(), all.end(), 0);
    group("0", all, "default_pg");
  }

  static constexpr int kWorld = 0;

  int group(const std::string& name, const std::vector<Rank>& members, std::string desc = "") {
    const int id = static_cast<int>(rows_.size());
    rows_.emplace_back();
    members_.push_back(members);
    for (std::size_t m = 0; m < members.size(); ++m) {
      RankEvidence& e = rank(members[m]);
      GroupEvidence g;
      g.used = true;
      g.name = intern(e, name);
      g.desc = intern(e, desc);
      g.n_ranks = static_cast<int>(members.size());
      g.own_rank = static_cast<int>(m);
      for (const Rank r : members) {
        g.ranks.push_back({r, 1, 1});
      }
      rows_.back()[members[m]] = static_cast<std::uint32_t>(e.groups.size());
      e.groups.push_back(g);
    }
    return id;
  }

  RankEvidence& rank(Rank r) { return *ranks_[static_cast<std::size_t>(r)]; }
  GroupEvidence& row(Rank r, int g) {
    return rank(r).groups[rows_[static_cast<std::size_t>(g)].at(r)];
  }
  void advance(double seconds) { now_ += static_cast<Time>(seconds * 1e9); }
  Time now() const { return now_; }

  Record& issue(Rank r, int g, const Op& op, State state = State::kEnqueued) {
    RankEvidence& e = rank(r);
    const std::uint32_t row_index = g < 0 ? 0 : rows_[static_cast<std::size_t>(g)].at(r);
    GroupEvidence& own = e.groups[row_index];
    Record rec;
    rec.ticket = e.records.size();
    rec.time = now_;
    rec.group = row_index;
    rec.op = intern(e, op.op);
    rec.kind = op.kind;
    rec.peer = op.peer;
    rec.in_numel = op.numel;
    rec.out_numel = op.out_numel != 0 ? op.out_numel : op.numel;
    rec.in_dtype = rec.out_dtype = intern(e, op.dtype);
    rec.reduce_op = intern(e, op.reduce_op);
    rec.stack = stack(e, op);
    rec.state = state;
    if (!op.shape.empty()) {
      rec.shape_first = static_cast<std::uint32_t>(e.shape_words.size());
      rec.shape_count = static_cast<std::uint32_t>(op.shape.size());
      e.shape_words.edit().insert(e.shape_words.end(), op.shape.begin(), op.shape.end());
    }
    if (op.kind == Kind::kCollective) {
      rec.seq = ++own.enqueued;
      own.enqueued_time = now_;
      own.first_kept = own.kept == 0 ? rec.seq : own.first_kept;
      own.last_kept = rec.seq;
      ++own.kept;
    } else if (op.kind == Kind::kSend || op.kind == Kind::kRecv) {
      rec.seq = ++lane(e, row_index, op.peer, op.kind == Kind::kSend).enqueued;
    } else {
      rec.seq = ++own.lifecycle;
    }
    e.records.push_back(rec);
    if (state == State::kCompleted) {
      complete(r, g, e.records.size() - 1);
    }
    return e.records.back();
  }

  void complete(Rank r, int, std::size_t index) {
    RankEvidence& e = rank(r);
    Record& rec = e.records[index];
    GroupEvidence& own = e.groups[rec.group];
    rec.state = State::kCompleted;
    rec.ended = now_;
    if (rec.kind == Kind::kCollective) {
      own.completed = std::max(own.completed, rec.seq);
      own.completed_time = now_;
      ++own.ended;
    }
  }

  void fail(Rank r, int g, const Op& op, const std::string& error, double after = 0.01) {
    Record& rec = issue(r, g, op);
    rec.state = State::kFailed;
    rec.ended = now_ + static_cast<Time>(after * 1e9);
    rec.error = intern(rank(r), error);
    ++rank(r).groups[rec.group].failed;
    ++rank(r).groups[rec.group].ended;
  }

  // All members issue and finish it.
  void all(int g, const Op& op = {}) {
    for (const Rank r : members_[static_cast<std::size_t>(g)]) {
      issue(r, g, op, State::kCompleted);
    }
    advance(0.01);
  }
  void all(int times, int g, const Op& op) {
    for (int i = 0; i < times; ++i) {
      all(g, op);
    }
  }
  void some(const std::vector<Rank>& who, int g, const Op& op = {},
            State state = State::kEnqueued) {
    for (const Rank r : who) {
      issue(r, g, op, state);
    }
  }
  // Some of the rank's older records are overwritten.
  void forget(Rank r, std::size_t n) {
    RankEvidence& e = rank(r);
    for (std::size_t i = 0; i < n && !e.records.empty(); ++i) {
      GroupEvidence& own = e.groups[e.records.front().group];
      ++own.overwritten;
      if (own.kept > 0) {
        --own.kept;
        ++own.first_kept;
      }
      e.records.erase(e.records.begin());
    }
  }

  void exception(Rank r, const std::string& type, const std::string& message) {
    ExitEvidence& x = rank(r).exit;
    x.present = true;
    x.state = fr::kExiting;
    x.status = 1;
    x.kind = ExitBy::kException;
    x.type = type;
    x.message = message;
    x.time = now_;
  }
  void signal(Rank r, int number, int sender = 77) {
    ExitEvidence& x = rank(r).exit;
    x.present = true;
    x.state = fr::kSignalled;
    x.signal = number;
    x.kind = ExitBy::kSignal;
    x.sender_pid = sender;
    x.time = now_;
  }
  // The program has a handler of its own for it.
  void handled_signal(Rank r, int number, int sender = 77) {
    signal(r, number, sender);
    rank(r).exit.kind = ExitBy::kUnknown;
  }
  void exits(Rank r, int status) {
    ExitEvidence& x = rank(r).exit;
    x.present = true;
    x.state = fr::kExiting;
    x.status = status;
    x.time = now_;
  }
  void gone(Rank r) {
    rank(r).salvaged = true;
    rank(r).salvage = Salvage::kDead;
    rank(r).process_gone = true;
  }
  void lose_file(Rank r) { ranks_[static_cast<std::size_t>(r)].reset(); }

  // Everybody dumps now.
  void dump() {
    for (auto& e : ranks_) {
      if (e && e->written == 0) {
        e->written = now_;
      }
    }
  }

  std::vector<std::unique_ptr<RankEvidence>> take() {
    dump();
    std::vector<std::unique_ptr<RankEvidence>> out;
    for (auto& e : ranks_) {
      if (e) {
        out.push_back(std::move(e));
      }
    }
    return out;
  }
  Report diagnose() {
    const auto evidence = take();
    const std::vector<Case> cases = make_cases(evidence, {});
    return cases.size() == 1 ? frtrace::diagnose(cases[0]) : Report{};
  }

  static Id intern(RankEvidence& e, const std::string& s) {
    const auto it = std::find(e.strings.begin(), e.strings.end(), s);
    if (it != e.strings.end()) {
      return static_cast<Id>(it - e.strings.begin());
    }
    e.strings.push_back(s);
    return static_cast<Id>(e.strings.size() - 1);
  }

  static constexpr Time kStart = 1'700'000'000 * kSecond;

 private:
  static std::uint32_t stack(RankEvidence& e, const Op& op) {
    if (op.line == 0) {
      return 0;
    }
    const Id torch_file = intern(e, "/usr/lib/site-packages/torch/distributed/distributed_c10d.py");
    for (std::size_t k = 1; k < e.stacks.size(); ++k) {  // a recorder keeps equal stacks once
      const auto known = e.stacks[k];
      const auto is = [&](std::size_t depth, Id file, std::uint32_t line) {
        const Frame& f = e.frames[known[depth]];
        return f.file == file && f.line == line;
      };
      if (known.size() == (op.caller != 0 ? 3 : 2) && e.frames[known[0]].func == intern(e, op.op) &&
          is(1, intern(e, op.file), op.line) &&
          (op.caller == 0 || is(2, intern(e, op.file), op.caller))) {
        return static_cast<std::uint32_t>(k);
      }
    }
    e.frames.push_back({torch_file, intern(e, op.op), 2000});
    e.frames.push_back({intern(e, op.file), intern(e, "step"), op.line});
    const auto last = static_cast<std::uint32_t>(e.frames.size() - 1);
    if (op.caller != 0) {
      e.frames.push_back({intern(e, op.file), intern(e, "main"), op.caller});
      e.stacks.push_back({last - 1, last, last + 1});
    } else {
      e.stacks.push_back({last - 1, last});
    }
    return static_cast<std::uint32_t>(e.stacks.size() - 1);
  }
  static LaneEvidence& lane(RankEvidence& e, std::uint32_t row, int peer, bool send) {
    for (LaneEvidence& l : e.lanes) {
      if (l.group == row && l.peer == peer && l.send == send) {
        return l;
      }
    }
    LaneEvidence l;
    l.group = row;
    l.peer = peer;
    l.send = send;
    e.lanes.push_back(l);
    return e.lanes.back();
  }

  int world_;
  Time now_ = kStart + kSecond;
  std::vector<std::unique_ptr<RankEvidence>> ranks_;
  std::vector<std::map<Rank, std::uint32_t>> rows_;
  std::vector<std::vector<Rank>> members_;
};

// Has the report such a finding with these words?
inline bool has(const Report& r, const std::string& id, const std::string& part) {
  for (const Finding& f : r.findings) {
    if (f.id == id && f.text.find(part) != std::string::npos) {
      return true;
    }
  }
  return false;
}

// Whether this is among the evidence against the blamed ranks.
inline bool says(const Blamed& b, const std::string& part) {
  for (const std::string& line : b.evidence) {
    if (line.find(part) != std::string::npos) {
      return true;
    }
  }
  return false;
}

}  // namespace frtest
