// dump.cpp - converts one dump of PyTorch's Flight Recorder to the model. The tests of load_torch
// list the layouts. They differ in their keys, so keys are looked up, and versions are rarely
// checked.
#include "input/torch/dump.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "fr/fr.h"
#include "input/files.hpp"
#include "input/json_tree.hpp"
#include "input/memory.hpp"
#include "input/pickle.hpp"
#include "input/torch/entry.hpp"
#include "input/torch/frontiers.hpp"
#include "input/torch/hook_recorder.hpp"
#include "input/torch/tables.hpp"

namespace frtrace {

using namespace torch_dump;

namespace {

using pickle::items;
using pickle::pairs;
using pickle::Type;
using pickle::Value;

constexpr std::size_t kMaxTensors = 0xfff, kMaxDims = 0xff;

class Reader {
 public:
  // `cut`: the newest entries are missing.
  Reader(const Value& root, std::size_t input_bytes, bool cut, RankEvidence& e)
      : root_(root), e_(e), tables_(64 * input_bytes + (std::size_t{1} << 20), e) {
    e_.holes.truncated = e_.holes.frontiers_at_least = cut;
  }

  bool read(std::string& why) {
    e_.strings.emplace_back();
    e_.stacks.emplace_back();
    e_.groups.emplace_back();
    e_.groups[0].used = true;
    Value entries = root_;
    if (root_.type == Type::kDict) {
      const Value* list = pickle::find(root_, "entries");
      const Value* config = pickle::find(root_, "pg_config");
      const Value* status = pickle::find(root_, "pg_status");
      if (list == nullptr && config == nullptr && status == nullptr) {
        why = "not recognised: no PyTorch Flight Recorder dump (no entries, no groups)";
        return false;
      }
      if (const Value* v = pickle::find(root_, "version")) {
        version(v->text());
      }
      entries = list != nullptr ? *list : Value{};
      if (list != nullptr && list->type != Type::kList && list->type != Type::kTuple) {
        why = "not recognised: no PyTorch Flight Recorder dump (its entries are no list)";
        return false;
      }
      if (config != nullptr) {
        groups(*config);
      }
      p_.status = status;
    } else if (root_.type == Type::kList || root_.type == Type::kTuple) {
      major_ = 0;
    } else {
      why = "not recognised: no PyTorch Flight Recorder dump";
      return false;
    }
    const auto all = items(entries);
    if (!all.empty()) {
      const bool ours = std::any_of(all.begin(), all.end(), [](const Value& v) {
        return member(v, "profiling_name") != nullptr ||
               (member(v, "pg_id") != nullptr && member(v, "state") != nullptr);
      });
      if (!ours) {
        why = "not recognised: no PyTorch Flight Recorder dump (its entries are none)";
        return false;
      }
    } else if (root_.type != Type::kDict) {
      why = "not recognised: an empty list";
      return false;
    }
    if (e_.holes.truncated && all.empty()) {
      return false;
    }
    e_.holes.truncated_at = e_.holes.truncated ? all.size() : 0;
    read_entries(all);
    if (p_.torchcomms && !comparable()) {
      why =
          "a dump of torchcomms that has lost entries: its numbers count all communicators of the "
          "process, so its operations cannot be compared";
      return false;
    }
    e_.stacks.edit().shrink_to_fit();
    e_.groups.shrink_to_fit();
    finish(p_, e_);
    return true;
  }

 private:
  void version(std::string_view text) {
    version_ = text.substr(0, 16);
    major_ = 0, minor_ = 0;
    const char* const end = version_.data() + version_.size();
    const auto parsed = std::from_chars(version_.data(), end, major_);
    if (parsed.ec == std::errc() && parsed.ptr < end && *parsed.ptr == '.') {
      std::from_chars(parsed.ptr + 1, end, minor_);
    }
  }
  // torchcomms describes communicators by their backend; PyTorch describes the first group as
  // default_pg.
  bool describes_backend(std::string_view backend) const {
    return e_.records.empty() && e_.groups.size() > 1 &&
           std::all_of(e_.groups.begin() + 1, e_.groups.end(),
                       [&](const GroupEvidence& g) { return e_.text(g.desc) == backend; });
  }

  // Whether numbers of torchcomms (hooks/fr/FlightRecorder.cpp, 2026-08) can be compared: the file
  // begins with the first entry, or has one communicator without sends and receives.
  bool comparable() const {
    std::size_t used = 0;
    std::uint64_t messages = 0;
    for (const GroupState& s : p_.states) {
      used += s.collectives != 0 ? 1 : 0;
      messages += s.p2p;
    }
    return (p_.first_id == 0 && !p_.gaps) || (used < 2 && messages == 0 && !p_.gaps);
  }

