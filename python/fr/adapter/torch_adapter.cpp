// torch_adapter.cpp - records every torch.distributed operation, whoever issues it.
//
// Compiled on the user's machine against the torch that is installed there (adapter.py), because
// the C++ interface of torch changes from version to version. It speaks fr's C ABI through a table
// of functions and never links libfr.
//
// All operations of c10d::ProcessGroup go through the dispatcher as operators of the namespace
// c10d. For each that takes a process group, a boxed kernel stands on BackendSelect: above the
// backends, below autograd and Python, empty for these operators, active in every thread, also
// under no_grad and inference_mode.
//
//     python, DDP's reducer, functional collectives...
//          |  dispatcher
//       Hook: fr_begin -> redispatch -> Work -> completion
//                                                |- future:    its callback, on the backend's
//                                                |             thread -> fr_end
//                                                |- wait-only: the Work is wrapped, wait() -> fr_end
//                                                |- device:    fr follows NCCL itself
//                                                `- untracked: its future completes at enqueue
//
// The GIL is not held here and never taken.

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/TensorImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <typeinfo>
#include <utility>
#include <vector>

#include "fr/fr.h"

namespace {

const fr_api* g_api = nullptr;

// Grows whenever a process group is made or destroyed: cached facts of a ProcessGroup* are stale.
std::atomic<uint32_t> g_epoch{1};

constexpr int kMaxPlans = 64;

// How the completion of an operation is observed.
enum Mode : uint8_t { kUnknown = 0, kFuture, kWaitOnly, kUntracked, kDevice };

// ---------------------------------------------------------------- what to read of an operator's
// arguments

struct Plan {
  std::string name;  // fr's name, e.g. "all_reduce"
  int index = 0;
  int n_args = 0;
  uint16_t kind = FR_COLLECTIVE;
  uint16_t flags = 0;
  bool same_out = false;        // outputs look like the inputs
  bool has_tensors = true;      // barriers carry a placeholder
  bool gloo_wait_only = false;  // gloo's Work for it has no future
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
  plan.gloo_wait_only = plan.kind != FR_COLLECTIVE || starts_with(plan.name, "reduce_scatter");
  return true;
}

// ---------------------------------------------------------------- process groups

struct GroupEntry {
  const c10d::ProcessGroup* pg = nullptr;
  uint32_t epoch = 0;
  uint32_t generation = 0;
  fr_group_t group = 0;
  uint32_t timeout_ms = 0;
  std::string name;
  // What the last Work of an operator turned out to be: [plan][0 cpu, 1 other device].
  std::array<std::array<std::atomic<uint8_t>, 2>, kMaxPlans> modes{};
};

constexpr size_t kGroupSlots = 1024;
std::atomic<GroupEntry*> g_groups[kGroupSlots];
std::mutex g_groups_lock;

size_t slot_of(const c10d::ProcessGroup* pg) {
  return (reinterpret_cast<uintptr_t>(pg) >> 4) * 0x9e3779b97f4a7c15ull >> 54;
}
static_assert(kGroupSlots == 1u << (64 - 54));

// Options of the group's default backend; null where it has none. May throw.
c10::intrusive_ptr<c10d::Backend::Options> options_of(const c10d::ProcessGroup& pg) {
  const auto backend = pg.getDefaultBackend();
  return backend ? backend->getBackendOptions() : nullptr;
}

// Registers a group that the Python hook has not seen.
fr_group_t register_group(const c10d::ProcessGroup& pg, const std::string& name) {
  std::vector<int32_t> ranks;
  std::string desc;
  std::string backend;
  try {
    desc = pg.getGroupDesc();
    backend = pg.getBackendName();
    if (const auto options = options_of(pg)) {
      for (const uint64_t rank : options->global_ranks_in_group) {
        ranks.push_back(static_cast<int32_t>(rank));
      }
    }
  } catch (...) {
    // a backend without options: the ranks stay unknown
  }
  if (ranks.size() != static_cast<size_t>(pg.getSize())) {
    ranks.clear();
  }
  if (ranks.empty() && desc == "default_pg") {
    for (int32_t rank = 0; rank < pg.getSize(); ++rank) {
      ranks.push_back(rank);
    }
  }
  fr_group_info info{};
  info.struct_bytes = sizeof info;
  info.n_ranks = pg.getSize();
  info.own_rank = pg.getRank();
  info.name = name.c_str();
  info.desc = desc.c_str();
  info.backend = backend.c_str();
  info.ranks = ranks.empty() ? nullptr : ranks.data();
  return g_api->group(&info);
}

__attribute__((cold, noinline)) GroupEntry* make_group(const c10d::ProcessGroup* pg,
                                                       uint32_t epoch) {
  auto entry = std::make_unique<GroupEntry>();
  entry->pg = pg;
  entry->epoch = epoch;
  entry->generation = g_api->generation();
  try {
    entry->name = pg->getGroupName();
  } catch (...) {
    // no backend yet
  }
  const std::lock_guard<std::mutex> guard(g_groups_lock);
  entry->group = g_api->group_find(entry->name.c_str());
  if (entry->group == 0) {
    entry->group = register_group(*pg, entry->name);
  }
  try {
    if (const auto options = options_of(*pg)) {
      entry->timeout_ms = static_cast<uint32_t>(options->timeout.count());
    }
  } catch (...) {
    // unknown
  }
  GroupEntry* made = entry.release();
  // The entry replaced may still be in another thread's hands: a few are leaked, as many
  // as groups end.
  g_groups[slot_of(pg)].store(made, std::memory_order_release);
  return made;
}

GroupEntry* group_of(const c10d::ProcessGroup* pg) {
  GroupEntry* entry = g_groups[slot_of(pg)].load(std::memory_order_acquire);
  const uint32_t epoch = g_epoch.load(std::memory_order_acquire);
  if (entry != nullptr && entry->pg == pg && entry->epoch == epoch &&
      entry->generation == g_api->generation()) {
    return entry;
  }
  return make_group(pg, epoch);
}

// ---------------------------------------------------------------- arguments

// A custom class inside an IValue, without touching reference counts; null for None.
template <class T>
T* borrowed(const c10::IValue& value) {
  if (!value.isObject()) {
    return nullptr;
  }
  const c10::IValue& capsule = value.toObjectRef().getSlot(0);
  if (!capsule.isCapsule()) {
    return nullptr;
  }
  auto* target =
      static_cast<c10::intrusive_ptr_target*>(const_cast<void*>(capsule.internalToPointer()));
  return static_cast<T*>(target);
}

class Shape {
 public:
  uint64_t numel = 0;  // of the tensors added since it was last cleared
  uint32_t count = 0;
  uint8_t dtype = 0;  // of the first of them

