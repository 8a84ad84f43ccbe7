// frontiers.hpp - how far each group and lane of a PyTorch dump got, by its entries and counters.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "input/pickle.hpp"
#include "model/rank_data.hpp"

namespace frtrace::torch_dump {

// The state of one group while its entries are read.
struct GroupState {
  std::optional<std::int64_t> pg_id;
  std::uint64_t max_seq = 0, max_p2p = 0;
  std::uint64_t first_seq = 0, last_seq = 0;  // of the collectives kept
  std::uint64_t collectives = 0, p2p = 0;
  bool gloo = false;
  bool in_config = false;
  std::size_t last_collective = SIZE_MAX;  // index of the record
  std::string_view last_op;
  std::int32_t own = -1;  // rank within the group, by its sends and receives
  std::map<std::pair<std::int32_t, bool>, std::size_t> lanes;  // (peer, send) -> e_.lanes
  std::vector<std::size_t> batch;                              // records of the last p2p_seq_id
  std::vector<std::vector<std::size_t>> open_batches;          // without an entry for the batch
  bool batches = false;                 // it has batches of sends and receives
  std::vector<std::size_t> open_units;  // the same for collectives
  std::uint64_t batch_seq = 0;
  std::uint64_t min_op = UINT64_MAX, max_op = 0;
  bool by_hook = false;              // the hook recorder wrote its entries (hook_recorder.hpp)
  bool op_differs_from_seq = false;  // some collective has an op id other than its number

  void add_op_id(std::uint64_t id) {
    min_op = std::min(min_op, id);
    max_op = std::max(max_op, id);
  }
};

// Results of reading the entries, besides the records.
struct Progress {
  std::vector<GroupState> states{1};      // by row
  const pickle::Value* status = nullptr;  // pg_status
  std::uint64_t first_id = 0, last_id = 0;
  bool torchcomms = false;  // it numbers all operations of a process from 0, and names no peers
  bool one_counter = true;  // numbers of collectives rise over all groups
  bool one_number = false;  // for collectives, and for sends and receives
  bool gaps = false, any_completed = false, any_stack = false;
  Time first_found = 0, last_found = 0;  // ends that the watchdog had not seen
  void found_ended(Time t) {
    first_found = first_found == 0 ? t : std::min(first_found, t);
    last_found = std::max(last_found, t);
  }
};

// Fills in frontiers, lanes and losses, and the states that follow from them.
void finish(Progress&, RankEvidence&);

// A member of a small dictionary: many references may lead to the same large one.
const pickle::Value* member(const pickle::Value& dict, std::string_view key);

}  // namespace frtrace::torch_dump