  bool older_than(int major, int minor) const {
    return std::pair(major_, minor_) < std::pair(major, minor);
  }

  // ------------------------------------------------------------ groups

  void groups(const Value& config) {
    const auto all = pairs(config);
    for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
      const Value& v = all[i + 1];
      const Value* ranks = v.type == Type::kDict ? member(v, "ranks") : &v;
      const Value* desc = member(v, "desc");
      const std::vector<Rank> list =
          ranks != nullptr ? members_of(*ranks, tables_) : std::vector<Rank>();
      const std::string_view name = all[i].text();
      if (name.empty() && list.empty()) {
        continue;  // an artefact of gloo, not a group
      }
      const std::uint32_t row = row_of(name, desc != nullptr ? desc->text() : std::string_view());
      GroupEvidence& g = e_.groups[row];
      p_.states[row].in_config = true;
      if (!list.empty()) {
        g.ranks = ranges(list);
        g.n_ranks = static_cast<std::int32_t>(list.size());
      }
    }
  }

  // A process may have several groups of one name, and pg_config has only the last. Groups with
  // another description are groups of their own.
  std::uint32_t row_of(std::string_view name, std::string_view desc) {
    if (last_row_ != 0 && name.data() == last_name_.data() && name.size() == last_name_.size() &&
        desc.data() == last_desc_.data()) {
      return last_row_;
    }
    const auto [it, added] = rows_.try_emplace(name, static_cast<std::uint32_t>(e_.groups.size()));
    std::uint32_t row = it->second;
    if (added) {
      add_group(tables_.intern(name));
    } else if (const GroupEvidence& first = e_.groups[row];
               p_.states[row].in_config && first.desc != 0 && !desc.empty() &&
               desc != "undefined" && e_.text(first.desc) != desc) {
      row = namesake(row, fmt::format("{} ({})", name, desc));
    }
    GroupEvidence& g = e_.groups[row];
    if (g.desc == 0 && desc != "undefined") {
      g.desc = tables_.intern(desc);
    }
    last_name_ = name;
    last_desc_ = desc;
    last_row_ = row;
    return row;
  }

  void add_group(Id name) {
    GroupEvidence g;
    g.used = true;
    g.name = name;
    e_.groups.push_back(std::move(g));
    p_.states.resize(e_.groups.size());
  }

  std::uint32_t namesake(std::uint32_t first, const std::string& name) {
    const auto [it, added] =
        namesakes_.try_emplace(name, static_cast<std::uint32_t>(e_.groups.size()));
    if (added) {
      add_group(tables_.intern_copy(name));
      e_.groups.back().ranks = e_.groups[first].ranks;
      e_.groups.back().n_ranks = e_.groups[first].n_ranks;
    }
    return it->second;
  }

  // ------------------------------------------------------------ one entry

  std::uint32_t group_of(const Entry& entry) {
    const Value& pg = entry[kProcessGroup];
    std::uint32_t row = 0;
    if (const auto pair = items(pg); !pair.empty()) {
      row = row_of(pair[0].text(), pair.size() > 1 ? pair[1].text() : std::string_view());
    } else if (pg.type == Type::kString) {
      row = row_of(pg.text(), {});
    } else {
      const std::int64_t id = number(entry[kPgId]);
      auto it = by_id_.find(id);
      if (it == by_id_.end()) {
        last_row_ = 0;
        it = by_id_.emplace(id, row_of(tables_.keep(fmt::format("{}", id)), {})).first;
      }
      row = it->second;
    }
    if (const auto id = to_int(entry[kPgId])) {
      p_.states[row].pg_id = *id;
    }
    return row;
  }

  // Appends the words of a list of tensors; returns the sum of their elements.
  std::uint64_t tensors(const Value& sizes, std::vector<std::uint32_t>& words, std::size_t& n) {
    std::uint64_t total = 0;
    for (const Value& tensor : items(sizes)) {
      const auto dims = items(tensor);
      if (dims.size() > kMaxDims || !tables_.step(1 + dims.size())) {
        break;
      }
      std::uint64_t numel = 1;
      words.push_back(static_cast<std::uint32_t>(dims.size()));
      for (const Value& d : dims) {
        const std::uint64_t dim = count_of(d);
        words.push_back(static_cast<std::uint32_t>(std::min<std::uint64_t>(dim, UINT32_MAX)));
        if (__builtin_mul_overflow(numel, dim, &numel)) {
          numel = UINT64_MAX >> 8;
        }
      }
      total = total > (UINT64_MAX >> 8) ? total : total + std::min(numel, UINT64_MAX >> 8);
      ++n;
    }
    return total;
  }