  // Adds a tensor, a list of tensors, a list of lists. False: nothing to record (meta
  // or fake tensors).
  bool add(const c10::IValue& value) {
    if (value.isTensor()) {
      const c10::TensorImpl* tensor = value.unsafeToTensorImpl();
      if (!tensor->key_set().has_backend(c10::BackendComponent::MetaBit)) {
        add(*tensor);
        return true;
      }
      return false;
    }
    if (value.isList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (!add(element)) {
          return false;
        }
      }
    }
    return true;
  }

  void splits(const c10::IValue& value) {
    const auto list = value.toListRef();
    put(list.size());
    for (const c10::IValue& n : list) {
      put(static_cast<uint64_t>(n.toInt()));
    }
  }

  void next_side() {
    numel = 0;
    count = 0;
    dtype = 0;
  }

  uint32_t finish(uint32_t n_in, uint32_t n_out, uint32_t flags) {
    words_[0] = (n_in < 0xfff ? n_in : 0xfff) | (n_out < 0xfff ? n_out : 0xfff) << 12 | flags |
                (cut_ ? static_cast<uint32_t>(FR_SHAPE_CUT) : 0u);
    return used_;
  }

  const uint32_t* words() const { return words_; }

 private:
  void add(const c10::TensorImpl& tensor) {
    const auto code =
        static_cast<uint8_t>(static_cast<int>(c10::typeMetaToScalarType(tensor.dtype())) + 1);
    if (count++ == 0) {
      dtype = code;
    }
    const c10::IntArrayRef sizes = tensor.sizes();
    numel += static_cast<uint64_t>(tensor.numel());
    if (cut_ || used_ + 1 + sizes.size() > FR_MAX_SHAPE_WORDS || sizes.size() > 255) {
      cut_ = true;
      return;
    }
    words_[used_++] = static_cast<uint32_t>(sizes.size()) | static_cast<uint32_t>(code) << 8;
    for (const int64_t dim : sizes) {
      words_[used_++] = clip(static_cast<uint64_t>(dim));
    }
  }

