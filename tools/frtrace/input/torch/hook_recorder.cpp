#include "input/torch/hook_recorder.hpp"

#include <algorithm>
#include <iterator>

namespace frtrace::torch_dump {

bool is_recorded_by_hook(std::string_view backend) {
  // nccl, gloo and xccl are PyTorch's; the others are vendors' copies of its NCCL backend.
  static constexpr std::string_view kNative[] = {"nccl", "nccl-legacy", "gloo", "xccl",
                                                 "hccl", "mccl",        "cncl"};
  return !backend.empty() && std::ranges::find(kNative, backend) == std::end(kNative);
}

namespace {

std::string_view group_name(const Entry& entry) {
  const auto pair = pickle::items(entry[kProcessGroup]);
  return pair.empty() ? std::string_view() : pair[0].text();
}

}  // namespace

bool HookDuplicates::has(const Entry& entry, const Name& name) {
  if (name.backend != "c10d") {  // later releases skip groups with recording backends
    return false;
  }
  if (!native_) {
    native_.emplace();
    EntryReader reader;
    Entry other;
    for (const pickle::Value& v : entries_) {
      if (reader.read(v, other) && !is_recorded_by_hook(parse_name(other[kName].text()).backend)) {
        native_->emplace(group_name(other));
      }
    }
  }
  return native_->contains(group_name(entry));
}

bool is_only_retired(const Entry& entry) {
  const std::string_view state = entry[kState].text();
  return truth(entry[kRetired]) && state != "completed" && state != "started" &&
         nanoseconds(entry[kStarted]) == 0 && nanoseconds(entry[kCompleted]) == 0;
}

void mark_unknown_ends(const Progress& p, bool reports_completions, RankEvidence& e) {
  for (Record& r : e.records) {
    if (!p.states[r.group].by_hook || r.state == State::kCompleted) {
      continue;
    }
    if (!reports_completions) {
      r.state = State::kUnknown;
      r.flags |= kUntracked;
    }
    if ((r.flags & kUntracked) != 0) {
      ++e.groups[r.group].untracked;
      e.holes.no_completions = true;
    }
  }
}

std::uint64_t unrecorded_operations(const GroupState& s) {
  const std::uint64_t kept = s.collectives + s.p2p;
  const std::uint64_t span = kept == 0 ? 0 : s.max_op - std::min(s.min_op, s.max_op) + 1;
  return span - std::min(span, kept);
}

}  // namespace frtrace::torch_dump