  void shape(const Entry& entry, std::string_view op, Record& r) {
    const bool a2a =
        op.find("to_all") != std::string_view::npos || op.find("toall") != std::string_view::npos;
    if (a2a && older_than(2, 4) && major_ != 0) {
      return;  // it has sizes of the first tensor only
    }
    words_.assign(1, 0);
    std::size_t n_in = 0, n_out = 0;
    r.in_numel = tensors(entry[kInSizes], words_, n_in);
    r.out_numel = tensors(entry[kOutSizes], words_, n_out);
    const auto in_splits = items(entry[kInSplits]), out_splits = items(entry[kOutSplits]);
    const bool splits = !in_splits.empty() || !out_splits.empty();
    // Without split sizes, an all_to_all of one tensor does not show how it is divided.
    if ((a2a && !splits && n_in <= 1) || n_in > kMaxTensors || n_out > kMaxTensors ||
        n_in + n_out == 0) {
      return;
    }
    words_[0] = static_cast<std::uint32_t>(n_in) | static_cast<std::uint32_t>(n_out) << 12;
    if (splits) {
      words_[0] |= FR_SHAPE_SPLITS;
      for (const auto& [list, sizes] :
           {std::pair(in_splits, &entry[kInSizes]), std::pair(out_splits, &entry[kOutSizes])}) {
        const std::uint64_t row = row_elements(*sizes);
        words_.push_back(static_cast<std::uint32_t>(list.size()));
        for (const Value& v : list) {
          if (!tables_.step()) {
            return;
          }
          words_.push_back(
              static_cast<std::uint32_t>(std::min<std::uint64_t>(count_of(v) / row, UINT32_MAX)));
        }
      }
    }
    tables_.keep_shape(words_, r);
  }

  // Elements in one row of the first dimension: recorded splits count elements, the model's count
  // rows.
  static std::uint64_t row_elements(const Value& sizes) {
    const auto all = items(sizes);
    if (all.size() != 1) {
      return 1;
    }
    std::uint64_t n = 1;
    const auto dims = items(all[0]);
    for (std::size_t i = 1; i < dims.size(); ++i) {
      n = std::clamp<std::uint64_t>(n * count_of(dims[i]), 1, UINT32_MAX);
    }
    return n;
  }