  void put(uint64_t value) {
    if (cut_ || used_ >= FR_MAX_SHAPE_WORDS) {
      cut_ = true;
      return;
    }
    words_[used_++] = clip(value);
  }

  static uint32_t clip(uint64_t value) {
    return value > 0xffffffffull ? 0xffffffffu : static_cast<uint32_t>(value);
  }

  uint32_t used_ = 1;
  bool cut_ = false;
  uint32_t words_[FR_MAX_SHAPE_WORDS];  // filled as far as used_
};

// First tensor of an argument, null when there is none.
const c10::TensorImpl* first_tensor(const c10::IValue& value) {
  if (value.isTensor()) {
    return value.unsafeToTensorImpl();
  }
  if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (const c10::TensorImpl* found = first_tensor(element)) {
        return found;
      }
    }
  }
  return nullptr;
}

// ---------------------------------------------------------------- errors

// Text of an exception without the cost and the length of a C++ backtrace, and without the GIL that
// the text of a Python exception needs.
std::string describe(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    const char* type = typeid(e).name();
    if (std::strstr(type, "error_already_set") != nullptr ||
        std::strstr(type, "python_error") != nullptr) {
      return "Python exception";
    }
    return e.what();
  } catch (...) {
    return "unknown C++ exception";
  }
}

void end_with_error(const fr_ticket& ticket, const std::exception_ptr& error) {
  std::string text;
  try {
    text = describe(error);
  } catch (...) {
    // out of memory
  }
  g_api->end(&ticket, FR_FAILED, text.c_str());
}

// ---------------------------------------------------------------- completion

// Stands in for a Work without a future: such an operation is only known to be over inside wait().
class WatchedWork final : public c10d::Work {
 public:
  WatchedWork(c10::intrusive_ptr<c10d::Work> inner, const fr_ticket& ticket)
      : Work(-1, inner->retrieveOpType()),
        inner_(std::move(inner)),
        ticket_(ticket),
        generation_(g_api->generation()) {}

  ~WatchedWork() override { end(FR_RELEASED, nullptr); }

  bool isCompleted() override {
    const bool completed = inner_->isCompleted();
    if (completed && !ended_.load(std::memory_order_relaxed)) {
      if (inner_->isSuccess()) {
        end(FR_OK, nullptr);
      } else {
        failed(inner_->exception());
      }
    }
    return completed;
  }

  bool wait(std::chrono::milliseconds timeout) override {
    // Not after a fork (the ticket is the parent's), nor where the record was not marked in time.
    const bool ours = (ticket_.flags & FR_WAIT_ONLY) != 0 && generation_ == g_api->generation() &&
                      !ended_.load(std::memory_order_relaxed);
    if (ours) {
      g_api->wait_begin(&ticket_);
    }
    bool completed = false;
    try {
      completed = inner_->wait(timeout);
    } catch (...) {
      failed(std::current_exception());
      if (ours) {
        g_api->wait_end(&ticket_);
      }
      throw;
    }
    if (completed) {
      end(FR_OK, nullptr);
    } else {
      end(FR_FAILED, "aborted");
    }
    if (ours) {
      g_api->wait_end(&ticket_);
    }
    return completed;
  }

