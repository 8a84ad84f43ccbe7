// plan.hpp - what to read of an operator's arguments, worked out once from its schema.
#pragma once

#include <ATen/core/function_schema.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "fr/fr.h"

namespace {

constexpr int kMaxPlans = 64;

struct Plan {
  std::string name;  // fr's name, e.g. "all_reduce"
  int index = 0;
  int n_args = 0;
  uint16_t kind = FR_COLLECTIVE;
  uint16_t flags = 0;
  bool same_out = false;         // outputs look like the inputs
  bool has_tensors = true;       // barriers carry a placeholder
  bool has_same_output = false;  // all members have the same afterwards
  bool is_from_root = false;     // only the root's input counts
  bool gloo_wait_only = false;   // gloo's Work for it has no future
  // argument positions, -1 none
  int pg = -1, in = -1, out = -1, device = -1, peer = -1, reduce_op = -1, async_op = -1,
      timeout = -1, in_splits = -1, out_splits = -1;
  std::atomic<uint64_t> op_id{0};  // generation << 32 | string id
};

struct Naming {
  const char* torch;
  const char* fr;
};

constexpr Naming kNames[] = {
    {"allreduce_", "all_reduce"},
    {"allreduce_coalesced_", "all_reduce_coalesced"},
    {"broadcast_", "broadcast"},
    {"reduce_", "reduce"},
    {"allgather_", "all_gather"},
    {"_allgather_base_", "all_gather_into_tensor"},
    {"allgather_coalesced_", "all_gather_coalesced"},
    {"allgather_into_tensor_coalesced_", "all_gather_into_tensor_coalesced"},
    {"gather_", "gather"},
    {"scatter_", "scatter"},
    {"reduce_scatter_", "reduce_scatter"},
    {"_reduce_scatter_base_", "reduce_scatter_tensor"},
    {"reduce_scatter_tensor_coalesced_", "reduce_scatter_tensor_coalesced"},
    {"alltoall_", "all_to_all"},
    {"alltoall_base_", "all_to_all_single"},
    {"barrier", "barrier"},
    {"monitored_barrier_", "monitored_barrier"},
    {"send", "send"},
    {"recv_", "recv"},
    {"recv_any_source_", "recv"},
};

bool starts_with(const std::string& text, const char* prefix) {
  return text.rfind(prefix, 0) == 0;
}

std::string public_name(const std::string& op) {
  for (const Naming& n : kNames) {
    if (op == n.torch) {
      return n.fr;
    }
  }
  // An operator that is newer than this file: its own name without the underscores around it.
  const size_t first = op.find_first_not_of('_');
  const size_t last = op.find_last_not_of('_');
  return first == std::string::npos ? op : op.substr(first, last - first + 1);
}

// Fills the plan from the operator's schema; false when it takes no process group.
bool make_plan(const c10::FunctionSchema& schema, Plan& plan) {
  const std::string op = schema.operator_name().name.substr(std::strlen("c10d::"));
  plan.name = public_name(op);
  plan.n_args = static_cast<int>(schema.arguments().size());
  int tensors = -1;
  for (int i = 0; i < plan.n_args; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    const std::string& name = argument.name();
    if (name == "process_group") {
      plan.pg = i;
    } else if (name == "tensors" || name == "tensor") {
      tensors = i;
    } else if (starts_with(name, "output") && name.find("split") == std::string::npos) {
      plan.out = i;
    } else if (starts_with(name, "input") && name.find("split") == std::string::npos) {
      plan.in = i;
    } else if (name == "input_split_sizes") {
      plan.in_splits = i;
    } else if (name == "output_split_sizes") {
      plan.out_splits = i;
    } else if (name == "root_rank" || name == "dst" || name == "src") {
      plan.peer = i;
    } else if (name == "reduce_op") {
      plan.reduce_op = i;
    } else if (name == "async_op" || name == "asyncOp") {
      plan.async_op = i;
    } else if (name == "timeout") {
      plan.timeout = i;
    }
  }
  if (plan.pg < 0) {
    return false;
  }
  plan.device = tensors >= 0 ? tensors : plan.in >= 0 ? plan.in : plan.out;
  if (plan.name == "send") {
    plan.kind = FR_SEND;
    plan.in = tensors;
  } else if (plan.name == "recv") {
    plan.kind = FR_RECV;
    plan.out = tensors;
  } else if (plan.name == "barrier" || plan.name == "monitored_barrier") {
    plan.has_tensors = false;
  } else if (tensors >= 0) {
    plan.in = tensors;
    plan.same_out = true;
  }
  if (op.find("coalesced") != std::string::npos) {
    plan.flags |= FR_COALESCED;
  }
  plan.is_from_root = plan.name == "broadcast";
  plan.has_same_output = plan.is_from_root || starts_with(plan.name, "all_reduce") ||
                         starts_with(plan.name, "all_gather");
  plan.gloo_wait_only = plan.kind != FR_COLLECTIVE || starts_with(plan.name, "reduce_scatter");
  return true;
}

}  // namespace