  void read_entries(std::span<const Value> all) {
    FileMemory::take(all.size() * sizeof(Record));
    e_.records.reserve(all.size());
    EntryReader reader;
    HookDuplicates duplicates(all);
    Entry entry;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!reader.read(all[i], entry) || entry[kState].type == Type::kNone || !tables_.step()) {
        ++e_.unreadable_rows;
        continue;
      }
      put_scattered_list_first(entry);
      const Name name = parse_name(entry[kName].text());
      note_id(entry, i);
      if (!duplicates.has(entry, name)) {
        one(entry, name);
      }
    }
    const auto earlier = [](const Record& a, const Record& b) { return a.ticket < b.ticket; };
    if (!std::is_sorted(e_.records.begin(), e_.records.end(), earlier)) {
      std::stable_sort(e_.records.begin(), e_.records.end(), earlier);
    }
  }

  // The record of an entry, as far as the entry alone determines it.
  Record record_of(const Entry& entry, const Name& name) {
    Record r;
    r.time = entry[kCreatedNs].type != Type::kNone ? nanoseconds(entry[kCreatedNs])
                                                   : nanoseconds(entry[kCreatedUs], 1000);
    r.op = tables_.intern(name.op);
    r.state = state_of(entry);
    r.started = nanoseconds(entry[kStarted]);
    r.ended = nanoseconds(entry[kCompleted]);
    r.timeout_ms =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(count_of(entry[kTimeout]), UINT32_MAX));
    if (const auto thread = to_int(entry[kThread])) {
      r.tid = static_cast<std::uint32_t>(static_cast<std::uint64_t>(*thread) >> 8);
    }
    r.stack = tables_.stack_of(entry[kFrames]);
    if (const auto types = items(entry[kInDtypes]); !types.empty()) {
      r.in_dtype = tables_.intern(types[0]);
    }
    if (const auto types = items(entry[kOutDtypes]); !types.empty()) {
      r.out_dtype = tables_.intern(types[0]);
    }
    return r;
  }

  void note_id(const Entry& entry, std::size_t index) {
    const std::uint64_t id =
        entry[kRecordId].type == Type::kNone ? index : count_of(entry[kRecordId]);
    if (index != 0 && id > p_.last_id + 1) {
      p_.gaps = true;
    }
    if (index == 0) {
      p_.first_id = id;
    }
    p_.last_id = id;
  }

  void one(const Entry& entry, const Name& name) {
    const std::uint32_t row = group_of(entry);
    GroupEvidence& g = e_.groups[row];
    GroupState& s = p_.states[row];
    if (g.backend == 0) {
      g.backend = tables_.intern(name.backend);
      s.gloo = name.backend == "gloo";
      p_.torchcomms = p_.torchcomms || describes_backend(name.backend);
      s.by_hook = !p_.torchcomms && is_recorded_by_hook(name.backend);
    }
    const bool p2p_batch =
        name.op == "coalesced" &&
        (truth(entry[kIsP2p]) ||
         (!s.batch.empty() && s.batch_seq == count_of(entry[kP2pSeq]) &&
          (s.last_collective == SIZE_MAX || s.batch.back() > s.last_collective)));

    Record r = record_of(entry, name);
    r.ticket = p_.last_id + 1;
    r.group = row;
    r.kind = p2p_batch ? Kind::kOther : name.kind;
    if (s.by_hook && is_only_retired(entry)) {
      r.state = State::kUnknown;
      r.flags |= kUntracked;
    }
    e_.newest = std::max({e_.newest, r.time, r.started, r.ended});
    if (r.state == State::kCompleted && entry[kRetired].type != Type::kNone &&
        !truth(entry[kRetired])) {
      p_.found_ended(r.ended);
    }
    p_.any_completed = p_.any_completed || r.state == State::kCompleted;
    p_.any_stack = p_.any_stack || r.stack != 0;
    const bool split = entry[kCollectiveSeq].type != Type::kNone;
    const std::uint64_t seq =
        count_of(split ? entry[kCollectiveSeq] : entry[kSeqId]) + (p_.torchcomms && split ? 1 : 0);
    s.max_p2p = std::max(s.max_p2p, count_of(entry[kP2pSeq]));
    if (entry[kOpId].type != Type::kNone) {
      const std::uint64_t op_id = count_of(entry[kOpId]);
      s.add_op_id(op_id);
      s.op_differs_from_seq =
          s.op_differs_from_seq || (name.kind == Kind::kCollective && op_id != seq);
    }
    p_.one_number = p_.one_number || !split;
    if (seq <= last_seq_of_all_ && split && name.kind == Kind::kCollective) {
      p_.one_counter = false;
    }
    last_seq_of_all_ = std::max(last_seq_of_all_, seq);

    if (p2p_batch) {
      // The members have no events of their own: they get the batch's state.
      for (const std::size_t member : s.batch) {
        Record& m = e_.records[member];
        m.state = r.state;
        m.started = r.started;
        m.ended = r.ended;
      }
      s.batch.clear();
      s.batches = true;
      s.max_seq = split ? std::max(s.max_seq, seq) : s.max_seq;
      return;
    }
    if (r.kind == Kind::kSend || r.kind == Kind::kRecv) {
      s.max_seq = split ? std::max(s.max_seq, seq) : s.max_seq;
      message(entry, name, r, s, count_of(split ? entry[kP2pSeq] : entry[kSeqId]));
      return;
    }
    // A collective. If a number appears twice, the later entry is another member of the batch, or
    // the batch.
    if (s.last_collective != SIZE_MAX && split && s.last_seq == seq) {
      merge(entry, name, r, s);
      return;
    }
    shape(entry, name.op, r);
    r.seq = seq;
    s.first_seq = s.collectives == 0 ? seq : std::min(s.first_seq, seq);
    s.last_seq = seq;
    s.max_seq = std::max(s.max_seq, seq);
    ++s.collectives;
    s.last_collective = e_.records.size();
    s.last_op = name.op;
    e_.records.push_back(r);
  }

  // A send or receive; `batch`: the number of its batch.
  void message(const Entry& entry, const Name& name, Record r, GroupState& s, std::uint64_t batch) {
    shape(entry, name.op, r);
    ++s.p2p;
    s.own = name.own >= 0 ? name.own : s.own;
    r.peer = name.peer;
    if (s.batch.empty() || s.batch_seq != batch) {
      if (!s.batch.empty()) {
        s.open_batches.push_back(std::move(s.batch));
      }
      s.batch.clear();
      s.batch_seq = batch;
    }
    s.batches = s.batches || !s.batch.empty();
    s.batch.push_back(e_.records.size());
    r.batch = batch_number(r.group, batch);
    if (r.peer >= 0) {
      const auto [it, added] =
          s.lanes.try_emplace({r.peer, r.kind == Kind::kSend}, e_.lanes.size());
      if (added) {
        LaneEvidence lane;
        lane.group = r.group;
        lane.peer = r.peer;
        lane.send = r.kind == Kind::kSend;
        e_.lanes.push_back(lane);
      }
      LaneEvidence& lane = e_.lanes[it->second];
      r.seq = ++lane.enqueued;
      lane.newest_number = batch;
    }
    e_.records.push_back(r);
  }

  // One number per batch, unique over all groups; the format counts per group.
  std::uint32_t batch_number(std::uint32_t row, std::uint64_t batch) {
    if (last_batch_ != std::pair(row, batch)) {
      last_batch_ = {row, batch};
      ++n_batches_;
    }
    return n_batches_;
  }

  void merge(const Entry& entry, const Name& name, const Record& r, GroupState& s) {
    Record& unit = e_.records[s.last_collective];
    if (name.combined) {
      unit.state = r.state;
      unit.started = r.started;
      unit.ended = r.ended;
      unit.op = name.op == "coalesced" ? batch_op(s.last_op) : r.op;
      std::erase(s.open_units, s.last_collective);
      return;
    }
    Record member = r;
    shape(entry, name.op, member);
    unit.in_numel += member.in_numel;
    unit.out_numel += member.out_numel;
    unit.shape_count = 0;  // several calls: only their sum is known
    unit.op = s.last_op == name.op ? batch_op(name.op) : unit.op;
    s.open_units.push_back(s.last_collective);
  }

  Id batch_op(std::string_view op) {
    return op.ends_with("coalesced") ? tables_.intern(op)
                                     : tables_.intern_copy(std::string(op) + "_coalesced");
  }

 public:
  std::string format(std::string_view container) const {
    return fmt::format("{} {} {}", p_.torchcomms ? "torchcomms" : "torch",
                       version_.empty() ? "unversioned" : version_, container);
  }

 private:
  const Value& root_;
  RankEvidence& e_;
  Progress p_;
  Tables tables_;
  std::string version_;
  int major_ = 0, minor_ = 0;
  std::unordered_map<std::string_view, std::uint32_t> rows_;
  std::unordered_map<std::string, std::uint32_t> namesakes_;
  std::unordered_map<std::int64_t, std::uint32_t> by_id_;
  std::string_view last_name_, last_desc_;
  std::uint32_t last_row_ = 0;
  std::vector<std::uint32_t> words_;
  std::uint64_t last_seq_of_all_ = 0;
  std::pair<std::uint32_t, std::uint64_t> last_batch_{UINT32_MAX, 0};
  std::uint32_t n_batches_ = 0;
};