  void abort() override {
    inner_->abort();
    end(FR_FAILED, "aborted");
  }

  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  int sourceRank() const override { return inner_->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner_->result(); }
  void synchronize() override { inner_->synchronize(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner_->getFuture(); }
  float getDuration() const override { return inner_->getDuration(); }
  uint64_t getSequencenumber() const override { return inner_->getSequencenumber(); }
#ifdef FR_WORK_HAS_getFutureResult
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override {
    return inner_->getFutureResult();
  }
#endif
#ifdef FR_WORK_HAS_blockCurrentStream
  void blockCurrentStream() override { inner_->blockCurrentStream(); }
#endif

 private:
  void end(int result, const char* message) noexcept {
    if (!ended_.exchange(true, std::memory_order_relaxed) && generation_ == g_api->generation()) {
      g_api->end(&ticket_, result, message);
    }
  }

  void failed(const std::exception_ptr& error) noexcept {
    if (!ended_.exchange(true, std::memory_order_relaxed) && generation_ == g_api->generation()) {
      if (error) {
        end_with_error(ticket_, error);
      } else {
        g_api->end(&ticket_, FR_FAILED, nullptr);
      }
    }
  }

  const c10::intrusive_ptr<c10d::Work> inner_;
  const fr_ticket ticket_;
  const uint32_t generation_;
  std::atomic<bool> ended_{false};
};

// How Works of a type complete. Learned from the first of each type, for a refused getFuture()
// throws, which costs microseconds.
struct WorkType {
  std::atomic<const std::type_info*> type{nullptr};
  std::atomic<uint8_t> mode{kUnknown};
};
std::array<WorkType, 64> g_work_types;
std::mutex g_work_types_lock;

__attribute__((cold, noinline)) Mode learn_work_type(const std::type_info& type, c10d::Work& work) {
  Mode mode = kWaitOnly;
  if (std::strstr(type.name(), "PyWork") != nullptr) {
    mode = kUntracked;  // Python code may inspect its own class: not to be wrapped
  } else {
    try {
      const c10::intrusive_ptr<c10::ivalue::Future> future = work.getFuture();
      if (future) {
        // A future that knows devices completes when the work is enqueued there.
        mode = future->devices().empty() ? kFuture : kUntracked;
      }
    } catch (...) {
      // no future
    }
  }
  const std::lock_guard<std::mutex> guard(g_work_types_lock);
  for (WorkType& row : g_work_types) {
    const std::type_info* known = row.type.load(std::memory_order_relaxed);
    if (known == &type) {
      break;
    }
    if (known == nullptr) {
      row.mode.store(mode, std::memory_order_relaxed);
      row.type.store(&type, std::memory_order_release);
      break;
    }
  }
  return mode;
}

Mode mode_of(c10d::Work& work) {
  const std::type_info& type = typeid(work);
  for (const WorkType& row : g_work_types) {
    const std::type_info* known = row.type.load(std::memory_order_acquire);
    if (known == &type) {
      return static_cast<Mode>(row.mode.load(std::memory_order_relaxed));
    }
    if (known == nullptr) {
      break;
    }
  }
  return learn_work_type(type, work);
}

// Before the first Work was seen the flags of the record must be chosen all the same.
__attribute__((cold, noinline)) Mode guess_mode(const Plan& plan, const c10d::ProcessGroup& pg,
                                                bool cpu, c10::DeviceType device) {
  std::string backend;
  try {
    backend = const_cast<c10d::ProcessGroup&>(pg).getBackend(device)->getBackendName();
  } catch (...) {
    // unknown
  }
  const bool gloo = backend.find("gloo") != std::string::npos;
  if (gloo && plan.gloo_wait_only) {
    return kWaitOnly;
  }
  if (!cpu && backend.find("nccl") != std::string::npos && g_api->nccl_active() != 0) {
    return kDevice;
  }
  return cpu || gloo ? kFuture : kUntracked;
}

// ---------------------------------------------------------------- the kernel

struct Issued {
  fr_ticket ticket{};
  uint16_t flags = 0;
  std::atomic<uint8_t>* mode = nullptr;  // where to keep what the Work turns out to be
};

uint32_t op_id(Plan& plan) {
  const uint64_t generation = g_api->generation();
  const uint64_t known = plan.op_id.load(std::memory_order_relaxed);
  if (known >> 32 == generation) {
    return static_cast<uint32_t>(known);
  }
  const uint32_t id = g_api->intern(plan.name.data(), plan.name.size());
  plan.op_id.store(generation << 32 | id, std::memory_order_relaxed);
  return id;
}

void issue(Plan& plan, const c10::IValue* args, Issued& issued) {
  const c10d::ProcessGroup* pg = borrowed<c10d::ProcessGroup>(args[plan.pg]);
  if (pg == nullptr) {
    return;
  }
  fr_op op;
  std::memset(&op, 0, sizeof op);
  Shape shape;
  if (plan.has_tensors) {
    uint32_t n_in = 0;
    uint32_t n_out = 0;
    uint32_t flags = 0;
    if (plan.in >= 0) {
      if (!shape.add(args[plan.in])) {
        return;
      }
      n_in = shape.count;
      op.in_numel = shape.numel;
      op.in_dtype = shape.dtype;
    }
    if (plan.same_out) {
      n_out = n_in;
      op.out_numel = op.in_numel;
      op.out_dtype = op.in_dtype;
      flags |= FR_SHAPE_SAME_OUT;
    } else if (plan.out >= 0) {
      shape.next_side();
      if (!shape.add(args[plan.out])) {
        return;
      }
      n_out = shape.count;
      op.out_numel = shape.numel;
      op.out_dtype = shape.dtype;
    }
    if (plan.in_splits >= 0 && plan.out_splits >= 0 &&
        (!args[plan.in_splits].toListRef().empty() || !args[plan.out_splits].toListRef().empty())) {
      shape.splits(args[plan.in_splits]);
      shape.splits(args[plan.out_splits]);
      flags |= FR_SHAPE_SPLITS;
    }
    op.n_shape = shape.finish(n_in, n_out, flags);
    op.shape = shape.words();
  }
  const c10::TensorImpl* tensor = plan.device >= 0 ? first_tensor(args[plan.device]) : nullptr;
  const c10::DeviceType device = tensor != nullptr ? tensor->device_type() : c10::DeviceType::CPU;
  if (device == c10::DeviceType::Meta) {
    return;
  }
  const bool cpu = device == c10::DeviceType::CPU;
  GroupEntry* group = group_of(pg);
  issued.mode = &group->modes[static_cast<size_t>(plan.index)][cpu ? 0 : 1];
  auto mode = static_cast<Mode>(issued.mode->load(std::memory_order_relaxed));
  if (mode == kUnknown) {
    mode = guess_mode(plan, *pg, cpu, device);
  }
  op.struct_bytes = sizeof op;
  op.group = group->group;
  op.op = op_id(plan);
  op.kind = plan.kind;
  op.flags = plan.flags;
  if (mode == kWaitOnly) {
    op.flags |= FR_WAIT_ONLY;
  } else if (mode == kUntracked) {
    op.flags |= FR_UNTRACKED;
  }
  if (plan.async_op >= 0 && args[plan.async_op].isBool() && args[plan.async_op].toBool()) {
    op.flags |= FR_ASYNC;
  }
  op.peer = plan.peer >= 0 ? static_cast<int32_t>(args[plan.peer].toInt()) : -1;
  if (plan.reduce_op >= 0) {
    if (const auto* reduce = borrowed<c10d::ReduceOp>(args[plan.reduce_op])) {
      op.reduce_op = static_cast<uint8_t>(reduce->op_ + 1);
    }
  }
  op.timeout_ms = group->timeout_ms;
  if (plan.timeout >= 0) {
    const int64_t timeout = args[plan.timeout].toInt();
    if (timeout > 0) {
      op.timeout_ms = static_cast<uint32_t>(timeout < 0xffffffffll ? timeout : 0xffffffffll);
    }
  }
  op.stack = FR_STACK_CAPTURE;
  issued.flags = op.flags;
  g_api->begin(&op, &issued.ticket);
}

// The operation was issued and returned; watch its Work. May replace the Work on the stack.
void watch(const Issued& issued, c10::IValue& returned) {
  c10d::Work* work = borrowed<c10d::Work>(returned);
  if (work == nullptr) {
    if ((issued.flags & FR_UNTRACKED) == 0) {
      g_api->end(&issued.ticket, FR_RELEASED, nullptr);
    }
    return;
  }
  const Mode mode = mode_of(*work);
  issued.mode->store(mode, std::memory_order_relaxed);
  if ((issued.flags & FR_UNTRACKED) != 0) {
    return;
  }
  if (mode == kFuture) {
    const fr_ticket ticket = issued.ticket;
    work->getFuture()->addCallback(
        [ticket](c10::ivalue::Future& future) {
          if (!future.hasError()) {
            g_api->end(&ticket, FR_OK, nullptr);
          } else {
            end_with_error(ticket, future.exception_ptr());
          }
        },
        /*uses_future=*/false);
  } else if (mode == kWaitOnly) {
    returned = c10::IValue(c10::static_intrusive_pointer_cast<c10d::Work>(
        c10::make_intrusive<WatchedWork>(returned.toCustomClass<c10d::Work>(), issued.ticket)));
  } else {
    g_api->end(&issued.ticket, FR_RELEASED, nullptr);  // was counted as tracked, the first time
  }
}

class Hook final : public c10::OperatorKernel {
 public:
  Hook(Plan* plan, bool returns_work) : plan_(plan), returns_work_(returns_work) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER,
                                                                 c10::DispatchKey::BackendSelect);
    Issued issued;
    if (g_api->enabled() != 0) {
      try {
        issue(*plan_, stack->data() + stack->size() - static_cast<size_t>(plan_->n_args), issued);
      } catch (...) {
        // Sizes that cannot be read, out of memory: the operation itself must go on.
      }
    }
    if (issued.ticket.ticket == 0) {
      op.redispatchBoxed(below, stack);
      return;
    }
    g_api->enter(&issued.ticket);
    try {
      op.redispatchBoxed(below, stack);
    } catch (...) {
      if (g_api->leave() == 0 && (issued.flags & FR_UNTRACKED) == 0) {
        end_with_error(issued.ticket, std::current_exception());
      }
      throw;
    }
    if (g_api->leave() != 0) {
      if (issued.mode != nullptr) {
        issued.mode->store(kDevice, std::memory_order_relaxed);
      }
      return;  // the device side reports its completion
    }
    if (!returns_work_) {
      if ((issued.flags & FR_UNTRACKED) == 0) {
        g_api->end(&issued.ticket, FR_OK, nullptr);
      }
      return;
    }
    try {
      watch(issued, stack->back());
    } catch (...) {
      // Not observed: the outcome stays unknown.
      if ((issued.flags & FR_UNTRACKED) == 0) {
        g_api->end(&issued.ticket, FR_RELEASED, nullptr);
      }
    }
  }

 private:
  Plan* plan_;
  bool returns_work_;
};

