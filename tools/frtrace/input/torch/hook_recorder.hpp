// hook_recorder.hpp - files of PyTorch's hook recorder (2.14 and newer), which records the backends
// that do not record themselves: nccl2, nccl-lazy, ucc, mpi, fake, plugins.
//
// Such a file differs from one of a native backend (nccl, gloo, xccl) in three points:
//   - An operation is never "started". It is "completed" only if the backend reports completions.
//   - PyTorch 2.14 marks an operation `retired` when it is issued: `retired` proves nothing.
//   - The numbers in pg_status are op ids, which count all operations of a group from 0,
//     recorded or not. They cannot be compared with collective_seq_id.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "input/torch/entry.hpp"
#include "input/torch/frontiers.hpp"

namespace frtrace::torch_dump {

// False for the backends that write their own entries. The answer for a prefix that is not known is
// true: the hook recorder writes the entries of every plugin that does not record itself.
bool is_recorded_by_hook(std::string_view backend);

// The entry is retired, and nothing in it says that the operation started or completed.
bool is_only_retired(const Entry&);

// A hook attached to a group with a recording backend writes each operation a second time, into the
// same ring (FlightRecorderHook.attach of 2.14 on gloo).
class HookDuplicates {
 public:
  // `entries`: all of the file. They are read on the first query for an entry of a hook.
  explicit HookDuplicates(std::span<const pickle::Value> entries) : entries_(entries) {}
  bool has(const Entry&, const Name&);

 private:
  std::span<const pickle::Value> entries_;
  std::optional<std::set<std::string, std::less<>>> native_;  // groups with a recording backend
};

// Whether the numbers in pg_status of this file are op ids. The file's content decides if it can,
// else the backends do. `enqueued_of(row)` returns last_enqueued_collective, -1 if the row has no
// status.
template <class EnqueuedOf>
bool counts_op_ids(const Progress&, const EnqueuedOf& enqueued_of);

// Marks each operation as untracked, with an unknown state, if the file cannot show its end.
// `reports_completions`: the file shows that the backend reports at least one completion.
void mark_unknown_ends(const Progress&, bool reports_completions, RankEvidence&);

// Operations of a group between its oldest and its newest entry that the file lacks: another
// backend of the group ran them, or a CUDA graph captured them.
std::uint64_t unrecorded_operations(const GroupState&);

template <class EnqueuedOf>
bool counts_op_ids(const Progress& p, const EnqueuedOf& enqueued_of) {
  bool by_hook = false;
  for (std::uint32_t row = 1; row < p.states.size(); ++row) {
    const GroupState& s = p.states[row];
    const std::int64_t enqueued = enqueued_of(row);
    if (s.gloo || s.collectives + s.p2p == 0 || enqueued < 0) {
      continue;
    }
    const auto n = static_cast<std::uint64_t>(enqueued);
    if (s.p2p == 0 && s.op_differs_from_seq && n == s.max_op && n != s.max_seq) {
      return true;
    }
    if (n == s.max_seq) {
      return false;
    }
    by_hook = by_hook || s.by_hook;
  }
  return by_hook;
}

}  // namespace frtrace::torch_dump