std::unique_ptr<RankEvidence> read(const Value& root, std::size_t input_bytes, bool cut,
                                   std::string_view container, std::string& why) {
  auto e = std::make_unique<RankEvidence>();
  Reader reader(root, input_bytes, cut, *e);
  if (!reader.read(why)) {
    why = cut ? "truncated: no entry before the cut" : why;
    return nullptr;
  }
  if (cut) {
    count_kept(*e);
  }
  e->format = reader.format(container);
  e->id.recorder = e->format;
  e->records.shrink_to_fit();
  return e;
}

}  // namespace

std::unique_ptr<RankEvidence> load_torch_pickle(std::span<const unsigned char> bytes,
                                                std::string& why) {
  pickle::Arena arena;
  Value root;
  bool cut = false;
  if (!pickle::parse(bytes, arena, root, why, &cut) && !cut) {
    return nullptr;
  }
  return read(root, bytes.size(), cut, "pickle", why);
}

std::unique_ptr<RankEvidence> load_torch_json(std::span<const unsigned char> bytes,
                                              std::string& why) {
  pickle::Arena arena;
  Value root;
  bool cut = false;
  if (!parse_json(bytes, arena, root, why, cut) && !cut) {
    return nullptr;
  }
  return read(root, bytes.size(), cut, "json", why);
}

}  // namespace frtrace