// ---------------------------------------------------------------- tensors in variables

#ifdef FR_TENSOR_LAYOUT
// Members as the compiler lays them out; only their places are taken.
struct Layout : c10::TensorImpl {
  static constexpr auto kSizes = &Layout::sizes_and_strides_;
  static constexpr auto kType = &Layout::data_type_;
  static constexpr auto kDevice = &Layout::device_opt_;
  bool symbolic() const { return has_symbolic_sizes_strides_; }
};

void name_dtype(c10::ScalarType type, char* out, size_t size) noexcept {
  static constexpr struct {
    c10::ScalarType type;
    const char* name;
  } kNames[] = {{c10::ScalarType::Byte, "uint8"},
                {c10::ScalarType::Char, "int8"},
                {c10::ScalarType::Short, "int16"},
                {c10::ScalarType::Int, "int32"},
                {c10::ScalarType::Long, "int64"},
                {c10::ScalarType::Half, "float16"},
                {c10::ScalarType::Float, "float32"},
                {c10::ScalarType::Double, "float64"},
                {c10::ScalarType::ComplexHalf, "complex32"},
                {c10::ScalarType::ComplexFloat, "complex64"},
                {c10::ScalarType::ComplexDouble, "complex128"}};
  for (const auto& n : kNames) {
    if (n.type == type) {
      std::snprintf(out, size, "%s", n.name);
      return;
    }
  }
  std::snprintf(out, size, "%s", c10::toString(type));
  for (char* c = out; *c != '\0'; ++c) {
    *c = *c >= 'A' && *c <= 'Z' ? static_cast<char>(*c + 32) : *c;
  }
}

const char* device_name(c10::DeviceType type) noexcept {
  switch (type) {
    case c10::DeviceType::CPU:
      return "cpu";
    case c10::DeviceType::CUDA:
      return "cuda";
    case c10::DeviceType::HIP:
      return "hip";
    case c10::DeviceType::XPU:
      return "xpu";
    case c10::DeviceType::MPS:
      return "mps";
    case c10::DeviceType::Meta:
      return "meta";
    default:
      return "device";
  }
}

// "tensor float32[4, 1024] cuda:0" of the TensorImpl at that address; 0 when it is none. Everything
// is copied by peek before it is looked at, nothing of the tensor is called.
size_t describe_tensor(uint64_t address, char* out, size_t size) noexcept {
  constexpr size_t kMaxDims = 16;
  alignas(Layout) unsigned char bytes[sizeof(Layout)];
  if (g_api->peek(address, bytes, sizeof bytes) != sizeof bytes) {
    return 0;
  }
  const auto& impl = *reinterpret_cast<const Layout*>(bytes);
  const auto& sizes = impl.*Layout::kSizes;
  const auto& type = impl.*Layout::kType;
  const auto& device = impl.*Layout::kDevice;
  if (!type.isScalarType() || sizes.size() > 64) {
    return 0;
  }
  const bool known = !impl.symbolic();
  const size_t shown = std::min(known ? sizes.size() : 0, kMaxDims);
  int64_t dims[kMaxDims];
  // Inline sizes lie in the copy, the others still where the tensor has them.
  const int64_t* at = sizes.sizes_data();
  if (reinterpret_cast<const unsigned char*>(at) >= bytes &&
      reinterpret_cast<const unsigned char*>(at + shown) <= bytes + sizeof bytes) {
    std::memcpy(dims, at, shown * sizeof *dims);
  } else if (g_api->peek(reinterpret_cast<uint64_t>(at), dims, shown * sizeof *dims) !=
             shown * sizeof *dims) {
    return 0;
  }
  char dtype[32];
  name_dtype(type.toScalarType(), dtype, sizeof dtype);
  size_t used = 0;
  const auto add = [&](int n) {
    used =
        n < 0 || used + static_cast<size_t>(n) >= size ? size - 1 : used + static_cast<size_t>(n);
  };
  add(std::snprintf(out, size, "tensor %s[", dtype));
  for (size_t i = 0; i < shown; ++i) {
    add(std::snprintf(out + used, size - used, i != 0 ? ", %lld" : "%lld",
                      static_cast<long long>(dims[i])));
  }
  add(std::snprintf(out + used, size - used, known && shown == sizes.size() ? "]" : "...]"));
  if (device.has_value()) {
    add(std::snprintf(out + used, size - used, " %s", device_name(device->type())));
    if (device->has_index()) {
      add(std::snprintf(out + used, size - used, ":%d", static_cast<int>(device->index())));
    }
  }
  return used;
}
#endif

// Never destroyed at exit: threads may still issue operations then.
torch::Library* g_library = nullptr;
std::array<std::unique_ptr<Plan>, kMaxPlans>* g_plans = nullptr;
int g_n_plans = 0;
std::string* g_message = nullptr;

}  // namespace

extern "C" {

// Installs the hooks. Returns NULL, or why it could not.
__attribute__((visibility("default"))) const char* fr_torch_install(const fr_api* api) {
  if (g_message == nullptr) {
    g_message = new std::string;
  }
  if (api == nullptr || api->struct_bytes < sizeof(fr_api)) {
    return "libfr is older than this adapter";
  }
  g_api = api;
  if (g_library != nullptr) {
    return nullptr;
  }
  try {
    if (g_plans == nullptr) {
      g_plans = new std::array<std::unique_ptr<Plan>, kMaxPlans>;
    }
    auto library = std::make_unique<torch::Library>(
        torch::Library::IMPL, "c10d", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
    g_n_plans = 0;
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
      if (!starts_with(name.name, "c10d::") || g_n_plans == kMaxPlans) {
        continue;
      }
      const auto handle = c10::Dispatcher::singleton().findOp(name);
      if (!handle.has_value() || !handle->hasSchema()) {
        continue;
      }
      auto plan = std::make_unique<Plan>();
      if (!make_plan(handle->schema(), *plan)) {
        continue;
      }
      plan->index = g_n_plans;
      Plan* kept = plan.get();
      // A plan of an earlier installation may still be in use by another thread.
      (*g_plans)[static_cast<size_t>(g_n_plans)].release();
      (*g_plans)[static_cast<size_t>(g_n_plans)] = std::move(plan);
      ++g_n_plans;
      const std::string op =
          name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
      library->impl(op.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Hook>(
                                    kept, !handle->schema().returns().empty())));
    }
    if (g_n_plans == 0) {
      return "this torch has no c10d operators";
    }
    g_library = library.release();
  } catch (const c10::Error& error) {
    *g_message = error.what_without_backtrace();
    return g_message->c_str();
  } catch (const std::exception& error) {
    *g_message = error.what();
    return g_message->c_str();
  }
  return nullptr;
}

// Number of operators hooked.
__attribute__((visibility("default"))) int fr_torch_hooked() {
  return g_n_plans;
}

// What reads a tensor in a hung frame; NULL where this torch's layout is another.
__attribute__((visibility("default"))) size_t (*fr_torch_tensor_reader())(uint64_t, char*, size_t) {
#ifdef FR_TENSOR_LAYOUT
  return &describe_tensor;
#else
  return nullptr;
#endif
}

// A process group was made or destroyed.
__attribute__((visibility("default"))) void fr_torch_groups_changed() {
  g_epoch.fetch_add(1, std::memory_order_acq_rel);
}

__attribute__((visibility("default"))) void fr_torch_uninstall() {
  delete g_library;
  g_library = nullptr;
}

}  // extern "C"
